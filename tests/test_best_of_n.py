"""best_of_n.py, judging/candidates.py, judging/play.py and their analyses: the same picks as a plain tournament, nothing paid twice."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import best_of_n
import data
import ppt
import prompts
from analysis import best_of_n as curves
from analysis.tournaments import read_tables
from judging import candidates, models, play
from judging.calls import Reply, Tokens
from judging.writers import LocalCritic
from tests import tiny_critic
from tests.stub_judge import Fake, by_length

ROOT = Path(__file__).parent.parent
ANSWERS = ["red", "blue", "green", "grey"]


def write_candidates(path, questions=5, n=8, texts=6):
    """Candidates records without frames; `texts` different texts a question, so that some candidates are one text."""
    with path.open("w", encoding="utf-8") as lines:
        for q in range(questions):
            made = []
            for i in range(n):
                k = int(hashlib.sha256(f"{q} {i}".encode()).hexdigest(), 16) % texts if texts else i
                made.append({"text": f"try {k}. \\boxed{{{ANSWERS[k % 4]}}}", "source": "test", "log_likelihood": -k / 7})
            record = {"id": f"q{q}", "suite": "perception", "question": f"Which colour has block {q}?", "options": None}
            lines.write(json.dumps(record | {"frames": [], "answer": ANSWERS[q % 4], "candidates": made}) + "\n")
    return str(path)


def chance(record, a, b):
    """The stub judge: its own opinion of every ordered pair of texts."""
    texts = " ".join((record["id"], *play.texts_of(record, a, b)))
    return int(hashlib.sha256(texts.encode()).hexdigest()[:8], 16) / 2**32


class Stub:
    """A judge that keeps what it was asked and, if told so, is killed at its `last` batch."""

    def __init__(self, last=None, die=None):
        self.asked, self.batches, self.last, self.die = [], 0, last, die

    def __call__(self, items):
        self.batches += 1
        if self.batches == self.last:
            self.die()
        self.asked += [(record["id"], a, b) for record, a, b in items]
        tokens = {"prompt_tokens": 100, "computed_prompt_tokens": 40, "completion_tokens": 10}
        return [{"p": chance(*item), "missing": None, **tokens} for item in items]


@pytest.fixture
def judge(monkeypatch):
    stub = Stub()
    monkeypatch.setattr(best_of_n, "load_judge", lambda config, known: stub)
    return stub


def config(tmp_path, **changes):
    values = {"candidates": str(tmp_path / "c.jsonl"), "out": str(tmp_path / "picks.jsonl"), "critic": "stub", "batch_size": 4}
    return play.JudgeConfig(**(values | changes))


def rows_of(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


# --- Lockstep -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("same_text", ["tie", "ask"])
def test_picks_and_costs_are_those_of_a_plain_tournament(tmp_path, judge, same_text):
    write_candidates(tmp_path / "c.jsonl")
    choice = best_of_n.PickConfig(tournament=list(play.TOURNAMENTS), sizes=[1, 2, 5, 8])
    best_of_n.pick(config(tmp_path, same_text=same_text), choice)
    assert len(judge.asked) == len(set(judge.asked)), "a pair was asked twice"
    rows = {(row["id"], row["n"], row["method"]): row for row in rows_of(tmp_path / "picks.jsonl")}
    for record in candidates.load_candidates(tmp_path / "c.jsonl", 8):
        texts = [candidate["text"] for candidate in record["candidates"]]
        for method, tournament in play.TOURNAMENTS.items():
            for n in choice.sizes:
                asked = []

                def compare(a, b):
                    if texts[a] == texts[b] and same_text == "tie":
                        return 0.5
                    asked.append((a, b) if same_text == "ask" else (texts[a], texts[b]))
                    return chance(record, a, b)

                ranking, row = tournament(n, compare, seed=f"0 {record['id']}"), rows[record["id"], n, method]
                assert (row["pick"], row["comparisons"]) == (ranking.best, len(ranking.comparisons))
                assert row["judge_calls"] == len(set(asked)) and row["same_text"] == len(ranking.comparisons) - len(asked)
                assert row["completion_tokens"] == 10 * len(set(asked)) and row["prompt_tokens"] == 100 * len(set(asked))


def test_batches_mix_questions_and_sizes(tmp_path, judge):
    write_candidates(tmp_path / "c.jsonl", questions=16, texts=None)
    best_of_n.pick(config(tmp_path, batch_size=16), best_of_n.PickConfig(sizes=[8]))
    assert len(judge.asked) == 16 * 7 and judge.batches == 7  # a knockout has 7 rounds, each one batch for all questions


@pytest.mark.parametrize("last", [1, 2, 5])
def test_kill_9_loses_no_judgement_and_changes_no_pick(tmp_path, monkeypatch, last):
    (tmp_path / "whole").mkdir()
    for folder in (tmp_path, tmp_path / "whole"):
        write_candidates(folder / "c.jsonl")
    choice = best_of_n.PickConfig(tournament=["knockout", "pivot"], sizes=[2, 8])
    child = os.fork()
    if child == 0:
        stub = Stub(last, lambda: os.kill(os.getpid(), signal.SIGKILL))
        best_of_n.load_judge = lambda config, known: stub
        best_of_n.pick(config(tmp_path), choice)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    calls = tmp_path / "picks.calls.jsonl"
    paid = len(rows_of(calls))
    assert paid <= 4 * (last - 1) and not (tmp_path / "picks.jsonl").exists()
    with calls.open("a") as lines:
        lines.write('{"id": "q1", "order": "0 ')  # the line that the kill cut
    stubs = []
    for folder in (tmp_path, tmp_path / "whole"):
        stubs.append(Stub())
        monkeypatch.setattr(best_of_n, "load_judge", lambda config, known: stubs[-1])
        best_of_n.pick(config(folder), choice)
    found = [[{k: v for k, v in row.items() if k != "seconds"} for row in rows_of(c.with_name("picks.jsonl"))] for c in
             (calls, tmp_path / "whole" / "x")]  # fmt: skip
    assert found[0] == found[1] and len(stubs[0].asked) + paid == len(stubs[1].asked)


def test_another_judge_may_not_use_the_calls(tmp_path, judge):
    write_candidates(tmp_path / "c.jsonl")
    best_of_n.pick(config(tmp_path), best_of_n.PickConfig(sizes=[4]))
    with pytest.raises(SystemExit, match="solve was 'each', is now 'first'"):
        best_of_n.pick(config(tmp_path, solve="first"), best_of_n.PickConfig(sizes=[4]))


def test_missing_calls_abstain_and_are_asked_again(tmp_path, monkeypatch):
    write_candidates(tmp_path / "c.jsonl", questions=1, texts=None)
    failed = {"p": None, "missing": "HTTP 500", **dict.fromkeys(play.COSTS[:3], 0)}
    monkeypatch.setattr(best_of_n, "load_judge", lambda config, known: lambda items: [failed] * len(items))
    result = best_of_n.pick(config(tmp_path), best_of_n.PickConfig(sizes=[4]))
    [row] = [row for row in rows_of(tmp_path / "picks.jsonl") if row["method"] == "knockout"]
    assert row["abstained"] == 3 and result["missing"] == {"HTTP 500": 3}
    stub = Stub()
    monkeypatch.setattr(best_of_n, "load_judge", lambda config, known: stub)
    best_of_n.pick(config(tmp_path), best_of_n.PickConfig(sizes=[4]))
    assert len(stub.asked) == 3


def test_table_is_what_tournaments_reads_and_shares_its_calls(tmp_path, judge):
    write_candidates(tmp_path / "c.jsonl", questions=3)
    best_of_n.table(config(tmp_path, out=str(tmp_path / "t.jsonl")), best_of_n.TableConfig(n=6))
    tables = read_tables(tmp_path / "t.jsonl")
    for record, table, row in zip(candidates.load_candidates(tmp_path / "c.jsonl", 6), tables, rows_of(tmp_path / "t.jsonl")):
        assert table["task"] == record["id"] and table["correct"] == [c["correct"] for c in record["candidates"]]
        for a in range(6):
            for b in range(6):
                same = row["same"][a] == row["same"][b]
                assert table["p"][a][b] == (None if a == b else 0.5 if same else chance(record, a, b))
    asked = len(judge.asked)
    best_of_n.pick(config(tmp_path, calls=str(tmp_path / "t.calls.jsonl")), best_of_n.PickConfig(sizes=[6]))
    assert len(judge.asked) == asked, "picks within the table need no judgement"


# --- Judges -------------------------------------------------------------------------------------------------------


class Writer:
    """critic.py's writer, stubbed: solves "red", prefers the response that says so, counts how often it solved."""

    def __init__(self):
        self.solved, self.calls = 0, 0

    def run(self, calls):
        for i, call in enumerate(calls):
            self.calls += 1
            text = call.messages[-1]["content"][-1]["text"]
            self.solved += call.analysis is None
            if "<response_1>" not in text:
                yield i, Reply("seen. \\boxed{red}", [None], Tokens(50, 0, 12))
                continue
            side = 1 if "boxed{red}" in text.partition("<response_2>")[0] else 2
            own = "" if call.analysis else "<pred_think> seen </pred_think> <pred> red </pred> "
            cost = Tokens(120, 60, 15) if call.analysis else Tokens(100, 60, 30)
            yield i, Reply(f"{own}<think> compare </think> \\boxed{{Response {side}}}", [0.9 if side == 1 else 0.1], cost)


