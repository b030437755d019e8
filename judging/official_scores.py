"""The benchmarks' own scores, odd rules included, next to which evaluate.py prints ours (every unreadable row is wrong).

Ours and theirs read the same rows. Where a benchmark's own prompt was used (--prompt_file), its own way of reading a
completion is used too (read_verdict, read_letter); with our prompt, ours. Checked against the public scripts:
VL-RewardBench, Multimodal RewardBench, JudgeBench, EgoPlan-Bench2, CV-Bench. RoboRewardBench's treatment of unreadable
scores is a guess. LingoQA's score needs its own classifier (wayveai/Lingo-Judge), which is not run here:

    python -m judging.official_scores runs/eval/lingoqa.jsonl predictions.csv      # for the benchmark's benchmark/evaluate.py
"""

import csv
import random
import re

import numpy as np

import rewards
from data import command
from data.files import json_sha, read_rows
from stats import LEVEL, RESAMPLES, estimate, mean_gain

# --- How the benchmarks read a completion to their own prompt ---------------------------------------------------------


def read_verdict(source, text):
    """1 or 2, the response preferred in the form that the benchmark's own prompt asks for; None where it cannot be read.

    >>> read_verdict("vl_rewardbench", "Overall Judgment: **Answer 2** is better"), read_verdict("judgebench", "[[A=B]]")
    (2, None)
    >>> read_verdict("multimodal_rewardbench", "so [[B]]"), read_verdict("multimodal_rewardbench", "B is better")
    (2, None)
    """
    if source == "vl_rewardbench":  # the last "Answer n is better" behind one of two openings; a third answer is unreadable
        start = re.search(r"overall judgment|therefore", text, re.I)
        tail = re.sub(r"[\n*]", "", text)[start.start() :] if start else ""
        found = re.findall(r"answer\s*(\d+)\s*is\s*(?:the\s*)?(?:slightly\s*)?better", tail, re.I)
        return int(found[-1]) if found and found[-1] in ("1", "2") else None
    if source == "multimodal_rewardbench":  # [[A]] wins over [[B]] where both occur
        return 1 if "[[A]]" in text else 2 if "[[B]]" in text else None
    if source == "judgebench":  # Arena-Hard's form; from memory, not checked
        said = re.findall(r"\[\[(A>>B|A>B|A=B|B>A|B>>A)\]\]", text)
        return {"A": 1, "B": 2}.get(said[-1][0]) if said and "=" not in said[-1] else None
    return rewards.parse_critique(text).verdict


def read_unified(text):
    """1 or 2, what UnifiedReward-Think's last <answer> names; None where it has none, or other words in it.

    Its public evaluation looks for the right sentence anywhere in the text, its reasoning included; this reads the answer alone.

    >>> read_unified("<think>so Answer 1 is better</think> <answer>Answer 2 is better</answer>"), read_unified("Answer 1 is better")
    (2, None)
    """
    answers = re.findall(r"<answer>(.*?)</answer>", text, re.S)
    found = re.fullmatch(r"\s*Answer ([12]) is better\.?\s*", answers[-1]) if answers else None
    return int(found[1]) if found else None


def read_letter(text):
    """EgoPlan-Bench2's reading: the first capital A, B, C or D anywhere, once stock phrases are gone; None where there is none.

    >>> read_letter("The answer is C."), read_letter("Because the drawer is open, B"), read_letter("no idea")
    ('C', 'B', None)
    """
    for phrase in ("The best answer is", "The correct answer is", "The answer is", "The answer", "The correct answer", "Answer:"):
        text = text.replace(phrase, "")
    found = re.search("[ABCD]", text)
    return found[0] if found else None


# --- The scores -------------------------------------------------------------------------------------------------------


def one_order(rows):
    """One judgement a pair, in an order drawn by its id: the benchmark judges each pair once, in a random order."""
    return [row for row in rows if row["order"] == ("12" if int(json_sha(row["id"])[:8], 16) % 2 else "21")]


def vl_rewardbench(rows):
    """Accuracy of the readable judgements, one a pair; macro is the mean of general, hallucination and reasoning."""
    rows = one_order(rows)

    def value(row):
        return None if row["verdict"] is None else row["verdict_correct"]

    rule = "one judgement a pair in a random order, unreadable ones left out of the denominator"
    return estimate(rows, value) | {"rule": rule, "macro": estimate(rows, value, macro=True)}


def multimodal_rewardbench(rows):
    """Accuracy in the order of the file, where random.Random(123) flips a coin for each unreadable judgement, row by row."""
    coin, right = random.Random(123), {}
    rows = sorted((row for row in rows if row["order"] == "12"), key=lambda row: row["number"])
    for row in rows:
        verdict = row["verdict"] or (1 if coin.random() < 0.5 else 2)
        right[row["id"]] = verdict == row["preference"]
    rule = "the order as released, a coin flip (seed 123) where the judgement is unreadable"
    return estimate(rows, lambda row: right[row["id"]]) | {"rule": rule}


