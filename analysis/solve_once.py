"""Solve once, judge many, against solving anew each time: tokens and accuracy of the same tournament.

    for s in each first alone; do python best_of_n.py pick --candidates runs/bon/candidates.jsonl --critic runs/stage2 \\
        --solve $s --same_text ask --tournament knockout --sizes 32 --out runs/bon/solve_$s.jsonl; done
    python -m analysis.solve_once experiments/2026-12-01_solve_once runs/bon/solve_each.jsonl \\
        first=runs/bon/solve_first.jsonl alone=runs/bon/solve_alone.jsonl [--entry first --claim]

Ratios are of sums over questions, their intervals resample questions; the change of accuracy is paired by question. Naive
judging computes each prompt whole; beside it stands the ratio to naive judging with the same shared prefix.

Writes into the record's folder: the rows (gzip), results.json, README.md, and summary.json with the entries
solve_once_generated_ratio, solve_once_computed_ratio and solve_once_accuracy_change of the way that --entry names.
"""

import argparse
import json
from pathlib import Path

from analysis import best_of_n as curves
from analysis.coupling import clustered_interval
from analysis.headline import command_of, write_summary

RATIOS = {  # what the ratio is of -> (field of solving once, field of solving anew)
    "generated tokens": ("completion_tokens", "completion_tokens"),
    "computed prompt tokens, naive computes all": ("computed_prompt_tokens", "prompt_tokens"),
    "computed prompt tokens, naive shares the prefix too": ("computed_prompt_tokens", "computed_prompt_tokens"),
    "seconds": ("seconds", "seconds"),
}
GENERATED, COMPUTED = list(RATIOS)[:2]
MARGIN = 3.0  # points that solve-once may lose and still count as non-inferior


def ratio(once, each, name):
    """{"value", "low", "high", "n"}: a ratio of RATIOS, sum over rows `once` by sum over `each`; a question is one cluster.

    Questions that cost nothing when solved anew (one text, no judgement) are left out. Raises ValueError where all are so.
    """
    sums, (top, bottom) = {}, RATIOS[name]
    for key, row in each.items():
        total = sums.setdefault(row["cluster"], [0, 0])
        total[0], total[1] = total[0] + once[key][top], total[1] + row[bottom]
    spent = [total for total in sums.values() if total[1]]
    if not spent:
        raise ValueError(f"no question cost any {name}: no judgement was asked; are all candidates one text?")
    tops, bottoms = zip(*spent)
    value = sum(tops) / sum(bottoms)
    alike = len({a / b for a, b in spent}) == 1  # every question saved the same share: no spread to resample
    low, high = (value, value) if alike else clustered_interval(tops, bottoms, [""] * len(tops))
    return {"value": value, "low": low, "high": high, "n": len(spent)}


def compared(once, each):
    """Everything stated about one way to solve once: the paired change of accuracy, and the ratios."""
    return {"accuracy": curves.difference(once, each)} | {name: ratio(once, each, name) for name in RATIOS}


def table(results):
    """Markdown lines: a row for each way to solve."""
    lines = ["| Solves | Accuracy, % | Points against each | " + " | ".join(f"ratio of {name}" for name in RATIOS) + " |"]
    lines += ["|---" * (len(RATIOS) + 3) + "|"]
    for p in results["points"]:
        cells = ["-"] * (len(RATIOS) + 1)
        if p["judge"] in results["ways"]:
            way = results["ways"][p["judge"]]
            cells = ["{points:+.1f} [{low:+.1f}, {high:+.1f}]".format(**way["accuracy"])]
            cells += ["{value:.3f} [{low:.3f}, {high:.3f}]".format(**way[name]) for name in RATIOS]
        lines.append(f"| {p['judge']} | {curves.percent(p)} | " + " | ".join(cells) + " |")
    lines += [
        "",
        f"{results['tournament']}, N = {results['size']}, {results['points'][0]['questions']} questions; mean a question:",
    ]
    for p in results["points"]:
        lines.append(
            f"- {p['judge']}: {p['judge_calls']:.1f} judgements, {p['completion_tokens']:.0f} tokens generated, "
            f"{p['prompt_tokens']:.0f} prompt tokens, {p['computed_prompt_tokens']:.0f} of them computed, {p['seconds']:.2f} s"
        )
    for name, way in results["ways"].items():
        lost = way["accuracy"]["low"] > -MARGIN
        lines.append(f"- {name}: {'non-inferior' if lost else 'NOT shown non-inferior'} in accuracy (margin {MARGIN:g} points).")
    return lines


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("out", type=Path, help="the record's folder")
    parser.add_argument("each", type=Path, help="picks of the judge that solves anew each time")
    parser.add_argument("once", nargs="+", help='"first=picks.jsonl", "alone=picks.jsonl"')
    parser.add_argument("--size", type=int, default=32, help="N")
    parser.add_argument("--tournament", default="knockout", choices=list(curves.MARKERS), help="the same for all")
    parser.add_argument("--entry", default="first", help="the way to solve once that the entries speak of")
    parser.add_argument("--claim", action="store_true", help="update experiments/headline.json")
    args = parser.parse_args(argv)
    paths = {"each": args.each} | curves.named_paths(args.once)
    if args.entry not in paths or args.entry == "each":
        parser.error(f"--entry must be one of {list(paths)[1:]}")
    rows = {name: curves.select(curves.read_picks(path), args.size, args.tournament) for name, path in paths.items()}
    args.out.mkdir(parents=True, exist_ok=True)
    points = [curves.point(name, args.tournament, args.size, picks) for name, picks in rows.items()]
    results = {
        "command": command_of("analysis.solve_once", argv), "size": args.size, "tournament": args.tournament,
        "made": curves.copy_picks(paths, args.out), "points": points,
        "ways": {name: compared(picks, rows["each"]) for name, picks in rows.items() if name != "each"},
    }  # fmt: skip
    (args.out / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    way = results["ways"][args.entry]
    claim = "# Solve once, judge many\n\nClaim: solving once costs {value:.2f} [{low:.2f}, {high:.2f}] of the generated tokens".format(
        **way[GENERATED]
    )
    lines = table(results)
    (args.out / "README.md").write_text(curves.readme(f"{claim} of solving anew each time.", results, lines), encoding="utf-8")
    change = {key: way["accuracy"][key] for key in ("low", "high", "n")}
    entries = {
        "solve_once_generated_ratio": way[GENERATED] | {"unit": "of naive's generated tokens"},
        "solve_once_computed_ratio": way[COMPUTED] | {"unit": "of naive's prompt tokens"},
        "solve_once_accuracy_change": change | {"value": way["accuracy"]["points"], "unit": "points"},
    }
    write_summary(args.out, entries, results["command"], args.claim)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
