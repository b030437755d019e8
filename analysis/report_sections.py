"""The report's sections, but the ablations: figures and tables of each record under experiments/, for analysis/report.py.

A section is {"id", "title", "source", "text": [paragraph], "figures": [...], "tables": [{"title", "cells"}]}. A record that is
missing, or lacks a table, is an error that names it.
"""

import json
import re
import statistics

from analysis.bench_train_step import AXES, BASE, MAIN, SMALL
from analysis.best_of_n import BASELINES
from analysis.demo_report import CURVES, MODELS, SPLITS, smooth
from analysis.paper_tables import KINDS
from analysis.mechanism import TITLES
from analysis.report_figures import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, bars, dots, lines

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


def markdown_tables(path):
    """{heading (of level 2, or ""): [cells of each row of its first table, the header first]} of a record's page.

    Backslashes and links stay as they are; a cell holds no "|".
    """
    tables, title, closed = {}, "", False
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            title, closed = line[3:], False
        elif line.startswith("|") and not closed:
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
                tables.setdefault(title, []).append(cells)
        else:
            closed = title in tables
    return tables


def pick(tables, start, path):
    """{"title", "cells"} of the one table whose heading begins so; raises ValueError naming the file."""
    for title, cells in tables.items():
        if title.startswith(start):
            return {"title": title or "Table", "cells": cells}
    raise ValueError(f"{path} has no table {start!r}: it has {sorted(tables)}")


def share(name, entry):
    """A dot, or (by its x in place of a name) a point of a line: an estimate in percent."""
    return (name, *(100 * entry[key] for key in ("value", "low", "high")))


def told(rows):
    """What dots or bars show, as words for the alt text.

    >>> told({"base": [("judge", 49.44, 48, 50)], "full": [("judge", 90, 88, 92)]})
    'base: judge 49.4; full: judge 90.0'
    """
    words = {label: ", ".join(f"{name} {value:.1f}" for name, value, *_ in entries) for label, entries in rows.items()}
    return "; ".join(f"{label}: {each}" for label, each in words.items())


def section(title, folder, text, figures, tables):
    """A section of the page; its id is the first word of its title."""
    name = title.split()[0].lower()
    return {"id": name, "title": title, "source": folder.name, "text": text, "figures": figures, "tables": tables}


def around(values):
    """Mean, least and most of the seeds."""
    return statistics.mean(values), min(values), max(values)


def ends_of(drawn):
    """First and last point of each line, as words for the alt text.

    >>> ends_of({"(oracle)": [(1, 63.1, 60, 66), (32, 98, 97, 99)]})
    'oracle 63.1 at 1, 98 at 32'
    """
    ends = [(label.strip("()"), *points[0][:2], *points[-1][:2]) for label, points in drawn.items()]
    return "; ".join(f"{label} {first:.3g} at {start:.3g}, {last:.3g} at {end:.3g}" for label, start, first, end, last in ends)


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
    rows = {
        label: [
            share(f"{mode}s", demo[f"{model}_{mode}_{split}"]["accuracy"])
            for mode in ("question", "judge")
            for demo in found.values()
            if f"{model}_{mode}_{split}" in demo
        ]
        for model, label in MODELS.items()
    }
    caption = f"{title}. A dot is a seed, with its 95% interval over questions."
    return dots(rows, "accuracy, %", f"Accuracy in percent by model, {split} split, each seed. {told(rows)}.", caption)


