"""Candidate answers of a policy: sampling them, reading them, and picking one without a judge (best_of_n.py).

A candidates record is a question plus `candidates: [{text, source, correct, tokens, log_likelihood}]`; of your own files
only text and source are needed. What is right is said by rewards.py.
"""

import json
import random
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from tqdm import tqdm

import data
import prompts
import rewards
from data.files import content_sha, open_rows, provenance, short_sha, write_result
from judging.judges import warn_of_other_training
from judging.tasks import load_tasks, read_answer


@dataclass
class SampleConfig:
    """python best_of_n.py sample: candidates of a policy."""

    model: str = field(metadata={"help": "the policy: local folder (model or PEFT adapter) or hub id"})
    out: str = field(metadata={"help": "candidates JSONL; its settings go to the .json beside it"})
    split: Literal["test", "ood"] = field(default="test", metadata={"help": "split of physworld, without --dataset"})
    dataset: str | None = field(default=None, metadata={"help": "JSONL of questions (data/records.py)"})
    limit: int | None = field(default=None, metadata={"help": "this many questions, drawn by a hash of their ids"})
    n: int = field(default=32, metadata={"help": "candidates a question, made in one batch"})
    temperature: float = field(default=0.6, metadata={"help": "of the sampling (the paper's 0.6)"})
    max_new_tokens: int = field(default=512, metadata={"help": "tokens a candidate may have"})
    max_frames: int = field(default=8, metadata={"help": "frames taken of a video"})
    seed: int = field(default=0, metadata={"help": "a question's draw depends on this, its id and --n"})


def sample(config):
    """Write `config.n` candidates of each question that has none yet; returns the summary that lies beside --out."""
    out = jsonl(config.out)
    if config.n < 1 or config.temperature <= 0 and config.n > 1:
        raise SystemExit(f"--n must be at least 1, --temperature above 0 where it is more, got {config.n}, {config.temperature}")
    if config.dataset is None:
        config.dataset = str(data.embedded("questions", config.split))
    settings = asdict(config) | {"weights": content_sha(config.model), "records": content_sha(config.dataset)}
    for name in ("out", "limit"):
        del settings[name]
    tasks = load_tasks(config.dataset, limit=config.limit)
    stream, rows = open_rows(out, out.with_suffix(".json"), settings)
    write_result(out.with_suffix(".json"), {"config": settings, "finished": False, **provenance()})
    done = {row["id"]: row for row in rows}
    missing = [record for record, _ in tasks if record["id"] not in done]
    if missing:
        from judging import models  # here, since it loads torch

        model, processor = models.load_model(config.model)
    warn_of_other_training(config.model, video_input="frames")
    with stream:
        for record in tqdm(missing, desc="sample", unit="question"):
            started, images = time.time(), data.open_frames(record, config.max_frames)
            prompt = prompts.question_prompt(record["question"], record.get("options"), len(images))
            seed = int(short_sha(config.seed, record["id"]), 16)
            drawn, prompt_tokens = models.sample_candidates(
                model, processor, prompt, images, config.n, config.max_new_tokens, config.temperature, seed
            )
            done[record["id"]] = row = sampled_row(record, drawn, prompt_tokens, started, config.model, out.parent)
            stream.write(json.dumps(row).encode() + b"\n")
            stream.flush()
    rows = [done[record["id"]] for record, _ in tasks]
    result = {"config": settings, "finished": True, **provenance(), "questions": len(rows)}
    result |= {name: sum(row[name] for row in rows) for name in ("prompt_tokens", "completion_tokens", "seconds")}
    result["distinct_texts"] = sum(len({c["text"] for c in row["candidates"]}) for row in rows) / len(rows)
    write_result(out.with_suffix(".json"), result)
    return result


def sampled_row(record, drawn, prompt_tokens, started, source, folder):
    """A candidates record: the question, its frames relative to `folder`, and what was drawn since `started`."""
    for candidate in drawn:
        candidate |= {"source": source, "correct": read_answer(record, candidate["text"])["correct"]}
    row = {key: value for key, value in data.with_relative_paths(record, folder).items() if key != "cluster"}
    tokens = {"prompt_tokens": prompt_tokens, "completion_tokens": sum(candidate["tokens"] for candidate in drawn)}
    return row | {"candidates": drawn, **tokens, "seconds": round(time.time() - started, 3)}


# --- Reading and picking ---------------------------------------------------------------------------------------------


def load_candidates(path, n, limit=None):
    """Candidates records, at least `n` candidates each, cut to n; adds `same` and, where it is missing, `correct`.

    same[i] is the first candidate with the text of candidate i. Raises data.RecordError naming line, field and remedy.
    """
    for number, row in data.read_jsonl(path):
        found, where = row.get("candidates"), f"{path}:{number}: field 'candidates'"
        if not isinstance(found, list) or not all(isinstance(c, dict) and isinstance(c.get("text"), str) for c in found):
            raise data.RecordError(f'{where} must be a list of {{"text": .., "source": ..}}, got {str(found)[:80]!r}')
        odd = next((i for i, c in enumerate(found) if not isinstance(c.get("correct", True), bool)), None)
        if odd is not None:
            raise data.RecordError(f"{where}: 'correct' of candidate {odd} must be true or false, or left out")
        if len(found) < n:
            raise data.RecordError(f"{where} has {len(found)} where N = {n} is asked for; sample more, or ask for less")
    records = [record for record, _ in load_tasks(path, limit=limit)]
    for record in records:
        record["candidates"] = candidates = record["candidates"][:n]
        texts = [candidate["text"] for candidate in candidates]
        record["same"] = [texts.index(text) for text in texts]
        for candidate in candidates:
            said = read_answer(record, candidate["text"])
            candidate["prediction"] = said["prediction"]
            candidate.setdefault("correct", said["correct"])
    return records


def majority(candidates, options):
    """Number of the first candidate that gives the answer most of them give (rewards.answers_match), ties to the earlier.

    Unreadable ones do not vote; 0 where all are.

    >>> majority([{"prediction": p} for p in (None, "red", "blue", "Blue")], None)
    2
    """
    groups = []
    for i, candidate in enumerate(candidates):
        said = candidate["prediction"]
        same = (g for g in groups if rewards.answers_match(said, candidates[g[0]]["prediction"], options))
        if said is not None:
            group = next(same, None)
            group.append(i) if group else groups.append([i])
    return max(groups, key=len)[0] if groups else 0


def baselines(record, n, seed):
    """{method: pick} of what needs no judge; likelihood only where every candidate has it. Ties go to the lower number."""
    shown = record["candidates"][:n]
    picks = {
        "random": random.Random(f"{seed} {record['id']} {n}").randrange(n),
        "majority": majority(shown, record.get("options")),
        "longest": max(range(n), key=lambda i: len(shown[i]["text"])),
        "oracle": max(range(n), key=lambda i: shown[i]["correct"]),
    }
    if all(candidate.get("log_likelihood") is not None for candidate in record["candidates"]):
        picks["likelihood"] = max(range(n), key=lambda i: shown[i]["log_likelihood"])
    return picks


def jsonl(path):
    """The path of a JSONL result; raises SystemExit on another ending."""
    if Path(path).suffix != ".jsonl":
        raise SystemExit(f"--out {path}: the result is a .jsonl file")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return Path(path)
