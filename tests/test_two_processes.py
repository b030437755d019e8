"""Two processes give what one gives, from recorded completions: each step's advantages, loss, metrics and gradients.

Runs tests/two_processes.py, 20 steps of every completion running its own prompt and 20 of shared prompts, and a few of other
losses. The runs are also compared with one another: shared prompts on two processes with ordinary passes on one.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import Qwen2_5_VLForConditionalGeneration

from tests import tiny_critic, two_processes

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "HF_HUB_OFFLINE": "1"}
# TRL's kl, entropy and clip ratios are means of micro-batches' means: they depend on which rows a micro-batch holds
METRICS = ("phi", "verdict_first_share", "unreadable", "not_admitted", "reward", "frac_reward_zero_std")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_critic.make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def results(model, tmp_path_factory):
    """{(processes, case): what came of it}."""
    folders = {1: tmp_path_factory.mktemp("one"), 2: tmp_path_factory.mktemp("two")}
    command = [str(Path(sys.executable).with_name("accelerate")), "launch", "--multi_gpu", "--num_processes", "2"]
    command += [str(ROOT / "tests" / "two_processes.py"), model, str(folders[2])]
    run = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False, cwd=folders[2])
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]
    two_processes.main(model, folders[1])
    found = {(n, case): torch.load(folders[n] / case / "result.pt") for n in folders for case in two_processes.CASES}
    assert all(found[n, case]["processes"] == n for n, case in found)
    return found


def relative(got, want):
    """Largest difference of a parameter's gradient, relative to that gradient, or to a millionth of all where it is smaller."""
    assert got.keys() == want.keys()
    whole = torch.stack([gradient.norm() for gradient in want.values()]).norm()
    return max(float((got[name] - gradient).norm() / gradient.norm().clamp(min=1e-6 * whole)) for name, gradient in want.items())


def agree(got, want, steps):
    """Both runs have the same advantages, losses, metrics, gradients and weights, and there was something to compare.

    Differences grow from step to step, as the weights are those of the steps before: measured 5e-7 at step 1 and up to
    3e-6 later (relative, the worst parameter).
    """
    assert len(got["gradients"]) == len(want["gradients"]) == steps
    for step in range(steps):
        assert len(want["advantages"][step]) == 12 and len({round(one, 4) for one in want["advantages"][step]}) > 2
        assert got["advantages"][step] == pytest.approx(want["advantages"][step], abs=1e-6)
        assert got["history"][step]["loss"] == pytest.approx(want["history"][step]["loss"], abs=1e-5)
        assert relative(got["gradients"][step], want["gradients"][step]) < 1e-4
        for name in set(METRICS) & want["history"][step].keys():
            assert got["history"][step][name] == pytest.approx(want["history"][step][name], rel=1e-4, abs=1e-6), name
    for name, weight in want["weights"].items():
        torch.testing.assert_close(got["weights"][name], weight, rtol=0, atol=1e-5, msg=name)


@pytest.mark.parametrize("case", two_processes.CASES)
def test_two_processes_give_what_one_gives(results, case):
    one, two = results[1, case], results[2, case]
    assert (one["accumulation"], two["accumulation"]) == (4, 2)
    agree(two, one, two_processes.CASES[case].get("max_steps", two_processes.STEPS))


@pytest.mark.parametrize("processes", [1, 2])
def test_shared_prompts_give_what_ordinary_passes_on_one_process_give(results, processes):
    ordinary, shared = results[1, "ordinary"], results[processes, "shared"]
    assert shared["shared"] and not ordinary["shared"], "no fall-back on the way"
    agree(shared, ordinary, two_processes.STEPS)


def test_there_was_something_to_train_on(results, model):
    """Gradients and weights change from step to step by much more than the differences that are let through."""
    run = results[1, "ordinary"]
    for before, after in zip(run["gradients"], run["gradients"][1:]):
        assert relative(after, before) > 0.1
    start = Qwen2_5_VLForConditionalGeneration.from_pretrained(model).state_dict()
    moved = {name: float((weight - start[name]).abs().max()) for name, weight in run["weights"].items()}
    assert max(moved.values()) > 1e-2 and sum(value > 0 for value in moved.values()) > 20
    assert {entry["frac_reward_zero_std"] > 0 for entry in run["history"]} == {True, False}, "groups with and without advantages"
