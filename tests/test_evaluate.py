"""evaluate.py and stats.py: reading completions, statistics, resuming. All on the CPU, no network."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import data
import evaluate
import stats
from data import files
from evaluate import EvaluateConfig
from judging import judges, models, tasks
from judging.models import Completion

ROOT = Path(__file__).parent.parent
PAIR = {
    "id": "p0", "suite": "causal", "question": "Which block falls?", "options": {"A": "red", "B": "blue"}, "answer": "A",
    "frames": [], "response_1": "It is red, so \\boxed{A}", "response_2": "\\boxed{B}", "preference": 1,
    "source_1": "s", "source_2": "t", "cluster": "c0",
}  # fmt: skip
CRITIQUE = "<pred_think> r </pred_think> <pred> {} </pred> <think> so </think> \\boxed{{Response {}}}"


# --- what a completion says ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "order, boxed, verdict, right, reason",
    [
        ("12", 1, 1, True, "shown as recorded: Response 1 is response_1"),
        ("12", 2, 2, False, "shown as recorded: Response 2 is response_2"),
        ("21", 1, 2, False, "swapped: what is shown first is the record's response_2"),
        ("21", 2, 1, True, "swapped: what is shown second is the record's response_1"),
        ("12", 3, None, False, "no such response: unreadable, which is wrong"),
        ("21", 3, None, False, "the same, swapped"),
    ],
)
def test_verdict_speaks_of_the_records_responses(order, boxed, verdict, right, reason):
    row = tasks.read_judgement(PAIR, order, CRITIQUE.format("A", boxed), "self_ref")
    assert (row["verdict"], row["verdict_correct"]) == (verdict, right), reason


def test_swapping_the_record_changes_no_correctness():
    swapped = PAIR | {"response_1": PAIR["response_2"], "response_2": PAIR["response_1"], "preference": 2}
    for boxed in (1, 2):
        text = CRITIQUE.format("B", boxed)
        here = tasks.read_judgement(PAIR, "12", text, "self_ref")
        there = tasks.read_judgement(swapped, "21", text, "self_ref")
        assert here["verdict_correct"] == there["verdict_correct"] and here["verdict"] == 3 - there["verdict"]
        assert {here["longer"], there["longer"]} == {1, 2}
    assert tasks.task_prompt(PAIR, "12", 0, "self_ref") == tasks.task_prompt(swapped, "21", 0, "self_ref")
    assert tasks.task_prompt(PAIR, "12", 0, "self_ref") != tasks.task_prompt(PAIR, "21", 0, "self_ref")


@pytest.mark.parametrize(
    "text, variant, prediction_correct, reason",
    [
        (CRITIQUE.format("A", 1), "self_ref", True, "its own answer is right"),
        (CRITIQUE.format("B", 1), "self_ref", False, "its own answer is wrong, its verdict right"),
        ("\\boxed{Response 1}", "self_ref", False, "asked for an answer and gave none"),
        ("<think> x </think> \\boxed{Response 1}", "no_self_ref", None, "was not asked"),
    ],
)
def test_self_prediction(text, variant, prediction_correct, reason):
    row = tasks.read_judgement(PAIR, "12", text, variant)
    assert row["prediction_correct"] is prediction_correct, reason
    assert row["verdict_correct"]


UNIFIED = [  # (text, order, verdict, why)
    ("<think>1. Clarity: Answer 1 (9/10), Answer 2 (7/10)</think>\n<answer>Answer 1 is better</answer>", "12", 1, "its own form"),
    ("<think>so Answer 1 is better</think><answer> Answer 2 is better. </answer>", "12", 2, "the answer, not the reasoning"),
    ("<answer>Answer 1 is better</answer>", "21", 2, "turned back to the record's order"),
    ("<answer>Answer 1 is better</answer> no, <answer>Answer 2 is better</answer>", "12", 2, "the last one"),
    ("<think>Answer 1 is better</think>", "12", None, "cut off before its answer"),
    ("<answer>Answer 1 or Answer 2 is better</answer>", "12", None, "both"),
    ("\\boxed{Response 1}", "12", None, "our own form is not its"),
]


@pytest.mark.parametrize("text, order, verdict, why", UNIFIED, ids=[case[-1] for case in UNIFIED])
def test_unified_reward_think_is_read_as_it_answers(text, order, verdict, why):
    row = tasks.read_judgement(PAIR, order, text, "unified_think")
    assert (row["verdict"], row["prediction_correct"]) == (verdict, None), why


def test_unified_reward_think_is_asked_in_its_form():
    asked = tasks.task_prompt(PAIR, "21", 2, "unified_think")[0]["content"]
    assert [block["type"] for block in asked] == ["image", "image", "text"]
    first, second = (asked[-1]["text"].index(f"Answer {n}: {PAIR['response_' + own]}") for n, own in ((1, "2"), (2, "1")))
    assert first < second and "<answer> </answer>" in asked[-1]["text"]


@pytest.mark.parametrize(
    "text, correct, reason",
    [("so \\boxed{A}", True, "right"), ("so \\boxed{B}", False, "wrong"), ("", False, "unreadable is wrong")],
)
def test_answers(text, correct, reason):
    row = tasks.read_answer(PAIR, text)
    assert row["correct"] is correct, reason
    assert (row["prediction"] is None) == (text == "")


# --- statistics ---------------------------------------------------------------------------------------------------


def answers(rights, clusters=None, suites=None):
    clusters, suites = clusters or range(len(rights)), suites or ["s"] * len(rights)
    return [{"id": i, "suite": s, "cluster": c, "correct": r} for i, (r, c, s) in enumerate(zip(rights, clusters, suites))]


def slow_interval(sums, counts, suites):
    """The same bootstrap as a plain loop."""
    rng, values = random.Random(1), []
    for _ in range(4000):
        drawn = [rng.randrange(len(sums)) for _ in sums]
        rates = []
        for suite in sorted(set(suites)):
            chosen = [i for i in drawn if suites[i] == suite]
            if chosen:
                rates.append(sum(sums[i] for i in chosen) / sum(counts[i] for i in chosen))
        values.append(sum(rates) / len(rates))
    return np.quantile(values, [0.025, 0.975])


@pytest.mark.parametrize("kinds", [["s"], ["s", "t"], ["s", "t", "u"]])
def test_intervals_agree_with_a_plain_loop(kinds):
    rng = random.Random(len(kinds))
    counts = [rng.choice([1, 2, 4]) for _ in range(60)]
    sums = [sum(rng.random() < 0.7 for _ in range(n)) for n in counts]
    suites = [rng.choice(kinds) for _ in counts]
    assert stats.clustered_interval(sums, counts, suites) == pytest.approx(slow_interval(sums, counts, suites), abs=0.02)


def test_doubled_rows_of_a_question_do_not_narrow_the_interval():
    rights = [i % 3 > 0 for i in range(90)]
    once = stats.estimate(answers(rights), stats.is_right)
    twice = stats.estimate(answers(rights * 2, [*range(90)] * 2), stats.is_right)
    naive = stats.estimate(answers(rights * 2), stats.is_right)
    assert (once["low"], once["high"]) == (twice["low"], twice["high"]) and (once["n"], twice["n"]) == (90, 180)
    assert naive["high"] - naive["low"] < once["high"] - once["low"]


@pytest.mark.parametrize(
    "rights, low, high, reason",
    [
        ([True] * 20, 0.8316, 1.0, "all right is not certainty: exact binomial of 20"),
        ([False] * 20, 0.0, 0.1684, "all wrong"),
        ([True], 0.025, 1.0, "one question says next to nothing"),
    ],
)
def test_intervals_without_spread(rights, low, high, reason):
    entry = stats.estimate(answers(rights), stats.is_right)
    assert (entry["low"], entry["high"]) == pytest.approx((low, high), abs=1e-4), reason


def test_rows_outside_a_rate_and_empty_rates():
    entry = stats.estimate(answers([True, None, False, True]), lambda row: row["correct"])
    assert (entry["value"], entry["n"]) == (pytest.approx(2 / 3), 3)
    assert stats.estimate([], stats.is_right) == {"value": None, "low": None, "high": None, "n": 0, "clusters": 0}


def test_macro_weighs_suites_alike():
    rows = answers([True] * 9 + [False], suites=["big"] * 9 + ["small"])
    assert stats.estimate(rows, stats.is_right)["value"] == 0.9
    macro = stats.estimate(rows, stats.is_right, macro=True)
    assert macro["value"] == 0.5 and macro["low"] <= 0.5 <= macro["high"]


def test_coverage_of_the_interval():
    """95% intervals hold the truth about 95 times in 100."""
    rng, hits = np.random.default_rng(0), 0
    for _ in range(100):
        p = rng.beta(6, 4, 80)  # questions differ in difficulty; both orders of each share it
        sums = rng.binomial(2, p)
        low, high = stats.clustered_interval(sums, [2] * 80, [""] * 80)
        hits += low <= 0.6 <= high
    assert hits >= 88


@pytest.mark.parametrize("chi2, p", [(51.07, 8.93e-13), (161.76, 4.66e-37)])
def test_chi2_gives_the_papers_p_values(chi2, p):
    """The paper printed p of the statistic before rounding it: p of 51.07 itself is 8.91e-13, of 51.066 8.93e-13."""
    assert stats.chi2_p(chi2 + 0.005) <= p <= stats.chi2_p(chi2 - 0.005)
    assert stats.chi2_p(chi2) == pytest.approx(math.erfc(math.sqrt(chi2 / 2)), rel=1e-9)  # one degree of freedom


def judgements(cells):
    """Rows of a 2x2 table [[a, b], [c, d]]: prediction right or wrong x verdict right or wrong."""
    kinds = [(p, v) for p in (True, False) for v in (True, False)]
    counts = [n for line in cells for n in line]
    return [{"prediction_correct": p, "verdict_correct": v} for (p, v), n in zip(kinds, counts) for _ in range(n)]


@pytest.mark.parametrize(
    "cells, chi2, sign, reason",
    [
        ([[40, 10], [10, 40]], 36.0, 1, "by hand: n(ad-bc)^2 / product of margins = 100*1500^2/50^4"),
        ([[10, 40], [40, 10]], 36.0, -1, "judges against its own answer"),
        ([[20, 20], [20, 20]], 0.0, 1, "independent"),
        ([[20, 20], [0, 0]], None, 0, "own answer always right"),
        ([[20, 0], [20, 0]], None, 0, "judgement always right"),
        ([[0, 0], [0, 0]], None, 0, "no row"),
    ],
)
def test_coupling(cells, chi2, sign, reason):
    result = stats.coupling(judgements(cells))
    assert result["table"] == cells and result["n"] == sum(map(sum, cells)), reason
    if chi2 is None:
        assert (result["chi2"], result["p"], result["phi"]) == (None, None, None) and result["reason"]
    else:
        assert result["chi2"] == pytest.approx(chi2) and result["p"] == stats.chi2_p(result["chi2"])
        assert result["phi"] == pytest.approx(sign * (chi2 / result["n"]) ** 0.5), reason


def judged(verdicts, longer=1):
    """Rows of pairs from (verdict in order 12, verdict in order 21); response 1 is the better one."""
    return [
        {
            "id": i, "cluster": i, "suite": "s", "order": order, "verdict": v, "verdict_correct": v == 1,
            "prediction_correct": True, "longer": longer, "cut_off": False,
        }
        for i, pair in enumerate(verdicts) for order, v in zip(("12", "21"), pair)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "verdicts, accuracy, consistency, first, longer, unreadable, reason",
    [
        ([(1, 1)] * 4, 1.0, 1.0, 0.5, 1.0, 0.0, "a perfect judge"),
        ([(1, 2)] * 4, 0.5, 0.0, 1.0, 0.5, 0.0, "always the one shown first"),
        ([(2, 1)] * 4, 0.5, 0.0, 0.0, 0.5, 0.0, "always the one shown second"),
        ([(2, 2)] * 4, 0.0, 1.0, 0.5, 0.0, 0.0, "consistent and wrong"),
        ([(None, None)] * 4, 0.0, 0.0, None, None, 1.0, "two silences are no agreement"),
        ([(1, None), (1, 1)], 0.75, 0.5, 2 / 3, 1.0, 0.25, "shares are of readable verdicts, accuracy of all"),
    ],
)
def test_judge_rates(verdicts, accuracy, consistency, first, longer, unreadable, reason):
    result = stats.summarise(judged(verdicts), "judge")
    names = ("accuracy", "consistency", "first_share", "longer_share", "unreadable")
    assert [result[name]["value"] for name in names] == [accuracy, consistency, first, longer, unreadable], reason


def test_responses_of_equal_length_have_no_longer_one():
    assert stats.summarise(judged([(1, 1)], longer=None), "judge")["longer_share"]["n"] == 0


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_paired_difference():
    a = answers([True] * 60 + [False] * 20)
    b = answers([True] * 40 + [False] * 30 + [True] * 10)[::-1]  # rows in another order
    result = stats.paired_difference(a, b)
    assert result["points"] == pytest.approx(100 * (20 - 10) / 80) and result["n"] == 80
    assert result["low"] < result["points"] < result["high"]
    assert result["p"] == pytest.approx(0.0987, abs=1e-3)  # exact two-sided binomial of 10 in 30
    back = stats.paired_difference(b, a)
    assert (back["points"], back["low"], back["high"]) == pytest.approx((-result["points"], -result["high"], -result["low"]), abs=2.5)


def test_paired_difference_of_a_result_with_itself():
    rows = judged([(1, 1), (1, 2), (2, 2)])
    assert stats.paired_difference(rows, rows) == {"points": 0, "low": 0, "high": 0, "p": 1, "n": 6}


@pytest.mark.parametrize("rows, message", [(answers([True] * 3), "same questions"), (answers([True]) * 2, "twice")])
def test_paired_difference_refuses(tmp_path, rows, message):
    a, b = write(tmp_path / "a.jsonl", answers([True] * 2)), write(tmp_path / "b.jsonl", rows)
    with pytest.raises(ValueError, match=message):
        stats.paired_difference(data.read_rows(a), data.read_rows(b))


# --- a model, resuming --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a random tiny Qwen2.5-VL, whose own generation defaults are hostile, and 40 pairs with frames."""
    from physworld import tiny

    path = tmp_path_factory.mktemp("evaluate")
    processor = tiny.build_processor(["You see red and blue. \\boxed{Response 1}"], vocab_size=330)
    torch.manual_seed(0)
    model = tiny.build_model(processor, hidden=64, layers=1, vision_hidden=32, vision_layers=1)
    model.generation_config.update(do_sample=True, top_k=1, repetition_penalty=9.0)
    model.save_pretrained(path / "model")
    processor.save_pretrained(path / "model")
    Image.new("RGB", (56, 56), (200, 20, 20)).save(path / "red.png")
    rows = [PAIR | {"id": f"p{i}", "question": f"Which of {i}?", "frames": ["red.png"] * (i % 3)} for i in range(40)]
    write(path / "pairs.jsonl", rows)
    return path


