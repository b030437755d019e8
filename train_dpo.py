"""Critic-guided DPO of a policy (PhyCritic, arXiv 2602.11124, Table 8): a critic's preferences make a better policy.

    policy -> 8 answers a question -> all ordered pairs judged, the question solved once -> best against worst -> DPO

Smallest commands (embedded default: the tiny base as policy, runs/stage2 as critic; both carry on where they were killed):
    python train_dpo.py pairs                                  # leaves runs/dpo/candidates.jsonl and pairs.jsonl
    python train_dpo.py train --resume_from_checkpoint true    # leaves the adapter in runs/dpo
    python evaluate.py --model runs/dpo --mode question --max_new_tokens 64 --out runs/eval/dpo_question.json
The rows of the table share their candidates:
    python train_dpo.py pairs --pairs_by verifier --candidates runs/dpo/candidates.jsonl --output_dir runs/dpo_verifier
    python train_dpo.py pairs --pairs_by pivot --candidates runs/dpo/candidates.jsonl --output_dir runs/dpo_pivot
The paper's recipe (Qwen2.5-VL-7B-Instruct; needs 8 GPUs of 80 GB and the packages of requirements-gpu.txt):
    python train_dpo.py pairs --config experiments/phycritic_7b_dpo.yaml --dataset questions.jsonl
    accelerate launch --num_processes 8 train_dpo.py train --config experiments/phycritic_7b_dpo.yaml

Time, embedded default on one CPU core: about 3 minutes for the pairs, 2 for the training (five epochs take 0.23 s a pair).
Values that the paper does not state carry a comment in the YAML.
"""

import dataclasses
import json
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from data import command
from training import arguments

EMBEDDED = "experiments/physworld_dpo.yaml"
FRESH = 800  # questions of the embedded default, behind those of stage 1
STEPS = {
    "pairs": "sample answers and judge them; best and worst make a pair",
    "train": "DPO of the policy on these pairs",
}


@dataclass
class ScriptArguments(arguments.DataArguments):
    """`pairs` reads questions (dataset) and leaves pairs; `train` reads the pairs."""

    video_input: Literal["frames"] = field(default="frames", metadata={"help": "Clips are shown as frames here."})
    pairs: str | None = field(
        default=None, metadata={"help": "JSONL of pairs, written by `pairs`, read by `train`; left out: output_dir/pairs.jsonl."}
    )
    candidates: str | None = field(
        default=None,
        metadata={"help": "JSONL of candidates, sampled where they are missing; left out: output_dir/candidates.jsonl."},
    )
    pairs_by: Literal["critic", "pivot", "verifier"] = field(
        default="critic", metadata={"help": "Critic on all ordered pairs, critic in a pivot tournament, or answer verifier."}
    )
    critic: str = field(default="runs/stage2", metadata={"help": "The critic: folder, hub id, or the server's model name."})
    base_url: str | None = field(default=None, metadata={"help": "OpenAI-compatible server that holds the critic."})
    solve: Literal["each", "first", "alone"] = field(
        default="first", metadata={"help": "The critic solves a question anew each time, once while judging first, or alone."}
    )
    responses: int = field(default=8, metadata={"help": "Candidates a question."})
    temperature: float = field(default=0.6, metadata={"help": "Of the candidates."})
    max_new_tokens: int = field(default=512, metadata={"help": "Tokens that a candidate may have."})
    judgement_tokens: int = field(default=512, metadata={"help": "Tokens that a judgement may have."})
    judge_batch_size: int = field(default=64, metadata={"help": "Judgements made at once, and questions judged at once."})


if __name__ == "__main__":
    arguments.help_first(__doc__, [ScriptArguments], EMBEDDED, STEPS)

# torch and TRL: after --help
import datasets
from trl import DPOConfig, DPOTrainer, apply_chat_template
from trl.trainer.dpo_trainer import DataCollatorForVisionPreference

import data
import prompts
from critic import critic_judge
from data.files import provenance, write_result
from judging import candidates, play
from trainer import WeightsMove
from training import checkpoints, launch
from training.checkpoints import log


@dataclass
class PolicyDPOConfig(DPOConfig):
    """DPOConfig that cuts nothing unless asked to, with precision that follows the machine (as launch.CriticGRPOConfig)."""

    max_length: int | None = field(
        default=None, metadata={"help": "Tokens of prompt and response; left out: nothing is cut, image tokens least of all."}
    )

    def __post_init__(self):
        launch.fit_machine(self)
        self.remove_unused_columns = False  # a row's columns are made when it is read
        super().__post_init__()


