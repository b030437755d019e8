"""experiments/metaworld_clips.py without Meta-World: questions from logs, cuts, clips, contact sheet, record."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import data
from data import media
from experiments import metaworld_clips as mw

ROOT = Path(__file__).parent.parent
N = 60  # steps of the runs below


def run(done=50, grip=20, move=30, sink=10, held=True, remaining=lambda step: max(0.0, 0.3 - 0.01 * max(0, step - 30)), steps=N):
    """A log: the hand goes down at `sink`, the gripper closes at `grip`, the object moves from `move`, success from `done`."""
    return [
        {
            "success": step >= done, "holding": held and step >= grip, "moved": 0.0 if step < move else 0.05 + 0.01 * (step - move),
            "remaining": remaining(step), "height": 0.3 if step < sink else 0.1, "opening": 1.0 if step < grip else 0.4,
        }
        for step in range(steps)
    ]  # fmt: skip


def clip(log, name="pick-place-success-0", task="pick-place-v3"):
    return {"id": name, "task": task, "log": log, "steps": [round(i * (len(log) - 1) / (mw.FRAMES - 1)) for i in range(mw.FRAMES)]}


def asked(log, **changes):
    """suite -> (question, the answer in words)."""
    records = mw.questions_of(clip(log, **changes))
    return {r["suite"].removeprefix("metaworld_"): (r["question"], r["options"][r["answer"]] if r["options"] else r["answer"]) for r in records}


CASES = [  # (log, suite, answer in words or None where it may not be asked, reason)
    (run(), "success", "yes", "it succeeds at step 50"),
    (run(done=99), "success", "no", "it never does"),
    (run(), "holding", "yes", "held to the end"),
    (run(held=False), "holding", "no", "pushed, not held"),
    (run(done=99, grip=20, move=99, held=False), "holding", None, "closed on nothing and nothing moved: hard to tell from a hold"),
    (run(done=99, grip=99, move=99), "holding", "no", "the gripper is open"),
    (run(done=99), "next", "bring the puck on to its goal", "it has moved, and is not there"),
    (run(done=99, grip=99, move=99), "next", "go to the puck", "not touched yet"),
    (run(), "next", "nothing, it is done", "success"),
    (run(done=99, grip=99, move=99, sink=99), "first", None, "nothing happened"),
    (run(done=99, grip=20, move=22, sink=99), "first", None, "two events within one frame cannot be told apart"),
    (run(done=99, grip=10, move=40, sink=99), "first", "the gripper closed", "before the object moved"),
    (run(done=99, grip=40, move=10, sink=99), "first", "the puck moved", "before the gripper closed"),
    (run(remaining=lambda step: 0.3), "closer", None, "no progress that differs"),
    (run(remaining=lambda step: 0.3 if step < 59 else 0.0), "closer", "frame 4", "only the last frame is closer"),
    (run(remaining=lambda step: 0.1 if step < 12 else 0.3), "closer", "frame 1", "progress can be lost again"),
]


@pytest.mark.parametrize("log, suite, answer, reason", CASES, ids=[f"{c[1]}: {c[3]}" for c in CASES])
def test_answers_are_what_the_log_says(log, suite, answer, reason):
    found = asked(log).get(suite)
    assert (found and found[1]) == answer, reason


def test_questions_are_whole_records_seeded_by_the_clip():
    log = run()
    records = mw.questions_of(clip(log))
    assert len({record["id"] for record in records}) == len(records) == 5
    for record in records:
        data.check_record(record, "here")
    assert mw.questions_of(clip(log)) == records
    letters = {record["answer"] for i in range(20) for record in mw.questions_of(clip(log, name=f"c{i}")) if record["suite"] == "metaworld_next"}
    assert letters == {"A", "B", "C"}, "the right letter is drawn"


def test_every_task_has_its_own_words():
    for task, (goal, thing) in mw.TASKS.items():
        found = asked(run(), task=task)
        assert goal in found["success"][0] and thing in found["holding"][0]
    assert len(mw.TASKS) >= 12


CUTS = [  # (kind, log, last step, reason)
    ("success", run(), 59, "to the end"),
    ("partial", run(), 40, "half-way from the first move to success"),
    ("perturbed", run(), 40, "goes off course there"),
    ("stopped", run(), 15, "half-way to the first move"),
    ("partial", run(move=99), 37, "an object that never moves (a button): half of the way stands for the first move"),
    ("success", run(done=99), None, "the expert failed: no clip claims anything"),
    ("stopped", run(done=1, move=1), None, "done at once: there is no moment before"),
]


@pytest.mark.parametrize("kind, log, step, reason", CUTS)
def test_where_a_clip_ends(kind, log, step, reason):
    assert mw.cut_of(kind, log) == step, reason


@pytest.fixture
def filmed(tmp_path):
    """What film leaves, for two clips of one task."""
    (tmp_path / "clips").mkdir()
    for kind in ("success", "partial"):
        pictures = [np.full((112, 112, 3), 40 * i, np.uint8) for i in range(mw.FRAMES)]
        mw.write_clip(tmp_path / "clips" / f"pick-place-{kind}-0.mp4", pictures)
    return tmp_path


def test_a_clip_is_its_frames(filmed):
    images, seconds = media.video_frames(filmed / "clips" / "pick-place-success-0.mp4", count=8)
    assert [round(np.asarray(image).mean() / 40) for image in images] == list(range(mw.FRAMES)) and seconds[-1] == pytest.approx(0.75)
    assert not list(filmed.glob("clips/*.tmp*"))


def test_contact_sheet_and_record(filmed):
    written = {
        "film.json": {"clips": {"success": 1, "partial": 1}, "tasks": 1},
        "train/pairs.json": {"counts": {"questions": 6, "pairs": 4}}, "train/verify.json": {"responses": 48, "right": 20, "agreement": {}},
        "bench/benchmark.json": {"counts": {"questions": 3, "pairs": 1}, "commit": "abc"}, "bench/verify.json": {"responses": 24},
        "judge.json": {"accuracy": {"value": 0.5, "low": 0.1, "high": 0.9, "n": 2}, "consistency": {}, "unreadable": {}, "machine": "CPU"},
    }  # fmt: skip
    for name, what in written.items():
        (filmed / name).parent.mkdir(exist_ok=True)
        (filmed / name).write_text(json.dumps(what))
    (filmed / "bench" / "card.md").write_text("# card\n")
    record = filmed / "record"
    mw.record(type("Args", (), {"out": filmed, "record": record}))
    entry = json.loads((record / "summary.json").read_text())["headline"]["metaworld_pairs"]
    assert set(entry) == {"value", "low", "high", "n", "unit", "command", "record", "commit"}
    assert (entry["value"], entry["n"], entry["commit"]) == (5, 9, "abc")
    sheet = Image.open(record / "contact_sheet.png").convert("RGB")
    assert sheet.size == (12 * 48, len(mw.TASKS) * 48) and sheet.getpixel((2 * 48 + 9, 9))[0] > 100 and sheet.getpixel((9, 9))[0] < 40
    assert "5 pairs from 9 questions" in (record / "README.md").read_text()


def test_the_documented_command_is_a_script_that_parses():
    subprocess.run(["bash", "-n", ROOT / "experiments" / "metaworld.sh"], check=True)