@pytest.fixture(scope="module")
def loaded(folder):
    return models.load_model(folder / "model", device="cpu")


def batch():
    shown = [[Image.new("RGB", (56, 56), (60 * n, 9, 9))] * n for n in (2, 0, 1)]
    return [tasks.task_prompt(PAIR, None, len(s), "self_ref") for s in shown], shown


def test_a_batch_completes_as_single_prompts_do(loaded):
    asked, shown = batch()
    together = models.complete(*loaded, asked, shown, 8)
    assert together == [models.complete(*loaded, [a], [s], 8)[0] for a, s in zip(asked, shown)]
    assert all(c.completion_tokens <= 8 for c in together)
    assert together[0].prompt_tokens > together[2].prompt_tokens > together[1].prompt_tokens  # frames cost tokens


def test_sampling_follows_the_seed_and_no_default_of_the_model(loaded):
    asked, shown = batch()
    before = torch.get_rng_state()
    draws = [models.complete(*loaded, asked, shown, 8, temperature=1.0, seed=s) for s in (3, 3, 4)]
    assert draws[0] == draws[1] != draws[2]
    assert torch.equal(before, torch.get_rng_state())
    assert draws[0] != models.complete(*loaded, asked, shown, 8)  # the model's own top_k 1 would be greedy
    assert loaded[0].generation_config.repetition_penalty == 9.0  # left as it was


