"""Accuracy of the tournaments of ppt.py against the comparisons that they cost: simulated, or on recorded tables.

    python -m analysis.tournaments --tasks 50 --tested 50 --sizes 8 20 --out runs/tournaments    seconds, a look
    python -m analysis.tournaments --out experiments/tournaments                                 minutes, one core
    python -m analysis.tournaments --judge judge.json --out experiments/tournaments_critic       another judge
    python -m analysis.tournaments --tables tables.jsonl --sizes 8 20 --out ...                  recorded tables

A task is n candidates, each right or wrong, and the judge's answer to every ordered pair: a table. A judge asked the same
question again gives the same answer, as at temperature 0. Several candidates may be right; a tournament is right where
its pick is. Everything about a task comes from (seed, task id), so all tournaments see the same tables, and the n
candidates of a task are the first n of its 64.

The simulated judge's log-odds that a, shown first, beats b are
    separation * (right_a - right_b) + candidate_noise * (e_a - e_b) + pair_noise * e_ab + position_bias
with standard normal e, cut to [-limit, limit] where limit is not null. A task's share of right candidates is drawn from
Beta(accuracy_a, accuracy_b). --judge gives these as JSON; a run on recorded tables writes the judge nearest to them.

Recorded tables are JSON lines {"task": .., "correct": [true, ..], "p": [[null, 0.7, ..], ..]}: p[a][b] with a shown first,
null where the judge abstained.

Writes rows.jsonl (one row a point: each task's outcome; computed again only where code, judge or tasks changed),
results.json, table.md, tournaments.png, summary.json, and judge.json of recorded tables.
"""

import argparse
import hashlib
import json
import math
import sys
from functools import partial
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from tqdm import tqdm

import data
import ppt
from analysis import headline
from stats import exact_interval

LARGEST, TESTED_SIZE = 64, 20  # candidates that are drawn for every task; the size at which DUELS are tested
JUDGE = headline.ROOT / "experiments" / "2026-11-30_tournaments" / "judge.json"  # fitted to recorded tables of the critic
FIELDS = {"source", "accuracy_a", "accuracy_b", "separation", "candidate_noise", "pair_noise", "position_bias", "limit"}
DUELS = [  # on --tested tasks at the tested size
    ("adaptive", "pivot 2"), ("pivot 2", "swiss as pivot 2"), ("pivot 1", "knockout, both orders"),
]  # fmt: skip
MARGIN, RATIO = 1.0, 0.7  # adaptive is to lose less than 1 point to pivot 2, with at most 0.7 of its comparisons
METHODS = {  # name -> tournament; of "random", "any right" and "both orders" see played
    "random": ppt.knockout,
    "knockout": ppt.knockout,
    "knockout, both orders": ppt.knockout,
    "adaptive": ppt.adaptive,
    **{f"pivot {k}": partial(ppt.pivot_tournament, pivots=k) for k in range(1, 6)},
    **{f"swiss {k}N": lambda n, compare, seed, k=k: ppt.swiss(n, compare, k * n, seed) for k in range(1, 4)},
    "swiss as pivot 2": lambda n, compare, seed: ppt.swiss(n, compare, 3 * n - 3, seed),  # n + 2(n - 2) + 1
    "round robin": ppt.round_robin,
    "any right": None,
}
STYLES = {  # first word of a method -> (label, colour, marker)
    "random": ("random (0)", "tab:gray", "x"), "knockout": ("knockout", "tab:orange", "v"),
    "adaptive": ("adaptive", "tab:red", "*"), "pivot": ("pivot", "tab:blue", "o"),
    "swiss": ("swiss", "tab:green", "s"), "round": ("round robin", "tab:purple", "D"),
}  # fmt: skip


def played(name, n, table, correct, seed):
    """(pick, comparisons) of a method on the first n candidates of a task; in "both orders" a match takes two of them."""

    def compare(a, b):
        if name == "random":
            return None  # nobody wins: the pick is who is drawn first
        if name == "knockout, both orders":
            first, second = table[a][b], table[b][a]
            return None if None in (first, second) else (first + 1 - second) / 2
        return table[a][b]

    if name == "any right":
        return correct.index(max(correct)), 0
    ranking = METHODS[name](n, compare, seed=seed)
    return ranking.best, len(ranking.comparisons) * {"random": 0, "knockout, both orders": 2}.get(name, 1)


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
    if set(judge) != FIELDS:
        raise ValueError(f"{path}: fields {sorted(judge)}, expected {sorted(FIELDS)}")
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
    the variance that n draws have by themselves. None where no complete table holds right and wrong candidates.
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
        return None
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


