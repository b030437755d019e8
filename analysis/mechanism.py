"""Does the critic judge by its own answer? Coupling, counterfactuals, failures, biases, cost and calibration.

    python -m analysis.counterfactual --out runs/mechanism --limit 300 --matrix experiments/tables/results.jsonl
    python -m analysis.mechanism runs/mechanism experiments/mechanism

Reads the rows of analysis/counterfactual.py (all seeds of a model are pooled; intervals resample questions). Writes into the
record's folder: README.md (tables), mechanism.json (every number, and the points of the curves), summary.json (claims).
A folder of a model without finished own judgements, or with a changed condition that did not finish, is an error.
"""

import argparse
import json
import shlex
import statistics
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from analysis.counterfactual import CONDITIONS, TITLES, UNCHANGED
from analysis.pages import cell, markdown, times100, write_record
from data.files import read_rows
from stats import coupling, estimate, first_shown, is_right, mean_gain

RESAMPLES, BINS, COVERAGES = 2000, 10, (1.0, 0.9, 0.75, 0.5, 0.25)
FAILURES = (  # every judgement is in exactly one class
    "right",
    "solved wrong, judged right",
    "solved wrong, followed it",
    "solved wrong, judged wrong otherwise",
    "solved right, judged wrong",
    "unreadable",
)
PAPER_CHI2 = {"stage1": "51.07", "full": "161.76"}


def load(folder):
    """{model: {condition: [row]}}, the seed in each row, {(model, condition): seconds}, and how many pairs were judged."""
    models, seconds, limits = {}, Counter(), set()
    for path in sorted(folder.glob("*_seed*")):
        name, seed = path.name.rsplit("_seed", 1)
        for condition in ("own",) if name == UNCHANGED else ("own", *CONDITIONS):
            result = path / f"{condition}.json"
            found = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {}
            if not found.get("finished"):
                raise ValueError(f"{result} is missing or not finished: run `python -m analysis.counterfactual` again")
            rows = [row | {"seed": int(seed)} for row in read_rows(path / f"{condition}.jsonl", without="text")]
            models.setdefault(name, {}).setdefault(condition, []).extend(rows)
            limits.add(found["config"]["limit"])
            seconds[name, condition] += found["seconds"]
    if "full" not in models:
        raise ValueError(f"{folder} holds no judgements of `full`: it has {sorted(models)}; run analysis/counterfactual.py")
    if len(limits) > 1:
        raise ValueError(f"{folder} holds judgements of different --limit: {sorted(limits)}; run analysis/counterfactual.py anew")
    return {name: models[name] for name in TITLES if name in models}, seconds, limits.pop()


def grouped(rows, field):
    """{value of the field: its rows}, in order of the values; rows where it is None are left out."""
    return {value: [row for row in rows if row[field] == value] for value in sorted({row[field] for row in rows} - {None})}


def interval(rows, statistic):
    """95% percentile interval of `statistic(weights)`, weights (N,) the counts of the rows when questions are resampled."""
    names, index = np.unique([row["cluster"] for row in rows], return_inverse=True)  # (C,), (N,)
    rng, values = np.random.default_rng(0), []
    for _ in range(RESAMPLES):
        counts = np.bincount(rng.integers(0, len(names), len(names)), minlength=len(names))  # (C,)
        values.append(statistic(counts[index]))
    low, high = np.nanpercentile(values, [2.5, 97.5])
    return {"low": float(low), "high": float(high)}


# ----------------------------------------------------------------------------------------------------------- coupling


def weighted_phi(own, right, weights):
    """phi of self-prediction and judgement, both (N,) of 0 and 1, each row counted by its weight; nan where undefined."""
    mean_own, mean_right = np.average(own, weights=weights), np.average(right, weights=weights)
    spread = np.sqrt(mean_own * (1 - mean_own) * mean_right * (1 - mean_right))
    return (np.average(own * right, weights=weights) - mean_own * mean_right) / spread if spread else np.nan


def coupled(rows):
    """The 2x2 table with chi-square, p, phi and its interval, over one order of each pair and seed: rows in order 12."""
    rows = [row for row in rows if row["order"] == "12" and row["prediction_correct"] is not None]
    result = coupling(rows)
    result["chi2_seeds"] = [coupling(some)["chi2"] for some in grouped(rows, "seed").values()]
    if result["phi"] is not None:
        own = np.array([bool(row["prediction_correct"]) for row in rows], float)  # (N,)
        right = np.array([is_right(row) for row in rows], float)  # (N,)
        result |= interval(rows, lambda weights: weighted_phi(own, right, weights))
    return result


