"""A run that is killed (-9) after a checkpoint (of step 50 of 100) and resumed trains on the rows and completions of one that
was not, and ends with its weights.

    python tests/test_resume.py kill MODEL FOLDER CASE...         trains with each case's settings until it is killed
    python tests/test_resume.py finish MODEL FOLDER CASE          trains from the beginning, and resumes what was killed
    ACCELERATE_USE_CPU=true accelerate launch --multi_gpu --num_processes 2 tests/test_resume.py ...    one case at a time

Completions are sampled, so equal ones show that random states are back too. Every run is of several epochs of 15 pairs.
"""

import atexit
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoProcessor, TrainerCallback

import trainer
from tests import tiny_critic
from training import checkpoints, launch

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true"}
SAVED, LAST, LATER = 50, 100, 3  # steps; the kill comes so many after the checkpoint
SHORT = {"save_steps": 10, "max_steps": 30}  # the same for cases whose steps take longer
CASES = {
    # no generation batch goes on beyond its step, as by default
    "a batch a step": {},
    # steps 49 to 51 train on one batch, its log-probabilities of the reference and of the policy before included
    "three passes over a batch": {"num_iterations": 3, "beta": 0.01},
    # as TRL sorts the rows; shared prompts put those of a prompt together, within a step only
    "four steps a batch": {"steps_per_generation": 4, "shared_prefix": "off"},
    # batches begin in the middle of steps, and the last step of an epoch is of one micro-batch
    "batches of three micro-batches in steps of two": {"gradient_accumulation_steps": 2, "steps_per_generation": 3} | SHORT,
    # two batches a step, each filled up by draws of its own
    "further prompts": {"gradient_accumulation_steps": 2, "steps_per_generation": 1, "dynamic_sampling": 1} | SHORT,
}
TWO = {"two processes": {"num_iterations": 3, "dynamic_sampling": 2} | SHORT}
WHOLE = {"a batch a step", "further prompts"}  # nothing is left of a batch after the checkpoint


class Recorder(trainer.CriticGRPOTrainer):
    """Writes what each micro-batch is trained on: its step, and block number, completion and advantage of each row."""

    def _compute_loss(self, model, inputs):
        prompts = self.processing_class.batch_decode(inputs["prompt_ids"])
        blocks = [int(re.search(r"block (\d+)", prompt).group(1)) for prompt in prompts]
        completions = [ids[mask.bool()].tolist() for ids, mask in zip(inputs["completion_ids"], inputs["completion_mask"])]
        taken = {"step": self.state.global_step + 1, "rows": list(zip(blocks, completions, inputs["advantages"].tolist()))}
        with (Path(self.args.output_dir) / f"taken_{self.args.process_index}.jsonl").open("a") as lines:
            lines.write(json.dumps(taken) + "\n")
        return super()._compute_loss(model, inputs)


class Kill(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == args.save_steps + LATER:
            os.kill(os.getpid(), signal.SIGKILL)


def reward(completion_ids, id, **kwargs):
    """A third of the prompts gives no advantage."""
    return [float(sum(ids) % 5) * (int(name[1:]) % 3 > 0) for name, ids in zip(id, completion_ids)]


def train(model, folder, case, callbacks=(), **changes):
    """Train in `folder` with the settings of a case."""
    settings = {"max_steps": LAST, "save_strategy": "steps", "save_steps": SAVED, "save_total_limit": 1}
    settings |= {"prompts_per_step": None, "per_device_train_batch_size": 4, "max_completion_length": 2}
    settings |= {"gradient_accumulation_steps": 1, "logging_strategy": "no"}
    args = tiny_critic.config(folder, **(settings | (CASES | TWO)[case] | changes))
    pairs = tiny_critic.make_dataset(Path(folder) / f"data_{args.process_index}", pairs=15)
    processor = AutoProcessor.from_pretrained(model, padding_side="left")
    grpo = Recorder(model, [reward], args, pairs, processing_class=processor, callbacks=list(callbacks))
    grpo.train(resume_from_checkpoint=checkpoints.resume_point(args))


def taken(folder, process=0):
    """(step, rows) of each micro-batch, in the order of training."""
    lines = (Path(folder) / f"taken_{process}.jsonl").read_text().splitlines()
    return [(line["step"], line["rows"]) for line in map(json.loads, lines)]


def script(*arguments, processes=1):
    """Run this file; returns the finished process."""
    command = [sys.executable]
    if processes > 1:
        command = [str(Path(sys.executable).with_name("accelerate")), "launch", "--multi_gpu", "--num_processes", str(processes)]
    command += [__file__, *map(str, arguments)]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)


