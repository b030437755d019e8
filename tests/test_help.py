"""The front door: --help at once and without torch, a mistake in one line, an absent folder with the command that makes it."""

import argparse
import dataclasses
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import best_of_n
import critic
import evaluate
import train_dpo
import train_stage2
from data import command
from experiments import train_supervised
from judging import candidates, play
from training import arguments, launch

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("torch", "trl", "transformers", "datasets", "pandas", "scipy.stats", "sklearn")
HOOK = f"""
import runpy, sys
sys.argv = sys.argv[1:]
try:
    if sys.argv[0] == "-m":
        sys.argv = sys.argv[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    print("HEAVY", *[name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""


def started(*words, **environment):
    """A command, whose stderr ends with a line of the heavy packages that it imported."""
    return subprocess.run(
        [sys.executable, "-c", HOOK, *map(str, words)], cwd=ROOT, capture_output=True, text=True, env=os.environ | environment
    )


def options(*kinds):
    """The options of dataclasses."""
    return [f"--{one.name}" for kind in kinds for one in dataclasses.fields(kind)]


STAGE = [*options(arguments.DataArguments, arguments.OwnTraining), "--help_all", "--config", "STJ_DEBUG=1"]
SHOWN = [  # the command line, what its help must say
    ("train_stage1.py", STAGE),
    ("train_stage2.py", [*STAGE, *options(train_stage2.ScriptArguments), "(default: 0.2)", "(default: runs/stage1)"]),
    ("train_dpo.py", ["pairs  ", "train  ", "python train_dpo.py pairs", "STEP --help"]),
    ("train_dpo.py pairs", [*options(train_dpo.ScriptArguments), "--help_all"]),
    ("train_dpo.py train", ["--pairs_by {critic,pivot,verifier}", "--help_all"]),
    ("evaluate.py", [*options(evaluate.EvaluateConfig), "more than 1% of", "(required)", "(default: 64)", "STJ_DEBUG=1"]),
    ("best_of_n.py", ["sample  ", "pick  ", "table  ", "STEP --help"]),
    ("best_of_n.py sample", options(candidates.SampleConfig)),
    ("best_of_n.py pick", [*options(play.JudgeConfig, best_of_n.PickConfig), "(default: knockout)"]),
    ("best_of_n.py table", options(play.JudgeConfig, best_of_n.TableConfig)),
    ("build_pairs.py", ["sample  ", "verify  ", "pair  ", "--apart_from", "STEP"]),
    ("build_pairs.py sample", ["--models", "--temperature", "(default: 0.6)"]),
    ("build_pairs.py verify", ["--verifier", "--human"]),
    ("build_pairs.py pair", ["--apart_from", "--benchmark"]),
    ("critic.py", options(critic.CriticConfig)),
    ("-m experiments.run", ["--dry_run", "--only", "matrix"]),
    ("experiments/train_supervised.py", [*options(train_supervised.SupervisedArguments), "(default: no_self_ref)"]),
    ("-m data.sources", ["--source", "--allow_rejected", "more than 1% of"]),
    ("-m judging.official_scores", ["ROWS.jsonl", "PREDICTIONS.csv"]),
    ("-m physworld.make_base", ["--out", "--work"]),
    ("-m analysis.mechanism", ["rows", "out"]),
    ("-m analysis.scaling_budget", ["usage"]),
    ("-m analysis.headline", ["usage"]),
]


@pytest.mark.parametrize("words, said", SHOWN, ids=[words for words, _ in SHOWN])
def test_help_lists_our_options_and_loads_nothing_heavy(words, said):
    made = started(*words.split(), "--help")
    assert (made.returncode, made.stderr.split()) == (0, ["HEAVY"]), made.stderr
    shown = made.stdout + " ".join(made.stdout.split())  # as it is, and without the breaks of its lines
    assert [text for text in said if text not in shown] == []


@pytest.mark.parametrize("script", ["train_dpo.py", "best_of_n.py", "build_pairs.py"])
def test_a_command_with_steps_and_no_word_prints_its_help(script):
    bare = started(script)
    assert bare.returncode == 0 and bare.stdout == started(script, "--help").stdout and bare.stderr.split() == ["HEAVY"]


def test_help_all_has_trls_options_too():
    made = started("train_dpo.py", "pairs", "--help_all")
    for name in ("--critic", "--learning_rate", "--lora_r", "--max_length", "~20% slower"):
        assert name in made.stdout
    assert made.returncode == 0 and len(made.stdout) > 50_000


MISTAKES = [
    ("evaluate.py --modle x", "evaluate.py: error: unknown option --modle; did you mean --model?"),
    ("evaluate.py --model x --out y.json --mode judeg", "invalid choice: 'judeg' (choose from 'question', 'judge')"),
    ("evaluate.py --model x", "the following arguments are required: --mode, --out"),
    ("evaluate.py --model x --out y.json --mode judge --limit few", "--limit: invalid int value: 'few'"),
    ("best_of_n.py pikc", "invalid choice: 'pikc' (choose from 'sample', 'pick', 'table')"),
    ("best_of_n.py pick --candidate x", "best_of_n.py pick: error: unknown option --candidate; did you mean --candidates?"),
    ("best_of_n.py pick --out x", "the following arguments are required: --candidates"),
    ("build_pairs.py pair --questions q --out o --apart_form x", "unknown option --apart_form; did you mean --apart_from?"),
    ("build_pairs.py sample --questions q --out o --models m --n 0", "--n must be at least 1, got 0"),
    ("critic.py --xyz", "critic.py: error: unknown option --xyz\n"),
    ("train_dpo.py pair", "invalid choice: 'pair' (choose from 'pairs', 'train')"),
    ("-m experiments.run experiments/tables.yaml --seed 1", "unknown option --seed; did you mean --seeds?"),
    ("-m data.sources --source cvbench --mode judge --dataset d --out o", "invalid choice: 'cvbench'"),
    ("-m judging.official_scores rows.jsonl", "the following arguments are required: PREDICTIONS.csv"),
]


@pytest.mark.parametrize("words, said", MISTAKES, ids=[words for words, _ in MISTAKES])
def test_a_mistake_is_one_line_and_code_2(words, said):
    made = started(*words.split())
    assert made.returncode == 2 and said in made.stderr and made.stderr.split("\n")[1:] == ["HEAVY", ""]


TRAINING = [  # words, text of the YAML where there is one, what is said
    (["--alpha_ps", "0.1"], None, "unknown option --alpha_ps; did you mean --alpha_sp?"),
    (["--learning_rte=1"], None, "unknown option --learning_rte; did you mean --learning_rate?"),  # one of TRL's
    (["--alpha_s", "0.2"], None, "unknown option --alpha_s; did you mean --alpha_sp?"),  # no abbreviations
    (["--format", "stict"], None, "invalid choice: 'stict' (choose from 'strict', 'presence')"),
    (["--config"], None, "--config takes a YAML file of `option: value`, got nothing"),
    ([], "num_generation: 4", "c.yaml: unknown key num_generation; did you mean num_generations?"),
    ([], "format: stict", "c.yaml: format is one of strict, presence, got stict"),
    ([], "- a\n- b", "got {folder}/c.yaml"),
    ([], "a: b: c", "mapping values are not allowed"),
]


@pytest.mark.parametrize("words, config, said", TRAINING)
def test_a_mistake_of_a_training_script(tmp_path, words, config, said, capsys):
    if config is not None:
        (tmp_path / "c.yaml").write_text(config)
        words = [*words, f"--config={tmp_path}/c.yaml"]
    with pytest.raises(SystemExit) as error:
        launch.parse(train_stage2.ScriptArguments, "experiments/physworld_stage2.yaml", argv=words)
    assert error.value.code == 2 and said.format(folder=tmp_path) in capsys.readouterr().err


def test_one_process_of_a_launcher_says_it(monkeypatch, capsys):
    for rank, lines in (("0", 1), ("1", 0)):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(SystemExit, match="2"):
            command.Parser(prog="x").parse_args(["--none"])
        assert len(capsys.readouterr().err.splitlines()) == lines


ABSENT = [
    ("runs/stage2/none", "make it with `accelerate launch train_stage2.py`"),
    (f"{ROOT}/runs/stage1/none", "make it with `accelerate launch train_stage1.py`"),
    ("runs/dpo/none", "make it with `python train_dpo.py train`"),
    ("runs/demo/none", "make it with `make demo`"),
    ("runs/stage20", "give a model's folder that is there, or a hub id"),
    ("./none", "give a model's folder that is there"),
    ("physworld/none", "give a model's folder that is there"),
]


@pytest.mark.parametrize("name, said", ABSENT)
def test_an_absent_folder_names_the_command_that_makes_it(name, said, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(ValueError, match="no such folder") as error:
        command.local_model(name)
    assert str(error.value).startswith(f"{name}: no such folder; ") and said in str(error.value)


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-VL-7B-Instruct", "gpt2", "physworld/tiny_vlm"])
def test_a_hub_id_and_a_folder_that_is_there_stay(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert command.local_model(name) == name


@pytest.mark.parametrize(
    "words",
    [
        "evaluate.py --model {0} --mode judge --out {1}/r.json",
        "best_of_n.py sample --model {0} --out {1}/c.jsonl",
        "best_of_n.py pick --critic {0} --candidates c.jsonl --out {1}/p.jsonl",
        "build_pairs.py sample --questions none.jsonl --out {1}/pairs --models {0}",
        "train_dpo.py pairs --critic {0} --output_dir {1}/dpo",
    ],
)
def test_a_command_without_its_model_says_so_and_writes_nothing(tmp_path, words):
    made = started(*words.format("runs/stage2/none", tmp_path).split())
    assert made.returncode == 1 and "Traceback" not in made.stderr
    assert "error: runs/stage2/none: no such folder; make it with `accelerate launch train_stage2.py`" in made.stderr
    assert list(tmp_path.iterdir()) == []


ERRORS = """
import sys
from data import command, files
def no_file(): open("none.txt")
def record(): raise files.RecordError("x.jsonl:1: field 'id' is missing")
def deep(): command.local_model("./none")
def bug(): int("x")
def shape(): list(zip([1], [], strict=True))
def key(): {}["x"]
def words(): raise SystemExit("give one judge")
def three(): return 3
command.run(globals()[sys.argv[1]])
"""
ENDS = [
    ("no_file", 1, "error: none.txt: No such file or directory\n"),
    ("deep", 1, "error: ./none: no such folder; give a model's folder that is there, or a hub id\n"),
    ("words", 1, "error: give one judge\n"),
    ("three", 3, ""),
    ("bug", 1, "Traceback"),
    ("shape", 1, "Traceback"),
    ("key", 1, "Traceback"),
]


@pytest.mark.parametrize("name, code, said", ENDS)
def test_what_a_user_can_mend_is_one_line_and_a_bug_keeps_its_traceback(tmp_path, name, code, said):
    made = subprocess.run([sys.executable, "-c", ERRORS, name], cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == code and (made.stderr.startswith(said) if said == "Traceback" else made.stderr == said)


def test_the_switch_shows_where_an_error_comes_from():
    words = ("evaluate.py", "--model", "runs/stage2/none", "--mode", "judge", "--out", "x.json")
    made = started(*words, STJ_DEBUG="1")
    assert made.returncode == 1 and "Traceback" in made.stderr and "in local_model" in made.stderr


@dataclass
class Every:
    """A field of each type that our dataclasses have, and a percent sign."""

    path: Path = field(metadata={"help": "100% of it"})
    names: list[str] = field(default_factory=lambda: ["a", "b"], metadata={"help": "some, 5%(five)s"})
    count: int | None = field(default=None, metadata={"help": "a number"})
    share: float = field(default=0.5, metadata={"help": "a share"})
    both_ways: bool = field(default=False, metadata={"help": "yes or no"})


def test_what_is_parsed():
    [every] = command.parse("", Every, argv=["--path", "p", "--both-ways"])
    assert every == Every(Path("p"), both_ways=True)
    [every] = command.parse("", Every, argv="--path=p --names c d --count 3 --share 1e-3 --both_ways false".split())
    assert every == Every(Path("p"), ["c", "d"], 3, 0.001, False)
    with pytest.raises(SystemExit, match="2"):
        command.parse("", Every, argv=["--path", "p", "--both_ways", "perhaps"])


KINDS = [
    Every, evaluate.EvaluateConfig, critic.CriticConfig, candidates.SampleConfig, play.JudgeConfig, best_of_n.PickConfig,
    best_of_n.TableConfig, train_stage2.ScriptArguments, train_dpo.ScriptArguments, train_supervised.SupervisedArguments,
    arguments.OwnTraining, launch.CriticGRPOConfig,
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=[kind.__name__ for kind in KINDS])
def test_every_help_text_is_printed_as_it_stands(kind):
    own = kind if kind is not launch.CriticGRPOConfig else arguments.OwnTraining
    parser = command.Parser() if own is kind else launch.TrainingParser([kind], formatter_class=command.Help)
    if own is kind:
        command.add_options(parser, [kind])
    said = " ".join(parser.format_help().split())
    for one in dataclasses.fields(own):
        assert "".join(one.metadata["help"].split()) in said.replace(" ", ""), one.name
    assert argparse.SUPPRESS not in said
