"""Stage 2, self-referential critic finetuning: GRPO on pairs with the three-part reward (PhyCritic, arXiv 2602.11124).

    reward = alpha_sp * 1[own answer right] + alpha_crit * 1[verdict right] + alpha_form * format       .2 / .7 / .1

Smallest command (embedded default; starts from runs/stage1 where it exists, else from the base):
    python train_stage2.py
Two steps, to see that it runs:
    python train_stage2.py --max_steps 2 --output_dir /tmp/stage2
The paper's sweeps and ablations (tables 5 to 7):
    accelerate launch train_stage2.py --alpha_sp 0.1            # alpha_crit follows as 0.9 - alpha_sp
    accelerate launch train_stage2.py --alpha_sp 0              # no self-prediction reward
    accelerate launch train_stage2.py --prompt no_self_ref      # or no_criteria
    accelerate launch train_stage2.py --mixed --model_name_or_path physworld/tiny_vlm    # questions and pairs at once
The paper's recipe (Qwen2.5-VL-7B-Instruct after stage 1; needs 8 GPUs of 80 GB and requirements-gpu.txt):
    accelerate launch --config_file accelerate_configs/eight_gpus_zero3.yaml \\
        train_stage2.py --config experiments/phycritic_7b_stage2.yaml --dataset pairs.jsonl

Time: the embedded default takes 120 steps of 2.9 s on one CPU core.
Departs from the paper: TRL in place of veRL; --format strict is ours, presence the paper's; answers match by meaning, the paper's
as texts; values that the paper does not state carry a comment in the YAML.
Leaves in output_dir: the model and its processor, config.yaml, checkpoints, completions/, tensorboard logs.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from data import command
from training import arguments

EMBEDDED = "experiments/physworld_stage2.yaml"


@dataclass
class ScriptArguments(arguments.DataArguments):
    """Stage 2 reads pairs, and with --mixed questions too."""

    stage1: str = field(
        default="runs/stage1",
        metadata={"help": "Stage 1's output, where training starts if it exists and no --model_name_or_path is given."},
    )
    base: str = field(
        default="physworld/tiny_vlm", metadata={"help": "Where training starts if stage 1's output does not exist."}
    )
    alpha_sp: float = field(default=0.2, metadata={"help": "Weight of the self-prediction reward."})
    alpha_crit: float | None = field(
        default=None, metadata={"help": "Weight of the judgement reward; left out: 0.9 - alpha_sp."}
    )
    alpha_form: float = field(default=0.1, metadata={"help": "Weight of the format reward."})
    format: Literal["strict", "presence"] = field(
        default="strict", metadata={"help": "Format reward: all parts once and in order, or merely present."}
    )
    prompt: Literal["self_ref", "no_self_ref", "no_criteria"] = field(
        default="self_ref", metadata={"help": "The critic's prompt: full, without self-reference, without criteria."}
    )
    mixed: bool = field(
        default=False, metadata={"help": "Questions and pairs in one stage; questions score by accuracy, weight 1."}
    )
    questions: str | None = field(
        default=None, metadata={"help": "JSONL file of questions for --mixed; left out: physworld's."}
    )


def resolve_alphas(alpha_sp, alpha_crit, alpha_form):
    """The three weights, alpha_crit filled in; ValueError where one is negative or all are 0.

    >>> resolve_alphas(0.3, None, 0.1)
    [0.3, 0.6, 0.1]
    """
    derived = alpha_crit is None
    if derived:
        alpha_crit = round(0.9 - alpha_sp, 9)
    alphas = [alpha_sp + 0.0, alpha_crit + 0.0, alpha_form + 0.0]  # + 0.0 turns -0.0 into 0.0
    for name, alpha in zip(("alpha_sp", "alpha_crit", "alpha_form"), alphas):
        if not math.isfinite(alpha) or alpha < 0:
            hint = f" (it follows as 0.9 - alpha_sp {alpha_sp:g}; give --alpha_crit)" if derived else ""
            raise ValueError(f"{name} is {alpha:g}{hint if name == 'alpha_crit' else ''}: weights must be 0 or more")
    if sum(alphas) == 0:
        raise ValueError("alpha_sp, alpha_crit and alpha_form sum to 0: no reward would be left; make one positive")
    return alphas


def resolve_start(model_name_or_path, stage1, base):
    """Where stage 2 starts: the model given, else stage 1's output where it exists, else the base."""
    if model_name_or_path is not None:
        return model_name_or_path
    directory = Path(command.local_path(stage1))
    if not directory.is_dir():
        return base
    if not (directory / "config.json").is_file() and not (directory / "adapter_config.json").is_file():
        raise ValueError(
            f"{directory} holds no finished stage 1: finish it with `python train_stage1.py --resume_from_checkpoint "
            "true`, or give --model_name_or_path"
        )
    return stage1


def main():
    arguments.help_first(__doc__, [ScriptArguments, arguments.OwnTraining], EMBEDDED)

    # torch and TRL: after --help
    import data
    import rewards
    import trainer
    from training import launch
    from training.checkpoints import log

    script_args, args, model_args = launch.parse(ScriptArguments, EMBEDDED)
    start = launch.starting_point(resolve_start(model_args.model_name_or_path, script_args.stage1, script_args.base))
    log(f"stage 2 starts from {start}")
    if args.reward_weights is not None:
        raise ValueError("reward_weights follow from alpha_sp, alpha_crit and alpha_form: give those instead")

    # Rewards: one function for each part, so that each is logged by name
    alphas = resolve_alphas(script_args.alpha_sp, script_args.alpha_crit, script_args.alpha_form)
    form = {"strict": rewards.format_reward, "presence": rewards.presence_format_reward}[script_args.format]
    parts = list(zip([rewards.self_prediction_reward, rewards.judgement_reward, form], alphas))
    if script_args.prompt == "no_self_ref":
        log("the prompt asks for no self-prediction: self_prediction_reward does not apply and is left out")
        parts = parts[1:]
    if script_args.mixed:
        parts.append((rewards.accuracy_reward, 1.0))
    reward_funcs, args.reward_weights = [func for func, _ in parts], [weight for _, weight in parts]
    for func, weight in parts:
        log(f"reward {func.__name__}, weight {weight:g}")

    # Data
    path = launch.local_path(script_args.dataset or launch.physworld_file(args, "pairs", "pairs"))
    records = data.load_records(path, pair=True, limit=script_args.limit)
    if script_args.mixed:
        path = launch.local_path(script_args.questions or launch.physworld_file(args, "questions", "train"))
        records += data.load_records(path, limit=script_args.limit)
    dataset = data.training_dataset(records, script_args.prompt, script_args.max_frames, script_args.video_input)

    # Model, training
    grpo = trainer.CriticGRPOTrainer(
        **launch.start_model(start, args, model_args, script_args.max_pixels),
        reward_funcs=reward_funcs,
        args=args,
        train_dataset=dataset,
    )
    launch.train_and_save(grpo, script_args, model_args)


if __name__ == "__main__":
    command.run(main)