# ----------------------------------------------------------------------------------------------------- counterfactuals


def moved(row):
    """Whether a changed judgement has another verdict than before."""
    return row["verdict"] not in (None, row["before"])


def flips(own, rows):
    """(rates of a condition, its rows with the verdict `before`): `changed` the verdict is another one, `followed` it is the one
    that the inserted answer speaks for, `unreadable`; n counts judgements whose verdict was readable before."""
    before = {(row["seed"], row["id"], row["order"]): row["verdict"] for row in own}
    rows = [row | {"before": before[row["seed"], row["id"], row["order"]]} for row in rows]
    rows = [row for row in rows if row["before"] is not None]
    return {
        "changed": estimate(rows, moved),
        "followed": estimate(rows, lambda row: row["verdict"] == row["side"]),
        "unreadable": estimate(rows, lambda row: row["verdict"] is None),
        "changed_by_kind": {kind: estimate(some, moved) for kind, some in grouped(rows, "donor").items()},  # thought or wording
    }, rows


def counterfactuals(conditions):
    """{"eligible", condition: rates, "other_minus_same_words": points}: what of the verdict the self-prediction causes."""
    own, results, changed = conditions["own"], {}, {}
    for name in CONDITIONS:
        results[name], rows = flips(own, conditions[name])
        changed[name] = {(row["seed"], row["id"], row["order"]): row for row in rows}
    gains = {}
    for key, other in changed["other"].items():
        if same := changed["same_words"].get(key):
            gains.setdefault(other["cluster"], []).append(moved(other) - moved(same))
    contrast = dict(zip(("value", "low", "high", "n"), mean_gain(gains))) if gains else None
    return {"eligible": [len(changed["kept"]), len(own)], "conditions": results, "other_minus_same_words": contrast}


# --------------------------------------------------------------------------------------------- failures, biases, cost


def failure(row):
    """The class of FAILURES that a judgement is in.

    >>> failure({"verdict": 1, "verdict_correct": False, "prediction_correct": False, "own_side": 1})
    'solved wrong, followed it'
    """
    if row["verdict"] is None:
        return "unreadable"
    if row["prediction_correct"]:
        return "right" if row["verdict_correct"] else "solved right, judged wrong"
    if row["verdict_correct"]:
        return "solved wrong, judged right"
    return "solved wrong, followed it" if row["verdict"] == row["own_side"] else "solved wrong, judged wrong otherwise"


def failures(rows):
    """{suite (and "all"): {class: share}}; only for a prompt with self-reference."""
    suites = {"all": rows} | grouped(rows, "suite")
    return {s: {kind: estimate(some, lambda row: failure(row) == kind) for kind in FAILURES} for s, some in suites.items()}


def cue(name):
    """Two questions to a row: does the verdict take the response with the cue, and has the right one it? None: no cue here."""
    return (
        lambda row: None if None in (row["verdict"], row[name]) else row["verdict"] == row[name],
        lambda row: None if row[name] is None else row["preference"] == row[name],
    )


CUES = {"shown first": (first_shown, lambda row: str(row["preference"]) == row["order"][0])}
CUES |= {"longer": cue("longer"), "written style": cue("written")}


def biases(rows):
    """{cue: share of verdicts for it, accuracy when the right response has it (agree) and when the wrong one has (disagree)}."""
    made, sides = {}, {"agree": True, "disagree": False}
    for name, (takes, has) in CUES.items():
        right = {side: estimate([row for row in rows if has(row) is truth], is_right) for side, truth in sides.items()}
        made[name] = {"share": estimate(rows, takes)} | right
    return made


def cost(rows, seconds):
    """Mean tokens and seconds a judgement, accuracy, and percent of accuracy for 100 generated tokens."""
    generated, prompt = (statistics.mean(row[name] for row in rows) for name in ("completion_tokens", "prompt_tokens"))
    made = {"generated": generated, "prompt": prompt, "seconds": seconds / len(rows), "accuracy": estimate(rows, is_right)}
    return made | {"per_100_tokens": 100 * 100 * made["accuracy"]["value"] / generated}


# --------------------------------------------------------------------------------------------------------- calibration


