"""experiments/run.py: the plan of the committed matrix, what is run, shared, skipped and resumed, and a real small matrix."""

import dataclasses
import doctest
import gzip
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from transformers import AutoProcessor
from trl import ModelConfig
from trl.trainer.sft_trainer import DataCollatorForVisionLanguageModeling

import data
import rewards
import train_stage2
from analysis import ablation_tables
from data.files import content_sha
from experiments import plan, run, train_supervised
from tests import tiny_critic
from training import launch

ROOT = Path(__file__).resolve().parent.parent
MATRIX = "experiments/tables.yaml"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
EVERY_START = {"base": "1234", "taught": "5678"}


def committed(seeds=(0, 1), weights=EVERY_START):
    """{(run, seed): Run} of the committed matrix, and the notes."""
    runs, notes = plan.plan(*plan.read_matrix(MATRIX), Path("runs/t"), list(seeds), None, weights)
    return {(one.name, one.seed): one for one in runs}, notes


def flags_of(stage):
    """{flag: value} of a stage's command."""
    rest = stage.command[stage.command.index("--config") :]
    return dict(zip(rest[::2], rest[1::2], strict=True))


# ------------------------------------------------------------------------------------------------------------ the plan


def test_doctests():
    for module in (plan, run):  # pytest.ini keeps pytest out of experiments/
        assert doctest.testmod(module).failed == 0


def test_the_matrix_holds_what_the_tables_need():
    assert set(plan.read_matrix(MATRIX)[0]["runs"]) == set(ablation_tables.wanted())


def test_every_flag_of_the_matrix_is_one_of_its_script():
    scripts = {
        "stage1": (launch.DataArguments, launch.CriticGRPOConfig, ModelConfig),
        "stage2": (train_stage2.ScriptArguments, launch.CriticGRPOConfig, ModelConfig),
        "supervised": (train_supervised.SupervisedArguments, train_supervised.SupervisedConfig, ModelConfig),
    }
    scripts["supervised_tuned"] = scripts["supervised"]
    known = {name: {field.name for part in parts for field in dataclasses.fields(part)} for name, parts in scripts.items()}
    for scale in (None, "experiments/matrix/phycritic_7b.yaml"):
        matrix, scale, configs = plan.read_matrix(MATRIX, scale)
        for one in plan.plan(matrix, scale, configs, Path("w"), [0], None, {"base": None})[0]:
            for stage in one.stages:
                assert (set(stage.config) | {flag[2:] for flag in flags_of(stage)}) - {"config"} <= known[stage.name], (
                    one.name,
                    stage.name,
                )


@pytest.mark.parametrize(
    "name, place, flag, value, reason",
    [
        ("stage1_extended", 0, "--max_steps", "180", "60 + 120: as many steps as both stages"),
        ("mixed", 0, "--max_steps", "180", "one stage in place of two"),
        ("mixed", 0, "--mixed", "true", "a flag without a value in YAML terms"),
        ("grpo_10", 1, "--limit", "96", "a tenth of the 960 pairs that 120 steps of 8 read"),
        ("supervised_100", 1, "--limit", "960", "as many pairs as GRPO reads"),
        ("supervised_all", 1, "--limit", None, "every pair of the file"),
        ("no_r_sp", 1, "--alpha_crit", "0.9", "its weight goes to the judgement"),
        ("scale_none", 1, "--scale_rewards", "none", "a word, not YAML's null"),
    ],
)
def test_flags_in_numbers(name, place, flag, value, reason):
    assert flags_of(committed()[0][name, 0].stages[place]).get(flag) == value, reason


def test_common_beginnings_are_one_folder_and_nothing_else_is():
    runs, _ = committed()
    first = {
        one.stages[0].folder for (name, seed), one in runs.items() if seed == 0 and len(one.stages) == 2 and name != "reverse"
    }
    assert first == {runs["stage1", 0].stages[0].folder}, "one stage 1 for all"
    assert runs["reverse", 0].stages[0] == runs["stage2_only", 0].stages[0]
    last = [one.stages[-1].folder for one in runs.values() if one.stages]
    assert len(set(last)) == len(last), "no two runs end in one folder"
    assert runs["two_stages", 0].stages[1].folder.name != runs["two_stages", 1].stages[1].folder.name
    again, _ = committed(weights=EVERY_START | {"base": "other"})
    assert again["stage1", 0].stages[0].folder != runs["stage1", 0].stages[0].folder, "other weights, another folder"
    assert {seed for name, seed in runs if name in ("base", "taught")} == {0}, "what trains nothing is evaluated once"