def parse(argv):
    """(script, training, model) arguments, as launch.parse makes them for GRPO; output_dir's files filled in."""
    script_args, args, model_args = launch.parse(ScriptArguments, EMBEDDED, PolicyDPOConfig, argv)
    if model_args.model_name_or_path is None:
        raise ValueError("no policy to start from: give --model_name_or_path, or set it in the YAML")
    if script_args.responses < 2:
        raise ValueError(f"responses must be at least 2, got {script_args.responses}")
    for name in ("pairs", "candidates"):
        setattr(script_args, name, getattr(script_args, name) or str(Path(args.output_dir) / f"{name}.jsonl"))
    return script_args, args, model_args


# --------------------------------------------------------------------------------------------------------------- pairs


# Which two candidates of a question make a pair. A choice is (best, worst, margin), or a text that says why there is none:
#   critic      the responses of largest and smallest total preference over all ordered pairs (Table 8); no answer is looked at
#   pivot       the same from the comparisons of a pivot tournament (ppt.py): fewer judgements
#   verifier    the baseline: one that matches the answer (rewards.py) against one that does not


def total_preference(cells):
    """(scores, counts) of n responses from cells[i][j], p that i, shown first, beats j (None: the judge abstained).

    A score is the mean of p(i, j) and 1 - p(j, i) over all ordered pairs that counted, in [0, 1]: the total preference
    over their number, so that a judge who favours a place favours nobody. 0.0 where none counted.

    >>> total_preference([[None, 0.9, 0.8], [0.4, None, None], [0.4, None, None]])
    ([0.725, 0.25, 0.3], [4, 2, 2])
    """
    n, scores, counts = len(cells), [], []
    for i in range(n):
        won = [cells[i][j] for j in range(n) if cells[i][j] is not None and j != i]
        won += [1 - cells[j][i] for j in range(n) if cells[j][i] is not None and j != i]
        scores.append(round(sum(won) / len(won), 12) if won else 0.0)
        counts.append(len(won))
    return scores, counts


def best_and_worst(scores, counts):
    """(best, worst) of those that were compared at all, ties to the lower index; None where the best is not ahead.

    >>> best_and_worst([0.2, 0.9, 0.9, 0.0], [3, 3, 3, 0]), best_and_worst([0.5, 0.5], [2, 2])
    ((1, 0), None)
    """
    ranked = sorted((i for i, count in enumerate(counts) if count), key=lambda i: -scores[i])
    if not ranked or scores[ranked[0]] - scores[ranked[-1]] < 1e-9:
        return None
    return ranked[0], next(i for i in ranked if scores[i] == scores[ranked[-1]])


def right_and_wrong(record, seed):
    """(right, wrong): one candidate that is right and one that is not, drawn by (seed, id); or why there is no such pair."""
    correct = [bool(candidate["correct"]) for candidate in record["candidates"]]
    if len(set(correct)) == 1:
        return "all right" if correct[0] else "all wrong"
    draw = random.Random(f"{seed} {record['id']}")
    return tuple(draw.choice([i for i, right in enumerate(correct) if right == wanted]) for wanted in (True, False))


def verifiers_choices(records, seed):
    """{id: choice} by the answers."""
    drawn = {record["id"]: right_and_wrong(record, seed) for record in records}
    return {key: pair if isinstance(pair, str) else (*pair, None) for key, pair in drawn.items()}


def critics_choices(judge, records, by, n):
    """{id: choice} by a critic, `judge` being a judging.play.JudgeConfig; each judgement stands in a file before it counts."""
    rankings, calls = play.played(judge, records, [("table" if by == "critic" else "pivot", n)], critic_judge)
    choices = {}
    for record in records:
        if by == "critic":
            scores, counts = total_preference(play.table_row(record, calls.by_question[record["id"]])["p"])
        else:
            ranking = rankings[record["id"], "pivot", n]
            scores, counts = ranking.scores, ranking.counts
        ends = best_and_worst(scores, counts)
        choices[record["id"]] = (*ends, round(scores[ends[0]] - scores[ends[1]], 6)) if ends else "undecided"
    return choices


def pair_record(record, best, worst, margin, folder):
    """The pair record of candidates best and worst, the lower number as response_1, files relative to `folder`.

    margin: by how much the best's score leads, None of a verifier. right: which of the two are, known from the answer.
    """
    dropped = ("candidates", "same", "cluster", "prompt_tokens", "completion_tokens", "seconds")
    row = {key: value for key, value in data.with_relative_paths(record, folder).items() if key not in dropped}
    for place, number in enumerate(sorted((best, worst)), 1):
        shown = record["candidates"][number]
        row |= {f"response_{place}": shown["text"], f"source_{place}": shown.get("source") or "unknown"}
    right = {name: record["candidates"][i]["correct"] for name, i in (("chosen", best), ("rejected", worst))}
    return row | {"preference": 1 if best < worst else 2, "margin": margin, "right": right}


