"""Accuracy of the tournaments of ppt.py against the comparisons that they cost: simulated, or on recorded tables.

    python -m analysis.tournaments --tasks 50 --tested 50 --sizes 4 8 --out runs/tournaments     seconds, a look
    python -m analysis.tournaments                                                               minutes, one core
    python -m analysis.tournaments --judge judge.json --out experiments/tournaments_critic       a measured judge
    python -m analysis.tournaments --tables tables.jsonl --sizes 8 16 --tested_size 16 --out ... recorded tables
    python -m analysis.tournaments --tables tables.jsonl --fit judge.json                        measure that judge

A task is n candidates, each right or wrong, and the judge's answer to every ordered pair: a table. A judge asked the same
question again gives the same answer, as at temperature 0. Several candidates may be right; a tournament is right where
its pick is. Everything about a task comes from (seed, task id), so all tournaments see the same tables, and the n
candidates of a task are the first n of its 64.

The simulated judge's log-odds that a, shown first, beats b are
    separation * (right_a - right_b) + candidate_noise * (e_a - e_b) + pair_noise * e_ab + position_bias
with standard normal e, cut to [-limit, limit] where limit is not null. A task's share of right candidates is drawn from
Beta(accuracy_a, accuracy_b). --judge gives these as JSON (the fields of PLACEHOLDERS["critic"]); without it that
placeholder is used, which is a guess and no measurement.

Recorded tables are JSON lines {"task": .., "correct": [true, ..], "p": [[null, 0.7, ..], ..]}: p[a][b] with a shown first,
null where the judge abstained.

Writes rows.jsonl (one row a point: each task's outcome; computed again only where code, judge or tasks changed),
results.json, table.md, tournaments.png, and summary.json, whose entry experiments/headline.json takes with --claim.
"""

import argparse
import hashlib
import json
import math
import sys
from multiprocessing import Pool
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from tqdm import tqdm

import ppt
from analysis.coupling import exact_interval
from analysis.headline import write_summary

LARGEST = 64  # candidates that are drawn for every task
PLACEHOLDERS = {  # guesses, until a recorded critic replaces them: pairs of right and wrong are judged 78% and 77% right
    "critic": {
        "source": "placeholder guess, not measured", "accuracy_a": 1.0, "accuracy_b": 1.5, "separation": 2.0,
        "candidate_noise": 1.5, "pair_noise": 1.5, "position_bias": 0.5, "limit": None,
    },
    "verifier": {
        "source": "placeholder guess, not measured", "accuracy_a": 1.0, "accuracy_b": 1.5, "separation": 0.3,
        "candidate_noise": 0.25, "pair_noise": 0.2, "position_bias": 0.05, "limit": 1.0,
    },
}  # fmt: skip
TESTED = ["adaptive", "pivot 2", "swiss as pivot 2", "pivot 1", "knockout, both orders"]  # on --tested tasks, one size
DUELS = [("adaptive", "pivot 2"), ("pivot 2", "swiss as pivot 2"), ("pivot 1", "knockout, both orders")]
MARGIN, RATIO = 1.0, 0.7  # adaptive is to lose less than 1 point to pivot 2, with at most 0.7 of its comparisons

# --- Tournaments --------------------------------------------------------------------------------------------------


def method(tournament, **arguments):
    """(n, table, correct, seed) -> (pick, comparisons) of a tournament of ppt.py; arguments may depend on n."""

    def play(n, table, correct, seed):
        given = {name: value(n) if callable(value) else value for name, value in arguments.items()}
        ranking = tournament(n, lambda a, b: table[a][b], seed=seed, **given)
        return ranking.best, len(ranking.comparisons)

    return play


def knockout_both_orders(n, table, correct, seed):
    """Each match is asked in both orders and decided by their mean: two comparisons a match."""

    def compare(a, b):
        first, second = table[a][b], table[b][a]
        return None if first is None or second is None else (first + 1 - second) / 2

    ranking = ppt.knockout(n, compare, seed=seed)
    return ranking.best, 2 * len(ranking.comparisons)


def random_pick(n, table, correct, seed):
    return ppt.knockout(n, lambda a, b: None, seed=seed).best, 0  # nobody wins: who is drawn first


