"""The report's sections: figures and tables of each record under experiments/, for analysis/report.py.

A section is {"id", "title", "source", "text": [paragraph], "figures": [...], "tables": [{"title", "cells"}]}. A record that is
missing, or lacks a table, is an error that names it; of the ablation matrix, which runs for hours, what is there is shown.
"""

import json
import statistics

import yaml

from analysis.ablation_page import EVALUATIONS, FULL, OPTIONAL, TABLES, paper_cell
from analysis.bench_train_step import AXES, BASE, MAIN, SMALL
from analysis.best_of_n import BASELINES
from analysis.counterfactual import TITLES
from analysis.demo_report import CURVES, MODELS, SPLITS, smooth
from analysis.pages import cell, table_of
from analysis.paper_tables import KINDS
from analysis.report_figures import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, bars, dots, lines
from data.files import read_rows

KIND_COLOURS = [GREEN, BLUE, ORANGE, PURPLE, RED, GREY]  # of mechanism.FAILURES
TOURNAMENTS = ("knockout", "knockout, both orders", "adaptive", "pivot", "swiss", "round robin")


def record(experiments, name):
    """The newest folder <date>_<name>; raises ValueError where there is none."""
    found = sorted(experiments.glob(f"????-??-??_{name}"))
    if not found:
        raise ValueError(f"{experiments} holds no record <date>_{name}: fetch it, or make it as experiments/LOG.md says")
    return found[-1]


def load(path):
    """The object in a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def share(name, entry):
    """A dot, or (by its x in place of a name) a point of a line: an estimate in percent."""
    return (name, *(100 * entry[key] for key in ("value", "low", "high")))


def section(title, folder, text, figures, tables):
    """A section of the page; its id is the first word of its title."""
    name = title.split()[0].lower()
    return {"id": name, "title": title, "source": folder.name, "text": text, "figures": figures, "tables": tables}


def around(values):
    """Mean, least and most of the seeds."""
    return statistics.mean(values), min(values), max(values)


# ----------------------------------------------------------------------------------------------------------- training


def curve(logs, name, width=9):
    """[(step, mean, least, most)] of a logged value over seeds, each smoothed; steps that every seed logged."""
    by_seed = [{row["step"]: row[name] for row in log if row.get(name) is not None} for log in logs]
    steps = sorted(set.intersection(*map(set, by_seed)))
    if not steps:
        raise ValueError(f"the recorded logs hold no {name} at a step of all seeds")
    smoothed = [smooth([seed[step] for step in steps], min(width, len(steps))).tolist() for seed in by_seed]
    return [(step, *around(values)) for step, values in zip(steps, zip(*smoothed))]


def accuracy_figure(found, split, title):
    """Accuracy of every model on a split, a dot a seed; `found`: summary.json's seeds."""
    rows = {}
    for model, label in MODELS.items():
        results = [(mode, demo.get(f"{model}_{mode}_{split}")) for mode in ("question", "judge") for demo in found.values()]
        rows[label] = [share(f"{mode}s", result["accuracy"]) for mode, result in results if result]
    caption = f"{title}. A dot is a seed, with its 95% interval over questions."
    return dots(rows, "accuracy, %", f"Accuracy in percent by model, {split} split, each seed.", caption)


