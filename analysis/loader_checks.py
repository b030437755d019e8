"""Every loader on its fixtures and on spoiled copies of their rows: is each row kept, or rejected with a reason?

    python -m analysis.loader_checks                                                  prints a table
    python -m analysis.loader_checks --out experiments/2026-11-30_loader_checks --claim     records it

A spoiled row is a fixture's row with one field (also of a nested one) replaced by something that does not belong there.
Unexplained is a row that was read and is neither kept nor rejected with a reason and a place, or that was not read at all.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path

import sources
from analysis.headline import write_summary
from source_files import read_rows, table_files

FIXTURES = Path(__file__).resolve().parents[1] / "tests" / "fixtures"
ODD = (None, "", "  ", "x", -1, 7, 2.5, True, [], [None, None], {}, {"bytes": None}, "A" * 5_000)
SUBSETS = {"roboreward": "test"}


def spoiled(row):
    """Copies of a row, each with one field replaced."""
    made = [row | {field: value} for field in row for value in ODD]
    for field, inner in row.items():
        if isinstance(inner, dict):
            made += [row | {field: copy} for copy in spoiled(inner)]
    return made


def spoil(folder, source, rows_each):
    """Replace the rows of every table file of a source by spoiled copies of its first rows."""
    for file in table_files(folder, SUBSETS.get(source)):
        rows = [row for _, row in read_rows(file)][:rows_each]
        copies = [copy for row in rows for copy in spoiled(row)]
        text = json.dumps(copies) if file.suffix == ".json" else "".join(json.dumps(copy) + "\n" for copy in copies)
        file.write_text(text, encoding="utf-8")


def count_rows(folder, source):
    """The rows of a source, counted without its loader; a clip with an empty list of questions is one row to reject."""
    rows = [row for file in table_files(folder, SUBSETS.get(source)) for _, row in read_rows(file)]
    nested = [max(len(row["qa_pairs"]), 1) for row in rows if source == "cosmos_reason1" and isinstance(row["qa_pairs"], list)]
    return len(rows) - len(nested) + sum(nested)


def check(folder, source, mode, out):
    """(rows, kept, rejected, unexplained) of one loader; a spoiled set that leaves no record at all is fine, too."""
    counts = sources.Counts()
    media = sources.Media(folder, out)
    pair = mode == "judge" and source != "roboreward"
    kept = sum(1 for _ in sources.kept(source, table_files(folder, SUBSETS.get(source)), media, pair, counts))
    explained = sum(n for reason, n in counts.reasons.items() if reason.strip() and counts.first.get(reason))
    rows = count_rows(folder, source)
    return rows, kept, counts.reasons.total(), abs(rows - kept - explained)


def check_all(rows_each=2):
    """{(source, mode, "fixtures" | "spoiled"): (rows, kept, rejected, unexplained)} of all loaders."""
    found = {}
    with tempfile.TemporaryDirectory() as work:
        copies = Path(work) / "fixtures"
        shutil.copytree(FIXTURES, copies)
        for kind in ("fixtures", "spoiled"):
            for source, (_, modes) in sources.LOADERS.items():
                folder = copies / source
                if kind == "spoiled":
                    spoil(folder, source, rows_each)
                for mode in modes:
                    if (source, mode) != ("own", "judge"):  # the same function as phycritic_bench
                        found[source, mode, kind] = check(folder, source, mode, Path(work) / "out")
    return found


def entry(found):
    """The headline entry, without its provenance."""
    rows, unexplained = (sum(counts[place] for counts in found.values()) for place in (0, 3))
    return {"value": unexplained, "low": unexplained, "high": unexplained, "n": rows, "unit": "rows (a count, without error)"}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the record's folder, experiments/<date>_loaders")
    parser.add_argument("--claim", action="store_true", help="also set the entry in experiments/headline.json")
    args = parser.parse_args()
    results = check_all()
    lines = ["| Source | Mode | Rows | Read | Kept | Rejected | Unexplained |", "|---" * 7 + "|"]
    lines += [
        f"| {source} | {mode} | {kind} | " + " | ".join(map(str, counts)) + " |"
        for (source, mode, kind), counts in results.items()
    ]
    print("\n".join(lines))
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        command = f"python -m analysis.loader_checks --out {args.out}"
        claim = "# Loaders: every rejected row has its reason\n\n"
        claim += "Rows of the real schemas with quirks, written by us; no public data was read here.\n\n"
        (args.out / "README.md").write_text(f"{claim}Command: `{command}`\n\n" + "\n".join(lines) + "\n", encoding="utf-8")
        write_summary(args.out, {"loader_rows_rejected_unexplained": entry(results)}, command, args.claim)
