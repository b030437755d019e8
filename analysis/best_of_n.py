"""Curves of best_of_n.py: accuracy against N and judge calls, what the tested judge beats, and what solving once saves.

    python -m analysis.best_of_n experiments/2026-12-01_best_of_n "stage 2=runs/bon/stage2.jsonl" \\
        "stage 1=runs/bon/stage1.jsonl" "base=runs/bon/base.jsonl"

The first judge is the tested one; all files are about the same candidates. Baselines and the judge's own answer are taken
from its rows. Bands and differences are 95% intervals that resample questions; differences are paired by question.

    for s in each first alone; do python best_of_n.py pick --candidates runs/bon/candidates.jsonl --critic runs/stage2 \\
        --solve $s --same_text ask --tournament knockout --sizes 32 --out runs/bon/solve_$s.jsonl; done
    python -m analysis.best_of_n experiments/2026-12-01_solve_once each=runs/bon/solve_each.jsonl \\
        first=runs/bon/solve_first.jsonl alone=runs/bon/solve_alone.jsonl --solved_once first

With --solved_once the first judge solves anew each time, the others once: tokens and accuracy of the same tournament, the
entries speak of the way that it names. Ratios are of sums over questions. Naive judging computes each prompt whole; beside
it stands the ratio to naive judging with the same shared prefix.

Writes into the record's folder: the rows (gzip), results.json, README.md with the table, best_of_n.png of the curves, and
summary.json with the entry best_of_16_gain, or the three of solving once.
"""

import argparse
import gzip
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd

from analysis.headline import command_of, write_summary
from stats import clustered_interval, estimate, mean_gain

TOURNAMENT, SIZE = "knockout", 32  # the tested tournament; N at which ways to solve are compared
JUDGE_COLOURS = ["tab:red", "tab:blue", "tab:green", "tab:purple", "tab:brown", "tab:pink"]
MARKERS = {"knockout": "v", "pivot": "o", "swiss": "s", "adaptive": "*", "round_robin": "D"}
BASELINES = {  # method -> (label, colour); what needs no tournament
    "random": ("random", "lightgray"), "longest": ("longest", "tan"), "likelihood": ("likelihood", "tab:cyan"),
    "majority": ("majority vote", "tab:olive"), "own answer": ("the judge's own answer", "black"),
    "agrees": ("first that agrees with it", "dimgray"), "oracle": ("oracle", "gold"),
}  # fmt: skip
COSTS = ("judge_calls", "prompt_tokens", "computed_prompt_tokens", "completion_tokens", "seconds")
RATIOS = {  # what the ratio is of -> (field of solving once, field of solving anew)
    "generated tokens": ("completion_tokens", "completion_tokens"),
    "computed prompt tokens, naive computes all": ("computed_prompt_tokens", "prompt_tokens"),
    "computed prompt tokens, naive shares the prefix too": ("computed_prompt_tokens", "computed_prompt_tokens"),
    "seconds": ("seconds", "seconds"),
}
GENERATED, COMPUTED = list(RATIOS)[:2]
MARGIN = 3.0  # points that solve-once may lose and still count as non-inferior


def read_picks(path):
    """{(id, n, method): row} of a picks file of best_of_n.py, plain or gzip; raises ValueError naming file and line."""
    path, rows = Path(path), {}
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                key = row["id"], row["n"], row["method"]
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}:{number}: no row of best_of_n.py pick ({error!r}); write the picks again") from error
            if key in rows:
                raise ValueError(f"{path}:{number}: {key} stands twice; write the picks again")
            rows[key] = row
    if not rows:
        raise ValueError(f"{path}: no rows; run best_of_n.py pick")
    return rows


def select(rows, n, method):
    """The rows of a size and method by id; raises ValueError where there are none."""
    found = {row["id"]: row for (_, size, name), row in rows.items() if (size, name) == (n, method)}
    if not found:
        sizes = sorted({size for _, size, name in rows if name == method})
        raise ValueError(f"no picks of {method!r} at N = {n} (that method has N = {sizes}); run best_of_n.py pick with them")
    return found