def training(experiments):
    """Learning curves, and accuracies before and after each stage."""
    folder, figures = record(experiments, "three_seeds"), []
    seeds = sorted(path for path in folder.iterdir() if (path / "stage1_log.jsonl").is_file())
    logs = {s: [[json.loads(x) for x in (p / f"{s}_log.jsonl").read_text().splitlines()] for p in seeds] for s in CURVES}
    for stage, curves in CURVES.items():
        drawn = {label: curve(logs[stage], name) for name, (label, _) in curves.items()}
        what = f"Reward per step of stage {stage[-1]}, mean of {len(seeds)} seeds:"
        caption = f"Stage {stage[-1]}: reward of sampled completions, running mean of 9 steps; the band spans {len(seeds)} seeds."
        figures.append(lines(drawn, "step", "mean reward", what, caption, limits=(0, 1.02)))
    names = {"phi, answer and judgement": "phi", "verdicts for the first shown": "verdict_first_share"}
    drawn = {label: curve(logs["stage2"], name) for label, name in names.items()}
    caption = "Stage 2: coupling (phi) of own answer and judgement, and the share of verdicts for the response shown first."
    figures.append(lines(drawn, "step", "", "While stage 2 trains:", caption, limits=(-0.1, 1.02)))
    found = load(folder / "summary.json")["seeds"]
    figures += [accuracy_figure(found, split, title) for split, title in SPLITS.items()]
    tables = [table_of(folder / "README.md", title) for title in SPLITS.values()]
    text = "Reward while training, and greedy accuracy before and after. Tables pool the seeds; intervals resample questions."
    return section("Learning curves", folder, [text], figures, tables)


# ---------------------------------------------------------------------------------------------------------- ablations


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
        text.append(f"The matrix is not complete: {there} runs are there, {len(missing)} are missing: {', '.join(named)}.")
        text[0] += " python experiments/run.py experiments/tables.yaml runs them."
    if (folder / "tables.json").is_file():
        made = load(folder / "tables.json")
        tables = [{"title": title, "cells": cells} for title, cells in made["tables"].items()]
        findings, text = [line for line in made["findings"] if line], text + [made["left_out"]] * bool(made["left_out"])
    elif found:
        tables = [{"title": "So far, each seed", "cells": ablation_cells(found, load(experiments / "paper_numbers.json"))}]
    text.append("The paper's numbers (7B) are of PhyCritic-Bench / CosmosReason1-Bench / VL-RewardBench; ours of the tiny model.")
    return section("Ablations", folder, text, figures, tables) | {"findings": findings}


# --------------------------------------------------------------------------------------- best of N, tournaments, solve once


def accuracy_lines(found, by):
    """label -> [(x, accuracy, low, high)] in percent, `by` giving a point's (label, x), or None where it is not drawn."""
    made = {}
    for point in found:
        if place := by(point):
            value = point["accuracy"] if "accuracy" in point else point["value"]
            made.setdefault(place[0], []).append(share(place[1], point | {"value": value}))
    return {label: sorted(points) for label, points in made.items()}


def tournament_figure(folder, size, what):
    """Accuracy of the pick against comparisons, each tournament a line over its budgets."""
    points = [point for point in load(folder / "results.json")["points"] if point["size"] == size]

    def by(point):
        name = point["method"] if point["method"] in TOURNAMENTS else point["method"].split()[0]
        return (name, point["comparisons"]) if name in TOURNAMENTS and point["method"] != "swiss as pivot 2" else None

    where = f"N = {size}, {points[0]['tasks']} tasks: accuracy of the pick against comparisons; 95% intervals."
    alt, caption = f"Accuracy against comparisons, {what}, N = {size}:", f"{what[0].upper()}{what[1:]}, {where}"
    return lines(accuracy_lines(points, by), "comparisons", "accuracy, %", alt, caption, log=True)


