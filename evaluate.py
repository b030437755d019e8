"""Evaluate a model on question records, or as a judge on pair records, with intervals and the coupling table.

    python evaluate.py --model physworld/tiny_vlm --mode question --limit 100 --out runs/eval/base_question.json
    python evaluate.py --model runs/stage2 --mode judge --split ood --out runs/eval/stage2_judge_ood.json
    python evaluate.py --model Qwen/Qwen2.5-VL-7B-Instruct --mode judge --dataset pairs.jsonl \\
        --max_new_tokens 2048 --batch_size 16 --out runs/eval/qwen_judge.json

Question mode asks each question once. Judge mode shows each pair in both orders, "12" and "21"; a row's verdict speaks
of the record's responses, whichever was shown first. What cannot be read counts as wrong and is reported.

Rows go to a JSONL beside the result, a batch at a time; after a kill the same command continues where it was. A
command with another model, prompt, data set or setting is refused there.
"""

import fcntl
import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import torch
import transformers
from tqdm import tqdm
from transformers import AutoModelForImageTextToText, AutoProcessor, GenerationConfig, HfArgumentParser
from transformers.utils.peft_utils import find_adapter_config_file

import data
import prompts
import rewards
from analysis.coupling import chi2_p, paired_difference, read_rows, row_key, summarise

__all__ = ["Completion", "chi2_p", "complete", "evaluate", "load_model", "paired_difference"]


@dataclass
class EvaluateConfig:
    """The command line."""

    model: str = field(metadata={"help": "local folder (model or PEFT adapter) or hub id"})
    mode: Literal["question", "judge"] = field(metadata={"help": "answer questions, or judge pairs in both orders"})
    out: str = field(metadata={"help": "result JSON; its rows go to the .jsonl beside it"})
    split: Literal["test", "ood"] = field(default="test", metadata={"help": "split of physworld, without --dataset"})
    dataset: str | None = field(default=None, metadata={"help": "JSONL of records (data.py); default is physworld's"})
    limit: int | None = field(default=None, metadata={"help": "evaluate this many records, drawn by a hash of their ids"})
    prompt: Literal["self_ref", "no_self_ref", "no_criteria"] = field(
        default="self_ref", metadata={"help": "the critic's prompt; question mode has one prompt"}
    )
    batch_size: int = field(default=64, metadata={"help": "completions made at once"})
    max_new_tokens: int = field(default=512, metadata={"help": "tokens a completion may have; a 7B model needs 2048"})
    max_frames: int = field(default=8, metadata={"help": "frames taken of a video"})
    temperature: float = field(default=0.0, metadata={"help": "0 is greedy"})
    top_p: float = field(default=1.0, metadata={"help": "share of probability that is sampled from"})
    seed: int = field(default=0, metadata={"help": "seed of the sampling; without effect at temperature 0"})


@dataclass(frozen=True)
class Completion:
    """One sampled text, without special tokens, and what it cost (padding not counted, the end token counted)."""

    text: str
    prompt_tokens: int
    completion_tokens: int