@pytest.mark.parametrize("name, prompt", [
    ("two_stages", "self_ref"), ("no_self_reference", "no_self_ref"), ("no_criteria", "no_criteria"),
    ("supervised_10", "no_self_ref"), ("reverse", "self_ref"), ("base", "self_ref"),
])  # fmt: skip
def test_judged_in_the_prompt_it_was_trained_in(name, prompt):
    one = committed()[0][name, 0]
    assert one.prompt == prompt
    assert shlex.join(one.evaluations["judge_test"][1]).endswith(f"--prompt {prompt}")
    assert "--prompt" not in one.evaluations["question_test"][1], "a question has one prompt"


def test_a_start_that_is_not_there_is_left_out_with_a_note():
    runs, notes = committed(weights={"base": None})
    assert ("taught", 0) not in runs and notes[0].startswith("taught is left out"), notes


@pytest.mark.parametrize(
    "change, message",
    [
        ({"runs": {"a": {"stages": ["stage3"]}}}, "run a: .'stage3'. is unknown"),
        ({"runs": {"a": {"stages": [], "sedes": [1]}}}, "run a: .'sedes'. is unknown"),
    ],
)
def test_matrices_that_are_errors(change, message, tmp_path):
    (tmp_path / "m.yaml").write_text(yaml.safe_dump(yaml.safe_load((ROOT / MATRIX).read_text()) | change))
    with pytest.raises(ValueError, match=message):
        plan.read_matrix(tmp_path / "m.yaml")


def test_an_unknown_name_is_an_error():
    with pytest.raises(ValueError, match="two_stage.*the matrix has"):
        plan.plan(*plan.read_matrix(MATRIX), Path("w"), [0], ["two_stage"], EVERY_START)


@pytest.mark.parametrize("scale, model, steps, budget", [
    # 8 prompts x 8 completions of at most 96 tokens behind 95 of prompt, 120 steps
    ("experiments/matrix/physworld.yaml", "physworld/tiny_vlm", 120, 120 * 64 * (95 + 96)),
    # 128 x 8 completions of at most 2048 behind 4096, 300 steps
    ("experiments/matrix/phycritic_7b.yaml", "Qwen/Qwen2.5-VL-7B-Instruct", 300, 300 * 1024 * (4096 + 2048)),
])  # fmt: skip
def test_dry_run_of_both_scales(scale, model, steps, budget, tmp_path, capsys):
    """Changing one YAML runs the same matrix at 7B: commands, steps, token budget."""
    folders = ["--out", str(tmp_path), "--work", str(tmp_path / "work")]  # finished stages of this machine do not count
    run.main([MATRIX, "--scale", scale, "--only", "stage2_only", "reverse", "--seeds", "0", *folders, "--dry_run"])
    text = capsys.readouterr().out
    assert f"--model_name_or_path {model} " in text and "train_stage2.py --config experiments/" in text
    assert f"# {steps} steps, at most {budget / 1e6:,.1f} M tokens\n" in text
    assert f"# {steps} steps, at most {budget / 1e6:,.1f} M tokens (is there, or trained above)" in text, "shared by reverse"
    assert "2 runs, " in text and ("hours" in text) == ("physworld" in scale)
    assert not list(tmp_path.iterdir()), "nothing is written"


