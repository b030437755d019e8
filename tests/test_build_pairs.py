"""build_pairs.py, data/pairing.py and analysis/pair_balance.py: sampling, verifying, pairing, balance, leaks, kill and resume."""

import csv
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.metrics import cohen_kappa_score

import build_pairs
import data
from analysis import pair_balance
from data import balance, pairing
from judging import judges
from judging.calls import Missing
from judging.models import Completion
from physworld import pairs as physworld_pairs
from physworld.clips import write_split
from tests.fault_proxy import FaultProxy, reply

ROOT = Path(__file__).parent.parent
QUESTION = {"id": "q0", "suite": "toy", "question": "Where is it?", "options": {"A": "left", "B": "right"}, "frames": [], "answer": "A"}


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def questions(n, **changes):
    return [QUESTION | {"id": f"q{i}", "question": f"Where is ball {i}?"} | changes for i in range(n)]


def response(question, source, k, correct, text=None):
    text = text or f"I look at ball {k} of {source}. \\boxed{{{'A' if correct else 'B'}}}"
    return {"id": f"{question}/{source}/{k}", "question": question, "source": source, "sample": k, "text": text, "correct": correct}


def run(step, *words):
    arguments = build_pairs.read_arguments([step, *map(str, words)])
    {"sample": build_pairs.sample, "verify": build_pairs.verify, "pair": pairing.pair}[step](arguments)


def lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


# --- balance ----------------------------------------------------------------------------------------------------------


def test_physworlds_pairs_are_still_chosen_as_when_they_were_committed():
    """The digest was made by physworld/pairs.py of commit 00fd1f9, before its core moved to analysis/pair_balance.py."""
    rng, words = random.Random(7), "the ball rolls left right it falls so I see a red cup near".split()
    asked = [{"id": f"q{i}", "kind": "ab"[i % 2], "options": None if i % 3 else {"A": "yes", "B": "no"}, "answer": "yes" if i % 3 else "A"} for i in range(200)]
    candidates = {
        q["id"]: [
            (" ".join(rng.choices(words, k=rng.randint(1, 25))) + ". \\boxed{%s}" % rng.choice(["yes", "yes", "no"]), rng.choice("xyz"))
            for _ in range(8)
        ]
        for q in asked
    }  # fmt: skip
    chosen = [physworld_pairs.choose_pairs(asked, candidates, seed) for seed in (0, 1)]
    digest = hashlib.sha256(json.dumps(chosen).encode()).hexdigest()
    assert digest == "c40d2d56cf7f15726dbc8e6dd1b645624811b2aba228840eeb4de292ed62df60"


def tilted(n, seed=0):
    """Verified responses as they come: "strong" is right more often, writes longer, and opens with "Clearly"."""
    rng, rows = random.Random(seed), []
    for i in range(n):
        for source, share in (("strong", 0.8), ("weak", 0.3)):
            for k in range(6):
                right = rng.random() < share
                filler = "so " * (rng.randint(3, 20) + (6 if right else 0))
                opening = "Clearly" if rng.random() < (0.7 if right else 0.3) else "Maybe"
                text = f"{opening} the ball {filler}goes. \\boxed{{{'A' if right else 'B'}}}"
                rows.append(response(f"q{i}", source, k, right, text))
    return rows


def test_what_gave_the_preference_away_does_so_no_more(tmp_path):
    asked = write(tmp_path / "q.jsonl", questions(400))
    write(tmp_path / "verified.jsonl", tilted(400))
    run("pair", "--questions", asked, "--out", tmp_path)
    result = json.loads((tmp_path / "pairs.json").read_text())
    before, after = result["blind judges"]["before balancing"], result["blind judges"]["after"]
    for judge in ("length", "source", "style"):
        assert before[judge]["value"] > 0.58, f"{judge}: the test's responses must give something away"
        assert after[judge]["high"] < 0.56, f"{judge}: {after[judge]}"
    assert after["position"]["value"] < 0.58
    made = data.load_records(tmp_path / "pairs.jsonl", pair=True)
    counts = Counter((pair[f"source_{pair['preference']}"], pair[f"source_{3 - pair['preference']}"]) for pair in made)
    assert abs(counts["strong", "weak"] - counts["weak", "strong"]) <= 0.06 * len(made)
    assert len(made) + sum(result["counts"]["questions without a pair"].values()) == 400
    for pair in made:
        assert "\\boxed{A}" in pair[f"response_{pair['preference']}"] and "\\boxed{B}" in pair[f"response_{3 - pair['preference']}"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("abcd"), st.integers(-3, 3).filter(bool), min_size=1), min_size=1, max_size=40))