def load_model(path, device=None, dtype=None):
    """(model, processor) of a local folder or hub id, ready to generate: eval mode, left padding.

    A PEFT adapter is merged into its base. Default is cuda in bfloat16 where there is a GPU, else cpu in float32.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = dtype or (torch.float32 if str(device) == "cpu" else torch.bfloat16)
    adapter = find_adapter_config_file(str(path))
    if adapter:
        from peft import PeftConfig, PeftModel

        model, processor = load_model(PeftConfig.from_pretrained(str(path)).base_model_name_or_path, device, dtype)
        return PeftModel.from_pretrained(model, str(path)).merge_and_unload().eval(), processor
    model = AutoModelForImageTextToText.from_pretrained(str(path), dtype=dtype).to(device).eval()
    processor = AutoProcessor.from_pretrained(str(path))
    processor.tokenizer.padding_side = "left"
    return model, processor


def generation_settings(model, tokenizer, max_new_tokens, temperature, top_p):
    """Every setting spelled out, so that a checkpoint's own defaults (Qwen's top_k 50, penalties) cannot leak in."""
    ends = model.generation_config.eos_token_id
    ends = {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None}
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(ends)
    sampling = {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0} if temperature > 0 else {}
    return GenerationConfig(max_new_tokens=max_new_tokens, eos_token_id=sorted(ends), pad_token_id=pad, **sampling)


@torch.no_grad()
def complete(model, processor, prompts, images, max_new_tokens, temperature=0.0, seed=0, top_p=1.0):
    """One Completion per prompt, made in one batch.

    `prompts` are chat messages with {"type": "image"} places; `images` a list of PIL images for each (may be empty).
    Temperature 0 is greedy. Above 0 the draw depends on `seed` and the batch alone; the global generator is left as
    it was. Raises ValueError where places and images differ in number.
    """
    for prompt, shown in zip(prompts, images, strict=True):
        places = sum(block["type"] == "image" for m in prompt if not isinstance(m["content"], str) for block in m["content"])
        if places != len(shown):
            raise ValueError(f"a prompt has {places} image places and {len(shown)} images")
    texts = processor.apply_chat_template(prompts, add_generation_prompt=True, tokenize=False)
    inputs = processor(
        text=texts, images=[i for i in images if i] or None, padding=True, padding_side="left", return_tensors="pt"
    ).to(model.device, model.dtype)  # input_ids: (B, P)
    own = model.generation_config
    settings = generation_settings(model, processor.tokenizer, max_new_tokens, temperature, top_p)
    with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
        torch.manual_seed(seed)
        model.generation_config = settings
        try:
            output = model.generate(**inputs)  # (B, P + C)
        finally:
            model.generation_config = own
    tokens = output[:, inputs["input_ids"].shape[1] :]  # (B, C)
    ended = torch.isin(tokens, torch.tensor(settings.eos_token_id, device=tokens.device))  # (B, C)
    lengths = tokens.shape[1] - (ended.cumsum(1) - ended.long() > 0).sum(1)  # (B,), up to the first end token
    return [
        Completion(processor.decode(row[:n], skip_special_tokens=True), int(mask.sum()), int(n))
        for row, n, mask in zip(tokens, lengths, inputs["attention_mask"])
    ]


def sha(*parts):
    """Twelve hex digits that stand for the given texts."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:12]


def content_sha(path):
    """Twelve hex digits of a file, or of a folder's weights; None for a hub id."""
    path = Path(path)
    files = [path] if path.is_file() else sorted([*path.glob("*.safetensors"), *path.glob("*.bin")])
    digests = []
    for file in files:
        with file.open("rb") as stream:
            digests.append(hashlib.file_digest(stream, "sha256").hexdigest())
    return sha(*digests) if digests else None


def load_tasks(config):
    """(records, tasks) to evaluate: each task is (record, order), order None for a question, in an order set by ids."""
    path = Path(config.dataset)
    records = data.load_records(path, pair=config.mode == "judge")
    records.sort(key=lambda record: sha(record["id"]))  # mixes the suites, the same in every run
    for record in records:
        frames = [os.path.relpath(frame, path.parent) for frame in record.get("frames") or []]
        record["cluster"] = sha(record["question"], record.get("options"), frames, os.path.basename(record.get("video") or ""))
    orders = ("12", "21") if config.mode == "judge" else (None,)
    return [(record, order) for record in records[: config.limit] for order in orders]


def task_prompt(record, order, n_frames, variant):
    """Chat messages of a task; order "21" shows the record's response_2 first."""
    if order is None:
        return prompts.question_prompt(record["question"], record.get("options"), n_frames)
    shown = [record["response_" + number] for number in order]
    return prompts.critic_prompt(record["question"], *shown, record.get("options"), n_frames, variant)