def compute(points, task_of, key, path):
    """{(size, method): row} of all points (size, method, tasks), those of `key` from the file where it has them.

    task_of(number, size) gives the (name, correct, table) that a tournament is played on.
    """
    with data.open_lines(path) as file:
        file.seek(0)
        done = {(r["size"], r["method"], r["tasks"]): r for r in map(json.loads, file) if r["key"] == key}
        for size, method, tasks in tqdm([point for point in points if point not in done], disable=not sys.stderr.isatty()):
            outcomes = []
            for task, correct, table in (task_of(number, size) for number in range(tasks)):
                pick, count = played(method, size, table, correct, task)
                outcomes.append((int(correct[pick]), count))
            counts = [count for _, count in outcomes]
            done[size, method, tasks] = row = {
                "key": key, "size": size, "method": method, "tasks": tasks, "right": "".join(str(hit) for hit, _ in outcomes),
                "comparisons": counts[0] if len({*counts}) == 1 else counts,
            }  # fmt: skip
            file.write(json.dumps(row).encode() + b"\n")
            file.flush()
    return {point[:2]: done[point] for point in points}


def arrays(row, n=None):
    """Right or not (0, 1) and comparisons of the first n tasks, both of shape (n,)."""
    return np.array([int(hit) for hit in row["right"]])[:n], np.broadcast_to(row["comparisons"], len(row["right"]))[:n]


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
    (hits, counts), (base_hits, base_counts) = arrays(row, n), arrays(other, n)
    found = {"size": row["size"], "method": row["method"], "against": other["method"], "tasks": n}
    for prefix, name, values in (("", "points", 100.0 * (hits - base_hits)), ("ratio_", "ratio", counts / base_counts.mean())):
        mean, width = float(values.mean()), 1.96 * float(values.std()) / math.sqrt(n)
        found |= {name: mean, f"{prefix}low": mean - width, f"{prefix}high": mean + width}
    return found


def verdicts_of(duels):
    """What the duels at the tested size say, in words that a difference inside the noise does not get past."""
    main, *_ = tested = [d for d in duels if d["size"] == TESTED_SIZE]
    passed = main["low"] > -MARGIN and main["ratio_high"] <= RATIO
    lines = [f"- adaptive against pivot 2 at N = {TESTED_SIZE}: {'non-inferior' if passed else 'NOT shown non-inferior'} (margin "
             f"{MARGIN:g} point, at most {RATIO:g} of the comparisons)."]  # fmt: skip
    for d in tested:
        word = "beats" if d["low"] > 0 else "loses to" if d["high"] < 0 else "is not told apart from"
        lines.append(f"- {d['method']} {word} {d['against']} at N = {TESTED_SIZE}, with {d['ratio']:.2f} of its comparisons.")
    return lines


# --- Output -------------------------------------------------------------------------------------------------------


def table_lines(results):
    """The results as Markdown: what was played, one row a method with a column a size, duels, what they say."""
    by = {(s["size"], s["method"]): s for s in results["points"]}
    sizes = sorted({size for size, _ in by})
    lines = [f"Judge: {results['judge']['source']}. Seed {results['seed']}. Accuracy of the pick in %, its 95% interval, "
             "mean comparisons.", "", "| Tournament | " + " | ".join(f"N = {size}" for size in sizes) + " |",
             "|---|" + "---|" * len(sizes)]  # fmt: skip
    for name in METHODS:
        percents = [[f"{100 * by[size, name][field]:.1f}" for field in ("accuracy", "low", "high")] for size in sizes]
        spent = [by[size, name]["comparisons"] for size in sizes]
        cells = [f"{p} [{low}, {high}], {count:.1f}" for (p, low, high), count in zip(percents, spent)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "| Paired, same tasks | N | Tasks | Points | Ratio of comparisons |", "|---|---|---|---|---|"]
    form = "| {method} minus {against} | {size} | {tasks} | {points:+.2f} [{low:+.2f}, {high:+.2f}] | "
    form += "{ratio:.3f} [{ratio_low:.3f}, {ratio_high:.3f}] |"
    return [*lines, *(form.format(**d) for d in results["duels"]), "", *results["verdicts"]]


