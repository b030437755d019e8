"""Every loader on its fixtures and on spoiled copies of their rows: each row is kept, or rejected with a reason.

A spoiled row is a fixture's row with one field (also of a nested one) replaced by something that does not belong there. The
rows are of the real schemas with quirks, written by us; no public data is read. Recorded in experiments/2026-11-30_loader_checks.
"""

import json
import shutil
from pathlib import Path

from analysis import headline
from data import source_files, sources
from data.source_files import read_rows, table_files

FIXTURES = Path(__file__).parent / "fixtures"
ODD = (None, "", "  ", "x", -1, 7, 2.5, True, [], [None, None], {}, {"bytes": None}, "A" * 5_000)
SUBSETS = {"roboreward": "test"}


def spoiled(row):
    """Copies of a row, each with one field replaced."""
    made = [row | {field: value} for field in row for value in ODD]
    for field, inner in row.items():
        if isinstance(inner, dict):
            made += [row | {field: copy} for copy in spoiled(inner)]
    return made


def spoil(folder, source, rows_each=2):
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
    counts = source_files.Counts()
    media = source_files.Media(folder, out)
    pair = mode == "judge" and source != "roboreward"
    kept = sum(1 for _ in sources.kept(source, table_files(folder, SUBSETS.get(source)), media, pair, counts))
    explained = sum(n for reason, n in counts.reasons.items() if reason.strip() and counts.first.get(reason))
    rows = count_rows(folder, source)
    return rows, kept, counts.reasons.total(), abs(rows - kept - explained)


def test_no_row_of_any_source_is_rejected_without_a_reason(tmp_path):
    """Unexplained: read, but neither kept nor rejected with a reason and a place; or not read at all."""
    found = {}
    copies = Path(shutil.copytree(FIXTURES, tmp_path / "fixtures"))
    for kind in ("fixtures", "spoiled"):
        for source, (_, modes) in sources.LOADERS.items():
            if kind == "spoiled":
                spoil(copies / source, source)
            for mode in modes:
                if (source, mode) != ("own", "judge"):  # the same function as phycritic_bench
                    found[source, mode, kind] = check(copies / source, source, mode, tmp_path / "out")
    assert {source for source, _, _ in found} == set(sources.LOADERS)
    assert [name for name, (*_, unexplained) in found.items() if unexplained] == []
    [claim] = [row for group in headline.groups() for row in group["rows"] if row["name"] == "loader_rows_rejected_unexplained"]
    assert claim["n"] == sum(rows for rows, *_ in found.values()) == 3563 and claim["entry"]["value"] == 0
    lines = [f"| {' | '.join(name)} | {' | '.join(map(str, counts))} |" for name, counts in found.items()]
    page = (headline.ROOT / claim["entry"]["record"] / "README.md").read_text(encoding="utf-8")
    assert "\n".join(lines) in page, "the record's table"