def read_answer(record, text):
    """What a completion to a question says: prediction (None where unreadable) and whether it is right."""
    prediction = rewards.extract_answer(text, record.get("options"))
    right = prediction is not None and rewards.answers_match(prediction, record["answer"], record.get("options"))
    return {"prediction": prediction, "correct": right}


def read_judgement(record, order, text, variant):
    """What a judgement says: prediction, and the verdict turned back to the record's order (None where unreadable).

    prediction_correct is None where the prompt asks for no prediction.
    """
    critique = rewards.parse_critique(text)
    verdict = int(order[critique.verdict - 1]) if critique.verdict else None
    right = None
    if variant != "no_self_ref":
        said, options = critique.prediction, record.get("options")
        right = said is not None and rewards.answers_match(said, record["answer"], options)
    lengths = len(record["response_1"]), len(record["response_2"])
    return {
        "order": order,
        "prediction": critique.prediction,
        "verdict": verdict,
        "p_first": None,  # a text alone gives no probability; critic.py reads it from the logits
        "prediction_correct": right,
        "verdict_correct": verdict == record["preference"],
        "preference": record["preference"],
        "longer": None if lengths[0] == lengths[1] else 1 if lengths[0] > lengths[1] else 2,
    }


def make_row(config, record, order, completion, prompt):
    """One line of the JSONL."""
    text = completion.text
    said = read_answer(record, text) if order is None else read_judgement(record, order, text, config.prompt)
    return {
        "id": record["id"], "suite": record["suite"], "cluster": record["cluster"], **said, "text": text,
        "cut_off": completion.completion_tokens >= config.max_new_tokens,
        "prompt_tokens": completion.prompt_tokens, "completion_tokens": completion.completion_tokens,
        "seed": config.seed, "model": config.model, "prompt_sha": sha(prompt),
    }  # fmt: skip


def open_rows(path, result_path, settings):
    """(open JSONL to append to, rows already there) of this configuration; a last line that was cut off is removed.

    Raises SystemExit where the rows were written with other settings, or another process is writing them now.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    stream = path.open("a+b")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until the process ends, however it ends
    except BlockingIOError:
        raise SystemExit(f"{path}: another evaluation is writing this file; wait for it, or give another --out")
    stream.seek(0)
    content = stream.read()
    stream.truncate(content.rfind(b"\n") + 1)
    rows = read_rows(path)
    found = read_result(result_path).get("config", {})
    odd = [f"{k} was {found.get(k)!r}, is now {settings[k]!r}" for k in settings if found.get(k) != settings[k]]
    if rows and odd:
        raise SystemExit(f"{path} stems from another configuration ({'; '.join(odd)}); delete it, or give another --out")
    return stream, rows


def read_result(path):
    """The result at `path`, {} where there is none yet."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write_result(path, result):
    """Write the result whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def write_missing(config, tasks, rows, stream):
    """Complete the tasks that have no row yet and append their rows; returns all rows in the order of the tasks.

    Batches are cut from the whole list, not from what is missing, so that a resumed run samples what an uninterrupted
    one would.
    """
    done = {row_key(row): row for row in rows}
    batches = [tasks[i : i + config.batch_size] for i in range(0, len(tasks), config.batch_size)]
    missing = [b for b in batches if any((record["id"], order) not in done for record, order in b)]
    if missing:
        model, processor = load_model(config.model)
    bar = tqdm(total=len(tasks), initial=len(tasks) - sum(map(len, missing)), unit="row", desc=Path(config.out).stem)
    for batch in missing:
        frames = [data.open_frames(record, config.max_frames) for record, _ in batch]
        asked = [task_prompt(*task, len(shown), config.prompt) for task, shown in zip(batch, frames)]
        seed = int(sha(config.seed, batch[0][0]["id"], batch[0][1]), 16)
        completions = complete(
            model, processor, asked, frames, config.max_new_tokens, config.temperature, seed, config.top_p
        )
        for task, completion, prompt in zip(batch, completions, asked):
            row = make_row(config, *task, completion, prompt)
            if row_key(row) not in done:
                done[row_key(row)] = row
                stream.write(json.dumps(row).encode() + b"\n")
        stream.flush()
        bar.update(len(batch))
    bar.close()
    return [done[record["id"], order] for record, order in tasks]


def provenance():
    """The command, commit, versions and machine that made a result; commit None outside a git repository."""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        commit = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parent).stdout.strip() or None
    except FileNotFoundError:  # no git on this machine
        commit = None
    versions = {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__}
    return {"command": shlex.join(["python", *sys.argv]), "commit": commit, "versions": versions, "machine": machine()}


def machine():
    """The accelerator, or how much of the CPU is in use."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"CPU, {torch.get_num_threads()} of {os.cpu_count()} cores"


