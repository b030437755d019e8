"""The committed pairs give nothing away: judges that do not look at the frames stay at chance.

Each judge is fitted on the stage-2 pairs and scored on the 2,000 pairs of the test split.
"""

import json
import random
import re
from collections import Counter

import numpy as np
import pytest
from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler

import rewards
from physworld import dataset, pairs
from physworld.clips import answer_text, make_clip

CHANCE, SLACK = 0.5, 0.03


def committed(split):
    with (dataset.RESPONSES / f"{split}.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def splits():
    return committed("pairs"), committed("test")


def words(text):
    return re.findall(r"\w+", text.lower())


def style(text):
    """How it is written, not what it says: its sentences' first words and punctuation."""
    return Counter(f"begins {w[0].lower()}" for w in re.findall(r"(?:^|[.] )(\w+)", text) if w) + Counter(re.findall(r"[.,{}]", text))


def by_length(pair):
    return {f"length {i} {unit}": v for i in "12" for unit, v in
            (("words", len(words(pair[f"response_{i}"]))), ("characters", len(pair[f"response_{i}"])))}


def by_source(pair):
    return {f"source {i} {pair[f'source_{i}']}": 1 for i in "12"}


def by_style(pair):
    return {f"{name} {i}": count for i in "12" for name, count in style(pair[f"response_{i}"]).items()}


def by_position(pair):
    return {"always": 1}


def by_words(pair):
    return {f"{word} {i}": count for i in "12" for word, count in Counter(words(pair[f"response_{i}"])).items()}


def by_all(pair):
    return by_length(pair) | by_source(pair) | by_style(pair) | by_position(pair)


@pytest.mark.parametrize("features", [by_length, by_source, by_style, by_position, by_words, by_all], ids=lambda f: f.__name__)
def test_a_judge_without_frames_is_at_chance(splits, features):
    train, test = splits
    assert len(test) >= 2000
    judge = make_pipeline(DictVectorizer(), MaxAbsScaler(), LogisticRegression(C=0.1, max_iter=2000))
    judge.fit([features(pair) for pair in train], [pair["preference"] for pair in train])
    accuracy = judge.score([features(pair) for pair in test], [pair["preference"] for pair in test])
    assert abs(accuracy - CHANCE) <= SLACK, f"{features.__name__} judges {accuracy:.3f} right"


def test_an_answerer_without_frames_is_no_better_than_each_kinds_majority():
    train, test = ([make_clip(split, i, dataset.SEED) for i in range(n)] for split, n in (("pairs", 1200), ("test", 600)))

    def features(clip):
        bag = Counter(f"{clip.kind} {word}" for word in words(clip.question))
        bag.update(f"{clip.kind} {letter} {text}" for letter, text in (clip.options or {}).items())
        return bag

    answerer = make_pipeline(DictVectorizer(), LogisticRegression(C=0.1, max_iter=2000))
    answerer.fit([features(c) for c in train], [answer_text(c) for c in train])
    accuracy = answerer.score([features(c) for c in test], [answer_text(c) for c in test])
    counts = {kind: Counter(answer_text(c) for c in test if c.kind == kind) for kind in {c.kind for c in test}}
    majority = sum(max(counter.values()) for counter in counts.values()) / len(test)
    assert accuracy <= majority + SLACK, f"{accuracy:.3f} right without frames, majority {majority:.3f}"


@pytest.mark.parametrize("split", ["pairs", "test", "ood"])
def test_every_pair_has_one_right_and_one_wrong_response(split):
    for pair in committed(split)[:300]:
        clip = make_clip(split, int(pair["id"].rpartition("-")[2]), dataset.SEED)
        assert clip.id == pair["id"] and clip.answer == pair["answer"]
        right = [rewards.answers_match(rewards.extract_answer(pair[f"response_{i}"], clip.options), clip.answer, clip.options) for i in "12"]
        assert right == [pair["preference"] == 1, pair["preference"] == 2]


def test_several_sources_and_lengths_occur(splits):
    for split in splits:
        sources = Counter(pair[f"source_{i}"] for pair in split for i in "12")
        assert len(sources) >= 4 and min(sources.values()) > 0.02 * sum(sources.values())
        lengths = np.array([len(words(pair["response_1"])) for pair in split])
        assert np.ptp(lengths) >= 10  # terse to verbose


def test_herding_levels_a_ledger_that_random_choice_leaves_tilted():
    """Right candidates tend to be long here; the chosen pairs must not show it."""
    rng = random.Random(0)
    questions = [{"id": str(i), "kind": "k", "options": None, "answer": "yes"} for i in range(300)]
    candidates = {
        q["id"]: [("so " * rng.randint(2, 9) + r"\boxed{yes}", "s") for _ in range(4)]
        + [("so " * rng.randint(1, 6) + r"\boxed{no}", "s") for _ in range(4)]
        for q in questions
    }
    chosen = pairs.choose_pairs(questions, candidates)
    better, worse = ([len(words(p[f"response_{i if right else 3 - i}"])) for p in chosen for i in [p["preference"]]] for right in (True, False))
    assert len(chosen) == 300
    assert abs(np.mean(better) - np.mean(worse)) < 0.2
    assert {p["preference"] for p in chosen} == {1, 2}
    assert pairs.choose_pairs(questions, candidates) == chosen  # seeded by id alone
