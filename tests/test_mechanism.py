"""analysis/counterfactual.py and analysis/mechanism.py: what is put in the critic's mouth, and the numbers made of it."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rewards
import stats
from analysis import counterfactual, mechanism
from analysis import counterfactual as cf
from physworld import dataset
from tests import tiny_critic

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
OPTIONS = {"A": "left", "B": "right"}
RECORD = {"options": None, "response_1": "It is red. \\boxed{red}", "response_2": "\\boxed{blue}"}
LETTERS = {"options": OPTIONS, "response_1": "\\boxed{B}", "response_2": "it goes left. \\boxed{left}"}


def own_row(prediction, side, options=None, **more):
    row = {
        "id": "i",
        "order": "12",
        "question": "q",
        "suite": "s",
        "options": options,
        "prediction": prediction,
        "own_side": side,
    }
    row |= {"think": "gap wide", "part": f"<pred_think> gap wide </pred_think> <pred> {prediction} </pred>"}
    return row | more


GAP, RED = "<pred_think> gap wide </pred_think> <pred>", "<pred_think> red seen </pred_think>"  # how prefixes begin
THOUGHTS = {("q", "red"): [("i", "own clip"), ("j", "red seen")], ("s", "blue"): [("k", "blue seen")]}


@pytest.mark.parametrize(
    "condition, row, record, prefix, side, donor, reason",
    [
        ("kept", own_row("red", 1), RECORD, f"{GAP} red </pred>", 1, None, "as it was"),
        ("other", own_row("red", 1), RECORD, f"{GAP} blue </pred>", 2, None, "the other response's"),
        ("other", own_row("right", 1, OPTIONS), LETTERS, f"{GAP} left </pred>", 2, None, "a text for a text"),
        ("other", own_row("B", 1, OPTIONS), LETTERS, f"{GAP} A </pred>", 2, None, "a letter for a letter"),
        ("same_words", own_row("red", 1), RECORD, f"{GAP} So it is red </pred>", 1, "sentence", "drawn by id"),
        ("think_same", own_row("red", 1), RECORD, f"{RED} <pred> red </pred>", 1, "question", "another clip's, not its own"),
        (
            "think_other", own_row("red", 1), RECORD, "<pred_think> blue seen </pred_think> <pred> red </pred>", 2,
            "suite", "no such question: the suite",
        ),
        ("think_other_free", own_row("blue", 2), RECORD, RED, 1, "question", "<pred> is left to the critic"),
        (
            "think_other", own_row("right", 1, OPTIONS), LETTERS,
            "<pred_think> The answer is left. </pred_think> <pred> right </pred>", 2, "stated", "none",
        ),
    ],
)  # fmt: skip
def test_what_is_put_in_its_mouth(condition, row, record, prefix, side, donor, reason):
    change = cf.changed(condition, row, record, THOUGHTS)
    assert (change["prefix"], change["side"], change["donor"]) == (prefix, side, donor), reason


@pytest.mark.parametrize(
    "row, reason", [(own_row("green", None), "neither response says it"), (own_row("red", 1, part=None), "cannot be read")]
)
def test_what_cannot_be_changed_is_left_out(row, reason):
    assert all(cf.changed(condition, row, RECORD, {}) is None for condition in cf.CONDITIONS), reason


@given(st.sampled_from(["red", "12 cm", "yes", "no", "keep going", "left", "B"]), st.booleans(), st.integers())
def test_other_words_say_the_same_and_other_answers_do_not(answer, with_options, seed):
    options = OPTIONS if with_options or answer == "B" else None
    if options and answer not in ("left", "B"):
        return
    words = cf.in_other_words(answer, options, str(seed))
    assert words != answer and rewards.answers_match(words, answer, options)
    prefix = f"<pred_think> x </pred_think> <pred> {words} </pred>"
    assert rewards.parse_critique(prefix).prediction == words, "and the parser reads it as the self-prediction"


# ------------------------------------------------------------------------------------------------------ the statistics


def judged(i, order="12", **more):
    row = {
        "id": f"i{i}",
        "order": order,
        "cluster": f"c{i}",
        "suite": "ab"[i % 2],
        "seed": 0,
        "verdict": 1,
        "verdict_correct": True,
    }
    row |= {"prediction_correct": True, "preference": 1, "longer": 1, "written": None, "own_side": 1, "p_first": 0.9}
    return row | {"completion_tokens": 30, "prompt_tokens": 90} | more


def test_flips_count_verdicts_that_change_and_that_follow(monkeypatch):
    monkeypatch.setattr(stats, "RESAMPLES", 50)
    own = [judged(i, verdict=1) for i in range(10)] + [judged(10, verdict=None)]
    forced = [
        judged(i, verdict=2 if i < 6 else 1 if i < 9 else None, side=2, donor="option" if i < 5 else "sentence")
        for i in range(11)
    ]
    rates, rows = mechanism.flips(own, forced)
    assert {kind: e["value"] for kind, e in rates["changed_by_kind"].items()} == {"option": 1.0, "sentence": 0.2}
    assert [rates[name]["value"] for name in ("changed", "followed", "unreadable")] == [0.6, 0.6, 0.1]
    assert rates["changed"]["n"] == 10, "a judgement that could not be read has no verdict to change"
    same = [row | {"side": 1, "verdict": 1} for row in forced]
    conditions = {"own": own} | dict.fromkeys(counterfactual.CONDITIONS, same) | {"other": forced}
    contrast = mechanism.counterfactuals(conditions)["other_minus_same_words"]
    assert contrast["value"] == pytest.approx(0.6) and contrast["low"] > 0.2 and contrast["n"] == 10


verdicts = st.sampled_from([None, 1, 2])


@settings(max_examples=60)
@given(st.lists(st.tuples(verdicts, st.booleans(), verdicts, st.sampled_from([1, 2])), min_size=1, max_size=30))
def test_every_judgement_is_in_one_class_of_failures(cases):
    rows = [
        judged(i, verdict=v, prediction_correct=p, own_side=s, preference=y, verdict_correct=v == y)
        for i, (v, p, s, y) in enumerate(cases)
    ]
    classes = [mechanism.failure(row) for row in rows]
    assert set(classes) <= set(mechanism.FAILURES)
    assert classes.count("right") + classes.count("solved wrong, judged right") == sum(row["verdict_correct"] for row in rows)
    assert classes.count("unreadable") == sum(row["verdict"] is None for row in rows)


def slow_calibration_error(p, better):
    """By the book: sort into ten bins of confidence, weigh each bin's gap by its share."""
    bins = {}
    for probability, truth in zip(p, better):
        confidence = max(probability, 1 - probability)
        place = next(b for b in reversed(range(10)) if confidence >= 0.5 + b / 20 or b == 0)
        bins.setdefault(place, []).append((confidence, (probability > 0.5) == truth))
    gap = lambda some: abs(sum(c for c, _ in some) / len(some) - sum(r for _, r in some) / len(some))  # noqa: E731
    return sum(len(some) / len(p) * gap(some) for some in bins.values())


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 1000), st.booleans()), min_size=1, max_size=40))
def test_calibration_error_agrees_with_the_slow_way(pairs):
    p, better = [k / 1000 + 1e-4 for k, _ in pairs], [b for _, b in pairs]  # off the bins' edges
    p = [min(x, 1.0) for x in p]
    confidence = np.maximum(p, 1 - np.array(p))
    right = np.array([(x > 0.5) == b for x, b in zip(p, better)], float)
    ours = mechanism.calibration_error(confidence, right, np.ones(len(p)))
    assert ours == pytest.approx(slow_calibration_error(p, better))
    doubled = mechanism.calibration_error(np.tile(confidence, 2), np.tile(right, 2), np.ones(2 * len(p)))
    weighted = mechanism.calibration_error(confidence, right, np.full(len(p), 2))
    assert doubled == pytest.approx(ours) and weighted == pytest.approx(ours), "a row twice is a row of weight 2"


