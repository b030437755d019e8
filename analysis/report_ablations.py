"""The report's section on the ablation matrix (experiments/tables.yaml), which runs for hours: what is there, and what is not.

Reads tables.yaml and paper_numbers.json of experiments/, and of its folder tables/ results.jsonl (experiments/run.py) and
tables.json (analysis/ablation_tables.py), each only where it is there.
"""

import yaml

from analysis.ablation_page import EVALUATIONS, FULL, OPTIONAL, TABLES, paper_cell
from analysis.coupling import read_rows
from analysis.pages import cell
from analysis.report_figures import dots, lines
from analysis.report_sections import around, load, section, share


def matrix(experiments):
    """({run: {seed: evaluations}}, the later row where one stands twice; [(run, seed) that the matrix still lacks])."""
    plan, path = yaml.safe_load((experiments / "tables.yaml").read_text(encoding="utf-8")), experiments / "tables/results.jsonl"
    found = {}
    for row in sorted(read_rows(path) if path.is_file() else [], key=lambda row: row["seed"]):
        found.setdefault(row["run"], {})[row["seed"]] = row["evaluations"]
    wanted = [(run, s) for run, how in plan["runs"].items() for s in (plan["seeds"] if how["stages"] else plan["seeds"][:1])]
    return found, [(run, seed) for run, seed in wanted if seed not in found.get(run, ()) and run not in OPTIONAL]


def accuracies(found, run, evaluation):
    """The accuracy of each seed of a run that is there."""
    return [evaluations[evaluation]["metrics"]["accuracy"] for evaluations in found.get(run, {}).values()]


def scaling(found):
    """label -> [(share, mean, least, most)] of the judge's accuracy over seeds; two_stages is GRPO's 100%."""
    points = {}
    for label, stem in {"GRPO": "grpo", "supervised judge": "supervised"}.items():
        for part in (10, 25, 50, 75, 100):
            run = FULL if (stem, part) == ("grpo", 100) else f"{stem}_{part}"
            if values := [100 * entry["value"] for entry in accuracies(found, run, "judge_test")]:
                points.setdefault(label, []).append((part, *around(values)))
    return points


def ablation_cells(found, paper):
    """Cells of what is there so far: every run, the paper's numbers, accuracy of each seed in percent."""
    cells, shown = [["", "Paper", *EVALUATIONS.values(), "Seeds"]], set()
    for run, label in [row for _, table in TABLES.values() for row in table.items()]:
        if run in found.keys() - shown:  # the full method is in every table
            values = ["; ".join(map(cell, accuracies(found, run, name))) for name in EVALUATIONS]
            cells.append([label, paper_cell(run, label, paper), *values, str(len(found[run]))])
            shown.add(run)
    return cells


def ablation_figure(title, table, found, missing):
    """A figure of one table as far as it has run; None where it has no two rows to compare."""
    series = {"question_test": "questions", "judge_test": "judges"}
    drawn = {
        label: [share(name, entry) for evaluation, name in series.items() for entry in accuracies(found, run, evaluation)]
        for run, label in table.items()
        if run in found
    }
    absent = [label for run, label in table.items() if run in {name for name, _ in missing}]
    lack = f" Not there yet, or not every seed: {', '.join(absent)}." if absent else ""
    if len(drawn) < 2:
        return None
    if title.startswith("Data") and len(points := scaling(found)) == 2:
        what, caption = "Judge accuracy by share of the pairs:", f"{title}. Mean and range of the seeds.{lack}"
        return lines(points, "share of the pairs, %", "judge accuracy, %", what, caption, ticks=[10, 25, 50, 75, 100])
    caption = f"{title}. Test split; a dot is a seed, with its 95% interval over questions.{lack}"
    return dots(drawn, "accuracy, %", f"Accuracy in percent. {title}.", caption)


def ablations(experiments):
    """Figures of the ablation matrix as far as it has run; the tables of analysis/ablation_tables.py where they are made."""
    (found, missing), folder = matrix(experiments), experiments / "tables"
    figures = [figure for title, table in TABLES.values() if (figure := ablation_figure(title, table, found, missing))]
    text, tables, findings = [], [], []
    if missing:
        there = sum(map(len, found.values()))
        named = dict.fromkeys(f"{run} (seed {seed})" if run in found else run for run, seed in missing)
        text.append(
            f"The matrix is not complete: {there} runs are there, {len(missing)} are missing: {', '.join(named)}. "
            "python experiments/run.py experiments/tables.yaml runs them."
        )
    if (folder / "tables.json").is_file():
        made = load(folder / "tables.json")
        tables = [{"title": title, "cells": cells} for title, cells in made["tables"].items()]
        findings, text = [line for line in made["findings"] if line], text + [made["left_out"]] * bool(made["left_out"])
    elif found:
        tables = [{"title": "So far, each seed", "cells": ablation_cells(found, load(experiments / "paper_numbers.json"))}]
    text.append("The paper's numbers (7B) are of PhyCritic-Bench / CosmosReason1-Bench / VL-RewardBench; ours of the tiny model.")
    return section("Ablations", folder, text, figures, tables) | {"findings": findings}
