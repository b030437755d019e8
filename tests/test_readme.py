"""The README and its companions say what is there: files, commands and their options, targets of make, and figures of records.

What the README tells a user to type is typed here, in a folder that has the files it speaks of, with a tiny random model.
"""

import ast
import dataclasses
import fnmatch
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests import test_video, tiny_critic

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = ("README.md", "CONTRIBUTING.md", "docs/data.md", "docs/scaling.md")
TABLE = re.compile(r"<!-- results: .*?<!-- /results -->", re.DOTALL)


def test_the_readme_is_short_and_has_one_picture_that_is_there():
    table = TABLE.search(README)[0].count("\n") + 1
    assert len(README.splitlines()) - table <= 150 - 16, "with 12 rows of results, their header and marks: 150 lines"
    [picture] = re.findall(r"!\[.+\]\((.+)\)", README)
    assert (ROOT / picture).is_file()


# ---------------------------------------------------------------------------------------------------------------- files


def tree_names(text):
    """Files and folders (with their slash) that the README's tree names."""
    lines = [line.strip() for line in text.partition("## The tree\n")[2].splitlines() if line.startswith("    ")]
    return [name for line in lines for name in re.split(r" {2,}", line)[0].split(", ")]


def test_the_tree_names_what_is_there_and_all_of_it():
    named = tree_names(README)
    assert len(named) > 20 and len(named) == len(set(named))
    assert [name for name in named if not ((ROOT / name).is_dir() if name.endswith("/") else (ROOT / name).is_file())] == []
    ignored = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().split()]
    there = [path.name + "/" * path.is_dir() for path in ROOT.iterdir() if not path.name.startswith(".")]
    there = {name for name in there if not any(fnmatch.fnmatch(name.rstrip("/"), pattern) for pattern in ignored)}
    assert there - {"README.md"} == set(named)


@pytest.mark.parametrize("page", PAGES)
def test_files_that_a_page_names_are_there(page):
    text = TABLE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    folders = "docs|experiments|analysis|physworld|tests|data|judging|criteria|training"
    named = set(re.findall(rf"(?<![\w/.])(?:{folders})/[\w./-]*\w", text))
    assert named and [name for name in named if not (ROOT / name).exists()] == []


# ------------------------------------------------------------------------------------------------------------- commands


def commands(text):
    """Commands of a page's indented blocks, as lists of words; a line ending in a backslash goes on in the next."""
    block = "\n".join(line.strip() for line in text.splitlines() if line.startswith("    ")).replace("\\\n", " ")
    lines = [re.split(r"\s#\s", line)[0] for line in block.splitlines()]
    return [shlex.split(line) for line in lines if re.match(r"(python|accelerate|make|bash) ", line)]


def script_of(words):
    """(path of the script below the repository, the words after it); None for make."""
    if words[1] == "-m":
        return words[2].replace(".", "/") + ".py", words[3:]
    place = next((i for i, word in enumerate(words) if word.endswith((".py", ".sh"))), None)
    return None if place is None else (words[place], words[place + 1 :])


def sources(script):
    """The texts of a script and of all of the project's modules that it imports, the imports inside functions too."""
    texts, left = {}, [script]
    while left:
        name = left.pop()
        if name in texts or not (ROOT / name).is_file():
            continue
        texts[name] = (ROOT / name).read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(texts[name])):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            else:
                modules = []
            paths = [module.replace(".", "/") for module in modules]
            left += [path + end for path in paths for end in (".py", "/__init__.py")]
    return "\n".join(texts.values())


def unknown(words):
    """What a command names that does not exist: its script, its YAML, or options that no line of its code declares."""
    script, arguments = script_of(words)
    if not (ROOT / script).is_file():
        return [script]
    files = [word for word in words if word.endswith((".yaml", ".sh")) and not (ROOT / word).is_file()]
    code, options = sources(script), [word[2:] for word in arguments if word.startswith("--")]
    if Path(script).name.startswith("train_"):
        import trl

        known = {field.name for config in (trl.GRPOConfig, trl.ModelConfig) for field in dataclasses.fields(config)} | {"config"}
        options = [option for option in options if option not in known]
    return files + [option for option in options if not re.search(rf"^    {option}: |[\"']--{option}[\"']", code, re.MULTILINE)]


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_name_scripts_and_options_that_exist(page):
    found = commands((ROOT / page).read_text(encoding="utf-8"))
    assert found or page in ("CONTRIBUTING.md", "docs/scaling.md")
    for words in found:
        if words[0] == "make":
            continue
        assert unknown(words) == [], shlex.join(words)


def test_unknown_scripts_and_options_are_found():
    assert unknown(shlex.split("python evaluate.py --modell x --limit 3")) == ["modell"]
    typed = "accelerate launch --config_file none.yaml train_stage2.py --alpha_spp 1 --beta 0"
    assert unknown(shlex.split(typed)) == ["none.yaml", "alpha_spp"]
    assert unknown(shlex.split("python -m data.source --out x")) == ["data/source.py"]


def test_targets_of_make_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"(?:^    |`)make ([\w-]+)", README, re.MULTILINE))
    assert {"demo", "test", "report"} <= named <= targets


