"""Evaluate a model on question records, or as a judge on pair records, with intervals and the coupling table.

    python evaluate.py --model physworld/tiny_vlm --mode question --limit 100 --out runs/eval/base_question.json
    python evaluate.py --model runs/stage2 --mode judge --split ood --out runs/eval/stage2_judge_ood.json
    python evaluate.py --model Qwen/Qwen2.5-VL-7B-Instruct --mode judge --dataset pairs.jsonl \\
        --max_new_tokens 2048 --batch_size 16 --out runs/eval/qwen_judge.json
    python evaluate.py --model runs/stage2 --mode judge --source vl_rewardbench --dataset MMInstruction/VL-RewardBench \\
        --out runs/eval/vlrb.json              # a public benchmark (data/sources.py, docs/data.md), its own score beside ours
    python evaluate.py --model my-model --base_url http://localhost:8000/v1 --mode judge ...          # a server judges
    python evaluate.py --model runs/stage2 --mode judge --verifier physical ...                       # verifier.py judges

Question mode asks each question once. Judge mode shows each pair in both orders, "12" and "21"; a row's verdict speaks
of the record's responses, whichever was shown first. What cannot be read counts as wrong and is reported.

Rows go to a JSONL beside the result, a batch at a time; after a kill the same command continues where it was. A
command with another model, prompt, data set or setting is refused there. Records and frames are read a batch at a time.
A call that a server failed gives no row: the result then is not finished, and the same command asks again.
"""

import json
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from tqdm import tqdm

import data
import prompts as templates
from data import command, sources
from data.files import content_sha, open_rows, provenance, read_result, short_sha, write_result
from judging import judges, official_scores
from judging.calls import Completion, Missing
from judging.tasks import load_tasks, read_answer, read_judgement, task_prompt
from stats import row_key, share, summarise
from verifier import Verifier


@dataclass
class EvaluateConfig:
    """The command line."""

    model: str = field(metadata={"help": "local folder (model or PEFT adapter) or hub id"})
    mode: Literal["question", "judge"] = field(metadata={"help": "answer questions, or judge pairs in both orders"})
    out: str = field(metadata={"help": "result JSON; its rows go to the .jsonl beside it"})
    split: Literal["test", "ood"] = field(default="test", metadata={"help": "split of physworld, without --dataset"})
    dataset: str | None = field(
        default=None, metadata={"help": "JSONL of records, or with --source a path or hub id; default is physworld's"}
    )
    source: Literal[tuple(sources.LOADERS)] | None = field(default=None, metadata={"help": "the data set that --dataset is"})
    subset: str | None = field(default=None, metadata={"help": "of --source: part of the paths of the files to take"})
    media: str | None = field(default=None, metadata={"help": "of --source: folder of clips, where it is not the data set's"})
    allow_rejected: bool = field(default=False, metadata={"help": "of --source: go on with more than 1% of the rows rejected"})
    limit: int | None = field(default=None, metadata={"help": "evaluate this many records, drawn by a hash of their ids"})
    prompt: Literal["self_ref", "no_self_ref", "no_criteria", "unified_think"] = field(
        default="self_ref",
        metadata={"help": "the critic's prompt, or UnifiedReward-Think's and its way to answer; question mode has one prompt"},
    )
    prompt_file: str | None = field(default=None, metadata={"help": "a benchmark's own prompt instead (docs/data.md)"})
    base_url: str | None = field(default=None, metadata={"help": "OpenAI-compatible server that serves --model"})
    verifier: str | None = field(default=None, metadata={"help": "judge by verifier.py with these criteria, e.g. physical"})
    batch_size: int = field(default=64, metadata={"help": "completions made at once"})
    max_new_tokens: int = field(default=512, metadata={"help": "tokens a completion may have; a 7B model needs 2048"})
    max_frames: int = field(default=8, metadata={"help": "frames taken of a video"})
    video_input: Literal["frames", "native"] = field(
        default="frames", metadata={"help": "show a clip as images or as a video, as the model was trained (data/video_inputs.py)"}
    )
    temperature: float = field(default=0.0, metadata={"help": "0 is greedy"})
    top_p: float = field(default=1.0, metadata={"help": "share of probability that is sampled from"})
    seed: int = field(default=0, metadata={"help": "seed of the sampling; without effect at temperature 0"})


def make_row(config, record, order, completion, prompt):
    """One line of the JSONL."""
    text, foreign = completion.text, config.prompt_file and config.prompt != "unified_think"
    variant = "own" if foreign else config.prompt
    if order is None:
        said = read_answer(record, text, own_reading=variant == "own" and config.source == "egoplan_bench2")
    else:
        said = read_judgement(record, order, text, variant, completion.p, config.source)
    if config.source:  # what the official scores need
        said |= {"answer": record["answer"], "number": record.get("number")}
    return {
        "id": record["id"], "suite": record["suite"], "cluster": record["cluster"], **said, "text": text,
        "cut_off": completion.p is None and completion.completion_tokens >= config.max_new_tokens,
        "prompt_tokens": completion.prompt_tokens, "completion_tokens": completion.completion_tokens,
        "seed": config.seed, "model": config.model, "prompt_sha": short_sha(prompt),
    }  # fmt: skip