@pytest.mark.parametrize("solve, generated, prompt", [("each", 7 * 30, 7 * 100), ("first", 30 + 6 * 15, 100 + 6 * 120),
                                                      ("alone", 12 + 7 * 15, 50 + 7 * 120)])  # fmt: skip
def test_a_critic_solves_each_question_as_told_and_is_charged_so(tmp_path, monkeypatch, solve, generated, prompt):
    write_candidates(tmp_path / "c.jsonl", texts=None)
    writer = Writer()
    monkeypatch.setattr(LocalCritic, "load", classmethod(lambda cls, path, **settings: writer))
    best_of_n.pick(config(tmp_path, solve=solve), best_of_n.PickConfig(sizes=[8]))
    rows = [row for row in rows_of(tmp_path / "picks.jsonl") if row["method"] == "knockout"]
    assert {(row["completion_tokens"], row["prompt_tokens"], row["judge_calls"]) for row in rows} == {(generated, prompt, 7)}
    assert writer.solved == (5 * 7 if solve == "each" else 5)
    records = candidates.load_candidates(tmp_path / "c.jsonl", 8)
    for row, record in zip(rows, records):
        said = [candidate["prediction"] for candidate in record["candidates"]]
        assert said[row["pick"]] == "red" or "red" not in said


@pytest.mark.parametrize("solve", ["first", "alone"])
def test_a_solution_is_used_again_after_a_kill(tmp_path, monkeypatch, solve):
    write_candidates(tmp_path / "c.jsonl", questions=3, texts=None)
    writers = [Writer(), Writer()]
    for writer, sizes in zip(writers, ([4], [4, 8])):
        monkeypatch.setattr(LocalCritic, "load", classmethod(lambda cls, path, **settings: writer))
        best_of_n.pick(config(tmp_path, solve=solve), best_of_n.PickConfig(sizes=sizes))
    assert writers[0].solved == 3 and writers[1].solved == 0 < writers[1].calls
    rows = [row for row in rows_of(tmp_path / "picks.jsonl") if row["method"] == "knockout" and row["n"] == 8]
    extra = {"first": 30, "alone": 12}[solve]  # the solution of the smaller tournament is charged to the larger one as well
    assert all(row["completion_tokens"] >= extra + 15 * (row["judge_calls"] - 1) for row in rows)


