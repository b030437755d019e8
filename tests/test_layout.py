"""The house's rules, read from the imports (those inside functions count): who may import whom, no circle, few rooms at the top."""

import ast
import subprocess
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ("train_stage1", "train_stage2", "train_dpo", "evaluate", "best_of_n", "build_pairs", "turbo")
PURE = ("answers", "rewards", "prompts", "ppt", "stats", "judging.score_tokens")
RULES = [  # importers, what of ours they may import, why
    (PURE, PURE[:-1], "nothing of the project but each other's constants"),
    (("data",), ("data", "physworld", *PURE), "physworld only where the default is opened"),
    (("training",), ("training", "data", *PURE), "neither of the two sees the other"),
    (("judging",), ("judging", "data", *PURE), "neither of the two sees the other"),
    (("critic", "verifier"), ("judging", "data", *PURE), "the judges do not see each other"),
    (("trainer",), ("training", "data", *PURE), "hooks only, its organs lie in training/"),
    (SCRIPTS, ("trainer", "critic", "verifier", "training", "judging", "data", "physworld", *PURE), "no command imports another"),
    (("physworld",), ("physworld", "judging", "data", *PURE), "the world knows no trainer and no command"),
    (("experiments",), ("experiments", "training", "judging", "data", *PURE), "only tests import analysis"),
]


def room(module):
    """The package of a module, or the module itself at the top."""
    return module.partition(".")[0]


def imports():
    """{module of the project: names of the modules that it imports, others by the first part of their name}."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    names = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    files = {name[:-3].removesuffix("/__init__").replace("/", "."): ROOT / name for name in names if (ROOT / name).exists()}
    graph = {}
    for module, file in files.items():
        found = set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found |= {f"{node.module}.{alias.name}" for alias in node.names} & set(files) or {node.module}
        graph[module] = {name if name in files else room(name) for name in found}
    return graph


GRAPH = imports()


@pytest.mark.parametrize("importers, allowed, why", RULES, ids=[" ".join(rule[0]) for rule in RULES])
def test_who_imports_whom(importers, allowed, why):
    odd = [
        f"{module} imports {other}"
        for module, found in GRAPH.items()
        if module in importers or room(module) in importers and module not in PURE
        for other in found & set(GRAPH)
        if other not in allowed and room(other) not in allowed and other != module
    ]
    assert not odd, why


def test_the_embedded_default_is_opened_in_one_place():
    opened = {module for module, found in GRAPH.items() if room(module) in ("data", "training") and "physworld" in map(room, found)}
    assert opened == {"data.records"}


def test_pure_files_need_no_torch():
    pure = [module for module in GRAPH if module in PURE or room(module) in PURE]
    assert len(pure) >= len(PURE) and not set().union(*(GRAPH[m] for m in pure)) & {"torch", "transformers", "trl", "datasets"}


def test_no_circle_and_few_rooms_at_the_top(capsys):
    inner = {module: (found & set(GRAPH)) - {module} for module, found in GRAPH.items() if room(module) != "tests"}
    order = list(TopologicalSorter(inner).static_order())  # raises CycleError, which names the circle
    top = [module for module in GRAPH if (ROOT / f"{module}.py").exists()]
    between = {(room(a), room(b)) for a in inner for b in inner[a] if room(a) != room(b)}
    with capsys.disabled():
        print(f"\n{len(order)} modules, {len(top)} at the top, {len(between)} imports between rooms, circles: 0")
    assert len(top) <= 14, sorted(top)
