"""Does the critic judge by its own answer? Coupling, counterfactuals, failures, biases, cost and calibration.

    python -m analysis.counterfactual --out runs/mechanism --limit 300 --matrix experiments/tables/results.jsonl
    python -m analysis.mechanism runs/mechanism experiments/mechanism [--claim]

Reads the rows of analysis/counterfactual.py (all seeds of a model are pooled; intervals resample questions). Writes into the
record's folder: README.md (tables), mechanism.json (every number, and the points of the curves), summary.json (claims).
A folder of a model without finished own judgements, or with a changed condition that did not finish, is an error.
"""

import argparse
import json
import shlex
import statistics
import sys
from pathlib import Path

import numpy as np

from analysis.counterfactual import CONDITIONS, MATRIX_RUNS, UNCHANGED
from analysis.mechanism_page import page
from analysis.verifier_common import write_summary
from data.files import read_rows
from stats import coupling, estimate, first_shown, is_right, mean_gain, prefers_longer

RESAMPLES, BINS = 2000, 10
COVERAGES = (1.0, 0.9, 0.75, 0.5, 0.25)
FAILURES = (  # every judgement is in exactly one class
    "right", "solved wrong, judged right", "solved wrong, followed it", "solved wrong, judged wrong otherwise",
    "solved right, judged wrong", "unreadable",
)  # fmt: skip


def load(folder):
    """{model: {condition: [row]}} with the seed in each row, {model: {condition: seconds}}, and how many pairs were judged."""
    models, seconds, limits = {}, {}, set()
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
            seconds.setdefault(name, {}).setdefault(condition, []).append(found["seconds"])
    if "full" not in models:
        raise ValueError(f"{folder} holds no judgements of `full`: it has {sorted(models)}; run analysis/counterfactual.py")
    if len(limits) > 1:
        raise ValueError(f"{folder} holds judgements of different --limit: {sorted(limits)}; run analysis/counterfactual.py anew")
    return {name: models[name] for name in MATRIX_RUNS if name in models}, seconds, limits.pop()


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


def weighted_phi(own, right):
    """phi of self-prediction and judgement, both (N,) of 0 and 1, as a function of the rows' weights; nan where undefined."""

    def phi(weights):
        mean_own, mean_right = np.average(own, weights=weights), np.average(right, weights=weights)
        spread = np.sqrt(mean_own * (1 - mean_own) * mean_right * (1 - mean_right))
        return (np.average(own * right, weights=weights) - mean_own * mean_right) / spread if spread else np.nan

    return phi


def coupled(rows):
    """The 2x2 table with chi-square, p, phi and its interval, over one order of each pair and seed: rows in order 12."""
    rows = [row for row in rows if row["order"] == "12" and row["prediction_correct"] is not None]
    result = coupling(rows)
    by_seed = [coupling([row for row in rows if row["seed"] == seed])["chi2"] for seed in sorted({row["seed"] for row in rows})]
    result["chi2_seeds"] = by_seed
    if result["phi"] is not None:
        own, right = (np.array(values, float) for values in zip(*((bool(r["prediction_correct"]), is_right(r)) for r in rows)))
        result |= interval(rows, weighted_phi(own, right))
    return result


# ----------------------------------------------------------------------------------------------------- counterfactuals


def flips(own, rows):
    """Rates of a condition: `changed` the verdict is another one, `followed` it is the one the inserted answer speaks for,
    `unreadable`; n counts judgements, of the pairs whose own answer was that of one response and whose verdict was readable."""
    before = {(row["seed"], row["id"], row["order"]): row["verdict"] for row in own}
    rows = [row | {"before": before[row["seed"], row["id"], row["order"]]} for row in rows]
    rows = [row for row in rows if row["before"] is not None]

    def changes(row):
        return row["verdict"] not in (None, row["before"])

    return {
        "changed": estimate(rows, changes),
        "followed": estimate(rows, lambda row: row["verdict"] == row["side"]),
        "unreadable": estimate(rows, lambda row: row["verdict"] is None),
        "changed_by_kind": {  # of thought or wording
            kind: estimate([row for row in rows if row["donor"] == kind], changes)
            for kind in sorted({row["donor"] for row in rows} - {None})
        },
    }, rows


def counterfactuals(conditions):
    """{"eligible", condition: rates, "other_minus_same_words": points}: what of the verdict the self-prediction causes."""
    own, results, changed = conditions["own"], {}, {}
    for name in CONDITIONS:
        results[name], rows = flips(own, conditions[name])
        changed[name] = {(row["seed"], row["id"], row["order"]): row for row in rows}
    gains = {}
    for key in filter(changed["same_words"].__contains__, changed["other"]):  # in order: a set's would move the interval
        moved = [
            (row := changed[name][key])["verdict"] not in (None, row["before"]) for name in ("other", "same_words")
        ]  # as flips
        gains.setdefault(row["cluster"], []).append(moved[0] - moved[1])
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
    suites = {"all": rows} | {suite: [r for r in rows if r["suite"] == suite] for suite in sorted({r["suite"] for r in rows})}
    return {
        suite: {name: estimate(some, lambda r, name=name: failure(r) == name) for name in FAILURES}
        for suite, some in suites.items()
    }