def choosing(experiments):
    """Best of N, what the judge calls cost, tournaments on recorded and simulated tables, solving once."""
    folder = record(experiments, "best_of_n")
    results = load(folder / "results.json")

    def by_size(point):
        if point["judge"]:
            return (f"{point['judge']} as judge", point["n"]) if point["method"] == results["tournament"] else None
        drawn = point["method"] in ("majority", "agrees", "own answer", "oracle")
        return (f"({BASELINES[point['method']][0]})", point["n"]) if drawn else None

    def by_calls(point):
        fits = point["judge"] == results["tested"] and point["n"] > 1
        return (point["method"], point["judge_calls"]) if fits else None

    drawn, calls = accuracy_lines(results["points"], by_size), accuracy_lines(results["points"], by_calls)
    drawn = dict(sorted(drawn.items(), key=lambda item: item[0].startswith("(")))  # judges first
    bands = f"{results['points'][0]['questions']} questions; bands are 95% intervals"
    caption = f"Best of N, {results['tournament']}, {bands}. Dashed: picks without a tournament."
    figures = [lines(drawn, "candidates N", "accuracy, %", "Accuracy of the pick by N:", caption, log=True)]
    caption = f"What the calls buy: {results['tested']} as judge, each tournament from N = 2 up, {bands}."
    what = f"Accuracy by judge calls, {results['tested']}:"
    figures.append(lines(calls, "judge calls a question", "accuracy, %", what, caption))
    figures.append(tournament_figure(record(experiments, "tournaments_recorded"), 20, "recorded tables of the critic"))
    figures.append(tournament_figure(record(experiments, "tournaments"), 64, "simulated judge"))
    title = "Best of 32: solve once, judge many, against solving anew"
    table = table_of(record(experiments, "solve_once") / "README.md", title=title)
    text = "The critic picks one of N candidates. Equal texts are judged once; the critic solves the question once, first of all."
    return section("Best of N and tournaments", folder, [text], figures, [table])


# ---------------------------------------------------------------------------------------------------- mechanism, DPO, bench


def counterfactual_figure(own):
    """How often the verdict changes when the self-prediction is replaced, by what replaces it."""
    made = {TITLES[name]: found["counterfactual"]["conditions"] for name, found in own.items()}
    full = made[TITLES["full"]]
    rows = {condition: [share(title, rates[condition]["changed"]) for title, rates in made.items()] for condition in full}
    n = full["other"]["changed"]["n"]
    caption = (
        f"The self-prediction is replaced before the critic compares ({n} judgements of the full method). other: by the other "
        "response's answer; words: reworded; kept: a check; think: its reasoning is replaced, free: and it answers anew."
    )
    what = "Percent of verdicts that change when the self-prediction is replaced."
    return dots(rows, "verdicts that change, %", what, caption)


def failure_figure(full):
    """How judgements of the full method end, by suite."""
    rows = {suite: {kind: 100 * e["value"] for kind, e in kinds.items()} for suite, kinds in full["failures"].items()}
    caption = f"How judgements end, full method, {full['n']} judgements: right, and every kind of failure, by suite."
    return bars(rows, "judgements, %", "Percent of judgements by suite.", caption, KIND_COLOURS)


def coupling_figure(own):
    """phi of self-prediction and judgement."""
    found = {TITLES[model]: one["coupling"] for model, one in own.items()}
    rows = {title: [("phi", e["phi"], e["low"], e["high"])] for title, e in found.items() if e["phi"] is not None}
    caption = "Coupling: phi of self-prediction and judgement (right or wrong), one order a pair; 95% intervals."
    words = "; ".join(f"{title} {entries[0][1]:+.2f}" for title, entries in rows.items())
    return dots(rows, "phi", "Phi:", caption, words, line=0)


def bias_figure(own):
    """Accuracy where the right response has a cue, and where the wrong one has it."""
    sides = {"agree": "right response has it", "disagree": "wrong response has it"}
    found = {f"{TITLES[model]}: {cue}": bias for model, one in own.items() for cue, bias in one["biases"].items()}
    found = {title: bias for title, bias in found.items() if all(bias[side]["n"] for side in sides)}
    rows = {title: [share(label, bias[side]) for side, label in sides.items()] for title, bias in found.items()}
    caption = "Biases: accuracy where the right response has the cue, and where the wrong one has it; equal without a bias."
    return dots(rows, "accuracy, %", "Accuracy in percent by cue.", caption, limits=(-3, 103))


