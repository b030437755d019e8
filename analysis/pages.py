"""What the pages of all records share: an estimate as a cell, in percent; tables in Markdown, written and read; the files."""

import json
import re

from analysis.headline import write_summary
from stats import is_right, mean_gain, row_key


def cell(entry, style=".1f", times=100):
    """An estimate with its interval as text, in percent unless `times` is 1; a dash where there is none.

    >>> cell({"value": 0.5, "low": 0.4, "high": 0.6}), cell({"value": 4, "low": -1, "high": 9}, "+.1f", 1)
    ('50.0 [40.0, 60.0]', '+4.0 [-1.0, +9.0]')
    """
    if entry["value"] is None:
        return "-"
    value, low, high = (f"{times * entry[key]:{style}}" for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def times100(entry, unit=None):
    """{"value", "low", "high", "n"} of an estimate in percent or a difference in points; its "unit" too where one is given."""
    made = {key: 100 * entry[key] for key in ("value", "low", "high")} | {"n": entry["n"]}
    return made | ({"unit": unit} if unit else {})


def gain(after, before):
    """{"value", "low", "high", "n"} in points: rows a seed, pooled over seeds, paired by row, resampled by question."""
    gains = {}
    for rows_after, rows_before in zip(after, before, strict=True):
        earlier = {row_key(row): row for row in rows_before}
        for row in rows_after:
            gains.setdefault(row["cluster"], []).append(is_right(row) - is_right(earlier[row_key(row)]))
    return times100(dict(zip(("value", "low", "high", "n"), mean_gain(gains))))


def markdown(cells):
    """Cells of a table, its header first, as lines of Markdown.

    >>> markdown([["", "n"], ["a", "1"]])
    ['|  | n |', '|---|---|', '| a | 1 |']
    """
    head, *rows = ["| " + " | ".join(row) + " |" for row in cells]
    return [head, "|---" * len(cells[0]) + "|", *rows]


def markdown_tables(path):
    """{heading (of level 2, or ""): [cells of each row of its first table, the header first]} of a record's page.

    Backslashes and links stay as they are; a cell holds no "|".
    """
    tables = {}
    for part in re.split("^## ", "\n" + path.read_text(encoding="utf-8"), flags=re.M):
        title, _, body = part.partition("\n")
        if table := re.search(r"(^\|.*\n?)+", body, flags=re.M):
            rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[0].splitlines()]
            tables[title] = [row for row in rows if not all(re.fullmatch(r":?-+:?", cell) for cell in row)]
    return tables


def table_of(page, start="", title=None):
    """{"title", "cells"} of the first table whose heading begins so; raises ValueError naming the file."""
    tables = markdown_tables(page)
    for heading, cells in tables.items():
        if heading.startswith(start):
            return {"title": title or heading, "cells": cells}
    raise ValueError(f"{page} has no table {start!r}: it has {sorted(tables)}")


def write_record(out, lines, name, numbers, entries, command):
    """A record's README.md (`lines`), `name` (every number, as JSON) and summary.json (`entries`: what it claims)."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (out / name).write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    write_summary(out, entries, command)