def difference(after, before):
    """{"points", "low", "high", "n"}: accuracy of rows `after` minus `before`, paired by id, resampled by question."""
    odd = sorted(after.keys() ^ before.keys())
    if odd:
        raise ValueError(f"{len(odd)} questions have picks in one of two files only, e.g. {odd[:3]}; use one candidates file")
    gains = {}
    for key, row in after.items():
        gains.setdefault(row["cluster"], []).append(bool(row["correct"]) - bool(before[key]["correct"]))
    value, low, high, n = mean_gain(gains)
    return {"points": 100 * value, "low": 100 * low, "high": 100 * high, "n": n}


def entry_of(difference):
    """A difference as an entry of the headline."""
    return {"value": difference["points"]} | {key: difference[key] for key in ("low", "high", "n")} | {"unit": "points"}


def point(judge, method, n, rows):
    """One point of a curve: accuracy with its interval, mean cost a question."""
    rows = list(rows.values())
    means = {name: None if rows[0][name] is None else sum(row[name] for row in rows) / len(rows) for name in COSTS}
    found = estimate(rows, lambda row: row["correct"])
    return {"judge": judge, "method": method, **found, "questions": found["n"], "n": n, **means}


def points_of(judges):
    """Points of every judge and tournament, and of the baselines of the first judge (judge None)."""
    points = []
    for place, (judge, rows) in enumerate(judges.items()):
        for n, method in dict.fromkeys((n, method) for _, n, method in rows):
            if method in MARKERS or place == 0:
                points.append(point(judge if method in MARKERS else None, method, n, select(rows, n, method)))
    return points


def duels_of(judges):
    """At each N: the tested judge against every other judge, every other way to pick, and itself at N = 1."""
    (tested, rows), *others = judges.items()
    duels = []
    for n in sorted({n for _, n, method in rows if method == TOURNAMENT and n > 1}):
        against = {f"{judge} as judge": select(other, n, TOURNAMENT) for judge, other in others}
        methods = dict.fromkeys(method for _, size, method in rows if size == n and method not in (TOURNAMENT, "oracle"))
        against |= {BASELINES.get(method, (method,))[0]: select(rows, n, method) for method in methods}
        against["N = 1"] = select(rows, 1, TOURNAMENT)
        mine = select(rows, n, TOURNAMENT)
        duels += [{"n_candidates": n, "tested": tested, "against": k, **difference(mine, row)} for k, row in against.items()]
    return duels


def percent(entry):
    """An accuracy in percent with its interval.

    >>> percent({"value": 0.5, "low": 0.4, "high": 0.6})
    '50.0 [40.0, 60.0]'
    """
    return "{:.1f} [{:.1f}, {:.1f}]".format(*(100 * entry[key] for key in ("value", "low", "high")))


def table(results):
    """Markdown lines: accuracy and judge calls of every way to pick at every N, then the paired differences."""
    sizes = sorted({p["n"] for p in results["points"]})
    lines = ["| Judge, method | " + " | ".join(f"N = {n}" for n in sizes) + " |", "|---" * (len(sizes) + 1) + "|"]
    for judge, method in dict.fromkeys((p["judge"], p["method"]) for p in results["points"]):
        at = {p["n"]: p for p in results["points"] if (p["judge"], p["method"]) == (judge, method)}
        name = f"{judge}, {method}" if judge else BASELINES[method][0]
        cells = [f"{percent(at[n])}, {at[n]['judge_calls']:.1f}" if n in at else "-" for n in sizes]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "Accuracy in % with its 95% interval, mean judge calls a question.", ""]
    lines += [f"| {results['tested']}, {results['tournament']}, minus | N | Points | |", "|---|---|---|---|"]
    for d in results["duels"]:
        word = "beats" if d["low"] > 0 else "loses" if d["high"] < 0 else "not told apart"
        interval = f"{d['points']:+.1f} [{d['low']:+.1f}, {d['high']:+.1f}]"
        lines.append(f"| {d['against']} | {d['n_candidates']} | {interval} | {word} |")
    return lines


def curve(axis, points, x, **style):
    """Accuracy in percent over points' field x, with its band."""
    points = pd.DataFrame(points).sort_values(x)
    axis.plot(points[x], 100 * points["value"], ms=4, lw=1.3, **style)
    axis.fill_between(points[x], 100 * points["low"], 100 * points["high"], color=style["color"], alpha=0.12, lw=0)


