"""Trains on recorded completions and writes what came of it; run by test_two_processes.py with one process and two.

    python tests/two_processes.py MODEL FOLDER [CASE...]
    ACCELERATE_USE_CPU=true accelerate launch --multi_gpu --num_processes 2 tests/two_processes.py MODEL FOLDER [CASE...]

A micro-batch holds 3 completions, so one process accumulates 4 of them and two accumulate 2 each, and the slices of the
two processes cut through a group. Prompts and completions have many lengths: the processes pad to different ones.

What is the same for any number of processes, and tried here: losses normalised by the tokens of the generation batch (dapo)
or by rows (grpo, dr_grpo). What is not, in TRL's own definition: bnpo, which divides by the tokens of a micro-batch, whose
rows are drawn within a process; and steps_per_generation above gradient_accumulation_steps, where that draw decides which
step a row belongs to. Nor is dynamic_sampling, where each process draws prompts for its own share of the batch.
"""

import atexit
import os
import sys
from pathlib import Path

import torch
from transformers import TrainerCallback
from trl import ModelConfig

import data
import rewards
from tests import tiny_critic
from training import launch

STEPS, FEW = 20, 4
CASES = {
    "ordinary": {"shared_prefix": "off"},
    "shared": {"shared_prefix": "on"},
    "a mean over rows, groups without an advantage left out": {
        "shared_prefix": "on",
        "loss_type": "grpo",
        "skip_zero_variance": True,
        "beta": 0.0,
        "max_steps": FEW,
    },
    "a sum over rows": {"shared_prefix": "off", "loss_type": "dr_grpo", "max_steps": FEW},
}


def recorded(row, k):
    """The k-th completion of a row: right and wrong, full and half format, of different lengths; all alike for each sixth."""
    number = int(row[1:])
    k = k if number % 6 else 0
    right, wrong = tiny_critic.COLOURS[number % 4], tiny_critic.COLOURS[(number + 1) % 4]
    own = right if (number + k) % 3 else wrong
    return tiny_critic.critique(own, 1 + (number * k + k // 2) % 2, form=k != 1) + " and so on" * ((number + k) % 3)


def make_dataset(directory):
    """Pairs with one frame and two, and questions of different lengths."""
    records = data.load_records(tiny_critic.make_records(directory / "pairs.jsonl", 13, pair=True), pair=True)
    for i, record in enumerate(records):
        record["question"] += " Look again." * (i % 5)
        record["frames"] = record["frames"] * (1 + i % 2)
    return data.training_dataset(records)


class Steps(TrainerCallback):
    """Keeps each optimizer step's gradients, as they are just before it, and the advantages of the whole batch."""

    def __init__(self):
        self.gradients, self.advantages = [], []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        model = getattr(model, "module", model)
        self.gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        self.advantages.append(list(self.grpo._logs["advantages"]))


def main(model, folder, *cases):
    for case in cases or CASES:
        train(model, Path(folder) / case, **CASES[case])


def train(model, folder, **changes):
    """Train with the settings of a case; result.pt holds what the main process saw.

    Plain gradient descent: Adam divides a gradient by its size, so that gradients which are nothing but rounding (keys' biases)
    would move weights as much as any, and the runs would drift apart by more than the rounding of their sums.
    """
    settings = {"prompts_per_step": 3, "per_device_train_batch_size": 3, "max_steps": STEPS, "max_grad_norm": 0.0}
    settings |= {"beta": 0.01, "reward_weights": [0.2, 0.7, 0.1], "optim": "sgd", "learning_rate": 0.1}
    args = tiny_critic.config(folder, **(settings | changes))
    steps = Steps()
    grpo = steps.grpo = tiny_critic.Replay(
        recorded,
        model,
        args,
        reward_funcs=[rewards.self_prediction_reward, rewards.judgement_reward, rewards.format_reward],
        train_dataset=make_dataset(folder / str(args.process_index)),
        callbacks=[steps],
    )
    launch.train_and_save(grpo, launch.DataArguments(), ModelConfig())
    if grpo.accelerator.is_main_process:
        history = [entry for entry in grpo.state.log_history if "loss" in entry]
        result = {"processes": args.world_size, "accumulation": args.gradient_accumulation_steps, "shared": bool(grpo.sharing)}
        result |= {"advantages": steps.advantages, "gradients": steps.gradients, "history": history}
        state = grpo.accelerator.unwrap_model(grpo.model).state_dict()
        torch.save(result | {"weights": {name: tensor.clone() for name, tensor in state.items()}}, folder / "result.pt")


def fail_where_a_thread_of_gloo_is_left():
    """Such a thread ends some finished runs with an abort: see launch.leave_process_group."""
    threads = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    if [name for name in threads if "gloo" in name]:
        print(f"threads left at exit: {threads}", file=sys.stderr, flush=True)
        os._exit(1)


if __name__ == "__main__":
    atexit.register(fail_where_a_thread_of_gloo_is_left)  # runs after what training registers
    main(*sys.argv[1:])