def test_the_verifier_judges(tmp_path, monkeypatch):
    write_candidates(tmp_path / "c.jsonl", questions=2)
    fake = Fake(by_length)
    monkeypatch.setattr("judging.local.LocalBackend.load", classmethod(lambda cls, path, **settings: fake))
    best_of_n.pick(config(tmp_path, critic=None, verifier="stub", repeats=1), best_of_n.PickConfig(sizes=[4]))
    for row in rows_of(tmp_path / "picks.calls.jsonl"):
        assert row["p"] == pytest.approx(ppt.preference(row["reward_a"], row["reward_b"]))
        assert (row["prompt_tokens"], row["computed_prompt_tokens"], row["completion_tokens"]) == (400, 160, 8)  # four criteria


def test_the_verifier_is_not_asked_about_an_empty_candidate(tmp_path, monkeypatch):
    write_candidates(tmp_path / "c.jsonl", questions=1, texts=None)
    row = json.loads((tmp_path / "c.jsonl").read_text())
    row["candidates"][0]["text"], row["candidates"][2]["text"] = "", " \n"
    (tmp_path / "c.jsonl").write_text(json.dumps(row) + "\n")
    fake = Fake(by_length)
    monkeypatch.setattr("judging.local.LocalBackend.load", classmethod(lambda cls, path, **settings: fake))
    best_of_n.table(config(tmp_path, critic=None, verifier="stub", repeats=1), best_of_n.TableConfig(n=4))
    found = {row["order"]: row for row in rows_of(tmp_path / "picks.calls.jsonl")}
    assert {order: found[order]["p"] for order in ("0 1", "1 0", "0 2", "2 3")} == {"0 1": 0, "1 0": 1, "0 2": 0.5, "2 3": 0}
    assert found["0 1"]["completion_tokens"] == 0 and found["0 1"]["missing"] is None
    assert len(found) == 12 and len(fake.calls) == 2 * 4, "the two texts that can be shown, in both orders, four criteria"