# ------------------------------------------------------------------------------------- running, with stand-in scripts


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A matrix of three runs whose trainings and evaluations `execute` only pretends: (call main, commands executed, folder)."""
    matrix = {"scale": str(tmp_path / "scale.yaml"), "seeds": [0, 1]}
    matrix["runs"] = {
        "base": {"stages": []},
        "one": {"stages": ["stage1"]},
        "two": {"stages": ["stage1", {"stage2": {"alpha_sp": 0.1}}]},
    }
    scale = yaml.safe_load((ROOT / "experiments/matrix/physworld.yaml").read_text()) | {"prepare": []}
    scale["evaluations"] = {name: {"mode": name, "limit": 3, "max_new_tokens": 8} for name in ("judge", "question")}
    (tmp_path / "matrix.yaml").write_text(yaml.safe_dump(matrix))
    (tmp_path / "scale.yaml").write_text(yaml.safe_dump(scale))
    commands = []

    def pretend(command, log, environment, threads):
        commands.append(shlex.join(command))
        out = Path(dict(zip(command, command[1:])).get("--output_dir") or dict(zip(command, command[1:]))["--out"])
        if "evaluate.py" not in command:
            (out / "checkpoint-60").mkdir(parents=True)
            (out / "checkpoint-60" / "trainer_state.json").write_text("{}")
            return (out / "config.yaml").write_text("{versions: {trl: 1.16.0}, commit: a}")
        out.parent.mkdir(parents=True, exist_ok=True)
        judge = "judge" in out.name
        rows = [{"id": f"q{i}", "suite": "s", "cluster": f"c{i}", "order": o} for i in (2, 0, 1) for o in ("21", "12")]
        for row in rows:
            right = row["id"] != "q0"
            row |= {"verdict_correct": right, "prediction_correct": None} if judge else {"correct": not right}
        rows = rows if judge else [row | {"order": None} for row in rows[::2]]
        out.with_suffix(".jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        out.write_text(json.dumps({"finished": True, "config": {}, "accuracy": {"value": 2 / 3}, "seconds": 1.0, "commit": "b"}))

    monkeypatch.setattr(run, "execute", pretend)
    words = [str(tmp_path / "matrix.yaml"), "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    return lambda *more: run.main([*words, *more]), commands, tmp_path


def results(folder):
    return [json.loads(line) for line in (folder / "out" / "results.jsonl").read_text().splitlines()]


def test_a_matrix_is_run_once(small, capsys):
    main, commands, folder = small
    assert main() is None
    trained = [command for command in commands if "train_" in command]
    assert len(trained) == 4 and len(commands) == 4 + 5 * 2, "stage 1 and 2 of two seeds; two evaluations of five runs"
    rows = results(folder)
    assert [(row["run"], row["seed"]) for row in rows] == [("base", 0), ("one", 0), ("two", 0), ("one", 1), ("two", 1)]
    judged = rows[2]["evaluations"]["judge"]
    assert judged["right"] == "001111" and judged["own"] == "------" and rows[2]["evaluations"]["question"]["right"] == "100"
    assert rows[2]["stages"][1]["config"]["alpha_sp"] == 0.1 and rows[2]["versions"]["trl"] == "1.16.0"
    assert (rows[0]["commit"], rows[2]["commit"]) == ("b", "a, b"), "of every training and evaluation, not of this script"
    items = gzip.decompress((folder / "out" / "items_judge.jsonl.gz").read_bytes()).decode().splitlines()
    assert json.loads(items[1]) == {"id": "q0", "order": "21", "suite": "s", "cluster": "c0"}, (
        "one item for each outcome, by id"
    )
    stage = Path(rows[1]["stages"][0]["folder"])
    assert (stage / "trainer_state.json").exists() and not list(stage.glob("checkpoint-*"))
    before = len(commands)
    assert main() is None and len(commands) == before and len(results(folder)) == 5, "all is there"
    assert "two " in capsys.readouterr().out


def test_the_committed_matrix_is_whole_and_shows_its_tables_without_running_anything(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "experiments/tables", tmp_path / "tables")
    before = {path.name: path.read_bytes() for path in (tmp_path / "tables").iterdir()}
    rows, shown = [json.loads(line) for line in before["results.jsonl"].splitlines()], []
    weights = {row["start"]: row["weights"] for row in rows}  # those of the taught base are not committed
    assert weights["base"] == content_sha(ROOT / "physworld/tiny_vlm")
    monkeypatch.setattr(run, "start_weights", lambda scale: weights)
    monkeypatch.setattr(subprocess, "run", lambda command, cwd: shown.append(command[1:]) or SimpleNamespace(returncode=0))
    monkeypatch.setattr(run, "execute", lambda command, *rest: pytest.fail(f"it would run {shlex.join(command)}"))
    assert run.main([MATRIX, "--out", str(tmp_path / "tables"), "--work", str(tmp_path / "work")]) == 0
    assert shown == [["-m", "analysis.ablation_tables", str(tmp_path / "tables")]]
    assert {path.name: path.read_bytes() for path in (tmp_path / "tables").iterdir()} == before


def test_a_killed_matrix_keeps_whole_rows_and_finished_stages(small):
    main, commands, folder = small
    main("--seeds", "0")
    path = folder / "out" / "results.jsonl"
    path.write_bytes(path.read_bytes()[:-20])  # the last row was cut by a kill
    before = len(commands)
    main("--seeds", "0")
    assert [(row["run"], row["seed"]) for row in results(folder)] == [("base", 0), ("one", 0), ("two", 0)]
    assert not any("train_" in command for command in commands[before:]), "its stages were finished"


def test_a_stage_that_another_call_trains_is_not_trained_twice(small, capsys):
    main, commands, folder = small
    start = plan.start_weights({"start": {"base": "physworld/tiny_vlm"}})
    planned = plan.plan(*plan.read_matrix(str(folder / "matrix.yaml")), folder / "work", [0], ["one"], start)
    [stage] = planned[0][0].stages
    with data.open_lines(stage.folder.with_name(stage.folder.name + ".lock")):
        assert main("--seeds", "0", "--only", "one") == 1
    assert not commands and "is being trained by another call" in capsys.readouterr().out
    assert main("--seeds", "0", "--only", "one") is None and len(commands) == 3


def test_a_stage_that_fails_is_tried_once_and_the_others_go_on(small, monkeypatch, capsys):
    main, commands, folder = small
    good = run.execute

    def fails(command, log, environment, threads):
        if "train_stage1.py" in command and "0" == dict(zip(command, command[1:]))["--seed"]:
            commands.append("failed")
            raise run.Failed("out of memory; see its log")
        return good(command, log, environment, threads)

    monkeypatch.setattr(run, "execute", fails)
    assert main() == 1
    assert commands.count("failed") == 1, "both runs of seed 0 share it"
    assert [(row["run"], row["seed"]) for row in results(folder)] == [("base", 0), ("one", 1), ("two", 1)]
    assert "one, seed 0: out of memory" in capsys.readouterr().out
    monkeypatch.setattr(run, "execute", good)
    assert main() is None and len(results(folder)) == 5


def test_another_setting_is_another_run_and_other_items_are_an_error(small):
    main, commands, folder = small
    main("--seeds", "0")
    matrix = yaml.safe_load((folder / "matrix.yaml").read_text())
    matrix["runs"]["two"]["stages"][1]["stage2"]["alpha_sp"] = 0.2
    (folder / "matrix.yaml").write_text(yaml.safe_dump(matrix))
    before = len(commands)
    main("--seeds", "0")
    assert sum("train_" in command for command in commands[before:]) == 1 and len(results(folder)) == 4
    path = folder / "out" / "items_judge.jsonl.gz"
    path.write_bytes(gzip.compress(b"{}\n"))
    with pytest.raises(ValueError, match="other items.*give another --out"):
        main("--seeds", "1")


SLOW = """import os, sys, time
flags = dict(zip(sys.argv[1::2], sys.argv[2::2])); out = flags["--output_dir"]
first = not os.path.isdir(out + "/checkpoint-1"); os.makedirs(out + "/checkpoint-1", exist_ok=True)
open(out + "/pid", "w").write(str(os.getpid()))
if first: time.sleep(600)
open(out + "/config.yaml", "w").write("versions: {}")
"""


def test_kill_9_takes_the_training_along_and_the_next_call_resumes_it(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    scale = yaml.safe_load((ROOT / "experiments/matrix/physworld.yaml").read_text()) | {"prepare": [], "evaluations": {}}
    scale["stages"]["stage1"]["script"] = str(tmp_path / "slow.py")
    (tmp_path / "scale.yaml").write_text(yaml.safe_dump(scale))
    (tmp_path / "m.yaml").write_text(
        yaml.safe_dump({"scale": str(tmp_path / "scale.yaml"), "seeds": [0], "runs": {"one": {"stages": ["stage1"]}}})
    )
    command = [
        sys.executable,
        ROOT / "experiments/run.py",
        tmp_path / "m.yaml",
        "--out",
        tmp_path / "out",
        "--work",
        tmp_path / "work",
    ]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    end = time.time() + 300
    while (
        not (pids := [p for p in tmp_path.glob("work/seed0/*/pid") if p.read_text()])
        and process.poll() is None
        and time.time() < end
    ):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL and pids, "a training had begun"
    training = Path(f"/proc/{pids[0].read_text()}")
    while training.exists() and " Z " not in (training / "stat").read_text() and time.time() < end:
        time.sleep(0.05)
    assert not training.exists() or " Z " in (training / "stat").read_text(), "or two trainings would write one folder"
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (row,) = [json.loads(line) for line in (tmp_path / "out/results.jsonl").read_text().splitlines()]
    assert row["stages"][0]["resumed"] and row["run"] == "one"


# ------------------------------------------------------------------------------------------------ the supervised judge


def test_both_orders_show_every_pair_twice_and_label_it_once_each():
    record = {"id": "a", "response_1": "x", "response_2": "y", "source_1": "s", "source_2": "t", "preference": 1, "answer": "x"}
    first, second = train_supervised.both_orders([record])
    assert first == record | {"id": "a/12"}
    assert second == record | {
        "id": "a/21",
        "response_1": "y",
        "response_2": "x",
        "source_1": "t",
        "source_2": "s",
        "preference": 2,
    }


def test_only_the_verdict_is_graded(tmp_path):
    model = tiny_critic.make_model(tmp_path / "base")
    records = data.load_records(tiny_critic.make_records(tmp_path / "pairs.jsonl", 2, pair=True), pair=True)
    rows = train_supervised.supervised_dataset(records, "no_self_ref", 8)
    processor = AutoProcessor.from_pretrained(model)
    batch = DataCollatorForVisionLanguageModeling(processor, completion_only_loss=True)([rows[i] for i in range(4)])
    graded = [processor.decode(row[labels != -100]) for row, labels in zip(batch["input_ids"], batch["labels"])]
    wanted = [1 if i % 2 else 2 for i in range(2) for _ in "12"]
    wanted = [side if order == 0 else 3 - side for side, order in zip(wanted, (0, 1, 0, 1))]
    assert graded == [f"\\boxed{{Response {side}}}<|im_end|>\n" for side in wanted]
    assert [rewards.parse_critique(text).verdict for text in graded] == wanted, "what evaluate.py reads"


def test_a_real_matrix_of_two_steps(tmp_path):
    """Stage 1, then the supervised judge, then judging its own prompt: every script as typed, once."""
    base = tiny_critic.make_model(tmp_path / "base")
    files = {
        name: tiny_critic.make_records(tmp_path / f"{name}.jsonl", 4, pair=name == "pairs") for name in ("questions", "pairs")
    }
    quick = {
        "prompts_per_step": 2,
        "num_generations": 2,
        "per_device_train_batch_size": 4,
        "max_completion_length": 8,
        "max_steps": 1,
    }
    configs = {
        name: yaml.safe_load((ROOT / f"experiments/physworld_{name}.yaml").read_text())
        for name in ("stage1", "stage2", "supervised")
    }
    configs["stage1"] |= quick
    configs["supervised"] |= {"max_steps": 2, "warmup_steps": 0, "per_device_train_batch_size": 4, "save_steps": 1}
    scale = yaml.safe_load((ROOT / "experiments/matrix/physworld.yaml").read_text()) | {"start": {"base": base}, "prepare": []}
    for name, config in configs.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(config))
        dataset = files["questions" if name == "stage1" else "pairs"]
        scale["stages"][name] |= {"config": str(tmp_path / f"{name}.yaml"), "arguments": {"dataset": dataset}}
    scale["evaluations"] = {"judge_test": {"mode": "judge", "dataset": files["pairs"], "limit": 2, "max_new_tokens": 4}}
    matrix = {"scale": str(tmp_path / "scale.yaml"), "seeds": [0], "runs": {"judge": {"stages": ["stage1", "supervised"]}}}
    (tmp_path / "scale.yaml").write_text(yaml.safe_dump(scale))
    (tmp_path / "m.yaml").write_text(yaml.safe_dump(matrix))
    command = [
        sys.executable,
        "experiments/run.py",
        tmp_path / "m.yaml",
        "--out",
        tmp_path / "out",
        "--work",
        tmp_path / "work",
        "--threads",
        "1",
    ]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, cwd=ROOT)
    logs = "\n".join(path.read_text()[-1500:] for path in tmp_path.glob("work/**/*.log"))
    assert done.returncode == 0, done.stdout + done.stderr[-2000:] + logs
    (row,) = [json.loads(line) for line in (tmp_path / "out/results.jsonl").read_text().splitlines()]
    assert [stage["config"]["max_steps"] for stage in row["stages"]] == [1, 2] and row["prompt"] == "no_self_ref"
    assert (
        row["evaluations"]["judge_test"]["config"]["prompt"] == "no_self_ref"
        and len(row["evaluations"]["judge_test"]["right"]) == 4
    )
    history = json.loads((Path(row["stages"][1]["folder"]) / "trainer_state.json").read_text())["global_step"]
    assert history == 2
