"""The report's section on the ablation matrix (experiments/tables.yaml), which runs for hours: what is there, and what is not.

Reads tables.yaml and paper_numbers.json of experiments/, and of its folder tables/ results.jsonl (experiments/run.py) and
tables.json (analysis/ablation_tables.py), each only where it is there.
"""

import yaml

from analysis.ablation_page import EVALUATIONS, FULL, OPTIONAL, TABLES, paper_cell
from analysis.demo_report import percent
from analysis.report_figures import dots, lines
from analysis.report_sections import around, ends_of, load, section, share, told
from data.files import read_rows


def matrix(experiments):
    """({(run, seed): row of results.jsonl, the later where one stands twice}, [(run, seed) that the matrix still lacks])."""
    plan, path = yaml.safe_load((experiments / "tables.yaml").read_text(encoding="utf-8")), experiments / "tables/results.jsonl"
    rows = {(row["run"], row["seed"]): row for row in read_rows(path)} if path.is_file() else {}
    wanted = [(run, s) for run, how in plan["runs"].items() for s in (plan["seeds"] if how["stages"] else plan["seeds"][:1])]
    return rows, [pair for pair in wanted if pair not in rows and pair[0] not in OPTIONAL]


def ablation_rows(rows, table):
    """label -> dots of each seed that is there, judge and question accuracy of the test split."""
    made = {}
    for run, label in table.items():
        mine = [row["evaluations"] for (name, _), row in sorted(rows.items()) if name == run]
        entries = [
            share(series, found[name]["metrics"]["accuracy"])
            for name, series in (("question_test", "questions"), ("judge_test", "judges"))
            for found in mine
        ]
        if entries:
            made[label] = entries
    return made


def scaling(rows):
    """label -> [(share, mean, least, most)] of the judge's accuracy over seeds; two_stages is GRPO's 100%."""
    series = {"GRPO": "grpo", "supervised judge": "supervised"}
    points = {}
    for label, stem in series.items():
        for part in (10, 25, 50, 75, 100):
            run = FULL if (stem, part) == ("grpo", 100) else f"{stem}_{part}"
            found = [r["evaluations"]["judge_test"]["metrics"]["accuracy"]["value"] for (n, _), r in rows.items() if n == run]
            if found:
                points.setdefault(label, []).append((part, *(100 * value for value in around(found))))
    return points


def ablation_cells(rows, paper):
    """Cells of what is there so far: every run, the paper's numbers, accuracy of each seed in percent."""
    cells, labels = [["", "Paper", *EVALUATIONS.values(), "Seeds"]], {}
    for _, table in TABLES.values():
        labels |= {run: label for run, label in table.items() if run not in labels}
    for run, label in labels.items():
        mine = [row["evaluations"] for (name, _), row in sorted(rows.items()) if name == run]
        if mine:
            values = ["; ".join(percent(found[name]["metrics"]["accuracy"]) for found in mine) for name in EVALUATIONS]
            cells.append([label, paper_cell(run, label, paper), *values, str(len(mine))])
    return cells


def ablation_figure(title, rows, table, missing):
    """A figure of one table as far as it has run; None where it has no two rows to compare."""
    mine = ablation_rows(rows, table)
    absent = [label for run, label in table.items() if run in {name for name, _ in missing}]
    lack = f" Not there yet, or not every seed: {', '.join(absent)}." if absent else ""
    if len(mine) < 2:
        return None
    if title.startswith("Data") and len(points := scaling(rows)) == 2:
        alt, caption = f"Judge accuracy by share of the pairs: {ends_of(points)}.", f"{title}. Mean and range of the seeds.{lack}"
        return lines(points, "share of the pairs, %", "judge accuracy, %", alt, caption, ticks=[10, 25, 50, 75, 100])
    caption = f"{title}. Test split; a dot is a seed, with its 95% interval over questions.{lack}"
    return dots(mine, "accuracy, %", f"Accuracy in percent. {title}. {told(mine)}.", caption)


def named(missing, rows):
    """Missing runs as words, seeds named only of a run that has others.

    >>> named([("mixed", 0), ("mixed", 1), ("stage1", 2)], [("stage1", 0), ("stage1", 1)])
    'mixed, stage1 (seed 2)'
    """
    begun = {run for run, _ in rows}
    return ", ".join(dict.fromkeys(f"{run} (seed {seed})" if run in begun else run for run, seed in missing))


def ablations(experiments):
    """Figures of the ablation matrix as far as it has run; the tables of analysis/ablation_tables.py where they are made."""
    (rows, missing), folder = matrix(experiments), experiments / "tables"
    figures = [figure for title, table in TABLES.values() if (figure := ablation_figure(title, rows, table, missing))]
    text, tables, findings = [], [], []
    if missing:
        text.append(
            f"The matrix is not complete: {len(rows)} runs are there, {len(missing)} are missing: {named(missing, rows)}. "
            "python experiments/run.py experiments/tables.yaml runs them."
        )
    if (folder / "tables.json").is_file():
        made = load(folder / "tables.json")
        tables = [{"title": title, "cells": cells} for title, cells in made["tables"].items()]
        findings, text = [line for line in made["findings"] if line], text + [made["left_out"]] * bool(made["left_out"])
    elif rows:
        tables = [{"title": "So far, each seed", "cells": ablation_cells(rows, load(experiments / "paper_numbers.json"))}]
    text.append("The paper's numbers (7B) are of PhyCritic-Bench / CosmosReason1-Bench / VL-RewardBench; ours of the tiny model.")
    return section("Ablations", folder, text, figures, tables) | {"findings": findings}
