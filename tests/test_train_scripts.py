"""train_stage1.py and train_stage2.py as typed: two steps each, their errors, resuming after kill -9, adapters."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas
import pytest
import safetensors.torch
import torch
import yaml
from transformers import AutoModelForImageTextToText, AutoProcessor

import train_stage2
from tests import tiny_critic

ROOT = Path(__file__).resolve().parent.parent
QUICK = ["--prompts_per_step", "2", "--num_generations", "2", "--per_device_train_batch_size", "4", "--max_completion_length", "8"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return tiny_critic.make_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def stage1(files):
    """(stage 1's output, its run)."""
    out = files / "stage1"
    run = launch(1, ["--model_name_or_path", files / "base", "--dataset", files / "questions.jsonl", "--output_dir", out, "--max_steps", 2])
    assert run.returncode == 0, run.stderr[-3000:]
    return out, run


def command(stage, arguments):
    return [sys.executable, str(ROOT / f"train_stage{stage}.py"), *QUICK, *map(str, arguments)]


def launch(stage, arguments, cwd=None):
    return subprocess.run(command(stage, arguments), env=ENVIRONMENT, capture_output=True, text=True, cwd=cwd)


def last_step(directory):
    states = [json.loads(path.read_text()) for path in Path(directory).glob("checkpoint-*/trainer_state.json")]
    return max(state["global_step"] for state in states)


# ------------------------------------------------------------------------------------------------------- pure functions


@pytest.mark.parametrize(
    "given, want",
    [
        ((0.2, None, 0.1), [0.2, 0.7, 0.1]),
        ((0.1, None, 0.1), [0.1, 0.8, 0.1]),
        ((0.3, None, 0.1), [0.3, 0.6, 0.1]),
        ((0.4, None, 0.1), [0.4, 0.5, 0.1]),
        ((0.0, None, 0.1), [0.0, 0.9, 0.1]),
        ((0.9, None, 0.1), [0.9, 0.0, 0.1]),
        ((0.9, None, 0.0), [0.9, 0.0, 0.0]),
        ((-0.0, 0.5, 0.0), [0.0, 0.5, 0.0]),
        ((0.2, 3.0, 0.0), [0.2, 3.0, 0.0]),
    ],
)
def test_alphas(given, want):
    got = train_stage2.resolve_alphas(*given)
    assert got == want and not any(str(alpha).startswith("-") for alpha in got)


@pytest.mark.parametrize(
    "given, message",
    [
        ((-0.1, None, 0.1), "alpha_sp is -0.1"),
        ((0.2, -0.7, 0.1), "alpha_crit is -0.7: weights"),
        ((0.2, None, -0.1), "alpha_form is -0.1"),
        ((0.95, None, 0.1), "alpha_crit is -0.05 .it follows as 0.9 - alpha_sp 0.95; give --alpha_crit"),
        ((0.0, 0.0, 0.0), "sum to 0"),
        ((-0.0, -0.0, 0.0), "sum to 0"),
        ((float("nan"), None, 0.1), "alpha_sp is nan"),
        ((0.2, float("inf"), 0.1), "alpha_crit is inf"),
    ],
)
def test_alphas_that_cannot_be_used(given, message):
    with pytest.raises(ValueError, match=message):
        train_stage2.resolve_alphas(*given)


def test_where_stage_2_starts(tmp_path):
    stage1 = tmp_path / "stage1"
    assert train_stage2.resolve_start(None, str(stage1), "base") == "base"
    stage1.mkdir()
    with pytest.raises(ValueError, match="holds no finished stage 1"):
        train_stage2.resolve_start(None, str(stage1), "base")
    (stage1 / "config.json").write_text("{}")
    assert train_stage2.resolve_start(None, str(stage1), "base") == str(stage1)
    assert train_stage2.resolve_start("other", str(stage1), "base") == "other"


PAPER = {"learning_rate": 1e-6, "beta": 0.01, "epsilon": 0.2, "prompts_per_step": 128, "num_generations": 8}


@pytest.mark.parametrize("stage, more", [(1, {"max_steps": 80}), (2, {"max_steps": 300, "alpha_sp": 0.2, "alpha_crit": 0.7, "alpha_form": 0.1})])
def test_the_papers_values_stand_in_its_yaml(stage, more):
    text = (ROOT / "experiments" / f"phycritic_7b_stage{stage}.yaml").read_text()
    values = yaml.safe_load(text)
    assert values | PAPER | more == values
    assert values["model_name_or_path" if stage == 1 else "base"] == "Qwen/Qwen2.5-VL-7B-Instruct"
    for name in ("num_generations", "epsilon", "temperature", "top_p", "max_completion_length", "loss_type", "lr_scheduler_type"):
        assert re.search(rf"^{name}: \S+ +# not stated", text, re.M), name


# ---------------------------------------------------------------------------------------------------- two steps of each


def test_stage_1_trains_two_steps(stage1):
    out, run = stage1
    assert run.stdout.startswith("stage 1 starts from ")
    assert last_step(out) == 2
    assert type(AutoModelForImageTextToText.from_pretrained(out)).__name__ == "Qwen2_5_VLForConditionalGeneration"
    assert AutoProcessor.from_pretrained(out).tokenizer.eos_token == "<|im_end|>"
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["training"]["prompts_per_step"] == 2 and config["versions"]["trl"] == "1.16.0"
    rows = pandas.read_parquet(out / "completions" / "completions_00002.parquet")
    assert len(rows) == 4 and {"prompt", "completion", "accuracy_reward", "advantage"} <= set(rows.columns)
    assert list(out.glob("runs/*/events.out.tfevents.*"))


def test_stage_2_starts_from_stage_1_where_it_exists(files, stage1):
    out = files / "stage2"
    run = launch(2, ["--stage1", stage1[0], "--base", files / "base", "--dataset", files / "pairs.jsonl", "--output_dir", out, "--max_steps", 2])
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.splitlines()[0] == f"stage 2 starts from {stage1[0]}"
    assert last_step(out) == 2
    for name in ("self_prediction_reward", "judgement_reward", "format_reward"):
        assert f"rewards/{name}/mean" in run.stdout
    for name in ("unreadable", "not_admitted", "frac_reward_zero_std"):
        assert f"'{name}'" in run.stdout


def test_accelerate_launch_with_the_embedded_yaml_from_another_folder(files, tmp_path):
    """As typed in the README; everything that is not found below the working directory is looked for in the repository."""
    typed = [str(Path(sys.executable).with_name("accelerate")), "launch", str(ROOT / "train_stage2.py"), "--alpha_sp", "0.2"]
    typed += [*QUICK, "--base", "base", "--stage1", "none", "--dataset", "pairs.jsonl", "--output_dir", str(tmp_path), "--max_steps", "1"]
    run = subprocess.run(typed, env=ENVIRONMENT, capture_output=True, text=True, cwd=files)
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.splitlines()[0] == "stage 2 starts from base"
    assert "reward judgement_reward, weight 0.7" in run.stdout
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["training"]["beta"] == 0.01


def test_the_papers_yaml_runs_on_the_cpu_mixed_and_without_self_reference(files, tmp_path):
    arguments = ["--config", ROOT / "experiments/phycritic_7b_stage2.yaml", "--model_name_or_path", files / "base", "--max_steps", 1]
    arguments += ["--dataset", files / "pairs.jsonl", "--questions", files / "questions.jsonl", "--mixed", "--output_dir", tmp_path]
    run = launch(2, [*arguments, "--prompt", "no_self_ref", "--format", "presence", "--dataloader_num_workers", 0])
    if not torch.accelerator.is_available():
        assert "no accelerator: bf16 and fp16 are off" in run.stdout
    assert run.returncode == 0, run.stderr[-3000:]
    assert "self_prediction_reward does not apply and is left out" in run.stdout
    assert "reward presence_format_reward, weight 0.1" in run.stdout and "reward accuracy_reward, weight 1" in run.stdout


def test_an_adapter_is_trained_saved_and_merged_where_the_next_stage_starts(files, tmp_path):
    adapter, out = tmp_path / "adapter", tmp_path / "out"
    arguments = ["--dataset", files / "questions.jsonl", "--max_steps", 1]
    run = launch(1, [*arguments, "--model_name_or_path", files / "base", "--output_dir", adapter, "--use_peft", "--lora_r", 4])
    assert run.returncode == 0, run.stderr[-3000:]
    assert (adapter / "adapter_config.json").is_file() and AutoProcessor.from_pretrained(adapter)
    weights = safetensors.torch.load_file(adapter / "adapter_model.safetensors")
    weights = {name: torch.full_like(tensor, 0.05) for name, tensor in weights.items()}  # so that the merge shows
    safetensors.torch.save_file(weights, adapter / "adapter_model.safetensors")
    run = launch(1, [*arguments, "--model_name_or_path", adapter, "--output_dir", out, "--beta", "0.01"])
    assert run.returncode == 0, run.stderr[-3000:]
    assert f"{adapter} holds an adapter: merged into {files / 'base'}" in run.stdout
    base, merged = (AutoModelForImageTextToText.from_pretrained(path).state_dict() for path in (files / "base", out / "merged_start"))
    name = "model.language_model.layers.0.self_attn.q_proj.weight"
    torch.testing.assert_close(merged[name] - base[name], torch.full_like(base[name], 4 * 0.05**2 * 32 / 4))
    assert re.search(r"'kl': '(0|\d\.\d+e-0[5-9]|-?\d\.\d+e-1\d)'", run.stdout), "the reference is the merged model"


# --------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--alpha_sp", "1.5"], "alpha_crit is -0.6"),
        (["--prompts_per_step", "3"], "= 6 completions.*per_device_train_batch_size of 3"),
    ],
)
def test_arguments_that_are_errors(arguments, message, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train_stage2.py", *QUICK, "--model_name_or_path", "none", *arguments])
    with pytest.raises(ValueError, match=message):
        train_stage2.main()


def test_an_unknown_flag_ends_the_script(files):
    run = launch(1, ["--learning_rte", "1"])
    assert run.returncode != 0 and "unknown option --learning_rte; did you mean --learning_rate?" in run.stderr


# --------------------------------------------------------------------------------------------------------------- resume


def test_a_run_that_is_killed_is_resumed_and_ends_at_the_asked_step(files, tmp_path):
    arguments = ["--base", files / "base", "--stage1", "none", "--dataset", files / "pairs.jsonl", "--output_dir", tmp_path]
    arguments += ["--max_steps", 40, "--save_steps", 2]
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(command(2, arguments), env=ENVIRONMENT, stdout=log, stderr=log)
        end = time.time() + 120
        while not (tmp_path / "checkpoint-4").is_dir() and process.poll() is None and time.time() < end:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, (tmp_path / "log").read_text()[-3000:]
    run = launch(2, [*arguments, "--resume_from_checkpoint", "true"])
    assert run.returncode == 0, run.stderr[-3000:]
    step = int(re.search(r"resuming from .*checkpoint-(\d+)", run.stdout).group(1))
    assert 2 <= step < 40
    state = json.loads((tmp_path / "checkpoint-40" / "trainer_state.json").read_text())
    assert state["global_step"] == 40
    steps = [entry["step"] for entry in state["log_history"] if "loss" in entry]
    assert steps == list(range(1, 41))
    assert (tmp_path / "model.safetensors").is_file()