def training(experiments):
    """Learning curves, and accuracies before and after each stage."""
    folder = record(experiments, "three_seeds")
    seeds = sorted(path for path in folder.iterdir() if (path / "stage1_log.jsonl").is_file())
    logs = {s: [[json.loads(x) for x in (p / f"{s}_log.jsonl").read_text().splitlines()] for p in seeds] for s in CURVES}
    figures = []
    for stage, curves in CURVES.items():
        drawn = {label: curve(logs[stage], name) for name, (label, _) in curves.items()}
        alt = f"Reward per step of stage {stage[-1]}, mean of {len(seeds)} seeds: {ends_of(drawn)}."
        caption = f"Stage {stage[-1]}: reward of sampled completions, running mean of 9 steps; the band spans {len(seeds)} seeds."
        figures.append(lines(drawn, "step", "mean reward", alt, caption, limits=(0, 1.02)))
    drawn = {
        "phi, answer and judgement": curve(logs["stage2"], "phi"),
        "verdicts for the first shown": curve(logs["stage2"], "verdict_first_share"),
    }
    caption = "Stage 2: coupling (phi) of own answer and judgement, and the share of verdicts for the response shown first."
    figures.append(lines(drawn, "step", "", f"While stage 2 trains: {ends_of(drawn)}.", caption, limits=(-0.1, 1.02)))
    found, page = load(folder / "summary.json")["seeds"], folder / "README.md"
    figures += [accuracy_figure(found, split, title) for split, title in SPLITS.items()]
    tables = [pick(markdown_tables(page), title, page) for title in SPLITS.values()]
    text = "Reward while training, and greedy accuracy before and after. Tables pool the seeds; intervals resample questions."
    return section("Learning curves", folder, [text], figures, tables)


# --------------------------------------------------------------------------------------- best of N, tournaments, solve once


def accuracy_lines(found, by):
    """label -> [(x, accuracy, low, high)] in percent, `by` giving a point's (label, x), or None where it is not drawn."""
    made = {}
    for point in found:
        place = by(point)
        if place:
            value = point["accuracy"] if "accuracy" in point else point["value"]
            made.setdefault(place[0], []).append((place[1], *(100 * v for v in (value, point["low"], point["high"]))))
    return {label: sorted(points) for label, points in made.items()}


def tournament_figure(folder, size, what):
    """Accuracy of the pick against comparisons, each tournament a line over its budgets."""
    results = load(folder / "results.json")

    def by(point):
        name = point["method"] if point["method"] in TOURNAMENTS else point["method"].split()[0]
        fits = name in TOURNAMENTS and point["size"] == size and point["method"] != "swiss as pivot 2"
        return (name, point["comparisons"]) if fits else None

    drawn = accuracy_lines(results["points"], by)
    tasks = next(point["tasks"] for point in results["points"] if point["size"] == size)
    alt = f"Accuracy against comparisons, {what}, N = {size}: {ends_of(drawn)}."
    caption = f"{what[0].upper()}{what[1:]}, N = {size}, {tasks} tasks: accuracy of the pick against comparisons; 95% intervals."
    return lines(drawn, "comparisons", "accuracy, %", alt, caption, log=True)


def choosing(experiments):
    """Best of N, what the judge calls cost, tournaments on recorded and simulated tables, solving once."""
    folder = record(experiments, "best_of_n")
    results = load(folder / "results.json")
    n = results["points"][0]["questions"]
    others = ("majority", "agrees", "own answer", "oracle")

    def by_size(point):
        if point["judge"]:
            return (f"{point['judge']} as judge", point["n"]) if point["method"] == results["tournament"] else None
        return (f"({BASELINES[point['method']][0]})", point["n"]) if point["method"] in others else None

    def by_calls(point):
        fits = point["judge"] == results["tested"] and point["n"] > 1
        return (point["method"], point["judge_calls"]) if fits else None

    drawn, calls = accuracy_lines(results["points"], by_size), accuracy_lines(results["points"], by_calls)
    drawn = dict(sorted(drawn.items(), key=lambda item: item[0].startswith("(")))  # judges first
    bands = f"{n} questions; bands are 95% intervals"
    caption = f"Best of N, {results['tournament']}, {bands}. Dashed: picks without a tournament."
    figures = [lines(drawn, "candidates N", "accuracy, %", f"Accuracy of the pick by N: {ends_of(drawn)}.", caption, log=True)]
    alt = f"Accuracy by judge calls, {results['tested']}: {ends_of(calls)}."
    caption = f"What the calls buy: {results['tested']} as judge, each tournament from N = 2 up, {bands}."
    figures.append(lines(calls, "judge calls a question", "accuracy, %", alt, caption))
    figures.append(tournament_figure(record(experiments, "tournaments_recorded"), 20, "recorded tables of the critic"))
    figures.append(tournament_figure(record(experiments, "tournaments"), 64, "simulated judge"))
    once = record(experiments, "solve_once") / "README.md"
    table = pick(markdown_tables(once), "", once) | {"title": "Best of 32: solve once, judge many, against solving anew"}
    text = "The critic picks one of N candidates. Equal texts are judged once; the critic solves the question once, first of all."
    return section("Best of N and tournaments", folder, [text], figures, [table])