@pytest.fixture(autouse=True)
def one_thread():
    """As in the killed runs: sums of several threads differ in their last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_critic.make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def killed(model, tmp_path_factory):
    """The folder with a folder for each case, where its run was killed."""
    folder = tmp_path_factory.mktemp("killed")
    run = script("kill", model, folder, *CASES)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]
    return folder


def agree(case, before, whole, after):
    """What was trained on before the kill and after resuming is what the uninterrupted run trained on."""
    saved, last = (CASES | TWO)[case].get("save_steps", SAVED), (CASES | TWO)[case].get("max_steps", LAST)
    assert before[-1][0] == saved + LATER and before == [one for one in whole if one[0] <= saved + LATER]
    assert after[0][0] == saved + 1 and after[-1][0] == last and after == [one for one in whole if one[0] > saved]
    assert len({str(rows) for _, rows in after}) >= 7 and any(row[2] for _, rows in after for row in rows)


def same_end(folder, other):
    """Both runs end with the same weights, to the bit, and each with its last checkpoint only (save_total_limit)."""
    ends = [list(path.glob("checkpoint-*")) for path in (folder, other)]
    assert len(ends[0]) == len(ends[1]) == 1 and ends[0][0].name == ends[1][0].name
    assert (ends[0][0] / "model.safetensors").read_bytes() == (ends[1][0] / "model.safetensors").read_bytes()


@pytest.mark.parametrize("case", CASES)
def test_killed_and_resumed_is_the_uninterrupted_run(model, killed, tmp_path, case):
    folder = tmp_path / "resumed"
    shutil.copytree(killed / case, folder)
    before = taken(folder)
    [checkpoint] = folder.glob("checkpoint-*")
    assert (checkpoint / "generation_buffer_0.pt").is_file() == (case not in WHOLE)
    (folder / "taken_0.jsonl").unlink()
    train(model, folder, case, resume_from_checkpoint="true")
    train(model, tmp_path / "whole", case)
    agree(case, before, taken(tmp_path / "whole"), taken(folder))
    same_end(folder, tmp_path / "whole")


def test_two_processes_killed_and_resumed_are_the_uninterrupted_run(model, tmp_path):
    [case] = TWO
    run = script("kill", model, tmp_path, case, processes=2)
    assert run.returncode and "SIGKILL" in run.stderr, run.stdout[-2000:] + run.stderr[-4000:]
    assert len(list((tmp_path / case / "checkpoint-10").glob("generation_buffer_[01].pt"))) == 2
    before = [taken(tmp_path / case, process) for process in (0, 1)]
    run = script("finish", model, tmp_path, case, processes=2)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]
    for process in (0, 1):
        agree(case, before[process], taken(tmp_path / "whole", process), taken(tmp_path / case, process))
    same_end(tmp_path / case, tmp_path / "whole")


INSIDE = "three passes over a batch"


def cut(path):
    path.write_bytes(path.read_bytes()[:-20])


def other_processes(path):
    torch.save(torch.load(path) | {"processes": 2}, path)


def other_step(path):
    torch.save(torch.load(path) | {"step": 47}, path)


@pytest.mark.parametrize(
    "harm, message",
    [
        (Path.unlink, "lies inside a generation batch, and generation_buffer_0.pt is absent.*from another checkpoint"),
        (other_processes, "'processes': 2} where {'step': 50, 'processes': 1} is wanted"),
        (other_step, "'step': 47, 'processes': 1} where {'step': 50"),
        (cut, "cannot be resumed from: generation_buffer_0.pt is cut off"),
    ],
)
def test_a_generation_batch_that_is_not_there_is_an_error(model, killed, tmp_path, harm, message):
    checkpoint = tmp_path / f"checkpoint-{SAVED}"
    shutil.copytree(killed / INSIDE / checkpoint.name, checkpoint)
    harm(checkpoint / "generation_buffer_0.pt")
    with pytest.raises(ValueError, match=message):
        train(model, tmp_path, INSIDE, resume_from_checkpoint=str(checkpoint))
    assert not (tmp_path / "taken_0.jsonl").exists()


def test_a_checkpoint_with_a_cut_generation_batch_is_skipped(killed, tmp_path, capsys):
    for step in (50, 51):
        shutil.copytree(killed / INSIDE / f"checkpoint-{SAVED}", tmp_path / f"checkpoint-{step}")
    cut(tmp_path / "checkpoint-51" / "generation_buffer_0.pt")
    args = tiny_critic.config(tmp_path, resume_from_checkpoint="true")
    assert checkpoints.resume_point(args) == str(tmp_path / "checkpoint-50")
    assert "checkpoint-51 is skipped: generation_buffer_0.pt is cut off" in capsys.readouterr().out


def main(what, model, folder, *cases):
    for case in cases:
        here = Path(folder) / case
        if what == "finish":
            for path in here.glob(f"taken_{os.environ['RANK']}.jsonl"):
                path.unlink()
            train(model, here, case, resume_from_checkpoint="true")
            train(model, Path(folder) / "whole", case)
        elif "RANK" in os.environ:
            train(model, here, case, callbacks=[Kill()])
        else:  # one process: each case in a child of its own
            child = os.fork()
            if child == 0:
                train(model, here, case, callbacks=[Kill()])
                os._exit(0)
            assert os.waitpid(child, 0)[1] == signal.SIGKILL, f"{case} was not killed"


if __name__ == "__main__":
    atexit.register(launch.leave_process_group)
    main(*sys.argv[1:])
