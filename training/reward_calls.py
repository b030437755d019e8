"""Reward functions called so that a fault in one process ends the run in all: the others would wait to gather."""

import functools
import math

import torch
from trl.trainer.utils import is_async_callable


def guarded(func, name, faults):
    """`func` as TRL calls it; what it raises, and a NaN that it returns, goes to the list `faults` instead, its rewards being
    None. A model that rewards, and a function that is awaited, come back as they are."""
    if isinstance(func, torch.nn.Module) or is_async_callable(func):
        return func

    @functools.wraps(func)
    def call(completions, **columns):
        try:
            found = func(completions=completions, **columns)
            bad = [i for i, reward in enumerate(found) if reward is not None and math.isnan(reward)]
            if bad:
                where = f"row {columns['id'][bad[0]]!r}" if "id" in columns else f"completion {bad[0]}"
                raise ValueError(
                    f"reward function {name} returned NaN for {where} ({len(bad)} of {len(found)}): "
                    "return a number, or None where it does not apply"
                )
            return found
        except Exception as fault:
            faults.append(fault)
            return [None] * len(completions)

    return call


def raise_everywhere(accelerator, faults):
    """Raise this process's first fault; in a process without one, RuntimeError where another has one."""
    failed = accelerator.gather(torch.tensor([len(faults)], device=accelerator.device)).nonzero().flatten().tolist()
    if faults:
        raise faults[0]
    if failed:
        raise RuntimeError(f"a reward function failed in process {failed[0]}, whose message says how; all processes end")