def draw(results, path):
    """Two panels: accuracy against N (the tested tournament, all baselines) and against judge calls (all tournaments)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), sharey=True, layout="constrained")
    groups = {}
    for p in results["points"]:
        groups.setdefault((p["judge"], p["method"]), []).append(p)
    colours = dict(zip(dict.fromkeys(judge for judge, _ in groups if judge), JUDGE_COLOURS))
    for (judge, method), points in groups.items():
        if judge is None:
            label, colour = BASELINES[method]
            curve(left, points, "n", color=colour, ls="--", label=label)
            continue
        style = {"color": colours[judge], "marker": MARKERS[method]}
        if method == results["tournament"]:
            curve(left, points, "n", **style, label=f"{judge}, {method}")
        curve(right, points, "judge_calls", **style, label=f"{judge}, {method}")
    left.set(xscale="log", xlabel="N candidates", ylabel="accuracy of the pick, %")
    sizes = sorted({p["n"] for p in results["points"]})
    left.set_xticks(sizes, sizes)
    left.minorticks_off()
    right.set(xscale="symlog", xlabel="judge calls a question")
    for axis in (left, right):
        axis.legend(fontsize=7)
    figure.savefig(path, dpi=150)
    plt.close(figure)


# --- Solving once -------------------------------------------------------------------------------------------------


def ratio(once, each, name):
    """{"value", "low", "high", "n"}: a ratio of RATIOS, sum over rows `once` by sum over `each`; a question is one cluster.

    Questions that cost nothing when solved anew (one text, no judgement) are left out. Raises ValueError where all are so.
    """
    top, bottom = RATIOS[name]
    rows = pd.DataFrame([{"cluster": row["cluster"], "top": once[key][top], "bottom": row[bottom]} for key, row in each.items()])
    spent = rows.groupby("cluster", sort=False).sum().query("bottom != 0")
    if spent.empty:
        raise ValueError(f"no question cost any {name}: no judgement was asked; are all candidates one text?")
    value = float(sum(spent["top"]) / sum(spent["bottom"]))
    alike = (spent["top"] / spent["bottom"]).nunique() == 1  # every question saved the same share: no spread to resample
    low, high = (value, value) if alike else clustered_interval(spent["top"], spent["bottom"], [""] * len(spent))
    return {"value": value, "low": low, "high": high, "n": len(spent)}


def compared(once, each):
    """Everything stated about one way to solve once: the paired change of accuracy, and the ratios."""
    return {"accuracy": difference(once, each)} | {name: ratio(once, each, name) for name in RATIOS}


def once_table(results):
    """Markdown lines: a row for each way to solve."""
    lines = ["| Solves | Accuracy, % | Points against each | " + " | ".join(f"ratio of {name}" for name in RATIOS) + " |"]
    lines += ["|---" * (len(RATIOS) + 3) + "|"]
    for p in results["points"]:
        cells = ["-"] * (len(RATIOS) + 1)
        if way := results["ways"].get(p["judge"]):
            cells = ["{points:+.1f} [{low:+.1f}, {high:+.1f}]".format(**way["accuracy"])]
            cells += ["{value:.3f} [{low:.3f}, {high:.3f}]".format(**way[name]) for name in RATIOS]
        lines.append(f"| {p['judge']} | {percent(p)} | " + " | ".join(cells) + " |")
    lines += ["", f"{TOURNAMENT}, N = {SIZE}, {results['points'][0]['questions']} questions; mean a question:"]
    lines += [
        "- {judge}: {judge_calls:.1f} judgements, {completion_tokens:.0f} tokens generated, {prompt_tokens:.0f} prompt tokens, "
        "{computed_prompt_tokens:.0f} of them computed, {seconds:.2f} s".format(**p) for p in results["points"]
    ]  # fmt: skip
    for name, way in results["ways"].items():
        word = "non-inferior" if way["accuracy"]["low"] > -MARGIN else "NOT shown non-inferior"
        lines.append(f"- {name}: {word} in accuracy (margin {MARGIN:g} points).")
    return lines


# --- The record ---------------------------------------------------------------------------------------------------


def copy_picks(paths, out):
    """Copies of the picks (gzip) in the record; {label: what the run beside them says of itself}."""
    made = {}
    for judge, path in paths.items():
        with gzip.GzipFile(out / f"{path.stem}.jsonl.gz", "wb", mtime=0) as copy:
            copy.write(path.read_bytes())
        said = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        made[judge] = {key: said[key] for key in ("command", "commit", "machine", "versions", "missing")}
    return made


def readme(claim, results, lines):
    """The record's README: claim, machine, commands, and the table."""
    made = list(results["made"].values())
    commands = [f"- `{m['command']}` (commit {m['commit']}; missing calls: {m['missing'] or 'none'})" for m in made]
    about = f"Machine: {made[0]['machine']}; versions: {made[0]['versions']}."
    return "\n".join([claim, "", about, "", *commands, f"- `{results['command']}`", "", *lines, ""])


