"""Many tournaments of many questions on one judge, in lockstep, so that their judgements are made in large batches.

A tournament of ppt.py is a function of its judgements. It runs on those that are there and stops at the first that is
missing; what all tournaments lack is judged together, appended to a file, and they start again. So batches are full even
for a knockout, no judgement is paid twice, and a run that was killed goes on where it was.
"""

import json
import time
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Literal

from tqdm import tqdm

import ppt
from data.files import content_sha, open_rows, write_result

TOURNAMENTS = {
    "knockout": ppt.knockout, "pivot": ppt.pivot_tournament, "swiss": ppt.swiss, "adaptive": ppt.adaptive,
    "round_robin": ppt.round_robin,
}  # fmt: skip
ALONE = (-1, -1)  # stands for the two candidates where a question is solved before any is seen
COSTS = ("prompt_tokens", "computed_prompt_tokens", "completion_tokens", "seconds")


class Unasked(Exception):
    """A tournament needs judgements that are not there yet: `pairs`."""

    def __init__(self, pairs):
        super().__init__(f"{len(pairs)} judgements are missing")
        self.pairs = pairs


def all_pairs(n, seed, compare_many):
    """Asks every ordered pair; not a tournament, but played like one."""
    compare_many(list(permutations(range(n), 2)))


def play(record, method, n, known, seed):
    """The Ranking of the first n candidates with the judgements {(a, b): row} of this question; raises Unasked."""

    def compare_many(pairs):
        shown = [(record["same"][a], record["same"][b]) for a, b in pairs]
        if lacking := [pair for pair in shown if pair[0] != pair[1] and pair not in known]:
            raise Unasked(lacking)
        return [0.5 if a == b else known[a, b]["p"] for a, b in shown]

    tournament = all_pairs if method == "table" else TOURNAMENTS[method]
    return tournament(n, seed=f"{seed} {record['id']}", compare_many=compare_many)


class Calls:
    """The judgements of a run: by_question[id][a, b] is the row of candidates a and b (the first with their texts)."""

    def __init__(self, config):
        self.path = Path(config.calls or Path(config.out).with_suffix(".calls.jsonl"))
        settings = asdict(config) | {"weights": content_sha(config.critic or config.verifier)}
        settings |= {"candidates": content_sha(config.candidates)}
        for name in ("out", "limit", "calls"):
            del settings[name]
        self.stream, rows = open_rows(self.path, self.path.with_suffix(".json"), settings)
        write_result(self.path.with_suffix(".json"), {"config": settings})
        self.by_question, self.reasons, self.paid, self.found = defaultdict(dict), Counter(), 0, len(rows)
        for row in rows:
            self.by_question[row["id"]][tuple(map(int, row["order"].split()))] = row

    def ask(self, judge, items):
        """Judge one batch of (record, a, b) and append what it says."""
        started = time.time()
        answers = judge(items)
        seconds = round((time.time() - started) / len(items), 4)
        lines = []
        for (record, a, b), answer in zip(items, answers, strict=True):
            row = {"id": record["id"], "order": f"{a} {b}", **answer, "seconds": seconds}
            self.by_question[record["id"]][a, b] = row
            self.reasons.update([row["missing"]] if row["missing"] else [])
            if not row["missing"]:
                lines.append(json.dumps(row) + "\n")
        self.stream.write("".join(lines).encode())
        self.stream.flush()
        self.paid += len(items)


def settle(records, plans, calls, judge, config):
    """{(id, method, n): Ranking} of all plans (method, n) of these records, played in lockstep.

    Each play takes all judgements that are there and stops at the first that is not; what all of them lack is asked in
    batches, and they start again.
    """
    rankings, under_way = {}, [(record, method, n) for record in records for method, n in plans]
    while under_way:
        wanted, stuck = {}, []
        for record, method, n in under_way:
            try:
                ranking = play(record, method, n, calls.by_question[record["id"]], config.seed)
                rankings[record["id"], method, n] = ranking
            except Unasked as lacking:
                stuck.append((record, method, n))
                wanted |= {(record["id"], *pair): (record, *pair) for pair in lacking.pairs}
        items = list(wanted.values())
        if config.critic and config.solve != "each":
            items = solving(items, calls, config.solve)
        for start in range(0, len(items), config.batch_size):
            calls.ask(judge, items[start : start + config.batch_size])
        under_way = stuck
    return rankings