def calibration_figures(models):
    """The reliability curve of p_first, and accuracy on the surest pairs."""
    read = {TITLES[model]: found["calibration"] for model, found in models.items() if found["calibration"]["n"]}
    points = {title: [(p["p"], *[p["share"]] * 3) for p in found["reliability"]] for title, found in read.items()}
    points["(calibrated)"] = [(0, 0, 0, 0), (1, 1, 1, 1)]
    caption = "Calibration: share of pairs whose first response is better, by p_first; a point is a tenth of the range in use."
    first = lines(points, "p_first", "first is better, share", "Reliability:", caption, limits=(-0.02, 1.02))
    sure = {title: [share(100 * s["coverage"], s) for s in found["selective"]] for title, found in read.items()}
    caption = "Selective accuracy: judging only the surest share of the pairs; bands are 95% intervals."
    return [first, lines(sure, "share judged, %", "accuracy, %", "Selective accuracy:", caption)]


def mechanism(experiments):
    """Counterfactuals, failures, coupling, biases and calibration."""
    folder = record(experiments, "mechanism")
    models = load(folder / "mechanism.json")["models"]
    own = {name: found for name, found in models.items() if "counterfactual" in found}
    figures = [counterfactual_figure(own), failure_figure(models["full"]), coupling_figure(own), bias_figure(own)]
    tables = [table_of(folder / "README.md", start) for start in ("Coupling", "Counterfactual", "Cost", "Calibration")]
    text = "Does the verdict come from the critic's own answer? What correlates, and what changes when that answer is changed."
    return section("Mechanism", folder, [text], figures + calibration_figures(models), tables)


def dpo(experiments):
    """Question accuracy of policies trained on each kind of pairs."""
    folder, labels, rows = record(experiments, "dpo"), {"base": "nothing: the policy"} | KINDS, {}
    for kind, by in load(folder / "results.json").items():
        found = {"test": by["test"]["accuracy"], "out of distribution": by["ood"]["accuracy"]}
        rows[labels[kind]] = [(name, e["value"], e["low"], e["high"]) for name, e in found.items()]
    caption = "Question accuracy after DPO, by what made the pairs; seeds pooled, 95% intervals over questions."
    figure = dots(rows, "question accuracy, %", "Question accuracy in percent after DPO.", caption)
    page = folder / "README.md"
    tables = [table_of(page, title="Points are paired by question and seed"), table_of(page, "Pairs")]
    return section("DPO", folder, ["Do the critic's preferences make a better policy?"], [figure], tables)


WHO = {"stock": "stock TRL", "ours": "ours"}


def growth_figure(points, axis):
    """Seconds of a step against one axis of the grid, the other axes as at bench_train_step.BASE; None for fewer than two."""
    fixed = {name: value for name, value in zip(AXES, BASE) if name != axis}
    line = [p for p in points if all(p[name] == value for name, value in fixed.items())]
    if len(line) < 2:
        return None
    drawn = {title: sorted((p[axis], *[p["seconds"][who]["step"]] * 3) for p in line) for who, title in WHO.items()}
    others = ", ".join(f"{name} {value}" for name, value in fixed.items())
    caption = f"Seconds of a step by {axis}; {others}. Both axes logarithmic."
    return lines(drawn, axis, "seconds", f"Seconds of a step by {axis}:", caption, log=True, log_y=True)


def bench(experiments):
    """Seconds of a training step, stock TRL and ours."""
    folder, figures = record(experiments, "bench"), []
    results = load(folder / "results.json")
    measured = [point for point in results["points"] if "seconds" in point]
    for point in [p for p in measured if tuple(p[axis] for axis in AXES) in (MAIN, SMALL)]:
        rows = {title: {k: v for k, v in point["seconds"][who].items() if k != "step"} for who, title in WHO.items()}
        where = f"prompt {point['prompt']}, completion {point['completion']}, {point['group']} x {point['frames']} frames"
        caption = f"One training step, {where}; CPU threads: {results['threads']}; mean of {results['repeats']} repeats."
        figures.append(bars(rows, "seconds", f"Seconds of a step, {where}.", caption))
    figures += [made for axis in ("group", "frames", "prompt") if (made := growth_figure(measured, axis))]
    table = table_of(folder / "table.md", title="Seconds (stock TRL / ours), memory, gradients")
    text = "The prompt of a group is run once, not once for every completion."
    return section("Cost of a training step", folder, [text], figures, [table])