def refusal(record, choice):
    """Why this choice makes no pair, or None where it does; what all rows of the table refuse comes first."""
    texts = [candidate["text"].strip() for candidate in record["candidates"]]
    if len(set(texts)) == 1:
        return "one text"
    if isinstance(choice, str):
        return choice
    ends = {texts[i] for i in choice[:2]}
    return "identical" if len(ends) == 1 else "empty response" if "" in ends else None


def make_pairs(script_args, args, model_args):
    """Sample the candidates that are missing, choose, write the pairs whole; returns the summary that lies beside them."""
    if args.world_size > 1:
        raise ValueError("`pairs` runs in one process: python train_dpo.py pairs (a critic on a server judges in parallel)")
    if script_args.pairs_by != "verifier" and not script_args.base_url:  # before the sampling, which takes longer
        command.local_model(launch.local_path(script_args.critic))
    source, out = Path(script_args.candidates), candidates.jsonl(script_args.pairs)
    n, limit = script_args.responses, script_args.limit
    if not source.is_file() or source.with_suffix(".json").is_file():  # else they are the user's own
        candidates.sample(
            candidates.SampleConfig(
                launch.local_path(model_args.model_name_or_path), str(source), limit=limit, n=n, seed=args.seed,
                dataset=script_args.dataset or fresh_questions(), temperature=script_args.temperature,
                max_new_tokens=script_args.max_new_tokens, max_frames=script_args.max_frames,
            )  # fmt: skip
        )
    records = candidates.load_candidates(source, n, limit)
    if script_args.pairs_by == "verifier":
        choices = verifiers_choices(records, args.seed)
    else:
        choices = critics_choices(judge_config(script_args, args.seed), records, script_args.pairs_by, n)
    reasons = {record["id"]: refusal(record, choices[record["id"]]) for record in records}
    rows = [pair_record(r, *choices[r["id"]], out.parent) for r in records if reasons[r["id"]] is None]
    data.write_lines(out, rows)
    kinds = Counter(" over ".join("right" if right else "wrong" for right in row["right"].values()) for row in rows)
    summary = {"questions": len(records), "pairs": len(rows), "kinds": dict(kinds)}
    summary["refused"] = dict(Counter(filter(None, reasons.values())))
    log(f"{out}: {len(records)} questions, {len(rows)} pairs {summary['kinds']}, refused {summary['refused']}")
    write_result(out.with_suffix(".json"), {"config": dataclasses.asdict(script_args), **provenance(), **summary})
    return summary


def judge_config(script_args, seed):
    """The critic's settings, as judging.play takes them."""
    return play.JudgeConfig(
        script_args.candidates, script_args.pairs, base_url=script_args.base_url, solve=script_args.solve,
        critic=script_args.critic if script_args.base_url else launch.local_path(script_args.critic),
        max_new_tokens=script_args.judgement_tokens, max_frames=script_args.max_frames,
        batch_size=script_args.judge_batch_size, limit=script_args.limit, seed=seed,
    )  # fmt: skip


def fresh_questions():
    """Path of FRESH physworld questions behind stage 1's own, so that the critic was never told their answers."""
    from physworld.dataset import ROOT, SIZES, questions_file

    whole = questions_file("train", SIZES["train"] + FRESH, ROOT.with_name("physworld_dpo"))
    rows = [row for number, row in data.read_jsonl(whole) if number > SIZES["train"]]  # they are sorted by number
    data.write_lines(whole.with_name("fresh.jsonl"), rows)
    return str(whole.with_name("fresh.jsonl"))


# --------------------------------------------------------------------------------------------------------------- train


def chosen_and_rejected(pair):
    """The two responses of a pair record, the preferred one first."""
    first, second = pair["response_1"], pair["response_2"]
    return (first, second) if pair["preference"] == 1 else (second, first)