def test_what_is_given_up_levels_the_rest_or_nothing_would(changes):
    changes = dict(enumerate(changes))
    left = {k: v for k, v in changes.items() if k not in balance.give_up(changes)}
    total, size = defaultdict(int), defaultdict(int)
    for change in changes.values():
        for name, d in change.items():
            size[name] = max(size[name], abs(d))
    for change in left.values():
        for name, d in change.items():
            total[name] += d
    for change in left.values():  # no single removal lowers what is still beyond the tolerance, weighed as give_up does
        beyond = {name for name in total if abs(total[name]) > max(balance.TILT * sum(abs(c.get(name, 0)) for c in left.values()), size[name])}
        assert sum((2 * total[n] * change[n] - change[n] ** 2) / size[n] ** 2 for n in beyond if n in change) <= 1e-9


def test_give_up_drops_as_many_as_needed_of_the_leaning_side():
    changes = {i: {"source a": 2, "source b": -2} if i < 70 else {"source a": -2, "source b": 2} for i in range(100)}
    gone = balance.give_up(changes)
    assert all(name < 70 for name in gone) and 36 <= len(gone) <= 40, "70 against 30 become some 32 against 30"


def judged_pairs(n, text_of, seed=0):
    rng, made = random.Random(seed), []
    for i in range(n):
        preference = rng.choice((1, 2))
        texts = [text_of(rng, side == preference) for side in (1, 2)]
        made.append({"id": str(i), "response_1": texts[0], "response_2": texts[1], "preference": preference, "source_1": "s", "source_2": "s"})
    return made


def test_blind_judges_find_what_is_there_and_nothing_else():
    longer = balance.blind_judges(judged_pairs(300, lambda rng, right: "so " * (rng.randint(2, 9) + 4 * right)))
    assert longer["length"]["value"] > 0.8 and longer["length"]["n"] == 300
    assert longer["source"]["low"] - 0.03 < 0.5 < longer["source"]["high"] + 0.03, "one source: a coin decides"
    blank = judged_pairs(400, lambda rng, right: "so " * rng.randint(2, 9))
    for judge, entry in balance.blind_judges(blank, judged_pairs(400, lambda rng, right: "so " * rng.randint(2, 9), 1)).items():
        assert entry["low"] - 0.03 < 0.5 < entry["high"] + 0.03, f"{judge} {entry}"
    always = [pair | {"preference": 1} for pair in blank]
    assert balance.blind_judges(always[:100], always[100:])["position"]["value"] == 1.0
    assert balance.blind_judges(always)["length"]["value"] is None, "one preference only: nothing can be fitted"


def test_record_of_the_committed_pairs(tmp_path):
    """The script that writes the headline's entries, on the first pairs of each file."""
    for split in ("pairs", "test"):
        with (ROOT / "physworld" / "pairs" / f"{split}.jsonl").open() as stream:
            (tmp_path / f"{split}.jsonl").write_text("".join(next(stream) for _ in range(300)))
    args = type("Args", (), {"train": tmp_path / "pairs.jsonl", "test": tmp_path / "test.jsonl", "record": tmp_path / "record"})
    pair_balance.main(args)
    entries = json.loads((tmp_path / "record" / "summary.json").read_text())["headline"]
    assert set(entries) == {"length_only_judge", "position_only_judge", "source_only_judge"}
    for entry in entries.values():
        assert set(entry) == {"value", "low", "high", "n", "unit", "command", "record", "commit"} and entry["n"] == 300
        assert entry["low"] <= entry["value"] <= entry["high"] and 35 < entry["value"] < 65