# --- Candidates and baselines -------------------------------------------------------------------------------------


@pytest.mark.parametrize("said, options, chosen, reason", [
    (["red", "blue", "The Blue"], None, 1, "one answer in two spellings outvotes another"),
    (["red", "blue"], None, 0, "a tie goes to the earlier"),
    ([None, None, "red"], None, 2, "unreadable ones have no vote"),
    ([None, None], None, 0, "nothing to vote on"),
    (["A", "left", "right"], {"A": "left", "B": "right"}, 0, "a letter and its text are one answer"),
])  # fmt: skip
def test_majority(said, options, chosen, reason):
    assert candidates.majority([{"prediction": one} for one in said], options) == chosen, reason


@given(st.lists(st.sampled_from(["red", "blue", None]), min_size=1, max_size=9))
def test_majority_is_a_most_frequent_answer(said):
    pick = candidates.majority([{"prediction": one} for one in said], None)
    counts = {one: said.count(one) for one in said if one is not None}
    assert not counts or counts[said[pick]] == max(counts.values())


def test_baselines(tmp_path):
    write_candidates(tmp_path / "c.jsonl")
    for record in candidates.load_candidates(tmp_path / "c.jsonl", 8):
        for n in (1, 3, 8):
            shown, picks = record["candidates"][:n], candidates.baselines(record, n, 0)
            assert set(picks) == {"random", "majority", "longest", "oracle", "likelihood"} and max(picks.values()) < n
            assert shown[picks["oracle"]]["correct"] == any(c["correct"] for c in shown)
            assert shown[picks["likelihood"]]["log_likelihood"] == max(c["log_likelihood"] for c in shown)
        record["candidates"][7]["log_likelihood"] = None
        assert "likelihood" not in candidates.baselines(record, 3, 0), "not for some sizes only"


