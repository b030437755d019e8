"""The project's ground: pins, the commands that set themselves up, and what CI calls."""

import os
import re
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PINS = re.findall(r"^([\w-]+)==(\S+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)


@pytest.mark.parametrize("package, pin", PINS)
def test_what_runs_is_what_is_pinned(package, pin):
    assert version(package).split("+")[0] == pin  # torch may carry +cpu


def test_every_requirement_is_an_exact_pin():
    lines = [line.split("#")[0].strip() for line in (ROOT / "requirements.txt").read_text().splitlines()]
    assert [line for line in lines if line and not re.fullmatch(r"[\w-]+==[\w.]+", line)] == []


def test_ci_runs_the_tests_that_make_runs():
    run = ROOT / ".ci" / "run"
    assert os.access(run, os.X_OK) and run.read_text().rstrip().endswith("make test")
    assert "set -euo pipefail" in run.read_text()