@pytest.fixture(scope="module")
def user(tmp_path_factory):
    """A folder with what the README's commands speak of; the models are random."""
    folder = tmp_path_factory.mktemp("user")
    for stage in ("stage1", "stage2"):
        tiny_critic.make_model(folder / "runs/demo" / stage)
    tiny_critic.make_records(folder / "questions.jsonl", 2)
    tiny_critic.make_records(folder / "pairs.jsonl", 4, pair=True)
    test_video.write(folder / "clip.mp4", 4)
    for name, colour in (("a.txt", "red"), ("b.txt", "blue")):
        (folder / name).write_text(f"It is {colour}. \\boxed{{{colour}}}")
    return folder


SMALL = {  # how a command of the README begins -> settings behind it that keep it small, and what it prints or leaves
    "critic.py --model": ("--max_new_tokens 8", "mean of both orders: "),
    "best_of_n.py sample": ("--max_new_tokens 8", "runs/bon/candidates.jsonl"),
    "best_of_n.py pick": ("--max_new_tokens 8", "runs/bon/picks.jsonl"),
    "evaluate.py --model runs/demo/stage2 --mode judge --split": (
        "--dataset pairs.jsonl --limit 4 --max_new_tokens 8", "runs/eval/judge.json"),
    "evaluate.py --model runs/demo/stage2 --mode judge --source": (
        f"--dataset {ROOT}/tests/fixtures/vl_rewardbench --allow_rejected true --limit 2 --max_new_tokens 8",
        "runs/eval/vlrb.json"),
    "experiments/run.py experiments/tables.yaml --out": ("", "hours"),
}  # fmt: skip
DRIVER = """
import json, runpy, sys
for words in json.loads(sys.argv[1]):
    print("$", *words, flush=True)
    sys.argv, sys.path[0] = words, words[0].rpartition("/")[0]
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
"""


def test_what_the_readme_types_runs(user):
    """All in one process, in the README's order, so that torch is imported once; each as its script's __main__."""
    typed = [shlex.join(words[1:]) for words in commands(README) if words[0] == "python"]
    chosen = [(line, *small) for line in typed for start, small in SMALL.items() if line.startswith(start)]
    assert len(chosen) == len(SMALL), "a command of the README has changed: change SMALL, too"
    lines = [[str(ROOT / line.split()[0]), *shlex.split(line)[1:], *shlex.split(settings)] for line, settings, _ in chosen]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", DRIVER, json.dumps(lines)]
    run = subprocess.run(command, cwd=user, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-1500:] + run.stderr[-3000:]
    for part, (line, _, left) in zip(run.stdout.split("$ ")[1:], chosen, strict=True):
        assert (user / left).is_file() if left.startswith("runs/") else left in part, line


# -------------------------------------------------------------------------------------------------------------- figures


def pieces(text):
    """Paragraphs and points of a list, without the table and code."""
    prose = "\n".join("" if line.startswith("    ") else line for line in TABLE.sub("", text).splitlines())
    return re.split(r"\n\s*\n|\n(?=- )", prose)


def unfounded(text):
    """Decimal numbers of the prose that neither the paper's numbers nor a page of a record that their paragraph names hold."""
    paper = (ROOT / "experiments/paper_numbers.json").read_text(encoding="utf-8")
    found = []
    for piece in pieces(re.sub(r"arXiv \d+\.\d+", "", text)):
        records = [ROOT / name for name in re.findall(r"experiments/[\w-]+", piece)]
        known = paper + "".join(page.read_text(encoding="utf-8") for record in records for page in record.glob("*.md"))
        found += [number for number in re.findall(r"\d+\.\d+", piece) if number not in re.findall(r"\d+\.\d+", known)]
    return found


def test_decimal_numbers_of_the_prose_stand_in_the_records_that_it_names():
    assert unfounded(README) == ["1.8"], "the model's parameters in millions, counted in docs/scaling.md"
    assert unfounded("Of the answers 12.34 are right (experiments/tables).") == ["12.34"]
    assert "1,842,816" in (ROOT / "docs/scaling.md").read_text(encoding="utf-8")


def test_whole_numbers_of_the_prose_are_those_of_the_files():
    with (ROOT / "physworld/pairs/pairs.jsonl").open(encoding="utf-8") as lines:
        pairs = [json.loads(line) for line in lines]
    said = [pair[name] for pair in pairs for name in ("source_1", "source_2")]
    assert f"{100 * said.count('written') / len(said):.0f}% of the responses that stage 2 reads" in README
    assert len(pairs) == 3200 == len({pair["id"] for pair in pairs}) and "its 3,200 pairs, one a question" in README
    epochs = {}
    for name, records in (("physworld", len(pairs)), ("phycritic_7b", 3258)):
        config = yaml.safe_load((ROOT / f"experiments/{name}_stage2.yaml").read_text(encoding="utf-8"))
        epochs[name] = config["max_steps"] * config["prompts_per_step"] / records
    assert f"{epochs['physworld']:.1f} epochs" in README and f"about {epochs['phycritic_7b']:.0f} epochs" in README
    runs = yaml.safe_load((ROOT / "experiments/tables.yaml").read_text(encoding="utf-8"))["runs"]
    assert f"{len(runs)} settings" in README
    page = (ROOT / "experiments/tables/README.md").read_text(encoding="utf-8")
    holds, undecided = (re.search(rf"{title}.*: (\d+) of 19", page)[1] for title in ("Hold", "Cannot be decided"))
    assert f"{holds} of 19 hold" in README and f"{undecided} are undecided, none is reversed" in README
    assert "Do not hold (the opposite is shown): 0 of 19" in page