@pytest.mark.parametrize("p, error, brier, reason", [
    (1.0, 0.5, 0.5, "sure, and right half the time"),
    (0.5, 0.0, 0.25, "a coin says so"),
])  # fmt: skip
def test_calibration_of_known_judges(p, error, brier, reason, monkeypatch):
    monkeypatch.setattr(mechanism, "RESAMPLES", 50)
    rows = [judged(i, p_first=p, preference=1 + i % 2) for i in range(40)] + [judged(99, p_first=None)]
    made = mechanism.calibration(rows)
    assert made["error"]["value"] == pytest.approx(error) and made["brier"]["value"] == pytest.approx(brier), reason
    assert (made["n"], made["unread"]) == (40, 1) and made["reliability"] == [{"p": p, "share": 0.5, "n": 40}]


def test_selective_accuracy_takes_the_surest_first(monkeypatch):
    monkeypatch.setattr(mechanism, "RESAMPLES", 50)
    rows = [judged(i, p_first=0.99) for i in range(10)] + [judged(20 + i, p_first=0.6, preference=2) for i in range(10)]
    random.Random(0).shuffle(rows)
    shares = {s["coverage"]: s for s in mechanism.calibration(rows)["selective"]}
    assert shares[1.0]["value"] == 0.5 and shares[0.5]["value"] == 1.0 and shares[0.5]["least"] == 0.99


