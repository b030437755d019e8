"""Trains two steps on recorded completions and writes what came of it; run by test_trainer.py with one process and two.

    python tests/two_processes.py MODEL FOLDER
    ACCELERATE_USE_CPU=true accelerate launch --multi_gpu --num_processes 2 tests/two_processes.py MODEL FOLDER

A micro-batch holds 3 completions, so one process accumulates 8 of them and two accumulate 4 each, and the slices of the
two processes cut through a group.
"""

import sys
from pathlib import Path

import torch
from transformers import TrainerCallback

import rewards
from tests import tiny_critic


def recorded(row, k):
    """The k-th completion of a row: right and wrong, full and half format, of different lengths."""
    number = int(row[1:])
    right, wrong = tiny_critic.COLOURS[number % 4], tiny_critic.COLOURS[(number + 1) % 4]
    own = right if (number + k) % 3 else wrong
    return tiny_critic.critique(own, 1 + (number * k + k // 2) % 2, form=k != 1) + " and so on" * (k % 3)


class Gradients(TrainerCallback):
    """Keeps the gradients of each optimizer step as they are just before it."""

    def __init__(self):
        self.steps = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        model = getattr(model, "module", model)
        self.steps.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})


def main(model, folder):
    folder = Path(folder)
    args = tiny_critic.config(
        folder, prompts_per_step=6, per_device_train_batch_size=3, max_steps=2, beta=0.01, max_grad_norm=0.0,
        reward_weights=[0.2, 0.7, 0.1],
    )
    gradients = Gradients()
    grpo = tiny_critic.Replay(
        recorded,
        model,
        args,
        reward_funcs=[rewards.self_prediction_reward, rewards.judgement_reward, rewards.format_reward],
        train_dataset=tiny_critic.make_dataset(folder / str(args.process_index), pairs=12),
        callbacks=[gradients],
    )
    grpo.train()
    state = {name: tensor.clone() for name, tensor in grpo.accelerator.unwrap_model(grpo.model).state_dict().items()}
    if grpo.accelerator.is_main_process:
        history = [entry for entry in grpo.state.log_history if "loss" in entry]
        result = {"processes": args.world_size, "accumulation": args.gradient_accumulation_steps, "weights": state}
        result |= {"advantages": list(grpo._logs["advantages"]), "gradients": gradients.steps, "history": history}
        torch.save(result, folder / "result.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