def evaluate(config):
    """Run one evaluation to its end and return the result that lies at `config.out` ("finished": true)."""
    started, out = time.time(), Path(config.out)
    if out.suffix != ".json":
        raise SystemExit(f"--out {out}: the result is a .json file")
    for name in ("limit", "batch_size", "max_new_tokens"):
        if getattr(config, name) is not None and getattr(config, name) < 1:
            raise SystemExit(f"--{name} must be at least 1, got {getattr(config, name)}")
    if config.dataset is None:
        from physworld import dataset

        config.dataset = str(getattr(dataset, "pairs_file" if config.mode == "judge" else "questions_file")(config.split))
    settings = asdict(config) | {"weights": content_sha(config.model), "records": content_sha(config.dataset)}
    del settings["out"]
    tasks = load_tasks(config)
    stream, rows = open_rows(out.with_suffix(".jsonl"), out, settings)
    result = read_result(out)
    with stream:
        if not (result.get("finished") and len(rows) == len(tasks)):  # else it keeps the command and commit that made it
            result = {"config": settings, "finished": False, **provenance()}
            write_result(out, result)
            rows = write_missing(config, tasks, rows, stream)
            result |= {"finished": True, "seconds": round(time.time() - started, 1)}
    tokens = {kind: sum(row[kind] for row in rows) for kind in ("prompt_tokens", "completion_tokens")}
    result |= {**tokens, **summarise(rows, config.mode)}
    write_result(out, result)
    return result


def share(entry):
    """An estimate as text.

    >>> share({"value": 0.5, "low": 0.4, "high": 0.6, "n": 96, "clusters": 48})
    ' 50.0  [ 40.0,  60.0]  n=96'
    """
    if entry["value"] is None:
        return "    -  (no row)"
    return f"{100 * entry['value']:5.1f}  [{100 * entry['low']:5.1f}, {100 * entry['high']:5.1f}]  n={entry['n']}"


def table(result):
    """The result as lines for the screen: percent, 95% interval clustered by question, number of rows."""
    shares = {"overall": result["accuracy"], "macro": result["macro"], **result["suites"]}
    lines = [f"{result['config']['mode']} accuracy, {result['config']['model']}"]
    lines += [f"  {name:<22}{share(entry)}" for name, entry in shares.items()]
    names = ("unreadable", "cut_off", "prediction_accuracy", "consistency", "first_share", "longer_share")
    lines += [f"{name.replace('_', ' '):<24}{share(result[name])}" for name in names if name in result]
    if "coupling" in result:
        c = result["coupling"]
        text = c["reason"] or f"chi2 {c['chi2']:.2f}  p {c['p']:.2e}  phi {c['phi']:.2f}"
        lines.append(f"{'coupling':<24}{text}  table {c['table']}  n={c['n']}")
    return lines


if __name__ == "__main__":
    print("\n".join(table(evaluate(HfArgumentParser(EvaluateConfig).parse_args_into_dataclasses()[0]))))