def draw(results, path):
    """One panel a size: accuracy against comparisons, with intervals; dashed: the share of tasks with a right candidate."""
    points = pd.DataFrame(results["points"]).sort_values("comparisons", kind="stable")
    sizes = list(points.groupby("size"))
    columns, rows = min(3, len(sizes)), -(-len(sizes) // 3)
    figure, axes = plt.subplots(rows, columns, figsize=(4.2 * columns, 3.4 * rows), squeeze=False, layout="constrained")
    for axis in axes.flat[len(sizes) :]:
        axis.remove()
    for axis, (size, here) in zip(axes.flat, sizes):
        for family, (label, colour, marker) in STYLES.items():
            at = here[here["method"].str.match(rf"{family}\b")]
            y, x = at["accuracy"], at["comparisons"].clip(lower=1)
            axis.errorbar(x, y, [y - at["low"], at["high"] - y], color=colour, marker=marker, ms=6, lw=1, capsize=2, label=label)
        axis.axhline(here.set_index("method")["accuracy"]["any right"], ls="--", lw=1, color="black")
        axis.set(xscale="log", xlabel="comparisons", ylabel="accuracy of the pick", title=f"N = {size}")
    axes.flat[0].legend(fontsize=7)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--judge", type=Path, default=JUDGE, help="JSON of the simulated judge; default: the recorded one")
    parser.add_argument("--tables", type=Path, help="recorded tables instead of simulated ones")
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 8, 16, 20, 32, 64], help="numbers of candidates")
    parser.add_argument("--tasks", type=int, default=2000, help="tasks a point")
    parser.add_argument("--tested", type=int, default=20000, help=f"tasks a point of the test at N = {TESTED_SIZE}")
    parser.add_argument("--seed", type=int, default=0, help="of tasks and tournaments")
    parser.add_argument("--out", type=Path, default=Path("experiments/tournaments"), help="folder of the record")
    args = parser.parse_args(argv)
    if max(args.sizes) > LARGEST or min(args.sizes) < 2 or TESTED_SIZE not in args.sizes:
        parser.error(f"--sizes must lie in 2..{LARGEST} and hold {TESTED_SIZE}, the size of the test")
    return args


def main(argv=None):
    args, command = parse(argv), headline.command_of("analysis.tournaments", argv)
    judge = read_judge(args.judge)
    recorded, files = None, [Path(__file__), Path(ppt.__file__)]
    if args.tables:
        recorded, files, judge = read_tables(args.tables), [*files, args.tables], {"source": f"recorded tables {args.tables}"}
    large = {size: [task for task in recorded or () if len(task["correct"]) >= size] for size in args.sizes}
    if recorded and not all(large.values()):
        raise ValueError(f"{args.tables}: no table is as large as each of {args.sizes}")

    def tasks_of(size, method):
        wanted = args.tested if size == TESTED_SIZE and any(method in pair for pair in DUELS) else args.tasks
        return min(wanted, len(large[size])) if recorded else wanted

    def task_of(number, size):
        if recorded:
            task = large[size][number]
            return f"{args.seed} {task['task']}", task["correct"][:size], task["p"]
        return f"{args.seed} {number}", *simulate(judge, args.seed, number, size)

    parts = [file.read_bytes() for file in files] + [json.dumps([judge, args.seed]).encode()]
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    args.out.mkdir(parents=True, exist_ok=True)
    points = [(size, method, tasks_of(size, method)) for size in args.sizes for method in METHODS]
    rows = compute(points, task_of, key, args.out / "rows.jsonl")
    duels = [duel(rows[size, a], rows[size, b]) for size in args.sizes for a, b in DUELS]
    results = {
        "command": command, "judge": judge, "seed": args.seed, "key": key,
        "points": [summarise(rows[point[:2]]) for point in points], "duels": duels, "verdicts": verdicts_of(duels),
    }  # fmt: skip
    (args.out / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (args.out / "table.md").write_text("\n".join(table_lines(results)) + "\n", encoding="utf-8")
    draw(results, args.out / "tournaments.png")
    if fitted := fit(recorded or []):
        (args.out / "judge.json").write_text(json.dumps(fitted, indent=1) + "\n", encoding="utf-8")
    [main] = [d for d in duels if d["size"] == TESTED_SIZE and d["method"] == "adaptive"]
    entry = {"value": main["ratio"], "low": main["ratio_low"], "high": main["ratio_high"], "n": main["tasks"]}
    entries = {"adaptive_comparisons_ratio": entry | {"unit": "of the pivot tournament's comparisons"}}
    headline.write_summary(args.out, entries, command)
    print("\n".join(table_lines(results)))


if __name__ == "__main__":
    main()
