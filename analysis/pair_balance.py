"""Pairs without giveaways: choose them so that no habit of a response predicts the preference, and measure that it does not.

    python -m analysis.pair_balance physworld/pairs/pairs.jsonl physworld/pairs/test.jsonl \\
        --record experiments/2026-11-30_pair_balance          # judges fitted on the first file, scored on the second

A response is a bag of features: its words, its length, its source, its style, its answer. Over all pairs of a suite a
feature must occur as often in the better response as in the worse one, or a judge could score by it without looking.
`choose` takes for each question the pair whose difference brings the running sum of differences closest to zero
(herding; Welling 2009), goes over its choices again, and at last gives up pairs of a suite that stays tilted.

A blind judge sees a pair through one habit only: length, source, style, words, position, or all of them. It is a logistic
regression that is never scored on pairs that it was fitted on. Where it sees no difference it tosses a coin, seeded by id.
"""

import argparse
from pathlib import Path

from data.balance import blind_judges, table
from data.files import read_rows


def main(args):
    """Score the judges and write the record: summary.json with the headline's entries, and README.md."""
    from data.files import provenance, write_result

    train, test = (read_rows(path) for path in (args.train, args.test))
    results = {"fitted on the other file": blind_judges(test, train), "cross-fitted": blind_judges(test)}
    lines = table(results)
    command = f"python -m analysis.pair_balance {args.train} {args.test} --record {args.record}"
    where = {"command": command, "record": str(args.record), "commit": provenance()["commit"]}
    entries = {}
    for judge in ("length", "position", "source"):
        entry = results["fitted on the other file"][judge]
        percent = {name: 100 * entry[name] for name in ("value", "low", "high")}
        entries[f"{judge}_only_judge"] = percent | {"n": entry["n"], "unit": "%"} | where
    args.record.mkdir(parents=True, exist_ok=True)
    write_result(args.record / "summary.json", {"headline": entries, "judges": results})
    readme = [
        "# Judges that do not look", "",
        f"Claim: length, source and position do not tell the better response of a physworld pair: 50 +- 3%. {len(test)} pairs of "
        f"{args.test}, percent with 95% intervals; judges fitted on {len(train)} pairs of {args.train}, or on four fifths of the "
        "same file and scored on the rest.", "", f"Command: `{command}`; commit {where['commit']}.", "", *lines, "",
    ]  # fmt: skip
    (args.record / "README.md").write_text("\n".join(readme), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path, help="pairs that the judges are fitted on")
    parser.add_argument("test", type=Path, help="pairs that they are scored on")
    parser.add_argument("--record", type=Path, required=True, help="the record's folder, experiments/<date>_pair_balance")
    main(parser.parse_args())