def write_missing(config, tasks, rows, stream):
    """Complete the tasks that have no row yet and append their rows.

    Returns (all rows, without their texts, in the order of the tasks; how many calls failed for which reason). Batches are
    cut from the whole list, not from what is missing, so that a resumed run samples what an uninterrupted one would.
    """
    done, failed, size = {row_key(row): row for row in rows}, Counter(), config.batch_size
    starts = [i for i in range(0, len(tasks), size) if any(key not in done for key in tasks.keys[i : i + size])]
    template = Path(config.prompt_file).read_text(encoding="utf-8") if config.prompt_file else None
    answer, left = open_answerer(config) if starts else None, sum(len(tasks.keys[i : i + size]) for i in starts)
    bar = tqdm(total=len(tasks), initial=len(tasks) - left, unit="row", desc=Path(config.out).stem)
    native = config.video_input == "native"
    for start in starts:
        batch = [tasks[i] for i in range(start, min(start + size, len(tasks)))]
        frames = [(data.open_clips if native else data.open_frames)(record, config.max_frames) for record, _ in batch]
        counts = [(0, len(shown)) if native else (len(shown), 0) for shown in frames]  # images, videos
        asked = [task_prompt(*task, n, config.prompt, template, videos) for task, (n, videos) in zip(batch, counts)]
        seed = int(short_sha(config.seed, batch[0][0]["id"], batch[0][1]), 16)
        for task, completion, prompt in zip(batch, answer(batch, asked, frames, seed), asked):
            if not hasattr(completion, "text"):
                failed[completion.reason] += 1
                continue
            row = make_row(config, *task, completion, prompt)
            if row_key(row) not in done:
                stream.write(json.dumps(row).encode() + b"\n")
                del row["text"]
                done[row_key(row)] = row
        stream.flush()
        bar.update(len(batch))
    bar.close()
    return [done[key] for key in tasks.keys if key in done], failed


def evaluate(config):
    """Run one evaluation to its end and return the result that lies at `config.out` ("finished": true)."""
    started, out = time.time(), Path(config.out)
    if out.suffix != ".json":
        raise SystemExit(f"--out {out}: the result is a .json file")
    for name in ("limit", "batch_size", "max_new_tokens"):
        if getattr(config, name) is not None and getattr(config, name) < 1:
            raise SystemExit(f"--{name} must be at least 1, got {getattr(config, name)}")
    if config.verifier and config.mode != "judge" or config.source and not config.dataset:
        raise SystemExit("--verifier needs --mode judge, and --source needs --dataset (a local path or hub id)")
    foreign = config.prompt_file or config.prompt == "unified_think"
    if config.video_input == "native" and (config.base_url or config.verifier or foreign):
        raise SystemExit("--video_input native is for a model in this process and our own prompts: use --video_input frames")
    if config.dataset is None:
        config.dataset = str(data.embedded("pairs" if config.mode == "judge" else "questions", config.split))
    path = config.dataset
    if config.source:  # beside the result, shared by all evaluations there
        folder = out.parent / "records" / f"{config.source}_{config.mode}_{short_sha(path, config.subset, config.media)}"
        path, _ = sources.convert(config.source, config.mode, path, folder, config.media, config.subset, config.allow_rejected)
    settings = asdict(config) | {"weights": content_sha(config.model), "records": content_sha(path)}
    settings["prompt_file"] = config.prompt_file and content_sha(config.prompt_file)
    del settings["out"], settings["allow_rejected"]
    if config.video_input == "frames":
        del settings["video_input"]  # as in results of before there was a choice
    tasks, failed = load_tasks(path, config.mode == "judge", config.limit, answered=config.source is None), Counter()
    stream, rows = open_rows(out.with_suffix(".jsonl"), out, settings)
    result = read_result(out)
    with stream:
        if not (result.get("finished") and len(rows) == len(tasks)):  # else it keeps the command and commit that made it
            result = {"config": settings, "finished": False, **provenance()}
            write_result(out, result)
            rows, failed = write_missing(config, tasks, rows, stream)
            result |= {"finished": not failed, "failed": dict(failed), "seconds": round(time.time() - started, 1)}
    tokens = {kind: sum(row[kind] for row in rows) for kind in ("prompt_tokens", "completion_tokens")}
    result |= {**tokens, **summarise(rows, config.mode)}
    if config.source:
        result["official"] = official_scores.official(config.source, config.mode, rows)
    write_result(out, result)
    return result


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
    if result.get("official"):
        lines += official_scores.lines(result["official"])
    lines += [f"not finished: {n} calls failed ({why}); run it again" for why, n in result.get("failed", {}).items()]
    return lines


def open_answerer(config):
    """answer(tasks, asked, images, seed) of the model, the server or the verifier that the command line names."""
    from judging import judges  # torch: after --help

    if config.verifier:
        return verified(config)
    variant = {"prompt": config.prompt} if config.mode == "judge" and not config.prompt_file else {}
    names = ("model", "base_url", "max_new_tokens", "temperature", "top_p", "video_input")
    return judges.open_judge(**{name: getattr(config, name) for name in names}, trained_with=variant)


def verified(config):
    """answer(tasks, asked, images, seed) of verifier.py: one call a criterion in the order shown, p instead of a text."""
    settings = {"analysis_tokens": config.max_new_tokens, "temperature": config.temperature}
    backend = judges.backend(config.model, config.base_url, config.batch_size, **settings)
    verifier = Verifier(
        backend, config.verifier, repeats=1, seed=config.seed, abstain=True, progress=False, keep=False
    )  # what a benchmark's calls said would not fit in memory

    def answer(tasks, asked, images, seed):
        compared = []
        for (record, order), shown in zip(tasks, images):
            first, second = (record["response_" + number] for number in order)
            compared.append((templates.question_text(record["question"], record.get("options")), first, second, shown))
        results = verifier.compare_many(compared)
        return [
            Missing(result.why) if result.p is None else Completion("", result.tokens.input, result.tokens.output, result.p)
            for result in results
        ]

    return answer


def main():
    [config] = command.parse(__doc__, EvaluateConfig)
    if not config.base_url:
        command.local_model(config.model)
    made = evaluate(config)
    print("\n".join(table(made)))
    return not made["finished"]


if __name__ == "__main__":
    command.run(main)