def named_paths(words):
    """{label: path} of command-line words "label=path"; raises ValueError on another form."""
    if not all("=" in word for word in words):
        raise ValueError(f'give picks as "label=path.jsonl", got {words}')
    return {label: Path(path) for label, path in (word.split("=", 1) for word in words)}


def curves(judges):
    """(results, claim, lines, entries) of the curves of all judges."""
    tested = next(iter(judges))
    gain = difference(*(select(judges[tested], n, TOURNAMENT) for n in (16, 1)))
    results = {"tested": tested, "tournament": TOURNAMENT, "points": points_of(judges), "duels": duels_of(judges)}
    claim = (
        f"# Best of N\n\nClaim: {tested} as judge lifts accuracy from N = 1 to N = 16 by {gain['points']:.1f} "
        f"[{gain['low']:.1f}, {gain['high']:.1f}] points (paired, n {gain['n']})."
    )
    return results, claim, table(results), {"best_of_16_gain": entry_of(gain)}


def solved_once(judges, name):
    """(results, claim, lines, entries) of ways to solve once against the first judge, which solves anew; claimed of `name`."""
    rows = {judge: select(picks, SIZE, TOURNAMENT) for judge, picks in judges.items()}
    first, *others = rows
    points = [point(judge, TOURNAMENT, SIZE, picks) for judge, picks in rows.items()]
    ways = {judge: compared(rows[judge], rows[first]) for judge in others}
    results = {"size": SIZE, "tournament": TOURNAMENT, "points": points, "ways": ways}
    cost = "{value:.2f} [{low:.2f}, {high:.2f}]".format(**ways[name][GENERATED])
    claim = f"# Solve once, judge many\n\nClaim: solving once costs {cost} of the generated tokens of solving anew each time."
    entries = {
        "solve_once_generated_ratio": ways[name][GENERATED] | {"unit": "of naive's generated tokens"},
        "solve_once_computed_ratio": ways[name][COMPUTED] | {"unit": "of naive's prompt tokens"},
        "solve_once_accuracy_change": entry_of(ways[name]["accuracy"]),
    }
    return results, claim, once_table(results), entries


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("out", type=Path, help="the record's folder")
    parser.add_argument("picks", nargs="+", help='"label=picks.jsonl", the tested judge (or who solves anew) first')
    parser.add_argument("--solved_once", metavar="LABEL", help="compare ways to solve; the entries speak of this one")
    args, command = parser.parse_args(argv), command_of("analysis.best_of_n", argv)
    paths = named_paths(args.picks)
    if args.solved_once and args.solved_once not in list(paths)[1:]:
        parser.error(f"--solved_once must be one of {list(paths)[1:]}")
    judges = {judge: read_picks(path) for judge, path in paths.items()}
    found, claim, lines, entries = solved_once(judges, args.solved_once) if args.solved_once else curves(judges)
    args.out.mkdir(parents=True, exist_ok=True)
    results = {"command": command, "made": copy_picks(paths, args.out)} | found
    if not args.solved_once:
        draw(results, args.out / "best_of_n.png")
    (args.out / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (args.out / "README.md").write_text(readme(claim, results, lines), encoding="utf-8")
    write_summary(args.out, entries, command)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