def any_right(n, table, correct, seed):
    return correct.index(max(correct)), 0


METHODS = {
    "random": random_pick,
    "knockout": method(ppt.knockout),
    "knockout, both orders": knockout_both_orders,
    "adaptive": method(ppt.adaptive),
    **{f"pivot {k}": method(ppt.pivot_tournament, pivots=k) for k in range(1, 6)},
    **{f"swiss {k}N": method(ppt.swiss, budget=lambda n, k=k: k * n) for k in range(1, 4)},
    "swiss as pivot 2": method(ppt.swiss, budget=lambda n: 3 * n - 3 if n > 1 else 0),  # n + 2(n - 2) + 1
    "round robin": method(ppt.round_robin),
    "any right": any_right,
}
STYLES = {  # family -> (colour, marker); the first word of a method
    "random": ("tab:gray", "x"), "knockout": ("tab:orange", "v"), "adaptive": ("tab:red", "*"),
    "pivot": ("tab:blue", "o"), "swiss": ("tab:green", "s"), "round": ("tab:purple", "D"),
}  # fmt: skip

# --- Tasks --------------------------------------------------------------------------------------------------------


def simulate(judge, seed, task, size):
    """(correct, table) of the first `size` candidates of a simulated task."""
    rng = np.random.default_rng([seed, task])
    correct = rng.random(LARGEST) < rng.beta(judge["accuracy_a"], judge["accuracy_b"])  # (64,)
    strength = judge["separation"] * correct + judge["candidate_noise"] * rng.standard_normal(LARGEST)  # (64,)
    odds = strength[:, None] - strength + judge["pair_noise"] * rng.standard_normal((LARGEST, LARGEST))  # (64, 64)
    odds = (odds + judge["position_bias"])[:size, :size]
    if judge["limit"] is not None:
        odds = odds.clip(-judge["limit"], judge["limit"])
    return correct[:size].tolist(), (1 / (1 + np.exp(-odds))).tolist()


def read_judge(path):
    """A judge's parameters; raises ValueError where a field is missing or unknown."""
    judge = json.loads(Path(path).read_text(encoding="utf-8"))
    if set(judge) != set(PLACEHOLDERS["critic"]):
        raise ValueError(f"{path}: fields {sorted(judge)}, expected {sorted(PLACEHOLDERS['critic'])}")
    return judge


def read_tables(path):
    """Recorded tasks; raises ValueError naming the line of one that is not square or holds no probabilities."""
    tasks = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        row = json.loads(line)
        correct, table, n = row["correct"], row["p"], len(row["correct"])
        if n == 0 or len(table) != n or any(len(other) != n for other in table):
            raise ValueError(f"{path}:{number}: p must be {n} x {n}, as correct has {n} entries")
        cells = [table[a][b] for a in range(n) for b in range(n) if a != b]
        if not all(p is None or 0 <= p <= 1 for p in cells):
            raise ValueError(f"{path}:{number}: p must lie in [0, 1], or be null for an abstention")
        tasks.append({"task": row["task"], "correct": [bool(c) for c in correct], "p": table})
    return tasks