def test_end_token_is_counted_and_what_follows_is_not(loaded, monkeypatch):
    model, processor = loaded
    end, word = processor.tokenizer.eos_token_id, processor.tokenizer.encode("red")
    rows = [[*word, end, *[processor.tokenizer.pad_token_id] * len(word)], [*word, *word, end]]
    monkeypatch.setattr(
        model, "generate", lambda input_ids, **_: torch.cat([input_ids, torch.tensor(rows)], dim=1)
    )
    asked, shown = batch()
    done = models.complete(model, processor, asked[:2], shown[:2], 8)
    assert [(c.text, c.completion_tokens) for c in done] == [("red", len(word) + 1), ("redred", 2 * len(word) + 1)]


def test_places_and_images_must_agree(loaded):
    asked, shown = batch()
    with pytest.raises(ValueError, match="2 image places and 1 images"):
        models.complete(*loaded, asked[:1], [shown[0][:1]], 8)


def test_an_adapter_is_merged_into_its_base(folder, loaded, tmp_path):
    from peft import LoraConfig, get_peft_model

    base, _ = models.load_model(folder / "model", device="cpu")
    adapter = get_peft_model(base, LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    adapter.save_pretrained(tmp_path)
    merged, processor = models.load_model(tmp_path, device="cpu")
    assert type(merged) is type(loaded[0]) and processor.tokenizer.padding_side == "left" and not merged.training
    changed = [n for n, w in merged.named_parameters() if not torch.equal(w, loaded[0].get_parameter(n))]
    assert changed and all("q_proj" in name for name in changed)


@pytest.mark.parametrize("script, said", [
    ("prompt: no_self_ref\n  video_input: frames", ["prompt no_self_ref, now asked with self_ref"]),
    ("prompt: self_ref\n  video_input: native", ["video_input native, now asked with frames"]),
    ("prompt: no_criteria\n  video_input: native", ["prompt no_criteria, now", "video_input native, now"]),
    ("prompt: self_ref\n  video_input: frames", []),
    ("dataset: null", []),  # of before there was a choice, or of stage 1, which has no prompt to choose
])  # fmt: skip
def test_another_prompt_or_clip_than_trained_with_is_said(tmp_path, capsys, script, said):
    (tmp_path / "config.yaml").write_text(f"script:\n  {script}\n")
    judges.warn_of_other_training(tmp_path, prompt="self_ref", video_input="frames")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(said) and all(any(one in line for line in lines) for one in said)


@pytest.mark.parametrize("settings, said", [
    ({}, True),
    ({"prompt": "no_self_ref"}, False),
    ({"mode": "question"}, False),  # asked with the question's prompt, whatever the judge's was
])  # fmt: skip
def test_an_evaluation_says_so(tmp_path, capsys, monkeypatch, settings, said):
    (tmp_path / "config.yaml").write_text("script:\n  prompt: no_self_ref\n")
    monkeypatch.setattr(models, "load_model", lambda path: (None, None))
    evaluate.open_answerer(evaluate.EvaluateConfig(**{"model": str(tmp_path), "mode": "judge", "out": "x.json"} | settings))
    assert ("trained with prompt no_self_ref" in capsys.readouterr().err) is said


def command(folder, out, *more):
    options = {
        "model": folder / "model", "mode": "judge", "dataset": folder / "pairs.jsonl", "out": out,
        "batch_size": 8, "max_new_tokens": 24, "temperature": 1.0,
    }  # fmt: skip
    flags = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    return [sys.executable, str(ROOT / "evaluate.py"), *flags, *more]


def run(words, **more):
    return subprocess.Popen(
        words, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def killed(folder):
    """A result whose evaluation was killed (-9) after some rows, cut in its last line, and then resumed."""
    out = folder / "killed.json"
    process = run(command(folder, out))
    lines = out.with_suffix(".jsonl")
    while process.poll() is None and not (lines.exists() and lines.read_bytes().count(b"\n") >= 8):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    early = json.loads(out.read_text())
    content = lines.read_bytes()
    lines.write_bytes(content[:-7])  # as if the kill had come in the middle of a row
    rows = content.count(b"\n") - 1
    output = run(command(folder, out)).communicate()[0]
    return out, early, rows, output


def test_resume_after_kill_loses_and_doubles_nothing(folder, killed):
    out, early, kept, output = killed
    assert not early["finished"] and 0 < kept < 80, "the kill came too late or too early to test anything"
    result = json.loads(out.read_text())
    assert result["finished"], output
    rows = [json.loads(line) for line in out.with_suffix(".jsonl").read_text().splitlines()]
    assert sorted((r["id"], r["order"]) for r in rows) == sorted((f"p{i}", o) for i in range(40) for o in ("12", "21"))
    assert result["accuracy"]["n"] == 80 and result["accuracy"]["clusters"] == 40 and result["consistency"]["n"] == 40
    assert "judge accuracy" in output and "unreadable" in output


def test_resumed_rows_are_those_of_an_uninterrupted_run(folder, killed):
    config = EvaluateConfig(
        str(folder / "model"), "judge", str(folder / "whole.json"), dataset=str(folder / "pairs.jsonl"), batch_size=8,
        max_new_tokens=24, temperature=1.0,
    )  # fmt: skip
    evaluate.evaluate(config)
    texts = [
        {stats.row_key(row): row["text"] for row in files.read_rows(path)}
        for path in (folder / "whole.jsonl", killed[0].with_suffix(".jsonl"))
    ]
    assert texts[0] == texts[1] and len(set(texts[0].values())) > 10


@pytest.mark.parametrize(
    "change, name",
    [
        ({"temperature": 0.5}, "temperature"), ({"prompt": "no_criteria"}, "prompt"), ({"limit": 3}, "limit"),
        ({"dataset": "other.jsonl"}, "records"), ({"model": "other"}, "model"), ({"seed": 1}, "seed"),
    ],
)  # fmt: skip
def test_rows_of_another_configuration_are_refused(folder, killed, change, name):
    other = [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]
    write(folder / "other.jsonl", [row | {"question": "Another?"} for row in other])
    change = {k: str(folder / v) if k in ("dataset", "model") else v for k, v in change.items()}
    before = killed[0].with_suffix(".jsonl").read_bytes(), killed[0].read_bytes()
    settings = {"model": str(folder / "model"), "mode": "judge", "dataset": str(folder / "pairs.jsonl")}
    settings |= {"batch_size": 8, "max_new_tokens": 24, "temperature": 1.0, "out": str(killed[0])}
    with pytest.raises(SystemExit, match=f"another configuration.*{name} was"):
        evaluate.evaluate(EvaluateConfig(**(settings | change)))
    assert before == (killed[0].with_suffix(".jsonl").read_bytes(), killed[0].read_bytes())


def fake(text):
    return lambda *arguments: [Completion(text, 10, 5) for _ in arguments[2]]


@pytest.mark.parametrize(
    "change, message",
    [({"limit": 0}, "limit must"), ({"batch_size": 0}, "batch_size must"), ({"out": "result.txt"}, "is a .json file")],
)
def test_senseless_options_are_refused(change, message):
    with pytest.raises(SystemExit, match=message):
        evaluate.evaluate(EvaluateConfig(**({"model": "m", "mode": "judge", "out": "r.json"} | change)))


@pytest.mark.parametrize("line, message", [("{\"id\": ", "a.jsonl:1: not JSON"), ("", "")])
def test_rows_that_cannot_be_read(tmp_path, line, message):
    write(tmp_path / "a.jsonl", [])
    (tmp_path / "a.jsonl").write_text(line + "\n" + json.dumps({"id": "\u2028"}) + "\n")
    if message:
        with pytest.raises(ValueError, match=message):
            files.read_rows(tmp_path / "a.jsonl")
    else:
        assert files.read_rows(tmp_path / "a.jsonl") == [{"id": "\u2028"}]


def test_two_writers_are_refused(tmp_path):
    stream, rows = files.open_rows(tmp_path / "a.jsonl", tmp_path / "a.json", {})
    with pytest.raises(SystemExit, match="another evaluation is writing"):
        files.open_rows(tmp_path / "a.jsonl", tmp_path / "a.json", {})
    stream.close()


@pytest.mark.parametrize("mode, text", [("question", "\\boxed{A}"), ("judge", CRITIQUE.format("A", 1))])
def test_limit_draws_the_same_records_in_both_modes(folder, tmp_path, monkeypatch, mode, text):
    monkeypatch.setattr(models, "load_model", lambda path: (None, None))
    monkeypatch.setattr(models, "complete", fake(text))
    out = tmp_path / "r.json"
    config = EvaluateConfig(str(folder / "model"), mode, str(out), dataset=str(folder / "pairs.jsonl"), limit=5)
    result = evaluate.evaluate(config)
    rows = files.read_rows(out.with_suffix(".jsonl"))
    ids = sorted((f"p{i}" for i in range(40)), key=files.short_sha)[:5]
    assert [row["id"] for row in rows] == (ids if mode == "question" else [i for i in ids for _ in "ab"])
    assert result["accuracy"]["value"] == (1.0 if mode == "question" else 0.5)  # a judge that always says "Response 1"
    if mode == "judge":
        assert result["first_share"]["value"] == 1.0 and result["consistency"]["value"] == 0.0
    assert evaluate.evaluate(config) == result  # nothing left to do: the same result, with the command that made it
    assert "\n".join(evaluate.table(result))


def test_questions_of_one_clip_are_one_cluster(folder, tmp_path):
    pair = PAIR | {"frames": []}
    write(tmp_path / "p.jsonl", [pair, pair | {"id": "p1", "response_1": "\\boxed{A}"}, pair | {"id": "p2", "question": "Why?"}])
    clusters = {record["id"]: record["cluster"] for record, _ in tasks.load_tasks(tmp_path / "p.jsonl", judge=True)}
    assert clusters["p0"] == clusters["p1"] != clusters["p2"]
