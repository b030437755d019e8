"""The options of the training scripts that are ours, not TRL's, and their --help; neither torch nor TRL is imported here."""

import sys
from dataclasses import dataclass, field
from typing import Literal

import yaml

from data import command

FURTHER = f"""\
--config FILE reads options from a YAML; what stands on the command line comes first. Defaults above include the embedded YAML's.
All of TRL's and the model's options are there too (--model_name_or_path, --output_dir, --max_steps, --learning_rate,
--resume_from_checkpoint, --use_peft ...): --help_all lists them, some hundreds.
{command.DEBUG}"""


@dataclass
class DataArguments:
    """What both stages read."""

    dataset: str | None = field(
        default=None, metadata={"help": "JSONL file of records; left out: physworld's, the embedded default."}
    )
    limit: int | None = field(default=None, metadata={"help": "Use the first so many records only."})
    max_frames: int = field(default=8, metadata={"help": "Frames taken from a clip given as a video, evenly spaced."})
    max_pixels: int | None = field(
        default=None, metadata={"help": "Larger frames are scaled down to this many pixels; left out: the model's own."}
    )
    video_input: Literal["frames", "native"] = field(
        default="frames",
        metadata={
            "help": "A clip as a list of images, or as a video with its times (native; Qwen-VL family): two frames cost as many "
            "visual tokens as one image."
        },
    )


@dataclass
class OwnTraining:
    """What launch.CriticGRPOConfig adds to TRL's GRPOConfig."""

    prompts_per_step: int | None = field(
        default=None,
        metadata={
            "help": "Prompts per optimizer step over all processes; gradient_accumulation_steps follows from it. "
            "Left out: gradient_accumulation_steps counts."
        },
    )
    generation_rows: int | None = field(
        default=None,
        metadata={
            "help": "Completions sampled at once on a process, which bounds the memory that sampling takes; left out: its "
            "whole share of the generation batch, as TRL does."
        },
    )
    shared_prefix: Literal["auto", "on", "off"] = field(
        default="auto",
        metadata={
            "help": "Run each prompt once for all its completions, in sampling and log-probabilities. auto: where model and "
            "configuration allow it; on: an error where they do not; off: as TRL does."
        },
    )
    skip_zero_variance: bool = field(
        default=False,
        metadata={
            "help": "Leave groups without any advantage out of forward and backward passes. Exact when beta is 0; with beta > 0 "
            "it also drops their KL term."
        },
    )
    dynamic_sampling: int = field(
        default=0,
        metadata={
            "help": "Draw further prompts in place of those whose group has no advantage, up to this many times a generation "
            "batch; 0: never. Rewards in the log are of all that was drawn."
        },
    )


def help_first(doc, kinds, embedded, steps=None):
    """Print our own options and end, where the command line asks for --help: before torch and TRL are loaded.

    steps: {name: what it does, in a line} of a script whose first word is a step; then a missing or unknown one ends here.
    """
    words = sys.argv[1:]
    defaults = yaml.safe_load((command.ROOT / embedded).read_text(encoding="utf-8"))
    if steps:
        parser = command.steps_parser(doc, {name: (line, kinds) for name, line in steps.items()}, FURTHER, defaults)
    else:
        parser = command.Parser(description=doc, usage="%(prog)s [options]", epilog=FURTHER)
        command.add_options(parser, kinds, defaults)
    step = words[:1] if steps else []
    if {"-h", "--help"} & set(words):
        parser.parse_args([*step, "--help"])
    if steps and step not in [[name] for name in steps]:
        parser.parse_args(step)