def fit(tasks, limit=6.0):
    """The simulated judge nearest to recorded tables, by moments of the log-odds (cut to +-limit).

    Bias is the mean over ordered pairs; strengths are half the difference of a candidate's row and column means;
    separation is the mean difference of strengths, right minus wrong, within a task; candidate_noise is what is left of
    the strengths' variance, pair_noise that of the pairs. Beta by the mean and variance of the share of right ones, less
    the variance that n draws have by themselves. Raises ValueError where no task holds right and wrong candidates.
    """
    biases, gaps, spreads, errors = [], [], [], []
    shares, noises = [np.mean(task["correct"]) for task in tasks], [1 / len(task["correct"]) for task in tasks]
    for task in tasks:
        right, n = np.array(task["correct"]), len(task["correct"])
        chances = np.array(task["p"], float).clip(1e-12, 1 - 1e-12)  # (n, n), nan for an abstention
        odds = np.log(chances / (1 - chances)).clip(-limit, limit)  # (n, n)
        np.fill_diagonal(odds, np.nan)
        if n < 3 or right.all() or not right.any() or np.isnan(odds).sum() > n:
            continue
        biases.append(np.nanmean(odds))
        strength = (np.nansum(odds, 1) - np.nansum(odds, 0)) / (2 * n)  # (n,), least squares, sums to 0
        left = odds - biases[-1] - (strength[:, None] - strength)  # (n, n)
        errors.append(np.nansum(left**2) / (n * (n - 1) - n))
        gaps.append(strength[right].mean() - strength[~right].mean())
        within = sum(strength[group].var() * group.sum() for group in (right, ~right)) / (n - 2)
        spreads.append(within - errors[-1] / (2 * n))
    if not gaps:
        raise ValueError("no complete table holds both right and wrong candidates")
    mean, unit = float(np.mean(shares)), float(np.mean(noises))
    spread = (float(np.var(shares)) / (mean * (1 - mean)) - unit) / (1 - unit)  # 1 / (a + b + 1)
    total = 1 / min(max(spread, 1e-3), 0.99) - 1
    return {
        "source": f"{len(gaps)} recorded tables of {len(tasks)}", "accuracy_a": mean * total,
        "accuracy_b": (1 - mean) * total, "separation": float(np.mean(gaps)),
        "candidate_noise": math.sqrt(max(float(np.mean(spreads)), 0.0)), "pair_noise": math.sqrt(float(np.mean(errors))),
        "position_bias": float(np.mean(biases)), "limit": limit,
    }  # fmt: skip


# --- Points -------------------------------------------------------------------------------------------------------


def play(job):
    """(1 where the pick is right, comparisons) of one method on one task."""
    judge, recorded, seed, name, size, task = job
    if recorded is None:
        correct, table = simulate(judge, seed, task, size)
    else:
        correct, table = recorded["correct"][:size], recorded["p"]
    pick, comparisons = METHODS[name](size, table, correct, f"{seed} {task}")
    return int(correct[pick]), comparisons