# ---------------------------------------------------------------------------------------------------- mechanism, DPO, bench


def counterfactual_figure(own):
    """How often the verdict changes when the self-prediction is replaced, by what replaces it."""
    made = {name: found["counterfactual"]["conditions"] for name, found in own.items()}
    rows = {
        condition: [share(TITLES[name], conditions[condition]["changed"]) for name, conditions in made.items()]
        for condition in made["full"]
    }
    n = made["full"]["other"]["changed"]["n"]
    caption = (
        f"The self-prediction is replaced before the critic compares ({n} judgements of the full method). other: by the other "
        "response's answer; words: reworded; kept: a check; think: its reasoning is replaced, free: and it answers anew."
    )
    alt = f"Percent of verdicts that change when the self-prediction is replaced. {told(rows)}."
    return dots(rows, "verdicts that change, %", alt, caption)


def failure_figure(full):
    """How judgements of the full method end, by suite."""
    rows = {suite: {kind: 100 * e["value"] for kind, e in kinds.items()} for suite, kinds in full["failures"].items()}
    words = told({suite: [(kind, value) for kind, value in kinds.items() if value] for suite, kinds in rows.items()})
    caption = f"How judgements end, full method, {full['n']} judgements: right, and every kind of failure, by suite."
    return bars(rows, "judgements, %", f"Percent of judgements by suite. {words}.", caption, KIND_COLOURS)


def coupling_figure(own):
    """phi of self-prediction and judgement."""
    found = {TITLES[model]: one["coupling"] for model, one in own.items()}
    rows = {title: [("phi", e["phi"], e["low"], e["high"])] for title, e in found.items() if e["phi"] is not None}
    caption = "Coupling: phi of self-prediction and judgement (right or wrong), one order a pair; 95% intervals."
    words = "; ".join(f"{title} {entries[0][1]:+.2f}" for title, entries in rows.items())
    return dots(rows, "phi", f"Phi: {words}.", caption, line=0)


def bias_figure(own):
    """Accuracy where the right response has a cue, and where the wrong one has it."""
    sides = {"agree": "right response has it", "disagree": "wrong response has it"}
    rows = {
        f"{TITLES[model]}: {cue}": [share(label, bias[side]) for side, label in sides.items()]
        for model, found in own.items()
        for cue, bias in found["biases"].items()
        if all(bias[side]["n"] for side in sides)
    }
    caption = "Biases: accuracy where the right response has the cue, and where the wrong one has it; equal without a bias."
    return dots(rows, "accuracy, %", f"Accuracy in percent by cue. {told(rows)}.", caption, limits=(-3, 103))


def calibration_figures(models):
    """The reliability curve of p_first, and accuracy on the surest pairs."""
    read = {TITLES[model]: found["calibration"] for model, found in models.items() if found["calibration"]["n"]}
    points = {title: [(p["p"], *[p["share"]] * 3) for p in found["reliability"]] for title, found in read.items()}
    points["(calibrated)"] = [(0, 0, 0, 0), (1, 1, 1, 1)]
    caption = "Calibration: share of pairs whose first response is better, by p_first; a point is a tenth of the range in use."
    alt = f"Reliability: {ends_of(points)}."
    first = lines(points, "p_first", "first is better, share", alt, caption, limits=(-0.02, 1.02))
    sure = {title: [share(100 * s["coverage"], s) for s in found["selective"]] for title, found in read.items()}
    caption = "Selective accuracy: judging only the surest share of the pairs; bands are 95% intervals."
    return [first, lines(sure, "share judged, %", "accuracy, %", f"Selective accuracy: {ends_of(sure)}.", caption)]