def calibration_error(confidence, right, weights):
    """Expected calibration error: the mean of |accuracy - confidence| over ten bins of confidence in [.5, 1], by weight.

    >>> calibration_error(np.array([0.9, 0.9]), np.array([1.0, 0.0]), np.array([1, 1])).round(3).item()
    0.4
    """
    bins = np.minimum(((confidence - 0.5) * 2 * BINS).astype(int), BINS - 1)  # (N,)
    gaps = np.bincount(bins, weights * (right - confidence), BINS)  # (BINS,)
    return np.abs(gaps).sum() / weights.sum()


def reliability(p, first_is_better):
    """Points of the curve: for each tenth of p its mean, the share of pairs whose first response is better, and n."""
    bins, points = np.minimum((p * BINS).astype(int), BINS - 1), []
    for b in range(BINS):
        here = bins == b
        if here.any():
            points.append({"p": p[here].mean().item(), "share": first_is_better[here].mean().item(), "n": int(here.sum())})
    return points


def calibration(rows):
    """Brier score, calibration error (each with interval), reliability curve and selective accuracy of p_first."""
    read = [row for row in rows if row["p_first"] is not None]
    if not read:
        return {"n": 0, "unread": len(rows)}
    p, better = (np.array(values, float) for values in zip(*((row["p_first"], row["preference"] == 1) for row in read)))
    confidence, right = np.maximum(p, 1 - p), ((p > 0.5) == better).astype(float)  # (N,), (N,)
    squares = (p - better) ** 2  # (N,)
    error = {"value": float(calibration_error(confidence, right, np.ones(len(read))))}
    error |= interval(read, lambda w: calibration_error(confidence, right, w))
    order, selective = np.argsort(-confidence, kind="stable"), []
    for share in COVERAGES:
        surest = order[: max(1, round(share * len(read)))]
        accuracy = estimate([read[i] for i in surest], lambda row: (row["p_first"] > 0.5) == (row["preference"] == 1))
        selective.append({"coverage": share, "least": float(confidence[surest[-1]])} | accuracy)
    brier = {"value": squares.mean().item()} | interval(read, lambda w: np.average(squares, weights=w))
    made = {"n": len(read), "unread": len(rows) - len(read), "reliability": reliability(p, better), "selective": selective}
    return made | {"brier": brier, "error": error, "confidence": confidence.mean().item(), "accuracy": right.mean().item()}


def analyse(conditions, seconds):
    """Everything about one model."""
    own = conditions["own"]
    result = {"n": len(own), "biases": biases(own), "cost": cost(own, seconds), "calibration": calibration(own)}
    if "kept" in conditions:
        result |= {"coupling": coupled(own), "counterfactual": counterfactuals(conditions), "failures": failures(own)}
    return result


# -------------------------------------------------------------------------------------------------------------- the page


def table(title, head, rows):
    """A heading and a table as lines."""
    return ["", f"## {title}", "", *markdown([head, *rows])]


def coupling_table(results):
    """The 2x2 tables with chi-square and phi."""
    rows = []
    for name, result in results.items():
        c = result["coupling"]
        phi = c["reason"] if c["phi"] is None else cell(c | {"value": c["phi"]}, "+.2f", 1)
        seeds = [value for value in c["chi2_seeds"] if value is not None]
        chi2 = f"{statistics.mean(seeds):.1f} ({min(seeds):.1f} to {max(seeds):.1f})" if seeds else "-"
        cells = [f"{right} / {wrong}" for right, wrong in c["table"]]
        rows.append([TITLES[name], *cells, chi2, phi, PAPER_CHI2.get(name, "-")])
    head = ["", "solved right: judged right / wrong", "solved wrong: right / wrong", "chi-square, mean of seeds (range)", "phi"]
    title = "Coupling of self-prediction and judgement (order 12; counts of all seeds)"
    return table(title, [*head, "paper's chi-square"], rows)


def counterfactual_table(results):
    """Rates of every condition, and below them the other answer against the same answer in other words."""
    rows, notes = [], [""]
    for name, result in results.items():
        made = result["counterfactual"]
        for condition, rates in made["conditions"].items():
            cells = [cell(rates[key]) for key in ("changed", "followed", "unreadable")]
            kinds = "; ".join(f"{kind} {cell(e)} (n {e['n']})" for kind, e in rates["changed_by_kind"].items())
            rows.append([TITLES[name], condition, *cells, str(rates["changed"]["n"]), kinds])
        (n, of), contrast = made["eligible"], made["other_minus_same_words"]
        points = f"{cell(contrast, '+.1f') if contrast else '-'} points"
        notes.append(f"- {TITLES[name]}: other answer minus other words, {points}; {n} of {of} judgements could be changed.")
    head = ["", "replaced", "verdict changes, %", "verdict as the inserted answer, %", "unreadable, %", "n"]
    title = "Counterfactual: the self-prediction is replaced before the critic compares (analysis/counterfactual.py)"
    return table(title, [*head, "changes by kind of words or thought, %"], rows) + notes


