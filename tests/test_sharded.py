"""Weights shared out over two processes (FSDP2 with gloo, on the CPU) train as one process does, with rows of any kind.

    python tests/test_sharded.py MODEL FOLDER        what each process of the test runs, and the test itself for one process

The rows make the processes differ: one has pictures, the other text only; prompts of one length and of two; completions that
are scored and such that are not. A call of the model too few on one of them, and the other waits: the test has a time limit.
"""

import faulthandler
import os
import subprocess
import sys
from pathlib import Path

import datasets
import pytest
import torch
from accelerate import DistributedType
from PIL import Image
from transformers import AutoProcessor

from tests import tiny_critic
from trainer import CriticGRPOTrainer

ROOT = Path(__file__).resolve().parent.parent
FSDP2 = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP"}
FSDP2 |= {"FSDP_RESHARD_AFTER_FORWARD": "true", "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT"}
CASES = {
    "ordinary": {"shared_prefix": "off"},
    "prompts shared": {"shared_prefix": "on"},
    "rows left out": {"shared_prefix": "off", "skip_zero_variance": True, "steps_per_generation": 2},
    "sampled": {"shared_prefix": "on", "max_steps": 1, "max_completion_length": 4},
}


def make_dataset():
    """Text only and one picture or two in turn; in step 1 and 2 one process has the text, in step 3 it has the pictures."""
    rows = []
    for i, pictures in enumerate([0, 1, 0, 2, 2, 0, 0, 1]):
        question = f"Which colour has block {i}?" + " Look again." * (i % 3)
        images = [Image.new("RGB", (56, 56), (30 * i, 90, 200 - 40 * k)) for k in range(pictures)]
        rows.append({"id": f"q{i}", "prompt": [{"role": "user", "content": question}], "images": images})
    features = datasets.Features(
        {"id": datasets.Value("string"), "prompt": [{"role": datasets.Value("string"), "content": datasets.Value("string")}]}
        | {"images": datasets.List(datasets.Image())}
    )
    return datasets.Dataset.from_list(rows, features=features)


def recorded(row, k):
    return "It is red. " * (1 + (int(row[1:]) + k) % 4)


def rewarded(completion_ids, id, **kwargs):
    """By length; one for all of every fourth row, whose group is left out where it may be."""
    return [0.3 if int(name[1:]) % 4 == 1 else float(len(ids)) for ids, name in zip(completion_ids, id)]


def fails_in_one_process(completions, **kwargs):
    return [1.0 if os.environ["RANK"] == "0" else float("nan")] * len(completions)


def train(model, folder, reward=rewarded, **changes):
    """Losses of a short run; plain gradient descent, as tests/two_processes.py says why."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    changes = {"max_steps": 3} | changes
    per_step = changes.pop("steps_per_generation", 1)
    values = {"prompts_per_step": None, "per_device_train_batch_size": 4, "beta": 0.01}
    values |= {"gradient_accumulation_steps": 2 * per_step // processes, "shuffle_dataset": False}
    values |= {"optim": "sgd", "learning_rate": 0.1, "max_grad_norm": 0.0}
    args = tiny_critic.config(folder, **(values | changes))
    if processes > 1:  # accelerate shards weights on accelerators only; its code for them runs on the CPU as well
        args.distributed_state.distributed_type = DistributedType.MULTI_GPU
    rest = {"reward_funcs": [reward], "args": args, "train_dataset": make_dataset()}
    if "max_completion_length" in changes:
        grpo = CriticGRPOTrainer(model, processing_class=AutoProcessor.from_pretrained(model, padding_side="left"), **rest)
    else:
        grpo = tiny_critic.Replay(recorded, model, **rest)
    grpo.train()
    if processes > 1:
        assert grpo.is_fsdp_enabled and grpo.accelerator.num_processes == 2
        assert any(hasattr(weight, "to_local") for weight in grpo.model.parameters()), "weights are shared out"
    assert bool(grpo.sharing) == (changes["shared_prefix"] == "on"), "no fall-back on the way"
    return [(entry["loss"], entry["kl"]) for entry in grpo.state.log_history if "loss" in entry]


def main(model, folder):
    found = {}
    for case, changes in CASES.items():
        print(f"-- {case}", file=sys.stderr, flush=True)
        found[case] = train(model, Path(folder) / case, **changes)
    with pytest.raises(ValueError if os.environ["RANK"] == "1" else RuntimeError) as fault:
        train(model, Path(folder) / "fails", reward=fails_in_one_process, shared_prefix="off")
    found["fault"] = str(fault.value)
    if os.environ["RANK"] == "0":
        torch.save(found, Path(folder) / "found.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_critic.make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def two(model, tmp_path_factory):
    """{case: losses} of two processes."""
    folder = tmp_path_factory.mktemp("two")
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += [str(Path(__file__).resolve()), model, str(folder)]
    run = subprocess.run(command, env=os.environ | environment | FSDP2, capture_output=True, text=True, cwd=folder, timeout=900)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-6000:]
    return torch.load(folder / "found.pt")


@pytest.mark.parametrize("case", [name for name in CASES if name != "sampled"])
def test_two_processes_with_sharded_weights_train_as_one(model, two, tmp_path, case):
    one = train(model, tmp_path, **(CASES[case] | {"shared_prefix": "off"}))
    assert len(one) == 3 and len({loss for loss, _ in one}) == 3 and max(kl for _, kl in one) > 1e-6
    assert [loss for loss, _ in two[case]] == pytest.approx([loss for loss, _ in one], abs=1e-5)


def test_sampling_with_sharded_weights_ends(two):
    assert len(two["sampled"]) == 1


def test_a_reward_that_fails_in_one_process_ends_the_run_in_both(two):
    assert two["fault"] == "a reward function failed in process 1, whose message says how; all processes end"


if __name__ == "__main__":
    faulthandler.dump_traceback_later(int(os.environ.get("PATIENCE", "600")), exit=True)  # what it waits for, where it hangs
    main(*sys.argv[1:])