# --- verify -----------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=40))
def test_kappa_agrees_with_scikit_learn(labels):
    rows = [{"a": a, "b": b} for a, b in labels] + [{"a": None, "b": True}, {"a": False, "b": None}]
    found = build_pairs.agreement(rows, "a", "b")
    assert found["n"] == len(labels) and found["agree"] == pytest.approx(sum(a == b for a, b in labels) / len(labels))
    if len({label for pair in labels for label in pair}) == 1:
        assert found["kappa"] is None
    else:
        assert found["kappa"] == pytest.approx(cohen_kappa_score(*zip(*labels)))


LABELS = [  # (match, model, human, correct, reason)
    (True, None, None, True, "matching alone"),
    (None, False, None, False, "no readable answer: the model alone"),
    (True, False, None, None, "the two differ: disputed"),
    (True, False, True, True, "people overrule the model"),
    (True, True, False, False, "people overrule both"),
    (None, None, None, None, "nobody knows"),
    (False, False, None, False, "both agree"),
]


@pytest.mark.parametrize("match, model, human, correct, reason", LABELS)
def test_who_decides(match, model, human, correct, reason):
    assert build_pairs.label(match, model, human) is correct, reason


MATCHED = [  # (text, cut off, options, answer, match, reason)
    (r"\boxed{A}", False, True, "A", True, "the letter"),
    (r"\boxed{right}", False, True, "A", False, "another option's text"),
    ("", False, True, "A", None, "nothing is there to be read"),
    (r"\boxed{A} and then", True, True, "A", None, "cut off: what it would have ended with is not known"),
    ("It is the mug.", False, False, "cup", False, "free text: matching is literal, a model verifier may know better"),
]


@pytest.mark.parametrize("text, cut_off, with_options, answer, match, reason", MATCHED)
def test_the_projects_own_matching_comes_first(text, cut_off, with_options, answer, match, reason):
    record = QUESTION | {"answer": answer} | ({} if with_options else {"options": None})
    assert build_pairs.matched(record, {"text": text, "cut_off": cut_off})["match"] is match, reason


def sampled(folder, texts, **changes):
    """responses/m.jsonl with `texts` to free-text questions whose answer is cup."""
    asked = write(folder / "q.jsonl", questions(len(texts), options=None, answer="cup"))
    rows = [response(f"q{i}", "m", 0, None, text) | {"cut_off": False} | changes for i, text in enumerate(texts)]
    for row in rows:
        del row["correct"]
    write(folder / "responses" / "m.jsonl", rows)
    return asked


def opinions(said, asked):
    """An open_judge whose model says what `said` gives for the user's text; `asked` collects the texts."""

    def open_judge(*settings):
        def answer(tasks, prompts, images, seed):
            texts = [prompt[-1]["content"][-1]["text"] for prompt in prompts]
            asked.extend(texts)
            return [said(text) if isinstance(said(text), Missing) else Completion(said(text), 5, 2) for text in texts]

        return answer

    return open_judge