def test_the_judges_own_answer_competes(tmp_path, judge):
    write_candidates(tmp_path / "c.jsonl", questions=4)
    own = [{"id": f"q{q}", "prediction": said, "correct": said == ANSWERS[q], "prompt_tokens": 50, "completion_tokens": 9}
           for q, said in enumerate(["red", "nothing like it", "green", None])]  # fmt: skip
    data.write_lines(tmp_path / "own.jsonl", own)
    best_of_n.pick(config(tmp_path), best_of_n.PickConfig(sizes=[8], own=str(tmp_path / "own.jsonl")))
    rows = {(row["id"], row["method"]): row for row in rows_of(tmp_path / "picks.jsonl")}
    for record, said in zip(candidates.load_candidates(tmp_path / "c.jsonl", 8), own):
        alone, agrees = rows[record["id"], "own answer"], rows[record["id"], "agrees"]
        predictions = [candidate["prediction"] for candidate in record["candidates"]]
        first = predictions.index(said["prediction"]) if said["prediction"] in predictions else None
        assert (alone["correct"], alone["pick"], agrees["pick"]) == (said["correct"], first, first or 0)
    data.write_lines(tmp_path / "own.jsonl", own[:2])
    with pytest.raises(ValueError, match="no row of 2 questions"):
        best_of_n.pick(config(tmp_path), best_of_n.PickConfig(sizes=[8], own=str(tmp_path / "own.jsonl")))


@pytest.mark.parametrize("field, n, said", [
    ({"candidates": None}, 1, "c.jsonl:2: field 'candidates' must be a list"),
    ({"candidates": [{"text": 3}]}, 1, "c.jsonl:2: field 'candidates' must be a list"),
    ({"candidates": [{"text": "red"}, {"text": "red", "correct": None}]}, 1, "c.jsonl:2: .*'correct' of candidate 1 must be"),
    ({"candidates": [{"text": "red", "source": "x"}]}, 4, "c.jsonl:2: field 'candidates' has 1 where N = 4"),
    ({"answer": ""}, 1, "c.jsonl:2: field 'answer'"),
])  # fmt: skip
def test_bad_candidates_are_named(tmp_path, field, n, said):
    write_candidates(tmp_path / "c.jsonl")
    rows = rows_of(tmp_path / "c.jsonl")
    rows[1] |= field
    data.write_lines(tmp_path / "c.jsonl", rows)
    with pytest.raises(data.RecordError, match=said):
        candidates.load_candidates(tmp_path / "c.jsonl", n)


@pytest.mark.parametrize("command, settings, choice, said", [
    (best_of_n.pick, {"verifier": "x"}, best_of_n.PickConfig(), "one judge"),
    (best_of_n.pick, {"critic": None}, best_of_n.PickConfig(), "one judge"),
    (best_of_n.pick, {"batch_size": 0}, best_of_n.PickConfig(), "batch_size"),
    (best_of_n.pick, {}, best_of_n.PickConfig(tournament=["olympic"]), "olympic"),
    (best_of_n.pick, {}, best_of_n.PickConfig(sizes=[0, 2]), "--sizes"),
    (best_of_n.pick, {"out": "picks.json"}, best_of_n.PickConfig(), r"\.jsonl"),
    (best_of_n.table, {}, best_of_n.TableConfig(n=1), "--n"),
])  # fmt: skip
def test_settings_that_make_no_sense(tmp_path, judge, command, settings, choice, said):
    write_candidates(tmp_path / "c.jsonl", n=32)
    with pytest.raises(SystemExit, match=said):
        command(config(tmp_path, **settings), choice)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_critic.make_model(tmp_path_factory.mktemp("tiny"))