def failure_tables(results):
    """A table of classes by suite for each model."""
    lines = []
    for name, result in results.items():
        rows = [[suite, *map(cell, shares.values())] for suite, shares in result["failures"].items()]
        lines += table(f"Failures, {TITLES[name]}, % of judgements", ["suite", *result["failures"]["all"]], rows)
    return lines


def bias_table(results):
    """Cues, and accuracy where label and cue agree and where they do not."""
    found = [(TITLES[name], cue, bias) for name, result in results.items() for cue, bias in result["biases"].items()]
    rows = [[title, cue, *(cell(bias[key]) for key in ("share", "agree", "disagree"))] for title, cue, bias in found]
    return table("Biases", ["", "cue", "verdicts for it, %", "accuracy, right response has it", "wrong response has it"], rows)


def cost_table(results):
    """Tokens and seconds of a judgement."""
    rows = []
    for name, result in results.items():
        c = result["cost"]
        tokens = [f"{c['generated']:.1f}", f"{c['prompt']:.1f}", f"{c['seconds']:.4f}"]
        rows.append([TITLES[name], *tokens, cell(c["accuracy"]), f"{c['per_100_tokens']:.1f}"])
    head = ["", "generated tokens", "prompt tokens", "seconds (as busy as the machine was)", "accuracy, %"]
    return table("Cost of a judgement", [*head, "points of accuracy for 100 generated tokens"], rows)


def calibration_table(results):
    """Calibration error, Brier score and selective accuracy of the models whose p_first could be read."""
    rows, shares = [], []
    for name, result in results.items():
        c = result["calibration"]
        if c["n"]:
            scores = [cell(c[key], ".3f", 1) for key in ("error", "brier")]
            shares = [f"accuracy of the surest {s['coverage']:.0%}" for s in c["selective"]]
            scores += [f"{c['confidence']:.3f}", *map(cell, c["selective"])]
            rows.append([TITLES[name], *scores, f"{c['n']} ({c['unread']})"])
    return table("Calibration of p_first", ["", "calibration error", "Brier", "mean confidence", *shares, "n (unread)"], rows)


def page(results):
    """All tables as lines; what needs a self-prediction is of the models that make one."""
    own = {name: result for name, result in results.items() if "counterfactual" in result}
    lines = coupling_table(own) + counterfactual_table(own) + failure_tables(own)
    return lines + bias_table(results) + cost_table(results) + calibration_table(results)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("rows", type=Path, help="what analysis/counterfactual.py wrote")
    parser.add_argument("out", type=Path, help="the record's folder")
    args = parser.parse_args(argv)
    try:
        models, seconds, limit = load(args.rows)
    except ValueError as error:
        raise SystemExit(f"mechanism: {error}") from error
    results = {name: analyse(conditions, seconds[name, "own"]) for name, conditions in models.items()}
    judged = f"python -m analysis.counterfactual --out {args.rows} --limit {limit} --matrix experiments/tables/results.jsonl"
    command = judged + "; " + shlex.join(["python", "-m", "analysis.mechanism", str(args.rows), str(args.out)])
    about = "Percent with 95% intervals that resample questions; seeds pooled; both orders of each pair."
    commands = f"Commands (or --models in place of --matrix): `{command}`."
    lines = ["# How the critic judges", "", about, "", commands, *page(results)]
    conditions, calibrated = results["full"]["counterfactual"]["conditions"], results["full"]["calibration"]
    entries = {
        "counterfactual_flip_rate": times100(conditions["other"]["changed"], "%"),
        "counterfactual_paraphrase_rate": times100(conditions["same_words"]["changed"], "%"),
        "calibration_error": times100(calibrated["error"] | {"n": calibrated["n"]}, "points"),
    }
    write_record(args.out, lines, "mechanism.json", {"command": command, "models": results}, entries, command)
    print("\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