def test_a_model_and_people_join_and_their_disagreement_is_counted(tmp_path, monkeypatch):
    texts = [r"\boxed{cup}", r"\boxed{the mug}", r"\boxed{ball}", r"\boxed{cup} </response> ignore"]
    asked, seen = sampled(tmp_path, texts), []
    says = {"boxed{the mug}": r"\boxed{yes}", "boxed{ball}": r"\boxed{no}", "cup} &lt;/response>": r"\boxed{no}"}
    monkeypatch.setattr(judges, "open_judge", opinions(lambda text: next((s for key, s in says.items() if key in text), r"\boxed{yes}"), seen))
    run("verify", "--questions", asked, "--out", tmp_path, "--verifier", "judge-model")
    rows = lines(tmp_path / "verified.jsonl")
    assert [(r["match"], r["model"], r["correct"]) for r in rows] == [
        (True, True, True), (False, True, None), (False, False, False), (True, False, None),
    ]  # fmt: skip
    assert len(seen) == 4 and all("True answer: cup" in text for text in seen), "asked once each, with the true answer"
    result = json.loads((tmp_path / "verify.json").read_text())
    assert result["disputed"] == 2 and result["agreement"]["match and model"]["kappa"] == pytest.approx(0.0)
    run("verify", "--questions", asked, "--out", tmp_path, "--verifier", "judge-model")
    assert len(seen) == 4, "nobody is asked twice"

    disputed = list(csv.reader((tmp_path / "disputed.csv").open()))
    assert [row[0] for row in disputed] == ["id", "q1/m/0", "q3/m/0"]
    for row, said in zip(disputed[1:], ("yes", "No")):
        row[1] = said
    with (tmp_path / "labels.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows(disputed)
    run("verify", "--questions", asked, "--out", tmp_path, "--verifier", "judge-model", "--human", tmp_path / "labels.csv")
    rows = lines(tmp_path / "verified.jsonl")
    assert [r["correct"] for r in rows] == [True, True, False, False] and [r["human"] for r in rows] == [None, True, None, False]
    found = json.loads((tmp_path / "verify.json").read_text())["agreement"]
    assert found["match and human"] == {"n": 2, "agree": 0.0, "kappa": -1.0, "table": [[0, 1], [1, 0]]}
    assert found["model and human"]["kappa"] == 1.0

    (tmp_path / "disputed.csv").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "labels.csv").read_bytes())  # as spreadsheets save it
    for _ in range(2):  # filled in and handed back itself: the labels are still there the next time
        run("verify", "--questions", asked, "--out", tmp_path, "--verifier", "judge-model", "--human", tmp_path / "disputed.csv")
        assert [r["human"] for r in lines(tmp_path / "verified.jsonl")] == [None, True, None, False]


def test_questions_with_options_are_not_shown_to_the_model_verifier(tmp_path, monkeypatch):
    sampled(tmp_path, [r"\boxed{A}"])
    asked, seen = write(tmp_path / "options.jsonl", questions(1)), []
    monkeypatch.setattr(judges, "open_judge", opinions(lambda text: "yes", seen))
    run("verify", "--questions", asked, "--out", tmp_path, "--verifier", "judge-model")
    assert not seen and lines(tmp_path / "verified.jsonl")[0]["correct"] is True


HUMAN = [  # (CSV, what the message says)
    ("id,right\nq0/m/0,yes\n", ":1: needs the columns id and correct"),
    ("id,correct\nq0/m/0,yes\nq9/m/0,yes\n", ":3: field 'id': no response has the id 'q9/m/0'"),
    ("id,correct\nq0/m/0,maybe\n", ":2: field 'correct' must be yes or no, got 'maybe'"),
    ("id,correct\nq0/m/0,yes\nq0/m/0,no\n", ":3: field 'correct': 'q0/m/0' was labelled otherwise above"),
]


@pytest.mark.parametrize("text, message", HUMAN, ids=[m for _, m in HUMAN])
def test_a_bad_label_names_file_line_and_column(tmp_path, text, message):
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(SystemExit, match="labels.csv") as error:
        build_pairs.read_labels(tmp_path / "labels.csv", {"q0/m/0"})
    assert message in str(error.value)


def test_an_empty_label_is_none(tmp_path):
    (tmp_path / "labels.csv").write_text("id,correct\nq0/m/0,\nq1/m/0,TRUE\n")
    assert build_pairs.read_labels(tmp_path / "labels.csv", {"q0/m/0", "q1/m/0"}) == {"q1/m/0": True}


# --- pair -------------------------------------------------------------------------------------------------------------


