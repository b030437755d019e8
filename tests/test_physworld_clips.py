"""physworld's clips: determinism, splits, balance, labels from the simulator, disk."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from physworld import clips, scenes, world
from physworld.clips import SPLITS, answer_text, frames_hash, make_clip, scene_of, write_split, write_video

ROOT = Path(__file__).resolve().parents[1]
N = 84                       # clips per split: every kind at least 7 times
OTHER_DT = 1 / 97            # s, a time step the labels were not made with


@pytest.fixture(scope="module")
def made():
    return {split: [make_clip(split, i) for i in range(N)] for split in SPLITS}


def test_same_seed_same_clip(made):
    for split in SPLITS:
        for i in (0, 7, 40):
            again, first = make_clip(split, i), made[split][i]
            assert frames_hash(again.frames) == frames_hash(first.frames)
            assert (again.id, again.question, again.options, again.answer, again.facts) == \
                   (first.id, first.question, first.options, first.answer, first.facts)
    assert frames_hash(make_clip("train", 0, seed=1).frames) != frames_hash(made["train"][0].frames)


def test_no_frames_in_two_splits(made):
    homes = {}
    for split in SPLITS:
        for seed in (0, 1):
            for clip in made[split] if seed == 0 else [make_clip(split, i, seed) for i in range(12)]:
                digest = frames_hash(clip.frames)
                assert homes.setdefault(digest, split) == split
                assert int(digest, 16) % len(SPLITS) == SPLITS.index(split)     # so it holds for clips never made here
    assert len(homes) == len(SPLITS) * (N + 12)                                 # and none is twice in one split


def test_shape_of_a_clip(made):
    for split in SPLITS:
        for i, clip in enumerate(made[split]):
            kind = scenes.KINDS[clip.kind]
            assert clip.id == f"{split}-{i:06d}" and clip.suite == kind.suite and clip.question in kind.questions
            assert len(clip.frames) == 3 and all(f.size == (56, 56) and f.mode == "RGB" for f in clip.frames)
            assert answer_text(clip) in kind.answers
            assert bool(clip.options) == bool(kind.options)
            if clip.options:
                assert clip.answer in clip.options and list(clip.options) == list("ABCD"[:len(clip.options)])
            assert 2 <= len(clip.facts) <= 4 and all(word.isalpha() for item in clip.facts.items()
                                                     for part in item for word in part.split("_"))


def test_suites_and_kinds_are_equally_frequent(made):
    assert set(Counter(c.suite for c in made["train"]).values()) == {N // 6}
    assert {c.kind for c in made["train"]} == set(scenes.KINDS)


@pytest.mark.parametrize("ood", [False, True])
@pytest.mark.parametrize("kind", scenes.KINDS)
def test_answers_are_uniform(kind, ood):
    """The answer is drawn first, evenly, and the scene that comes has it: no rejection shifts the balance."""
    answers = scenes.KINDS[kind].answers
    counts = Counter(clips.random.Random(f"balance/{kind}/{i}").choice(answers) for i in range(600))
    assert all(abs(counts[a] - 600 / len(answers)) < 50 for a in answers)       # 4 sd at most
    for i in range(4):
        wanted = clips.random.Random(f"balance/{kind}/{i}").choice(answers)
        assert scenes.find_scene(kind, clips.random.Random(f"balance/{kind}/{i}"), ood).answer == wanted


def test_letters_are_uniform():
    scene = scenes.find_scene("what_to_do", clips.random.Random(0))
    letters = Counter()
    for i in range(2000):
        options = clips.options_of(scene, clips.random.Random(i))
        letters[next(letter for letter, text in options.items() if text == scene.answer)] += 1
    assert set(letters) == set("ABCD") and max(letters.values()) < 580          # 500 expected, 4 sd


def test_label_is_what_another_simulation_says():
    """Re-simulated at another time step, 168 clips of both worlds give their labels again (at most one does not)."""
    off = []
    for split in ("test", "ood"):
        for i in range(N):
            scene, _ = scene_of(split, i, seed=5)
            if scenes.decide(scene.kind, scene.params, OTHER_DT) != scene.answer:
                off.append((split, i, scene.kind))
    assert len(off) <= 1, off


def test_label_comes_from_the_simulator_not_from_the_proposal(monkeypatch):
    """Gravity turned off after the proposal: the ball flies on, and scenes wanted as "no" are never accepted."""
    scene = next(s for s in (scene_of("test", i)[0] for i in range(1, 200, 12)) if s.kind == "gap" and s.answer == "no")
    assert scenes.decide("gap", {**scene.params, "gravity": 1.0, "friction": 0.0}) == "yes"
    monkeypatch.setattr(world, "GRAVITIES", {False: [(1.0, 2.0)], True: [(1.0, 2.0)]})
    answers = set()
    for i in range(6):
        try:
            answers.add(scenes.find_scene("gap", clips.random.Random(i)).answer)
        except RuntimeError as error:
            assert "'no' in 200 proposals" in str(error)
    assert answers == {"yes"}


def test_ood_differs(made):
    def ranges(split):
        return [scene_of(split, i)[0].params for i in range(24)]
    usual, odd = ranges("test"), ranges("ood")
    for key in ("gravity", "friction", "scale"):
        low, high = min(p[key] for p in usual), max(p[key] for p in usual)
        assert all(not low <= p[key] <= high for p in odd), key
    assert max(p["shade"] for p in odd) < min(p["shade"] for p in usual)
    assert not {p["background"] for p in odd} & {p["background"] for p in usual}
    assert not {p["furniture"] for p in odd} & {p["furniture"] for p in usual}
    for kind in scenes.KINDS:
        shapes = [{scenes.find_scene(kind, clips.random.Random(0), ood).params["shape"]} for ood in (False, True)]
        assert not shapes[0] & shapes[1], kind
    assert {c.suite for c in made["ood"]} == set(scenes.SUITES)


@pytest.mark.parametrize("call", [lambda: make_clip("validation", 0), lambda: make_clip("test", -1),
                                  lambda: write_split("test", 0, "/nowhere"), lambda: write_split("all", 5, "/nowhere")])
def test_wrong_arguments(call):
    with pytest.raises(ValueError, match="split is one of base, train, pairs, test, ood"):
        call()


def test_killed_run_carries_on(tmp_path):
    command = [sys.executable, "-m", "physworld.clips", "--split", "train", "--n", "300", "--out", str(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    part, deadline = tmp_path / "train" / "questions.part", time.time() + 30
    while (not part.exists() or part.stat().st_size < 4000) and time.time() < deadline:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "train" / "questions.jsonl").exists()
    kept = len(clips.whole_rows(part))
    assert 0 < kept < 300
    with open(part, "a") as file:
        file.write('{"id": "train-0000')                          # a row cut off
    path = write_split("train", 60, tmp_path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    ids = [row["id"] for row in rows]
    assert len(rows) >= max(60, kept) and ids == sorted(set(ids)) and not part.exists()
    for i, row in enumerate(rows[:24]):
        clip = make_clip("train", i)
        assert (row["id"], row["question"], row["options"], row["answer"], row["facts"]) == \
               (clip.id, clip.question, clip.options, clip.answer, clip.facts)
        assert all(np.array_equal(np.asarray(Image.open(path.parent / name)), np.asarray(frame))
                   for name, frame in zip(row["frames"], clip.frames))


def test_written_split_is_left_alone_and_grows(tmp_path, monkeypatch):
    path = write_split("test", 8, tmp_path, workers=1)
    first = path.read_text()
    assert len(first.splitlines()) == 8
    write_split("test", 12, tmp_path, workers=2)
    assert path.read_text().startswith(first) and len(path.read_text().splitlines()) == 12
    monkeypatch.setattr(clips, "write_missing", lambda *args: pytest.fail("made again"))
    write_split("test", 12, tmp_path)
    with pytest.raises(ValueError, match="another --out"):
        write_split("test", 12, tmp_path, seed=1)


def test_video_round_trip(tmp_path):
    import av
    clip = make_clip("test", 3)
    write_video(clip, tmp_path / "clip.mp4")
    with av.open(str(tmp_path / "clip.mp4")) as container:
        back = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(back) == 3
    for got, sent in zip(back, clip.frames):
        assert np.abs(got.astype(int) - np.asarray(sent).astype(int)).mean() < 8