def solving(items, calls, solve):
    """Of the items (record, a, b) those that can be asked now: of a question without a solution its first one, or the
    question alone; the others wait for that solution."""
    first = {}
    for record, a, b in items:
        if not calls.by_question[record["id"]]:
            first.setdefault(record["id"], (record, a, b) if solve == "first" else (record, *ALONE))
    return [*first.values(), *(item for item in items if item[0]["id"] not in first)]


@dataclass
class JudgeConfig:
    """The judge of pick and table, and its candidates."""

    candidates: str = field(metadata={"help": "candidates JSONL (sample, or your own in the same form)"})
    out: str = field(metadata={"help": "result JSONL; its summary goes to the .json beside it"})
    critic: str | None = field(default=None, metadata={"help": "critic: folder, hub id, or the server's model name"})
    verifier: str | None = field(default=None, metadata={"help": "verifier: folder, hub id, or the server's model name"})
    base_url: str | None = field(default=None, metadata={"help": "OpenAI-compatible server that holds the judge"})
    solve: Literal["each", "first", "alone"] = field(
        default="each", metadata={"help": "critic: solves anew each time, once while judging first, or once without responses"}
    )
    same_text: Literal["tie", "ask"] = field(
        default="tie", metadata={"help": "two candidates with one text: a tie, or asked too"}
    )
    criteria: str = field(default="physical", metadata={"help": "verifier: what it judges by"})
    repeats: int = field(default=2, metadata={"help": "verifier: calls a criterion"})
    max_new_tokens: int = field(default=512, metadata={"help": "tokens a judgement may have"})
    max_frames: int = field(default=8, metadata={"help": "frames taken of a video"})
    batch_size: int = field(default=64, metadata={"help": "judgements made at once, and questions played at once"})
    limit: int | None = field(default=None, metadata={"help": "this many questions, drawn by a hash of their ids"})
    calls: str | None = field(default=None, metadata={"help": "JSONL of judgements; share it between pick and table"})
    seed: int = field(default=0, metadata={"help": "of tournaments and of what is random in them"})


def played(config, records, plans, load_judge):
    """(rankings of all records, Calls), a chunk of questions at a time; says what was asked, found and missing.

    load_judge(config, known) -> judge(items) -> one dict each: p (None: it abstains), what it said, and COSTS without seconds.
    An item is (record, first, second), the numbers of two candidates in the order shown. `missing` in the answer is why
    there is none (a server that failed): such a call is asked again by the next run. known[id] are the judgements of a
    question so far, from which a critic takes its solution again after a restart.
    """
    if config.batch_size < 1 or (config.critic is None) == (config.verifier is None):
        raise SystemExit(f"give one judge, --critic or --verifier MODEL, and --batch_size of at least 1, not {config.batch_size}")
    calls, rankings = Calls(config), {}
    judge = load_judge(config, calls.by_question)
    if config.same_text == "ask":
        for record in records:
            record["same"] = list(range(len(record["same"])))
    with calls.stream:
        for start in tqdm(range(0, len(records), config.batch_size), desc=Path(config.out).stem, unit="chunk"):
            rankings |= settle(records[start : start + config.batch_size], plans, calls, judge, config)
    print(f"{calls.path}: {calls.paid} judgements asked, {calls.found} found there, {sum(calls.reasons.values())} missing")
    for reason, count in calls.reasons.most_common():
        print(f"  missing {count} x {reason}")
    return rankings, calls


def table_row(record, known):
    """task, correct, p (n, n) with 0.5 for two candidates of one text, and `same`, by which those can be told."""
    same = record["same"]
    cells = [[None if i == j else 0.5 if a == b else known[a, b]["p"] for j, b in enumerate(same)] for i, a in enumerate(same)]
    correct = [candidate["correct"] for candidate in record["candidates"]]
    return {"task": record["id"], "correct": correct, "p": cells, "same": same}


def texts_of(record, a, b):
    """The texts of candidates a and b."""
    return record["candidates"][a]["text"], record["candidates"][b]["text"]