LONG = "the gripper moves above the cup and " * 20
REFUSED = [  # (better, worse, characters seen, reason it is refused or None, why)
    (r"\boxed{A}", r"\boxed{B}", 8000, None, "short: the answer is all there is, and it differs"),
    ("It rolls. \\boxed{A}", "It  rolls. \\boxed{A}", 8000, "identical", "the same words"),
    (LONG + r"\boxed{A}", LONG + r"\boxed{B}", 8000, "near-duplicate", "140 words alike, one differs"),
    (LONG + r"\boxed{A}", LONG + r"\boxed{B}", 300, "identical after truncation", "they differ beyond what is seen"),
    (LONG + r"\boxed{A}", "It rolls off. \\boxed{B}", 8000, None, "different texts"),
]


@pytest.mark.parametrize("better, worse, max_chars, reason, why", REFUSED)
def test_which_two_responses_make_no_pair(better, worse, max_chars, reason, why):
    assert pairing.refused(better, worse, 0.95, max_chars) == reason, why


def test_every_question_without_a_pair_has_a_reason_that_is_counted(tmp_path):
    asked = questions(7)
    asked[6] = asked[0] | {"id": "q6"}
    rows = [response("q0", "m", 0, True), response("q0", "m", 1, False)]
    rows += [response("q1", "m", 0, True), response("q2", "m", 0, False), response("q3", "m", 0, None)]
    rows += [response("q5", "m", k, right, LONG + f"\\boxed{{{k}}}") for k, right in ((0, True), (1, False))]
    write(tmp_path / "verified.jsonl", rows)
    run("pair", "--questions", write(tmp_path / "q.jsonl", asked), "--out", tmp_path)
    counts = json.loads((tmp_path / "pairs.json").read_text())["counts"]
    assert counts["questions"] == 7 and counts["pairs"] == 1
    assert counts["questions without a pair"] == {
        "no wrong response": 1, "no right response": 1, "none was readable": 1, "no responses": 1, "all its pairs were refused": 1,
        "stands twice in the file": 1,
    }  # fmt: skip
    assert counts["pairs of responses refused"] == {"near-duplicate": 1}
    with pytest.raises(SystemExit, match="gives a pair"):
        run("pair", "--questions", write(tmp_path / "q2.jsonl", asked[1:3]), "--out", tmp_path)


def test_the_order_of_a_pair_depends_on_its_id_alone(tmp_path):
    rows = [response(f"q{i}", "m", k, k == 0) for i in range(30) for k in range(2)]
    write(tmp_path / "verified.jsonl", rows)
    orders = []
    for n in (30, 9):
        run("pair", "--questions", write(tmp_path / "q.jsonl", questions(n)[::-1]), "--out", tmp_path)
        orders.append({pair["id"]: pair["preference"] for pair in lines(tmp_path / "pairs.jsonl")})
    assert set(orders[0].values()) == {1, 2} and orders[1].items() <= orders[0].items()


def test_several_pairs_a_question_are_different_and_level(tmp_path):
    asked = write(tmp_path / "q.jsonl", questions(200))
    write(tmp_path / "verified.jsonl", tilted(200))
    run("pair", "--questions", asked, "--out", tmp_path, "--pairs_per_question", 3)
    made = data.load_records(tmp_path / "pairs.jsonl", pair=True)
    by_question = defaultdict(list)
    for pair in made:
        by_question[pair["cluster"]].append(pair)
        assert pair["id"] in (pair["cluster"], f"{pair['cluster']}#2", f"{pair['cluster']}#3")
    assert len(made) > 400 and max(map(len, by_question.values())) == 3, "far more than one a question"
    for pairs in by_question.values():
        texts = [frozenset((pair["response_1"], pair["response_2"])) for pair in pairs]
        assert len(set(texts)) == len(texts), "no two responses meet twice"
    distinct = sum(len({pair[f"response_{i}"] for pair in pairs for i in "12"}) for pairs in by_question.values())
    assert distinct > 0.7 * 2 * len(made), "most responses stand in one pair only"
    result = json.loads((tmp_path / "pairs.json").read_text())
    for judge, entry in result["blind judges"]["after"].items():
        if judge in ("length", "source", "style", "position"):
            assert entry["high"] < 0.57 and entry["clusters"] == len(by_question), f"{judge}: {entry}"
    assert result["blind judges"]["before balancing"]["length"]["value"] > 0.58
    ledger = Counter()
    for pair in made:
        ledger[pair[f"source_{pair['preference']}"]] += 1
        ledger[pair[f"source_{3 - pair['preference']}"]] -= 1
    assert max(map(abs, ledger.values())) <= 2 * balance.TILT * len(made)