@settings(max_examples=40)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=40))
def test_weighted_phi_agrees_with_the_tables(cases):
    rows = [judged(i, prediction_correct=a, verdict_correct=b) for i, (a, b) in enumerate(cases)]
    own, right = (np.array(values, float) for values in zip(*cases))
    ours, table = mechanism.weighted_phi(own, right, np.ones(len(cases))), stats.coupling(rows)["phi"]
    assert np.isnan(ours) if table is None else ours == pytest.approx(table)


def test_biases_compare_where_label_and_cue_agree():
    rows = [judged(i, order, preference=1 + i % 2, verdict=int(order[0])) for i in range(10) for order in ("12", "21")]
    rows = [row | {"verdict_correct": row["verdict"] == row["preference"]} for row in rows]  # a judge that takes the first
    first = mechanism.biases(rows)["shown first"]
    assert [first[key]["value"] for key in ("share", "agree", "disagree")] == [1.0, 1.0, 0.0]
    assert (
        mechanism.biases(rows)["longer"]["agree"]["value"] == 0.5 and mechanism.biases(rows)["written style"]["share"]["n"] == 0
    )


# ------------------------------------------------------------------------------------------------------------ the path


def test_both_scripts_on_the_embedded_base(tmp_path, capsys, monkeypatch):
    """Four pairs in two orders through the committed base; a second call makes nothing new."""
    monkeypatch.setattr(mechanism, "RESAMPLES", 50)
    monkeypatch.setattr(stats, "RESAMPLES", 50)
    pairs = str(dataset.pairs_file("test", 4, tmp_path / "physworld"))
    words = ["--models", "full=physworld/tiny_vlm", "no_self_reference=physworld/tiny_vlm", "--dataset", pairs, "--limit", "4"]
    words += ["--out", str(tmp_path / "rows"), "--max_new_tokens", "64"]
    made = subprocess.run(
        [sys.executable, "-m", "analysis.counterfactual", *words], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr[-3000:]
    files = {path: path.read_bytes() for path in sorted((tmp_path / "rows").glob("*/*.jsonl"))}
    assert len(files) == 1 + len(cf.CONDITIONS) + 1
    own = [json.loads(line) for line in files[tmp_path / "rows/full_seed0/own.jsonl"].splitlines()]
    kept = [json.loads(line) for line in files[tmp_path / "rows/full_seed0/kept.jsonl"].splitlines()]
    assert len(own) == 8 and kept, "the base answers as one of the responses"
    texts = {(row["id"], row["order"]): row for row in own}
    for row in kept:
        assert row["text"] == texts[row["id"], row["order"]]["text"], "begun again with its own words, it writes the same"
        assert row["p_first"] == pytest.approx(texts[row["id"], row["order"]]["p_first"], abs=1e-4)
    path = tmp_path / "rows/full_seed0/other.jsonl"
    path.write_bytes(path.read_bytes()[:-30])  # killed while it wrote its last row
    result = json.loads(path.with_suffix(".json").read_text())
    path.with_suffix(".json").write_text(json.dumps(result | {"finished": False}))
    with pytest.raises(SystemExit, match="other.json is missing or not finished"):
        mechanism.main([str(tmp_path / "rows"), str(tmp_path / "record")])
    monkeypatch.chdir(ROOT)
    cf.main(words)
    rows = [sorted(json.loads(line)["text"] for line in text.splitlines()) for text in (path.read_bytes(), files[path])]
    assert rows[0] == rows[1], "the cut row is made again, the others stay"
    assert all(other.read_bytes() == text for other, text in files.items() if other != path)
    capsys.readouterr()
    mechanism.main([str(tmp_path / "rows"), str(tmp_path / "record")])
    text = (tmp_path / "record/README.md").read_text()
    assert (
        text == capsys.readouterr().out
        and "| full (two stages) | other |" in text
        and "| no self-reference | shown first |" in text
    )
    claims = json.loads((tmp_path / "record/summary.json").read_text())["headline"]
    assert set(claims) == {"counterfactual_flip_rate", "counterfactual_paraphrase_rate", "calibration_error"}


@pytest.mark.parametrize("words, message", [
    (["--models", "ful=x"], "no such model here"),
    (["--matrix", "results.jsonl"], "no such model here"),
])  # fmt: skip
def test_models_that_are_not_there(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results.jsonl").write_text("")
    with pytest.raises(SystemExit, match=message):
        cf.main([*words, "--dataset", tiny_critic.make_records(tmp_path / "pairs.jsonl", 1, pair=True)])
