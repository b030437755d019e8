"""Candidate answers of a policy: sampling them, reading them, and picking one without a judge (best_of_n.py).

A candidates record is a question plus `candidates: [{text, source, correct, tokens, log_likelihood}]`; of your own files
only text and source are needed. What is right is said by rewards.py.
"""

import json
import os
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


# --- Sampling ------------------------------------------------------------------------------------------------------


class Likelihood:
    """A logits processor: adds up the log-probability of each sampled token while generating, at temperature 1; keeps no logits but the last."""

    def __init__(self):
        self.last, self.sums = None, []

    def __call__(self, input_ids, scores):
        self.take(input_ids[:, -1])
        self.last = scores.float().log_softmax(-1)  # (B, V)
        return scores

    def take(self, tokens):
        """Count the tokens, (B,), drawn after the last call; none at the first."""
        if self.last is not None:
            self.sums.append(self.last.gather(1, tokens[:, None])[:, 0])


def sample_candidates(model, processor, prompt, images, config, seed):
    """(candidates, prompt tokens) of one question: `config.n` dicts of text, tokens and log_likelihood.

    log_likelihood is the mean over the candidate's tokens, the end token included, of log p under the policy at
    temperature 1, in nats, at most 0. The draw depends on `seed` and n alone; the global generator is left as it was.
    """
    import torch  # here, since --help needs SampleConfig only
    from transformers import LogitsProcessorList

    from judging.models import generation_settings

    [text] = processor.apply_chat_template([prompt], add_generation_prompt=True, tokenize=False)
    inputs = processor(text=[text], images=[images] if images else None, return_tensors="pt").to(model.device, model.dtype)
    own, likelihood = model.generation_config, Likelihood()
    settings = generation_settings(model, processor.tokenizer, config.max_new_tokens, config.temperature, 1.0)
    settings.num_return_sequences = config.n
    with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
        torch.manual_seed(seed)
        model.generation_config = settings
        try:
            output = model.generate(**inputs, logits_processor=LogitsProcessorList([likelihood]))  # (B, P + C)
        finally:
            model.generation_config = own
    prompt_tokens = inputs["input_ids"].shape[1]
    tokens = output[:, prompt_tokens:]  # (B, C)
    likelihood.take(tokens[:, -1])
    ended = torch.isin(tokens, torch.tensor(settings.eos_token_id, device=tokens.device))  # (B, C)
    counted = ended.cumsum(1) - ended.long() == 0  # (B, C), up to the first end token
    means = (torch.stack(likelihood.sums, 1) * counted).sum(1) / counted.sum(1)  # (B,)
    rows = zip(tokens, counted.sum(1).tolist(), means.tolist())
    return [
        {"text": processor.decode(row[:n], skip_special_tokens=True), "tokens": n, "log_likelihood": mean}
        for row, n, mean in rows
    ], prompt_tokens


def sample(config):
    """Write `config.n` candidates of each question that has none yet; returns the summary that lies beside --out."""
    from judging.models import load_model, warn_of_other_training

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
    model, processor = load_model(config.model) if missing else (None, None)
    warn_of_other_training(config.model, video_input="frames")
    with stream:
        for record in tqdm(missing, desc="sample", unit="question"):
            done[record["id"]] = row = sampled_row(config, record, model, processor, out.parent)
            stream.write(json.dumps(row).encode() + b"\n")
            stream.flush()
    rows = [done[record["id"]] for record, _ in tasks]
    result = {"config": settings, "finished": True, **provenance(), "questions": len(rows)}
    result |= {name: sum(row[name] for row in rows) for name in ("prompt_tokens", "completion_tokens", "seconds")}
    result["distinct_texts"] = sum(len({c["text"] for c in row["candidates"]}) for row in rows) / len(rows)
    write_result(out.with_suffix(".json"), result)
    return result


def sampled_row(config, record, model, processor, folder):
    """A candidates record: the question, its frames relative to `folder`, and its candidates."""
    started, images = time.time(), data.open_frames(record, config.max_frames)
    prompt = prompts.question_prompt(record["question"], record.get("options"), len(images))
    seed = int(short_sha(config.seed, record["id"]), 16)
    candidates, prompt_tokens = sample_candidates(model, processor, prompt, images, config, seed)
    for candidate in candidates:
        candidate |= {"source": config.model, "correct": read_answer(record, candidate["text"])["correct"]}
    row = {key: value for key, value in record.items() if key != "cluster"}
    for name in filter(row.get, data.MEDIA):
        paths = row[name]
        relative = [os.path.relpath(path, folder) for path in ([paths] if isinstance(paths, str) else paths)]
        row[name] = relative[0] if isinstance(paths, str) else relative
    tokens = {"prompt_tokens": prompt_tokens, "completion_tokens": sum(candidate["tokens"] for candidate in candidates)}
    return row | {"candidates": candidates, **tokens, "seconds": round(time.time() - started, 3)}


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