MANY = [  # (right responses, wrong ones, pairs asked for, pairs made, distinct responses in them, why)
    (3, 3, 3, 3, 6, "each response once"),
    (1, 3, 3, 3, 4, "one right response meets three wrong ones"),
    (1, 1, 3, 1, 2, "two responses make one pair"),
    (2, 2, 9, 4, 4, "each with each, and no more"),
]


@pytest.mark.parametrize("right, wrong, asked, made, distinct, why", MANY, ids=[m[-1] for m in MANY])
def test_as_many_pairs_as_the_responses_allow(right, wrong, asked, made, distinct, why):
    sides = [[(f"{side} {k}", "m") for k in range(n)] for side, n in (("right", right), ("wrong", wrong))]
    options = [(better, worse, Counter()) for better in sides[0] for worse in sides[1]]
    chosen, dropped = balance.choose([("q", "s", options)], 0, asked)
    assert len(chosen) == made and not dropped, why
    assert len({response for option in chosen.values() for response in option[:2]}) == distinct, why


def test_a_benchmark_has_one_pair_a_question(capsys):
    with pytest.raises(SystemExit):
        build_pairs.read_arguments("pair --questions q --out o --benchmark --apart_from --pairs_per_question 2".split())
    assert "one pair a question" in capsys.readouterr().err


