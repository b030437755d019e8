"""What is asked of a judge, a record and an order at a time, and what its text says: predictions, verdicts, right or wrong.
"""

import os
import re

import data
import prompts
import rewards
from data.files import short_sha
from judging import official_scores


class Tasks:
    """The (record, order) pairs of an evaluation, order None for a question, in an order set by ids; records stay on disk."""

    def __init__(self, records, orders, limit):
        places = sorted(range(len(records)), key=lambda place: short_sha(records.ids[place]))[:limit]  # mixes the suites
        self.records, self.places = records, [(place, order) for place in places for order in orders]
        self.keys = [(records.ids[place], order) for place, order in self.places]

    def __len__(self):
        return len(self.places)

    def __getitem__(self, index):
        place, order = self.places[index]
        record = self.records[place]
        shown = [os.path.relpath(file, self.records.path.parent) for file in record.get("frames") or []]
        record["cluster"] = short_sha(record["question"], record.get("options"), shown, os.path.basename(record.get("video") or ""))
        return record, order


def load_tasks(path, judge=False, limit=None, answered=True):
    """The Tasks of a JSONL of questions, or with `judge` of pairs in both orders; `limit` records, drawn by a hash of ids.

    With `answered` False a pair's answer may be null (data.check_record).
    """
    return Tasks(data.RecordFile(path, pair=judge, answered=answered), ("12", "21") if judge else (None,), limit)


def task_prompt(record, order, n_frames, variant, template=None, n_videos=0):
    """Chat messages of a task; order "21" shows the record's response_2 first. `template` replaces our prompt."""
    if template is None and order and variant == "unified_think":
        template = prompts.UNIFIED_THINK
    if template is None:
        return data.record_prompt(record, order, n_frames, variant, n_videos)
    shown = [record["response_" + number] for number in order or ""]
    return own_messages(template, record["question"], record.get("options"), n_frames, *shown)


def read_answer(record, text, own_reading=False):
    """What a completion to a question says: prediction (None where unreadable) and whether it is right.

    `own_reading`: as EgoPlan-Bench2 reads its own prompt. A record with several `references` is right with any of them.
    """
    options, truths = record.get("options"), record.get("references") or [record["answer"]]
    prediction = official_scores.read_letter(text) if own_reading else rewards.extract_answer(text, options)
    right = prediction is not None and any(rewards.answers_match(prediction, truth, options) for truth in truths)
    return {"prediction": prediction, "correct": right}


def read_judgement(record, order, text, variant, p=None, source=None):
    """What a judgement says: prediction, and the verdict turned back to the record's order (None where unreadable).

    prediction_correct is None where no prediction is asked for, or the truth is not known. `p` is the probability of the
    response shown first, of a judge that writes no verdict. `variant` "own": as the benchmark `source` reads its own prompt;
    "unified_think": as UnifiedReward-Think answers.
    """
    critique = rewards.parse_critique(text)
    verdict = official_scores.read_verdict(source, text) if variant == "own" else critique.verdict
    verdict = official_scores.read_unified(text) if variant == "unified_think" else verdict
    if p is not None:
        verdict = None if p == 0.5 else 1 if p > 0.5 else 2
    verdict, right = int(order[verdict - 1]) if verdict else None, None
    if variant not in ("no_self_ref", "own", "unified_think") and p is None and record["answer"] is not None:
        said, options = critique.prediction, record.get("options")
        right = said is not None and rewards.answers_match(said, record["answer"], options)
    lengths = len(record["response_1"]), len(record["response_2"])
    return {
        "order": order,
        "prediction": critique.prediction,
        "verdict": verdict,
        "p_first": p if p is None or order == "12" else 1 - p,  # a text alone gives none; critic.py reads it from the logits
        "prediction_correct": right,
        "verdict_correct": verdict == record["preference"],
        "preference": record["preference"],
        "longer": None if lengths[0] == lengths[1] else 1 if lengths[0] > lengths[1] else 2,
    }


def own_messages(template, question, options, n_frames, first=None, second=None):
    """A benchmark's own prompt as chat messages: frames, then the template with its places filled in, word for word.

    Places: {question}, {options}, {response_1}, {response_2}. Nothing is escaped, as the benchmarks escape nothing.

    >>> own_messages("{question} A: {response_1}", "Why? {response_1}", None, 1, "so")[0]["content"][1]["text"]
    'Why? {response_1} A: so'
    """
    lines = "\n".join(f"{letter}. {text}" for letter, text in (options or {}).items())
    filled = {"question": question, "options": lines, "response_1": first or "", "response_2": second or ""}
    text = re.sub(r"\{(question|options|response_1|response_2)\}", lambda place: filled[place[1]], template)
    return [{"role": "user", "content": [{"type": "image"}] * n_frames + [{"type": "text", "text": text}]}]
