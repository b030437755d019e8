"""A generation batch that goes on beyond a checkpoint is saved with it: TRL keeps its completions in memory only.

With num_iterations above 1, or steps_per_generation that does not divide gradient_accumulation_steps, several optimizer steps
train on one generation batch. A run that resumed between them would sample it anew and train on its rows in another order.

Each process writes all that it holds of the batch, the images of every completion included (8 frames of 256 tokens are some
40 MB a completion). By default every step begins a batch, and there is no file. What a resumed run has not: TRL's log of the
batch, so that until the next batch its metrics are those of training only and the files in completions/ are empty.
"""

import os
from pathlib import Path

import torch
from accelerate.utils import send_to_device


def path_of(trainer, folder):
    """This process's file in a checkpoint."""
    return Path(folder) / f"generation_buffer_{trainer.accelerator.process_index}.pt"


def left_over(trainer):
    """How many micro-batches of its generation batch are trained; 0 where the next one begins a new batch."""
    return trainer._step % (trainer.args.steps_per_generation * trainer.num_iterations)


def save(trainer, folder):
    """Write what is left of the generation batch, in every process, before any goes on to trainer_state.json."""
    if left_over(trainer):
        path = path_of(trainer, folder)
        part = path.with_suffix(".part")
        processes = trainer.accelerator.num_processes
        torch.save({"step": trainer._step, "processes": processes, "batches": trainer._buffered_inputs}, part)
        os.replace(part, path)
    trainer.accelerator.wait_for_everyone()


def load(trainer, folder):
    """Take up counting micro-batches, and the generation batch, where the run that wrote the checkpoint left them.

    ValueError where the checkpoint lies inside a generation batch that was not saved, or was another one.
    """
    if trainer.args.ignore_data_skip:  # the data begin anew
        return
    # the last step of an epoch may be of fewer micro-batches: global_step alone does not tell how many there were
    trainer._step = round(trainer.state.epoch * len(trainer.callback_handler.train_dataloader))
    trainer._buffered_inputs, path = None, path_of(trainer, folder)
    if not left_over(trainer):
        return
    found = torch.load(path, map_location="cpu", weights_only=True) if path.is_file() else {}
    here = {"step": trainer._step, "processes": trainer.accelerator.num_processes}
    if {name: found.get(name) for name in here} != here:
        why = {name: found.get(name) for name in here} if found else "absent"
        raise ValueError(
            f"{folder} lies inside a generation batch, and {path.name} is {why} where {here} is wanted: resume with the "
            "processes, data and batch settings that it was written with, or from another checkpoint"
        )
    trainer._buffered_inputs = send_to_device(found["batches"], trainer.accelerator.device)
