"""Checkpoints: is one whole, which to resume from, and the generation batch that goes on beyond it.

TRL keeps a generation batch in memory only. With num_iterations above 1, or steps_per_generation that does not divide
gradient_accumulation_steps, several optimizer steps train on one; a run that resumed between them would sample it anew and
train on its rows in another order. Each process writes all that it holds of the batch, the images of every completion
included (8 frames of 256 tokens are some 40 MB a completion). By default every step begins a batch, and there is no file.
What a resumed run has not: TRL's log of the batch, so that until the next batch its metrics are those of training only and
the files in completions/ are empty.
"""

import json
import os
import shutil
import zipfile
from pathlib import Path

import safetensors
import torch
from accelerate.utils import is_peft_model, send_to_device


def log(message):
    """Print one line, on the main process only."""
    if os.environ.get("RANK", "0") == "0":
        print(message, flush=True)


def load_strictly(trainer, folder):
    """Load a checkpoint's weights into a trainer's model; False where the trainer's own loading serves (adapters, FSDP).

    A checkpoint holds the hub's names of the weights, which for Qwen2.5-VL are not the module's: transformers 5.24 loads none
    of them and goes on with a warning. from_pretrained translates, and strict loading leaves no doubt.
    """
    if is_peft_model(trainer.model) or trainer.is_fsdp_enabled or not list(Path(folder).glob("model*.safetensors")):
        return False
    loaded = type(trainer.model).from_pretrained(folder, dtype=trainer.model.dtype)
    trainer.model.load_state_dict(loaded.state_dict(), strict=True)
    return True


class LoadsStrictly:
    """What the trainers here have before TRL's own: a checkpoint's weights are loaded strictly where that serves."""

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        if not load_strictly(self, resume_from_checkpoint):
            super()._load_from_checkpoint(resume_from_checkpoint, model)


# ---------------------------------------------------------------------------------------------------------- checkpoints


def missing_from_checkpoint(checkpoint):
    """What a checkpoint lacks to resume from it, as a text; None where it is whole.

    A run that is killed while it saves leaves files absent or cut off. The Trainer writes trainer_state.json last.
    """
    checkpoint = Path(checkpoint)
    try:
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "trainer_state.json is absent or cut off"
    weights = sorted(checkpoint.glob("*.safetensors")) + sorted(checkpoint.glob("*/adapter_model.safetensors"))
    index = checkpoint / "model.safetensors.index.json"
    if index.is_file():
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        weights += [checkpoint / name for name in names - {path.name for path in weights}]
    for path in weights:
        if not whole_safetensors(path):
            return f"{path.name} is absent or cut off"
    sharded = any(path.is_dir() for path in checkpoint.glob("*"))  # DeepSpeed and FSDP keep their state in folders
    if not weights and not sharded:
        return "no weights"
    optimizer = any(zipfile.is_zipfile(checkpoint / name) for name in ("optimizer.pt", "optimizer.bin"))  # .bin: FSDP's
    if not optimizer and not sharded:
        return "optimizer.pt is absent or cut off"
    for path in sorted(checkpoint.glob("generation_buffer_*.pt")):
        if not zipfile.is_zipfile(path):
            return f"{path.name} is cut off"
    return None


def whole_safetensors(path):
    """Whether the file is as long as its header says."""
    try:
        with safetensors.safe_open(path, "pt"):
            return True
    except (OSError, safetensors.SafetensorError):
        return False


def resume_point(args):
    """Checkpoint for `grpo.train`, or None to start from the beginning.

    --resume_from_checkpoint true takes the newest whole checkpoint of output_dir, and starts from the beginning, with a
    line in the log, where there is none; a path must be a whole checkpoint. A run that starts from the beginning sets
    an earlier run's checkpoints aside (earlier-checkpoint-N), so that resuming it later cannot pick one of them.
    """
    wanted = str(args.resume_from_checkpoint).lower()
    if wanted not in ("true", "false", "none", ""):
        missing = missing_from_checkpoint(args.resume_from_checkpoint)
        if missing:
            raise ValueError(
                f"{args.resume_from_checkpoint} cannot be resumed from: {missing}. Give another checkpoint, or "
                "--resume_from_checkpoint true for the newest whole one of output_dir"
            )
        return args.resume_from_checkpoint
    found = [path for path in Path(args.output_dir).glob("checkpoint-*") if path.name.split("-")[1].isdigit()]
    found.sort(key=lambda path: int(path.name.split("-")[1]), reverse=True)
    if wanted == "true":
        for checkpoint in found:
            missing = missing_from_checkpoint(checkpoint)
            if missing is None:
                log(f"resuming from {checkpoint}")
                return str(checkpoint)
            log(f"{checkpoint} is skipped: {missing}")
        log(f"no whole checkpoint in {args.output_dir}: training starts from the beginning")
    for checkpoint in found if args.process_index == 0 else []:
        aside = checkpoint.with_name(f"earlier-{checkpoint.name}")
        shutil.rmtree(aside, ignore_errors=True)
        checkpoint.rename(aside)
        log(f"{checkpoint} is of an earlier run: renamed to {aside.name}")
    return None


def buffer_file(trainer, folder):
    """This process's file in a checkpoint."""
    return Path(folder) / f"generation_buffer_{trainer.accelerator.process_index}.pt"


def left_over(trainer):
    """How many micro-batches of its generation batch are trained; 0 where the next one begins a new batch."""
    return trainer._step % (trainer.args.steps_per_generation * trainer.num_iterations)


def save_buffer(trainer, folder):
    """Write what is left of the generation batch, in every process, before any goes on to trainer_state.json."""
    if left_over(trainer):
        path = buffer_file(trainer, folder)
        part = path.with_suffix(".part")
        processes = trainer.accelerator.num_processes
        torch.save({"step": trainer._step, "processes": processes, "batches": trainer._buffered_inputs}, part)
        os.replace(part, path)
    trainer.accelerator.wait_for_everyone()


def load_buffer(trainer, folder):
    """Take up counting micro-batches, and the generation batch, where the run that wrote the checkpoint left them.

    ValueError where the checkpoint lies inside a generation batch that was not saved, or was another one.
    """
    if trainer.args.ignore_data_skip:  # the data begin anew
        return
    # the last step of an epoch may be of fewer micro-batches: global_step alone does not tell how many there were
    trainer._step = round(trainer.state.epoch * len(trainer.callback_handler.train_dataloader))
    trainer._buffered_inputs, path = None, buffer_file(trainer, folder)
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
