"""DPO of a policy with three kinds of pairs (PhyCritic's Table 8): question accuracy against the policy it started from.

    bash experiments/dpo.sh; python -m analysis.dpo_table experiments/2026-11-30_dpo runs/dpo --skip 500 [--claim]

Reads <runs>/base_<split>.jsonl and <runs>/<seed>/<pairs by>/<split>.jsonl, rows of evaluate.py --mode question, and the counts
that train_dpo.py pairs leaves. --skip leaves out the first test questions (evaluate.py's order), those that settings were
chosen on. Seeds are pooled, every row is paired with the policy's own on the same question, and
intervals resample questions. Writes README.md, results.json and summary.json; a missing or unfinished file is an error.
"""

import argparse
import json
from collections import Counter
from pathlib import Path

from analysis.record_demo import gain, percent
from analysis.verifier_common import command_of, write_summary
from data.files import read_rows
from stats import estimate, is_right, row_key

KINDS = {"verifier": "answer verifier's pairs", "critic": "critic's pairs", "pivot": "critic's pairs, pivot tournament"}
PAPER = {"base": 54.3, "verifier": 57.5, "critic": 60.0}  # CosmosReason1-Bench, Qwen2.5-VL-7B (arXiv 2602.11124, Table 8)
SPLITS = ("test", "ood")
KEPT = ("right over wrong", "right over right", "wrong over right", "wrong over wrong")


def finished_rows(path):
    """Rows of a finished evaluation; raises ValueError with the remedy."""
    result = path.with_suffix(".json")
    if not result.is_file() or not json.loads(result.read_text(encoding="utf-8")).get("finished"):
        raise ValueError(f"{result} is missing or not finished: run bash experiments/dpo.sh again")
    return read_rows(path)


def counted_rows(path, skip):
    """finished_rows without the first `skip` ones of the test split; raises ValueError where none is left."""
    rows = finished_rows(path)
    rows = rows[skip:] if path.stem.endswith("test") else rows
    if not rows:
        raise ValueError(f"{path}: --skip {skip} leaves no row; evaluate more questions, or skip fewer")
    return rows


def pair_counts(files):
    """Sums over seeds of what train_dpo.py pairs counted: {"questions", "pairs", "kinds", "refused"}."""
    counts = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    total = {name: sum(one[name] for one in counts) for name in ("questions", "pairs")}
    return total | {name: dict(sum((Counter(one[name]) for one in counts), Counter())) for name in ("kinds", "refused")}


def measure(runs, seeds, skip):
    """{kind: {split: {"accuracy", "gain", "over_verifier"}, "pairs"}} in percent and points; the base has the first only."""
    base = {split: counted_rows(runs / f"base_{split}.jsonl", skip) for split in SPLITS}
    found = {"base": {split: {"accuracy": percent(estimate(rows, is_right))} for split, rows in base.items()}}
    for split in SPLITS:
        rows = {kind: [counted_rows(runs / seed / kind / f"{split}.jsonl", skip) for seed in seeds] for kind in KINDS}
        for kind, by_seed in rows.items():
            if any(set(map(row_key, some)) != set(map(row_key, base[split])) for some in by_seed):
                raise ValueError(f"{runs}: {kind}, {split}: other questions than the base's; evaluate all with one --limit")
            entry = {"accuracy": percent(estimate([row for some in by_seed for row in some], is_right))}
            entry["gain"] = gain(by_seed, [base[split]] * len(seeds))
            entry["gain_seeds"] = [gain([some], [base[split]])["value"] for some in by_seed]
            if kind != "verifier":
                entry["over_verifier"] = gain(by_seed, rows["verifier"])
                entry["over_verifier_seeds"] = [gain([a], [b])["value"] for a, b in zip(by_seed, rows["verifier"])]
            found.setdefault(kind, {})[split] = entry
    for kind in KINDS:
        found[kind]["pairs"] = pair_counts([runs / seed / kind / "pairs.json" for seed in seeds])
    return found


def cell(entry, sign=""):
    """An estimate as text.

    >>> cell({"value": 23.2, "low": 18.6, "high": 27.6}, "+")
    '+23.2 [+18.6, +27.6]'
    """
    return "{value:{s}.1f} [{low:{s}.1f}, {high:{s}.1f}]".format(s=sign, **{k: entry[k] for k in ("value", "low", "high")})


def lead(entry, name):
    """A gain in points with those of its seeds, whose spread the interval (over questions) leaves out; "-" without one.

    >>> lead({"gain": {"value": 4.2, "low": 1.6, "high": 7.8}, "gain_seeds": [9.9, -0.3]}, "gain")
    '+4.2 [+1.6, +7.8], seeds -0.3 to +9.9'
    """
    if name not in entry:
        return "-"
    seeds = entry[name + "_seeds"]
    return f"{cell(entry[name], '+')}, seeds {min(seeds):+.1f} to {max(seeds):+.1f}"


def table(found):
    """Markdown lines: a row a kind of pairs."""
    head = ["Trained on", "Test, %", "points over the policy", "over the verifier's", "Out of distribution, %", "over the policy"]
    lines = ["| " + " | ".join([*head, "Paper (7B)"]) + " |", "|---" * (len(head) + 1) + "|"]
    for kind, splits in found.items():
        test, ood = (splits[split] for split in SPLITS)
        cells = [KINDS.get(kind, "nothing: the policy"), cell(test["accuracy"]), lead(test, "gain"), lead(test, "over_verifier")]
        cells += [cell(ood["accuracy"]), lead(ood, "gain"), str(PAPER.get(kind, "-"))]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def pairs_table(found):
    """Markdown lines: the pairs of each kind, and the questions that gave none, by reason."""
    lines = ["| Pairs by | Questions | Pairs | " + " | ".join(KEPT) + " | Refused |", "|---" * 8 + "|"]
    for kind, label in KINDS.items():
        counts = found[kind]["pairs"]
        refused = ", ".join(f"{n} {reason}" for reason, n in sorted(counts["refused"].items(), key=lambda item: -item[1]))
        cells = [label, counts["questions"], counts["pairs"], *(counts["kinds"].get(name, 0) for name in KEPT), refused]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("out", type=Path, help="the record's folder")
    parser.add_argument("runs", type=Path, help="folder of the runs")
    parser.add_argument("--skip", type=int, default=0, help="test questions left out, the first ones")
    parser.add_argument("--claim", action="store_true", help="update experiments/headline.json")
    args = parser.parse_args(argv)
    seeds = sorted(path.name for path in args.runs.iterdir() if path.is_dir() and path.name.isdigit())
    try:
        if not seeds:
            raise ValueError(f"{args.runs} has no folder of a seed (0, 1, ...): run bash experiments/dpo.sh")
        found, command = measure(args.runs, seeds, args.skip), "bash experiments/dpo.sh; " + command_of("analysis.dpo_table", argv)
    except (ValueError, OSError) as error:
        raise SystemExit(f"dpo_table: {error}") from error
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "results.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    about = f"Seeds {', '.join(seeds)} pooled, intervals over questions; n in results.json. Command: `{command}`."
    if args.skip:
        about += f" The first {args.skip} test questions chose settings and are not counted."
    lines = ["# DPO with the critic's pairs", "", about, "", *table(found), "", "## Pairs, summed over the seeds", "", *pairs_table(found), ""]
    (args.out / "README.md").write_text("\n".join(lines), encoding="utf-8")
    entries = {f"dpo_gain_{kind}_pairs": found[kind]["test"]["gain"] | {"unit": "points"} for kind in ("critic", "verifier")}
    write_summary(args.out, entries, command, args.claim)
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