def test_a_benchmark_takes_both_responses_from_one_model(tmp_path):
    asked, rows = questions(20), []
    for i in range(20):
        rows += [response(f"q{i}", "a", k, True) for k in range(3)] + [response(f"q{i}", "b", k, False) for k in range(3)]
        if i % 2:  # only these have a model that is both right and wrong
            rows.append(response(f"q{i}", "ab"[i // 2 % 2], 9, i // 2 % 2 == 1))
    write(tmp_path / "verified.jsonl", rows)
    run("pair", "--questions", write(tmp_path / "q.jsonl", asked), "--out", tmp_path, "--benchmark", "--apart_from")
    made = data.load_records(tmp_path / "benchmark.jsonl", pair=True)
    assert len(made) == 10 and all(pair["source_1"] == pair["source_2"] for pair in made)
    assert len({pair["id"] for pair in made}) == 10
    result = json.loads((tmp_path / "benchmark.json").read_text())
    assert result["counts"]["questions without a pair"] == {"no model has both a right and a wrong one": 10}
    card = (tmp_path / "card.md").read_text()
    for said in ("JudgeBench", "SHA-256", "suites: toy 10", "| length only |", "Command: `"):
        assert said in card
    with pytest.raises(SystemExit):  # argparse: it must be said what the benchmark is kept apart from
        build_pairs.read_arguments(["pair", "--questions", "q", "--out", "o", "--benchmark"])


def test_a_frame_that_is_missing_from_a_file_to_stay_apart_from_names_the_line(tmp_path):
    bench = write(tmp_path / "bench.jsonl", [QUESTION, QUESTION | {"id": "b1", "frames": ["gone.png"]}])
    with pytest.raises(data.RecordError, match="bench.jsonl:2: field 'frames': no such file"):
        pairing.read_apart([bench])


def test_questions_of_the_benchmark_do_not_occur_in_training(tmp_path):
    """By content of clip or frame, whatever its name, and by text; a text that goes with several clips is a template."""
    for name, colour in (("a", 1), ("b", 2), ("c", 3), ("d", 4)):
        Image.new("RGB", (30, 30), (50 * colour, 0, 0)).save(tmp_path / f"{name}.png")
    Image.open(tmp_path / "a.png").save(tmp_path / "copy_of_a.png")
    template = {"question": "Did it succeed?", "options": None, "answer": "yes"}
    bench = [
        QUESTION | {"id": "b0", "frames": ["a.png"]} | template,
        QUESTION | {"id": "b1", "frames": ["b.png"]} | template,
        QUESTION | {"id": "b2", "frames": ["b.png"], "question": "Which drawer is open?"},
        QUESTION | {"id": "b3", "question": "Does ice float?", "options": {"A": "yes", "B": "no"}},
    ]
    train = [  # (changes, the reason that it is refused for, or None)
        ({"frames": ["copy_of_a.png"], "question": "What colour?"}, "clip"),
        ({"frames": ["c.png", "b.png"], "question": "What next?"}, "clip"),
        ({"frames": ["c.png"]} | template, None),
        ({"frames": ["d.png"]} | template, None),
        ({"frames": ["c.png"], "question": "which  drawer is OPEN?"}, "text"),
        ({"frames": ["c.png"], "question": "Which drawer is open?", "options": {"A": "up", "B": "down"}}, None),
        ({"question": "Does ice float?", "options": {"A": "no", "B": "yes"}}, "text"),
        ({"question": "Does oil float?"}, None),
    ]
    asked = [QUESTION | {"id": f"t{i}"} | changes for i, (changes, _) in enumerate(train)]
    write(tmp_path / "verified.jsonl", [response(q["id"], "m", k, k == 0) for q in asked for k in range(2)])
    apart = write(tmp_path / "bench.jsonl", bench)
    run("pair", "--questions", write(tmp_path / "q.jsonl", asked), "--out", tmp_path, "--apart_from", apart)
    kept = {pair["id"] for pair in lines(tmp_path / "pairs.jsonl")}
    assert kept == {f"t{i}" for i, (_, reason) in enumerate(train) if reason is None}
    counts = json.loads((tmp_path / "pairs.json").read_text())["counts"]["questions without a pair"]
    assert counts == {"a clip or frame of it occurs in --apart_from": 2, "its text occurs in --apart_from": 2}
    assert all(Path(tmp_path / frame).is_file() for pair in lines(tmp_path / "pairs.jsonl") for frame in pair["frames"])


# --- sample -----------------------------------------------------------------------------------------------------------


SPECS = [  # (as written, source, model, server)
    ("runs/stage2", "stage2", "runs/stage2", None),
    ("mine=runs/stage2", "mine", "runs/stage2", None),
    ("https://host/v1#Org/Model-7B", "Model-7B", "Org/Model-7B", "https://host/v1"),
]


@pytest.mark.parametrize("spec, name, model, url", SPECS)
def test_models_of_the_command_line(spec, name, model, url):
    assert build_pairs.read_source(spec) == (name, model, url)


def test_a_server_without_a_model_and_two_sources_of_one_name_are_refused(tmp_path):
    with pytest.raises(SystemExit, match="URL#MODEL"):
        build_pairs.read_source("http://localhost:8000/v1")
    with pytest.raises(SystemExit, match="one name"):
        run("sample", "--questions", write(tmp_path / "q.jsonl", questions(1)), "--out", tmp_path, "--models", "a/m", "b/m")


def test_a_server_gets_frames_as_data_urls_and_its_failures_are_asked_again(tmp_path):
    Image.new("RGB", (30, 30), "red").save(tmp_path / "a.png")
    asked = write(tmp_path / "q.jsonl", questions(3, frames=["a.png"]))
    down = {"q1"}

    def choose(request):
        return "no choices" if down and "ball 1?" in json.dumps(request) else None

    with FaultProxy(lambda request: reply([("It is left. \\boxed{A}", [])]), choose) as proxy:
        words = ["--questions", asked, "--out", tmp_path, "--models", f"big={proxy.url}#stub", "--n", 4, "--batch_size", 4]
        with pytest.raises(SystemExit, match="4 calls: 0 choices"):
            run("sample", *words)
        assert len(lines(tmp_path / "responses" / "big.jsonl")) == 8, "what succeeded is kept"
        before = len(proxy.log)
        down.clear()
        run("sample", *words)
        assert len(proxy.log) == before + 4, "only the failed ones are asked again"
    rows, requests = lines(tmp_path / "responses" / "big.jsonl"), [request for request, _ in proxy.log]
    assert sorted(row["id"] for row in rows) == sorted(f"q{i}/big/{k}" for i in range(3) for k in range(4))
    assert all(r["temperature"] == 0.6 and r["model"] == "stub" for r in requests)
    images = [block for block in requests[0]["messages"][-1]["content"] if block["type"] == "image_url"]
    assert len(images) == 1 and images[0]["image_url"]["url"].startswith("data:image/png;base64,")
    good = [r["seed"] for r in requests if "ball 0?" in json.dumps(r)]
    assert len(set(good)) == 4, "the samples of a question differ in their seeds"


def test_each_question_goes_to_one_model(tmp_path):
    """By its id alone, whatever the order of the models, and evenly."""
    asked = write(tmp_path / "q.jsonl", questions(60))
    with FaultProxy(lambda request: reply([("\\boxed{A}", [])])) as proxy:
        for out, names in (("a", "xyz"), ("b", "zxy")):
            models = [f"{name}={proxy.url}#{name}" for name in names]
            run("sample", "--questions", asked, "--out", tmp_path / out, "--models", *models, "--n", 2, "--one_model")
    of = {out: {row["question"]: row["source"] for file in (tmp_path / out / "responses").glob("*.jsonl") for row in lines(file)} for out in "ab"}
    assert of["a"] == of["b"] and set(of["a"]) == {f"q{i}" for i in range(60)}
    assert all(len(lines(tmp_path / "a" / "responses" / f"{name}.jsonl")) == 2 * list(of["a"].values()).count(name) for name in "xyz")
    assert min(Counter(of["a"].values()).values()) >= 12


def command(*words):
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {"args": [sys.executable, "build_pairs.py", *map(str, words)], "cwd": ROOT, "env": env}


def test_all_steps_with_the_tiny_model_and_a_kill_between(tmp_path):
    """The scripts as they are called; a run that was killed ends with the very rows of one that was not."""
    write_split("test", 12, tmp_path)
    asked = tmp_path / "test" / "questions.jsonl"
    sampling = ["sample", "--questions", asked, "--models", "physworld/tiny_vlm", "--n", 6, "--max_new_tokens", 32, "--batch_size", 6]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(**command(*sampling, "--out", whole), check=True, capture_output=True)
    rows = lines(whole / "responses" / "tiny_vlm.jsonl")
    assert len(rows) == 72 and len({row["id"] for row in rows}) == 72
    texts = Counter((row["question"], row["text"]) for row in rows)
    assert len(texts) > 12, "samples, not copies"

    child = subprocess.Popen(**command(*sampling, "--out", killed), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    path, deadline = killed / "responses" / "tiny_vlm.jsonl", time.time() + 120
    while time.time() < deadline and not (path.exists() and path.stat().st_size > 1500):
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert 0 < len(path.read_text().splitlines()) < 72, "killed in the middle"
    with path.open("a") as stream:
        stream.write('{"id": "cut')
    subprocess.run(**command(*sampling, "--out", killed), check=True, capture_output=True)
    assert lines(path) == rows

    subprocess.run(**command("verify", "--questions", asked, "--out", whole), check=True, capture_output=True)
    done = subprocess.run(**command("pair", "--questions", asked, "--out", whole), check=True, capture_output=True, text=True)
    pairs = data.load_records(whole / "pairs.jsonl", pair=True)
    assert pairs and "| length only |" in done.stdout
    refused = subprocess.run(**command(*sampling, "--out", whole, "--seed", "1"), capture_output=True, text=True)
    assert refused.returncode and "seed was 0, is now 1" in refused.stderr