def example(pair, n_frames):
    """The row that DPOTrainer reads, without its images: the policy's own prompt and two answers to it."""
    chosen, rejected = ([{"role": "assistant", "content": text}] for text in chosen_and_rejected(pair))
    prompt = prompts.question_prompt(pair["question"], pair.get("options"), n_frames)
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def same_for_the_trainer(pair, processor, max_length=None, max_frames=8):
    """Why the pair's two responses are one for DPO, "identical" or "identical after truncation"; None where they are two.

    Compared are the tokens, behind the chat template (which may strip a text), cut as DPOTrainer cuts them. Raises
    ValueError where max_length cuts the prompt, whose image tokens must stay whole.
    """
    chosen, rejected = chosen_and_rejected(pair)
    if chosen == rejected:
        return "identical"
    images = data.open_frames(pair, max_frames) if max_length else []
    texts, room = apply_chat_template(example(pair, len(images)), processor), None
    if max_length:
        prompt = processor(text=[texts["prompt"]], images=[images] if images else None)["input_ids"][0]
        room = max_length - len(prompt)
        if room < 1:
            raise ValueError(
                f"pair {pair['id']}: its prompt alone has {len(prompt)} tokens, max_length {max_length} would cut it: "
                "leave max_length out"
            )
    ids = [processor.tokenizer(texts[which], add_special_tokens=False)["input_ids"][:room] for which in ("chosen", "rejected")]
    return "identical after truncation" if ids[0] == ids[1] else None


def preference_dataset(pairs, max_frames=8):
    """A datasets.Dataset for DPOTrainer: columns prompt, images, chosen, rejected; frames are opened when a row is read."""
    lines = datasets.Dataset.from_dict({"record": [json.dumps(pair) for pair in pairs]})

    def build(batch):
        rows = [json.loads(line) for line in batch["record"]]
        images = [data.open_frames(row, max_frames) for row in rows]
        examples = [example(row, len(shown)) for row, shown in zip(rows, images)]
        return {"images": images} | {key: [made[key] for made in examples] for key in ("prompt", "chosen", "rejected")}

    return lines.with_transform(build)


class EndedCollator(DataCollatorForVisionPreference):
    """TRL's collator, with a response that ends at its end token.

    The chat template puts a newline behind it, which no policy ever samples: DPO would learn to tell chosen from rejected
    by the probability of that newline, and leave the answers as they were.
    """

    def torch_call(self, examples):
        batch = super().torch_call(examples)
        mask = batch["completion_mask"]  # (2B, T): chosen, then rejected
        ended = ((batch["input_ids"] == self.processor.tokenizer.eos_token_id) & mask.bool()).long()  # (2B, T)
        batch["completion_mask"] = mask * (ended.cumsum(1) == ended)
        return batch


class PolicyDPOTrainer(checkpoints.LoadsStrictly, DPOTrainer):
    """DPOTrainer with EndedCollator and the guards of trainer.CriticGRPOTrainer."""

    def __init__(self, args, processing_class, **kwargs):
        collator = EndedCollator(processing_class, max_length=args.max_length)
        super().__init__(args=args, processing_class=processing_class, data_collator=collator, **kwargs)
        sizes = [(getattr(p, "ds_numel", p.numel()), p.requires_grad) for p in self.model.parameters()]
        total, trainable = sum(size for size, _ in sizes), sum(size for size, moves in sizes if moves)
        if trainable == 0:
            raise ValueError(f"none of the model's {total} parameters is trainable: start from a merged model with --use_peft")
        log(f"training {trainable:,} of {total:,} parameters")
        self.weights_move = WeightsMove(self)
        self.add_callback(self.weights_move)

    def _compute_loss(self, model, inputs, return_outputs):
        self.weights_move.had_advantage = True  # two different responses always pull
        return super()._compute_loss(model, inputs, return_outputs)


def train(script_args, args, model_args):
    """DPO on the pairs; the reference is the model that training starts from."""
    path = Path(script_args.pairs)
    if not path.is_file():
        raise ValueError(f"{path}: no such file; make it with `python train_dpo.py pairs`, or give --pairs")
    pairs = data.load_records(path, pair=True, limit=script_args.limit)
    start = launch.start_model(model_args.model_name_or_path, args, model_args, script_args.max_pixels)
    processor, max_frames = start["processing_class"], script_args.max_frames
    reasons = [same_for_the_trainer(pair, processor, args.max_length, max_frames) for pair in pairs]
    pairs = [pair for pair, reason in zip(pairs, reasons) if reason is None]
    counts = {"pairs": len(pairs), "refused": dict(Counter(filter(None, reasons)))}
    log(f"DPO starts from {start['model']}: {counts['pairs']} pairs, refused {counts['refused']}")
    if not args.process_index:
        Path(args.output_dir).mkdir(parents=True, exist_ok=True)
        data.write_whole(Path(args.output_dir) / "trained_pairs.json", json.dumps(counts) + "\n")
    if not pairs:
        raise ValueError(f"{path}: no pair is left to train on; sample more questions or responses")
    dpo = PolicyDPOTrainer(**start, args=args, train_dataset=preference_dataset(pairs, max_frames))
    launch.train_and_save(dpo, script_args, model_args)


def main():
    step, *words = sys.argv[1:]
    {"pairs": make_pairs, "train": train}[step](*parse(words))


if __name__ == "__main__":
    command.run(main)