def mechanism(experiments):
    """Counterfactuals, failures, coupling, biases and calibration."""
    folder = record(experiments, "mechanism")
    models = load(folder / "mechanism.json")["models"]
    own = {name: found for name, found in models.items() if "counterfactual" in found}
    figures = [counterfactual_figure(own), failure_figure(models["full"]), coupling_figure(own), bias_figure(own)]
    page = folder / "README.md"
    tables = [pick(markdown_tables(page), start, page) for start in ("Coupling", "Counterfactual", "Cost", "Calibration")]
    text = "Does the verdict come from the critic's own answer? What correlates, and what changes when that answer is changed."
    return section("Mechanism", folder, [text], figures + calibration_figures(models), tables)


def dpo(experiments):
    """Question accuracy of policies trained on each kind of pairs."""
    folder, labels = record(experiments, "dpo"), {"base": "nothing: the policy"} | KINDS
    rows = {
        labels[kind]: [
            (name, *(by[split]["accuracy"][key] for key in ("value", "low", "high")))
            for split, name in (("test", "test"), ("ood", "out of distribution"))
        ]
        for kind, by in load(folder / "results.json").items()
    }
    caption = "Question accuracy after DPO, by what made the pairs; seeds pooled, 95% intervals over questions."
    figure = dots(rows, "question accuracy, %", f"Question accuracy in percent after DPO. {told(rows)}.", caption)
    page = folder / "README.md"
    table = pick(markdown_tables(page), "", page) | {"title": "Points are paired by question and seed"}
    pairs = pick(markdown_tables(page), "Pairs", page)
    return section("DPO", folder, ["Do the critic's preferences make a better policy?"], [figure], [table, pairs])


def growth_figure(points, axis):
    """Seconds of a step against one axis of the grid, the other axes as at bench_train_step.BASE; None for fewer than two."""
    fixed = {name: value for name, value in zip(AXES, BASE) if name != axis}
    line = [p for p in points if all(p[name] == value for name, value in fixed.items())]
    if len(line) < 2:
        return None
    drawn = {
        title: sorted((p[axis], *[p["seconds"][who]["step"]] * 3) for p in line)
        for who, title in (("stock", "stock TRL"), ("ours", "ours"))
    }
    others = ", ".join(f"{name} {value}" for name, value in fixed.items())
    caption = f"Seconds of a step by {axis}; {others}. Both axes logarithmic."
    return lines(drawn, axis, "seconds", f"Seconds of a step by {axis}: {ends_of(drawn)}.", caption, log=True, log_y=True)


def bench(experiments):
    """Seconds of a training step, stock TRL and ours."""
    folder = record(experiments, "bench")
    results, figures = load(folder / "results.json"), []
    measured = [point for point in results["points"] if "seconds" in point]
    for point in [p for p in measured if tuple(p[axis] for axis in AXES) in (MAIN, SMALL)]:
        phases = [phase for phase in point["seconds"]["ours"] if phase != "step"]
        names = {"stock": "stock TRL", "ours": "ours"}
        rows = {who: {phase: point["seconds"][key][phase] for phase in phases} for key, who in names.items()}
        where = f"prompt {point['prompt']}, completion {point['completion']}, {point['group']} x {point['frames']} frames"
        caption = f"One training step, {where}; CPU threads: {results['threads']}; mean of {results['repeats']} repeats."
        words = told({who: list(parts.items()) for who, parts in rows.items()})
        figures.append(bars(rows, "seconds", f"Seconds of a step, {where}. {words}.", caption))
    figures += [made for made in (growth_figure(measured, axis) for axis in ("group", "frames", "prompt")) if made]
    title = {"title": "Seconds (stock TRL / ours), memory, gradients"}
    table = pick(markdown_tables(folder / "table.md"), "", folder / "table.md") | title
    text = "The prompt of a group is run once, not once for every completion."
    return section("Cost of a training step", folder, [text], figures, [table])