def test_likelihood_is_that_of_a_plain_forward_pass(tmp_path, tiny):
    tiny_critic.make_records(tmp_path / "q.jsonl", 1)
    [record] = data.load_records(tmp_path / "q.jsonl")
    model, processor = models.load_model(tiny)
    images, prompt = data.open_frames(record), prompts.question_prompt(record["question"], None, 1)
    settings = candidates.SampleConfig(tiny, "x.jsonl", n=6, max_new_tokens=5)
    before = torch.random.get_rng_state()
    made, prompt_tokens = candidates.sample_candidates(model, processor, prompt, images, settings, 3)
    again, _ = candidates.sample_candidates(model, processor, prompt, images, settings, 3)
    other, _ = candidates.sample_candidates(model, processor, prompt, images, settings, 4)
    assert made == again != other and torch.equal(before, torch.random.get_rng_state())
    recorded = []
    own = model.generate
    model.generate = lambda **inputs: recorded.append((inputs, own(**inputs))) or recorded[-1][1]
    candidates.sample_candidates(model, processor, prompt, images, settings, 3)
    [(inputs, output)] = recorded
    for candidate, row in zip(made, output):
        ids = row[None, : prompt_tokens + candidate["tokens"]]
        shown = {name: inputs[name] for name in ("pixel_values", "image_grid_thw")}
        types = torch.zeros_like(ids)
        types[:, :prompt_tokens] = inputs["mm_token_type_ids"]
        with torch.no_grad():
            logits = model(input_ids=ids, mm_token_type_ids=types, **shown).logits[0, prompt_tokens - 1 : -1]
        mean = logits.log_softmax(-1).gather(1, ids[0, prompt_tokens:, None]).mean()
        assert candidate["log_likelihood"] == pytest.approx(float(mean), abs=1e-4)


def test_the_commands(tmp_path, tiny):
    tiny_critic.make_records(tmp_path / "q.jsonl", 2)
    common = {"cwd": ROOT, "text": True, "capture_output": True, "env": os.environ | {"OMP_NUM_THREADS": "1"}}
    start, out = [sys.executable, "best_of_n.py"], str(tmp_path / "made" / "c.jsonl")
    told = [*start, "sample", "--model", tiny, "--dataset", str(tmp_path / "q.jsonl"), "--n", "2", "--max_new_tokens", "4"]
    done = subprocess.run([*told, "--out", out], check=False, **common)
    assert done.returncode == 0, done.stderr
    assert [len(row["candidates"]) for row in rows_of(out)] == [2, 2]
    picked = [*start, "pick", "--candidates", out, "--critic", tiny, "--sizes", "1", "2", "--max_new_tokens", "4"]
    done = subprocess.run([*picked, "--out", str(tmp_path / "p.jsonl")], check=False, **common)
    assert done.returncode == 0 and "knockout" in done.stdout, done.stderr
    assert len(rows_of(tmp_path / "p.jsonl")) == 2 * 2 * 6  # questions, sizes, five baselines and one tournament


def test_sampling_goes_on_where_it_was_killed(tmp_path, tiny):
    tiny_critic.make_records(tmp_path / "q.jsonl", 3)
    whole = candidates.SampleConfig(tiny, str(tmp_path / "whole.jsonl"), dataset=str(tmp_path / "q.jsonl"), n=2, max_new_tokens=4)
    part = candidates.SampleConfig(tiny, str(tmp_path / "part.jsonl"), dataset=str(tmp_path / "q.jsonl"), n=2, max_new_tokens=4)
    candidates.sample(whole)
    part.limit = 2
    candidates.sample(part)
    with Path(part.out).open("a") as lines:
        lines.write('{"id": "q')
    part.limit = None
    candidates.sample(part)
    first, second = ([{**row, "seconds": 0} for row in rows_of(made.out)] for made in (whole, part))
    assert first == second


# --- Analyses -----------------------------------------------------------------------------------------------------


def write_picks(path, right, tokens=100, suffix=""):
    """Picks at N = 1 and 16: `right` are two strings of 0 and 1, a question each; 10 calls at N = 16."""
    rows = []
    for n, bits in zip((1, 16), right):
        for q, bit in enumerate(bits):
            about = {"id": f"q{q}", "suite": "perception", "cluster": f"c{q}", "n": n, "pick": 0, "correct": bit == "1"}
            calls = 10 * (n > 1)
            spent = {"judge_calls": calls, "prompt_tokens": 10 * calls, "computed_prompt_tokens": 2 * calls}
            spent |= {"completion_tokens": tokens * (n > 1) * (1 + q % 3), "seconds": 0.1 * calls}
            rows.append({**about, "method": "knockout", **spent})
            rows.append({**about, "method": "random", **dict.fromkeys(spent, 0), "correct": right[0][q] == "1"})
    data.write_lines(path, rows)
    said = {"command": f"python best_of_n.py pick{suffix}", "commit": "c", "machine": "m", "versions": {}, "missing": {}}
    path.with_suffix(".json").write_text(json.dumps(said))
    return str(path)