def judgebench(rows):
    """Share of pairs whose two judgements, one an order, are together right: right +1, wrong -1, no verdict 0, sum above 0."""
    sums, pairs = {}, {}
    for row in rows:
        sums[row["id"]] = sums.get(row["id"], 0) + (0 if row["verdict"] is None else 1 if row["verdict_correct"] else -1)
        pairs[row["id"]] = row
    rule = "both orders together: right twice, or once with no verdict in the other"
    return estimate(pairs.values(), lambda row: sums[row["id"]] > 0) | {"rule": rule}


def cv_bench(rows):
    """(mean of the accuracies on ADE20K and COCO, 2D, plus that on Omni3D, 3D) / 2; the interval resamples within each."""
    parts = {suite: [row for row in rows if row["suite"] == suite] for suite in ("ADE20K", "COCO", "Omni3D")}
    missing = [suite for suite, some in parts.items() if not some]
    rule = "((ADE20K + COCO) / 2 + Omni3D) / 2"
    if missing:
        return {"value": None, "low": None, "high": None, "n": len(rows), "rule": f"{rule}; no row of {', '.join(missing)}"}
    rng, total = np.random.default_rng(0), np.zeros(RESAMPLES)
    value = 0.0
    for (_, some), weight in zip(parts.items(), (0.25, 0.25, 0.5)):
        clusters = {}
        for row in some:
            clusters.setdefault(row["cluster"], []).append(bool(row["correct"]))
        sums, counts = np.array([[sum(rights), len(rights)] for rights in clusters.values()]).T  # (C,), (C,)
        drawn = rng.integers(len(sums), size=(RESAMPLES, len(sums)))
        total += weight * sums[drawn].sum(1) / counts[drawn].sum(1)
        value += weight * sums.sum() / counts.sum()
    low, high = np.quantile(total, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return {"value": float(value), "low": float(low), "high": float(high), "n": sum(map(len, parts.values())), "rule": rule}


def read_score(prediction):
    """A score of 1 to 5, or None: "4", "4.0", "4/5".

    >>> read_score("4/5"), read_score("2.5"), read_score("7"), read_score(None)
    (4.0, 2.5, None, None)
    """
    found = re.fullmatch(r"([1-5](?:\.\d+)?)(?:\s*/\s*5)?", (prediction or "").strip())
    return float(found[1]) if found and float(found[1]) <= 5 else None


def mean_error(rows, readable_only):
    """Mean absolute error in points of the five-point scale; an unreadable score counts as the worst one, or not at all."""
    errors = {}
    for row in rows:
        said, truth = read_score(row["prediction"]), int(row["answer"])
        if said is not None or not readable_only:
            errors.setdefault(row["cluster"], []).append(abs(said - truth) if said is not None else max(truth - 1, 5 - truth))
    if not errors:
        return {"value": None, "low": None, "high": None, "n": 0}
    return dict(zip(("value", "low", "high", "n"), mean_gain(errors)))


def official(source, mode, rows):
    """The benchmark's own score {"value", "low", "high", "n", "rule"}, or {} where it is ours (accuracy over all rows).

    RoboRewardBench's is a mean absolute error ("unit": "points"); "ours" then holds it with unreadable scores at their worst.
    """
    rules = {"vl_rewardbench": vl_rewardbench, "multimodal_rewardbench": multimodal_rewardbench}
    rules |= {"judgebench": judgebench, "cv_bench": cv_bench}
    if source == "roboreward" and mode == "question":
        score = mean_error(rows, readable_only=True) | {"unit": "points", "ours": mean_error(rows, readable_only=False)}
        return score | {"rule": "mean absolute error of the readable scores; leaving the others out is a guess"}
    return rules[source](rows) if source in rules and rows else {}


def lines(score):
    """The official score as lines for the screen, and ours beside it where it is no accuracy."""

    def shown(entry):
        if entry["value"] is None:
            return "    -"
        value, low, high = (entry[key] * (1 if score.get("unit") else 100) for key in ("value", "low", "high"))
        return f"{value:5.2f}  [{low:5.2f}, {high:5.2f}]" if score.get("unit") else f"{value:5.1f}  [{low:5.1f}, {high:5.1f}]"

    made = [f"{'official score':<24}{shown(score)}  n={score['n']}  {score['rule']}"]
    if "macro" in score:
        made.append(f"{'official macro':<24}{shown(score['macro'])}  n={score['macro']['n']}")
    if "ours" in score:
        made.append(f"{'ours, unreadable worst':<24}{shown(score['ours'])}  n={score['ours']['n']}")
    return made


def lingoqa_predictions(rows_path, csv_path):
    """Write the CSV that LingoQA's own script scores: question_id, segment_id, answer (empty where unreadable)."""
    with open(csv_path, "w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["question_id", "segment_id", "answer"])
        for row in read_rows(rows_path):
            segment, _, question = row["id"].partition("/")
            writer.writerow([question, segment, row["prediction"] or ""])


def main():
    parser = command.Parser(prog="python -m judging.official_scores", description=__doc__)
    parser.add_argument("rows", metavar="ROWS.jsonl", help="rows of evaluate.py --source lingoqa")
    parser.add_argument("predictions", metavar="PREDICTIONS.csv", help="what LingoQA's own script reads")
    args = parser.parse_args()
    lingoqa_predictions(args.rows, args.predictions)


if __name__ == "__main__":
    command.run(main)