def read_rows(path):
    """Finished points; a last line that a kill cut short is dropped, from the file too."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    return [json.loads(line) for line in whole.splitlines()]


def compute(points, jobs_of, key, path, processes):
    """{(size, method): row} of all points, from the file where it has them."""
    done = {(r["size"], r["method"], r["tasks"]): r for r in read_rows(path) if r["key"] == key}
    with Pool(processes) as pool, path.open("a", encoding="utf-8") as file:
        for point in tqdm(points, desc="points", disable=not sys.stderr.isatty()):
            if point in done:
                continue
            size, name, tasks = point
            outcomes = pool.map(play, jobs_of(size, name, tasks), chunksize=50)
            counts = [count for _, count in outcomes]
            done[point] = {
                "key": key, "size": size, "method": name, "tasks": tasks, "right": "".join(str(hit) for hit, _ in outcomes),
                "comparisons": counts[0] if len(set(counts)) == 1 else counts,
            }  # fmt: skip
            file.write(json.dumps(done[point]) + "\n")
            file.flush()
    return {point[:2]: done[point] for point in points}


def arrays(row):
    """Right or not (0, 1) and comparisons of each task, both of shape (T,)."""
    return np.array([int(hit) for hit in row["right"]]), np.broadcast_to(row["comparisons"], len(row["right"]))


def summarise(row):
    """Accuracy with its exact 95% interval, and the comparisons spent on a task."""
    hits, counts = arrays(row)
    low, high = exact_interval(hits.mean(), len(hits))
    return {
        "size": row["size"], "method": row["method"], "tasks": len(hits), "accuracy": float(hits.mean()), "low": low,
        "high": high, "comparisons": float(counts.mean()), "most_comparisons": int(counts.max()),
    }  # fmt: skip


def duel(row, other):
    """Paired difference of accuracy, row minus other, in points, and the ratio of comparisons; 95% intervals.

    >>> same = {"size": 4, "method": "m", "right": "0110", "comparisons": 3}
    >>> duel(same, same)["points"], duel(same, same)["ratio"]
    (0.0, 1.0)
    """
    n = min(len(row["right"]), len(other["right"]))
    (hits, counts), (base_hits, base_counts) = [[values[:n] for values in arrays(r)] for r in (row, other)]
    points, ratios = 100.0 * (hits - base_hits), counts / base_counts.mean()  # (T,), (T,)
    found = {"size": row["size"], "method": row["method"], "against": other["method"], "tasks": n}
    for name, low, high, values in [("points", "low", "high", points), ("ratio", "ratio_low", "ratio_high", ratios)]:
        mean, width = float(values.mean()), 1.96 * float(values.std()) / math.sqrt(n)
        found |= {name: mean, low: mean - width, high: mean + width}
    return found


# --- Output -------------------------------------------------------------------------------------------------------


def table_lines(results):
    """The results as Markdown: what was played, duels, one row a method with a column a size."""
    summaries = {(s["size"], s["method"]): s for s in results["points"]}
    sizes = sorted({size for size, _ in summaries})
    lines = [f"Judge: {results['judge']['source']}. Seed {results['seed']}. Accuracy of the pick in %, its 95% interval, "
             "mean comparisons.", "", "| Tournament | " + " | ".join(f"N = {size}" for size in sizes) + " |",
             "|---|" + "---|" * len(sizes)]  # fmt: skip
    for name in METHODS:
        at = [summaries[size, name] for size in sizes]
        percents = [[f"{100 * s[field]:.1f}" for field in ("accuracy", "low", "high")] for s in at]
        cells = [f"{p} [{low}, {high}], {s['comparisons']:.1f}" for s, (p, low, high) in zip(at, percents)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "| Paired, same tasks | N | Tasks | Points | Ratio of comparisons |", "|---|---|---|---|---|"]
    for d in results["duels"]:
        lines.append(
            f"| {d['method']} minus {d['against']} | {d['size']} | {d['tasks']} | {d['points']:+.2f} [{d['low']:+.2f}, "
            f"{d['high']:+.2f}] | {d['ratio']:.3f} [{d['ratio_low']:.3f}, {d['ratio_high']:.3f}] |"
        )
    return lines + ["", *results["verdicts"]]


def draw(results, path):
    """One panel a size: accuracy against comparisons, with intervals; dashed: the share of tasks with a right candidate."""
    sizes = sorted({s["size"] for s in results["points"]})
    columns = min(3, len(sizes))
    figure, axes = plt.subplots(-(-len(sizes) // columns), columns, figsize=(4.2 * columns, 3.4 * -(-len(sizes) // columns)),
                                squeeze=False, layout="constrained")  # fmt: skip
    for axis in axes.flat[len(sizes) :]:
        axis.remove()
    for axis, size in zip(axes.flat, sizes):
        for family, (colour, marker) in STYLES.items():
            at = [s for s in results["points"] if s["size"] == size and s["method"].split()[0].strip(",") == family]
            at.sort(key=lambda s: s["comparisons"])
            y = [s["accuracy"] for s in at]
            errors = [[s["accuracy"] - s["low"] for s in at], [s["high"] - s["accuracy"] for s in at]]
            label = {"random": "random (0)", "round": "round robin"}.get(family, family)
            x = [max(s["comparisons"], 1) for s in at]
            axis.errorbar(x, y, errors, color=colour, marker=marker, ms=6, lw=1, capsize=2, label=label)
        [most] = [s["accuracy"] for s in results["points"] if s["size"] == size and s["method"] == "any right"]
        axis.axhline(most, ls="--", lw=1, color="black")
        axis.set(xscale="log", xlabel="comparisons", ylabel="accuracy of the pick", title=f"N = {size}")
    axes.flat[0].legend(fontsize=7)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def verdicts_of(duels, size):
    """What the duels at the tested size say, in words that a difference inside the noise does not get past."""
    by = {(d["method"], d["against"]): d for d in duels if d["size"] == size}
    main = by["adaptive", "pivot 2"]
    passed = main["low"] > -MARGIN and main["ratio_high"] <= RATIO
    lines = [f"- adaptive against pivot 2 at N = {size}: {'non-inferior' if passed else 'NOT shown non-inferior'} (margin "
             f"{MARGIN:g} point, at most {RATIO:g} of the comparisons)."]  # fmt: skip
    for (name, other), d in by.items():
        word = "beats" if d["low"] > 0 else "loses to" if d["high"] < 0 else "is not told apart from"
        lines.append(f"- {name} {word} {other} at N = {size}, with {d['ratio']:.2f} of its comparisons.")
    return lines


def write(out, results, args):
    """results.json, table.md, tournaments.png and summary.json; the headline entry goes on with --claim."""
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (out / "table.md").write_text("\n".join(table_lines(results)) + "\n", encoding="utf-8")
    draw(results, out / "tournaments.png")
    [main] = [d for d in results["duels"] if d["size"] == args.tested_size and d["method"] == "adaptive"]
    entry = {"value": main["ratio"], "low": main["ratio_low"], "high": main["ratio_high"], "n": main["tasks"]}
    entries = {"adaptive_comparisons_ratio": entry | {"unit": "of the pivot tournament's comparisons"}}
    write_summary(args.out, entries, results["command"], args.claim)


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--judge", type=Path, help="JSON of the simulated judge; without it a placeholder guess")
    parser.add_argument("--tables", type=Path, help="recorded tables instead of simulated ones")
    parser.add_argument("--fit", type=Path, help="write the judge nearest to --tables there and stop")
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 8, 16, 20, 32, 64], help="numbers of candidates")
    parser.add_argument("--tasks", type=int, default=2000, help="tasks a point")
    parser.add_argument("--tested_size", type=int, default=20, help="size at which adaptive is tested against pivot 2")
    parser.add_argument("--tested", type=int, default=20000, help="tasks a point of that test")
    parser.add_argument("--seed", type=int, default=0, help="of tasks and tournaments")
    parser.add_argument("--processes", type=int, default=1, help="processes that play")
    parser.add_argument("--claim", action="store_true", help="update experiments/headline.json")
    parser.add_argument("--out", type=Path, default=Path("experiments/tournaments"), help="folder of the record")
    args = parser.parse_args(argv)
    if max(args.sizes) > LARGEST or min(args.sizes) < 2 or args.tested_size not in args.sizes and not args.fit:
        parser.error(f"--sizes must lie in 2..{LARGEST} and hold --tested_size")
    if args.fit and not args.tables:
        parser.error("--fit needs --tables")
    return args


def main(argv=None):
    args = parse(argv)
    recorded = read_tables(args.tables) if args.tables else None
    if args.fit:
        args.fit.write_text(json.dumps(fit(recorded), indent=1) + "\n", encoding="utf-8")
        return
    judge = {"source": f"recorded tables {args.tables}"} if recorded else PLACEHOLDERS["critic"]
    judge = read_judge(args.judge) if args.judge else judge
    large = {size: [t for t in recorded or () if len(t["correct"]) >= size] for size in args.sizes}

    def tasks_of(size, name):
        wanted = args.tested if size == args.tested_size and name in TESTED else args.tasks
        return min(wanted, len(large[size])) if recorded else wanted

    def jobs_of(size, name, tasks):
        if recorded:
            return [(None, t, args.seed, name, size, t["task"]) for t in large[size][:tasks]]
        return [(judge, None, args.seed, name, size, task) for task in range(tasks)]

    if recorded and not all(large.values()):
        raise ValueError(f"{args.tables}: no table is as large as each of {args.sizes}")
    sources = [Path(__file__), Path(ppt.__file__), *([args.tables] if recorded else [])]
    parts = [file.read_bytes() for file in sources] + [json.dumps([judge, args.seed]).encode()]
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    args.out.mkdir(parents=True, exist_ok=True)
    points = [(size, name, tasks_of(size, name)) for size in args.sizes for name in METHODS]
    rows = compute(points, jobs_of, key, args.out / "rows.jsonl", args.processes)
    duels = [duel(rows[size, a], rows[size, b]) for size in args.sizes for a, b in DUELS]
    results = {
        "command": " ".join(["python -m analysis.tournaments", *(sys.argv[1:] if argv is None else argv)]),
        "judge": judge, "seed": args.seed, "key": key, "points": [summarise(rows[point[:2]]) for point in points],
        "duels": duels, "verdicts": verdicts_of(duels, args.tested_size),
    }  # fmt: skip
    write(args.out, results, args)
    print("\n".join(table_lines(results)))


if __name__ == "__main__":
    main()