def test_the_curves_and_the_gain(tmp_path, capsys):
    a = write_picks(tmp_path / "a.jsonl", ["1010010010", "1111110110"])
    b = write_picks(tmp_path / "b.jsonl", ["1010010010", "1010010011"])
    curves.main([str(tmp_path / "record"), f"stage 2={a}", f"base={b}"])
    entry = json.loads((tmp_path / "record" / "summary.json").read_text())["headline"]["best_of_16_gain"]
    assert entry["value"] == pytest.approx(40) and entry["low"] < 40 < entry["high"] and entry["n"] == 10  # 4 right of 10, then 8
    results = json.loads((tmp_path / "record" / "results.json").read_text())
    duels = {duel["against"]: duel["points"] for duel in results["duels"]}
    assert duels == pytest.approx({"base as judge": 30, "random": 40, "N = 1": 40})
    assert {(p["judge"], p["method"], p["n"]) for p in results["points"]} == {
        (judge, method, n) for judge, method in [("stage 2", "knockout"), ("base", "knockout"), (None, "random")] for n in (1, 16)
    }
    assert (tmp_path / "record" / "best_of_n.png").stat().st_size > 10_000 and "| base as judge | 16 |" in capsys.readouterr().out
    assert curves.read_picks(tmp_path / "record" / "a.jsonl.gz") == curves.read_picks(a)


@pytest.mark.parametrize("change, said", [
    (lambda rows: rows[1:], "1 questions have picks in one of two files only"),
    (lambda rows: [row for row in rows if row["n"] == 1], "no picks of 'knockout' at N = 16"),
    (lambda rows: rows + rows[:1], "stands twice"),
    (lambda rows: [{}, *rows], ":1: no row of best_of_n.py pick"),
])  # fmt: skip
def test_picks_that_do_not_do(tmp_path, change, said):
    path = write_picks(tmp_path / "a.jsonl", ["10", "11"])
    data.write_lines(Path(path), change(rows_of(path)))
    with pytest.raises(ValueError, match=said):
        curves.main([str(tmp_path / "record"), f"stage 2={path}"])


def test_solving_once_is_compared(tmp_path, capsys, monkeypatch):
    right = ["0000", "1101"]
    each = write_picks(tmp_path / "each.jsonl", right, tokens=100)
    once = write_picks(tmp_path / "first.jsonl", ["0000", "1100"], tokens=40)
    words = [str(tmp_path / "record"), f"each={each}", f"first={once}", "--solved_once"]
    monkeypatch.setattr(curves, "SIZE", 16)
    curves.main([*words, "first"])
    entries = json.loads((tmp_path / "record" / "summary.json").read_text())["headline"]
    values = {name: entry["value"] for name, entry in entries.items()}
    assert values == pytest.approx(
        {"solve_once_generated_ratio": 0.4, "solve_once_computed_ratio": 0.2, "solve_once_accuracy_change": -25}
    )
    assert "NOT shown non-inferior" in capsys.readouterr().out
    with pytest.raises(ValueError, match="no judgement was asked"):
        monkeypatch.setattr(curves, "SIZE", 1)
        curves.main([*words, "first"])
    with pytest.raises(SystemExit):
        curves.main([*words, "each"])
    assert "--solved_once must be one of ['first']" in capsys.readouterr().err


def test_ratio_is_of_sums_not_of_ratios():
    each = {q: {"cluster": q, "completion_tokens": spent} for q, spent in enumerate([100, 300, 0])}
    once = {q: {"cluster": q, "completion_tokens": spent} for q, spent in enumerate([100, 100, 0])}
    found = curves.ratio(once, each, curves.GENERATED)
    assert found["value"] == 0.5 and found["n"] == 2 and found["low"] <= 0.5 <= found["high"]
