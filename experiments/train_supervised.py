"""A supervised pairwise judge on stage 2's pairs: cross-entropy on the verdict alone, no reasoning, no self-prediction.

    loss = -log p(\\boxed{Response k} | frames, question, both responses),   k the record's preference

What the paper lacks: the baseline that sees the same pairs and the same labels without reinforcement learning. Every pair
is shown in both orders, so that position cannot be learned. TRL's SFTTrainer does the rest.

    python experiments/train_supervised.py --model_name_or_path runs/stage1
    python experiments/train_supervised.py --model_name_or_path runs/stage1 --max_steps 2 --output_dir /tmp/supervised
    accelerate launch --config_file accelerate_configs/eight_gpus_zero3.yaml experiments/train_supervised.py \\
        --config experiments/phycritic_7b_supervised.yaml --dataset pairs.jsonl

Evaluate it with `--prompt no_self_ref`, the prompt that it is trained in.
Leaves in output_dir: the model and its processor, config.yaml, checkpoints, tensorboard logs.
"""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the repository, where this is started as a script

from data import command
from training import arguments

EMBEDDED = "experiments/physworld_supervised.yaml"


@dataclass
class SupervisedArguments(arguments.DataArguments):
    """The pairs, and the prompt that they are shown in."""

    video_input: Literal["frames"] = field(default="frames", metadata={"help": "Clips are shown as frames here."})
    prompt: Literal["self_ref", "no_self_ref", "no_criteria"] = field(
        default="no_self_ref", metadata={"help": "The critic's prompt; the verdict alone is taught in any of them."}
    )


if __name__ == "__main__":
    arguments.help_first(__doc__, [SupervisedArguments], EMBEDDED)

# torch and TRL: after --help
import datasets
from trl import SFTConfig, SFTTrainer

import data
from training import checkpoints, launch


@dataclass
class SupervisedConfig(SFTConfig):
    """SFTConfig with precision that follows the machine, as launch.CriticGRPOConfig."""

    def __post_init__(self):
        launch.fit_machine(self)
        self.remove_unused_columns = False  # the rows' one stored column is their record; the model's are made when one is read
        super().__post_init__()


def both_orders(records):
    """Each pair as it is, and with its responses changed over; ids end in /12 and /21."""
    turned = {"response_1": "response_2", "response_2": "response_1", "source_1": "source_2", "source_2": "source_1"}
    rows = []
    for record in records:
        rows.append(record | {"id": f"{record['id']}/12"})
        changed = {name: record[other] for name, other in turned.items()} | {"preference": 3 - record["preference"]}
        rows.append(record | changed | {"id": f"{record['id']}/21"})
    return rows


def supervised_dataset(records, variant, max_frames):
    """A datasets.Dataset for TRL's SFTTrainer: columns prompt, completion, images; frames are opened when a row is read."""
    lines = datasets.Dataset.from_dict({"record": [json.dumps(record) for record in both_orders(records)]})

    def build(batch):
        rows = [json.loads(line) for line in batch["record"]]
        images = [data.open_frames(row, max_frames) for row in rows]
        verdicts = [f"\\boxed{{Response {row['preference']}}}" for row in rows]
        return {
            "prompt": [data.record_prompt(row, "12", len(shown), variant) for row, shown in zip(rows, images)],
            "completion": [[{"role": "assistant", "content": [{"type": "text", "text": text}]}] for text in verdicts],
            "images": images,
        }

    return lines.with_transform(build)


class SupervisedTrainer(checkpoints.LoadsStrictly, SFTTrainer):
    """SFTTrainer that loads a checkpoint's weights strictly, as trainer.CriticGRPOTrainer does."""


def main():
    script_args, args, model_args = launch.parse(SupervisedArguments, EMBEDDED, SupervisedConfig)
    checkpoints.log(f"supervised judge starts from {model_args.model_name_or_path}")

    # Data
    path = launch.local_path(script_args.dataset or launch.physworld_file(args, "pairs", "pairs"))
    records = data.load_records(path, pair=True, limit=script_args.limit)

    # Model, training
    sft = SupervisedTrainer(
        **launch.start_model(model_args.model_name_or_path, args, model_args, script_args.max_pixels),
        args=args,
        train_dataset=supervised_dataset(records, script_args.prompt, script_args.max_frames),
    )
    launch.train_and_save(sft, script_args, model_args)


if __name__ == "__main__":
    command.run(main)