CUES = {  # cue -> (does the verdict take the response with the cue?, has the right response the cue?); None: no cue here
    "shown first": (first_shown, lambda row: str(row["preference"]) == row["order"][0]),
    "longer": (prefers_longer, lambda row: None if row["longer"] is None else row["preference"] == row["longer"]),
    "written style": (
        lambda row: None if None in (row["verdict"], row["written"]) else row["verdict"] == row["written"],
        lambda row: None if row["written"] is None else row["preference"] == row["written"],
    ),
}


def biases(rows):
    """{cue: share of verdicts for it, accuracy when the right response has it and when the wrong one has}."""
    return {
        cue: {
            "share": estimate(rows, takes),
            "agree": estimate([row for row in rows if has(row) is True], is_right),
            "disagree": estimate([row for row in rows if has(row) is False], is_right),
        }
        for cue, (takes, has) in CUES.items()
    }


def cost(rows, seconds):
    """Mean tokens and seconds a judgement, accuracy, and percent of accuracy for 100 generated tokens."""
    generated = statistics.mean(row["completion_tokens"] for row in rows)
    right = estimate(rows, is_right)
    return {
        "generated": generated, "prompt": statistics.mean(row["prompt_tokens"] for row in rows),
        "seconds": sum(seconds) / len(rows), "accuracy": right, "per_100_tokens": 100 * 100 * right["value"] / generated,
    }  # fmt: skip


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
    order = np.argsort(-confidence, kind="stable")
    selective = []
    for share in COVERAGES:
        sure = [read[i] for i in order[: max(1, round(share * len(read)))]]
        least = float(confidence[order[len(sure) - 1]])
        selective.append(
            {"coverage": share, "least": least} | estimate(sure, lambda r: (r["p_first"] > 0.5) == (r["preference"] == 1))
        )
    return {
        "n": len(read), "unread": len(rows) - len(read), "reliability": reliability(p, better), "selective": selective,
        "brier": {"value": squares.mean().item()} | interval(read, lambda w: np.average(squares, weights=w)),
        "error": error,
        "confidence": confidence.mean().item(), "accuracy": right.mean().item(),
    }  # fmt: skip


def analyse(conditions, seconds):
    """Everything about one model."""
    own = conditions["own"]
    result = {"n": len(own), "biases": biases(own), "cost": cost(own, seconds["own"]), "calibration": calibration(own)}
    if "kept" in conditions:
        result |= {"coupling": coupled(own), "counterfactual": counterfactuals(conditions), "failures": failures(own)}
    return result


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("rows", type=Path, help="what analysis/counterfactual.py wrote")
    parser.add_argument("out", type=Path, help="the record's folder")
    parser.add_argument("--claim", action="store_true", help="update experiments/headline.json")
    args = parser.parse_args(argv)
    try:
        models, seconds, limit = load(args.rows)
    except ValueError as error:
        raise SystemExit(f"mechanism: {error}") from error
    results = {name: analyse(conditions, seconds[name]) for name, conditions in models.items()}
    judged = f"python -m analysis.counterfactual --out {args.rows} --limit {limit} --matrix experiments/tables/results.jsonl"
    command = judged + "; " + shlex.join(["python", "-m", "analysis.mechanism", str(args.rows), str(args.out)])
    lines = [
        "# How the critic judges",
        "",
        "Percent with 95% intervals that resample questions; seeds pooled; both orders of each pair.",
        "",
    ]
    lines += [f"Commands (or --models in place of --matrix): `{command}`.", *page(results)]
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (args.out / "mechanism.json").write_text(
        json.dumps({"command": command, "models": results}, indent=1) + "\n", encoding="utf-8"
    )
    full = results["full"]
    rates = {
        "counterfactual_flip_rate": full["counterfactual"]["conditions"]["other"]["changed"],
        "counterfactual_paraphrase_rate": full["counterfactual"]["conditions"]["same_words"]["changed"],
    }
    entries = {
        name: {k: 100 * r[k] for k in ("value", "low", "high")} | {"n": r["n"], "unit": "%"} for name, r in rates.items()
    }
    error = full["calibration"]
    entries["calibration_error"] = {k: 100 * error["error"][k] for k in ("value", "low", "high")} | {
        "n": error["n"],
        "unit": "points",
    }
    write_summary(args.out, entries, command, args.claim)
    print("\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
