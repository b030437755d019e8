"""critic.py and judging/local.py: where a self-prediction comes from, whose probability it is, what the cache may not change."""

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import ppt
import prompts
import rewards
from analysis.small_server import served
from critic import Critic, CriticConfig, in_critics_form, judge_and_show, majority, own_part
from judging import models, tasks
from judging.calls import Call, Missing, Reply, Tokens
from judging.local import LocalBackend, common_prefix
from judging.score_tokens import NoScoreToken
from judging.server import ServerBackend
from judging.verdicts import share_of_first, verdict_place
from physworld.clips import make_clip
from tests.fault_proxy import FaultProxy, reply

ROOT = Path(__file__).parent.parent
TINY = str(ROOT / "physworld" / "tiny_vlm")
OWN = "<pred_think> it rolls </pred_think> <pred> {} </pred>"
REST = " <think> compare </think> \\boxed{{Response {}}}"
ITEM = {"question": "Does it fall?", "options": None, "response_1": "It falls. \\boxed{yes}", "response_2": "\\boxed{no}"}


# --- reading a text -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, place, reason",
    [
        ("\\boxed{Response 1}", (16, 1), "the form that is asked for"),
        ("\\boxed{2}", (7, 2), "the number alone"),
        ("\\boxed{\\text{Response 2}}", (22, 2), "LaTeX dress"),
        ("\\fbox{Response B}", (15, 2), "a letter behind Response"),
        ("\\boxed{Response 1} no: \\boxed{Response 2}", (39, 2), "the last box counts"),
        ("Response 1 is better", None, "no box"),
        ("\\boxed{12}", None, "another number"),
        ("\\boxed{Response } 1", None, "the number is outside"),
        ("\\boxed{yes}", None, "an answer to the question"),
    ],
)
def test_place_of_the_verdict(text, place, reason):
    assert verdict_place(text) == place, reason


@pytest.mark.parametrize(
    "pairs, p, reason",
    [
        ([("1", 0.3), ("2", 0.1)], 0.75, "renormalised over the two"),
        ([("1", 0.2), (" 1", 0.1), ("Ġ1", 0.1), ("2}", 0.1), ("3", 0.5)], 0.8, "spellings are summed, not the largest taken"),
        ([("1", 0.9), ("x", 0.1)], 1.0, "no 2 among those given"),
        ([("x", 0.5), ("12", 0.5)], None, "neither"),
    ],
)
def test_share_of_first(pairs, p, reason):
    assert share_of_first([(token, math.log(chance)) for token, chance in pairs]) == (p and pytest.approx(p)), reason


@pytest.mark.parametrize("bad", [None, math.nan, "-1", True, 0.5])
def test_a_faulty_probability_is_no_score(bad):
    with pytest.raises(NoScoreToken, match="log-probability"):
        share_of_first([("1", -0.1), ("2", bad)])


@given(st.lists(st.tuples(st.sampled_from(["1", " 1", "2", " 2", "2}", "x"]), st.floats(-50, 0)), max_size=8))
def test_shares_of_both_add_up(pairs):
    turn = {"1": "2", "2": "1"}
    other = [("".join(turn.get(c, c) for c in token), logprob) for token, logprob in pairs]
    p, q = share_of_first(pairs), share_of_first(other)
    assert (p is None) == (q is None) and (p is None or p + q == pytest.approx(1))


@pytest.mark.parametrize(
    "text, options, made, reason",
    [
        ("It is fast. \\boxed{yes}", None, "<pred_think> It is fast </pred_think> <pred> yes </pred>", "the tiny model's form"),
        (
            "<think> hm </think> so \\boxed{B}",
            {"A": "l", "B": "r"},
            "<pred_think> hm  so </pred_think> <pred> B </pred>",
            "thinking tags",
        ),
        ("no idea \\boxed{}", None, None, "an empty box is no answer"),
        ("cut off <think> in the mid", None, None, "no answer"),
    ],
)
def test_an_answer_in_the_critics_form(text, options, made, reason):
    assert in_critics_form(text, options) == made, reason
    if made:
        assert rewards.parse_critique(made + REST.format(1)).format_score == 1.0, "what follows makes a whole critique of it"


@pytest.mark.parametrize(
    "text, readable, reason",
    [
        (OWN.format("yes") + REST.format(1), True, "whole"),
        ("<pred_think> it rolls </pred_think> <pred> yes", False, "cut off inside <pred>"),
        ("<pred_think> it rolls </pred_think> <pred> yes \\boxed{Response 1}", False, "a verdict is no self-prediction"),
        ("</pred>", False, "never opened"),
    ],
)
def test_a_self_prediction_that_does_not_close_is_none(text, readable, reason):
    assert bool(own_part(text)) == bool(rewards.parse_critique(text).prediction) == readable, reason


@pytest.mark.parametrize(
    "said, chosen, reason",
    [
        (["no", "yes", "yes"], 1, "the majority, in the text of its first"),
        (["yes", "no"], 0, "a tie goes to the first"),
        ([None, "the ramp", "B", "A"], 1, "a letter and its text agree (rewards.answers_match)"),
        ([None, None], None, "none can be read"),
    ],
)
def test_majority(said, chosen, reason):
    parts = [answer and OWN.format(answer) for answer in said]
    options = {"A": "the cup", "B": "the ramp"} if "B" in said else None
    assert majority(parts, options) == (None if chosen is None else parts[chosen]), reason


# --- solve once, judge many -------------------------------------------------------------------------------------------


class Fake:
    """A writer that solves with `answers` in turn, prefers the response that holds the answer in force, and keeps its calls."""

    def __init__(self, answers, p=0.9, fail=()):
        self.answers, self.p, self.fail, self.calls = iter(answers), p, fail, []

    def run(self, calls):
        for i, call in enumerate(calls):
            self.calls.append(call)
            text = call.messages[-1]["content"][-1]["text"]
            if len(self.calls) in self.fail:
                yield i, Missing("HTTP 500", Tokens(9, 0, 0))
                continue
            if "<response_1>" not in text:
                yield i, Reply(f"seen. \\boxed{{{next(self.answers)}}}", [None], Tokens(50, 0, 10))
                continue
            own = call.analysis or OWN.format(next(self.answers))
            said = rewards.parse_critique(own).prediction
            side = 1 if f"boxed{{{said}}}" in text.partition("<response_2>")[0] else 2
            written = own.removeprefix(call.analysis or "") + ("" if call.tags else REST.format(side))
            yield i, Reply(written, [None if call.tags else self.p if side == 1 else 1 - self.p], Tokens(100, 40, 20))


@pytest.fixture(scope="module")
def tiny():
    """One loaded model for all tests that only need some writer's settings or the real thing."""
    return LocalBackend.load(TINY, analysis_tokens=48, temperature=0.0, batch_size=3)


def make(monkeypatch, writer, **settings):
    monkeypatch.setattr(LocalBackend, "load", classmethod(lambda cls, path, **given: writer))
    return Critic("some/folder", **settings)


def both(**more):
    return [ITEM | {"order": order} | more for order in ("12", "21")]


@pytest.mark.parametrize("p", [0.9, 0.4])
def test_verdict_and_probability_speak_of_the_record(monkeypatch, p):
    critic = make(monkeypatch, Fake(["yes"] * 4, p))
    shown_first, shown_second = critic.judge_many(both(answer="yes", preference=1, id="q"))
    assert (shown_first.verdict, shown_second.verdict) == (1, 1) and shown_first.prediction == "yes"
    assert shown_first.p_first == pytest.approx(p) == shown_second.p_first, "order 21: p of the second place is turned back"
    for judgement in (shown_first, shown_second):  # evaluate.py reads the same text in the same way
        record = ITEM | {"answer": "yes", "preference": 1}
        read = tasks.read_judgement(record, judgement.order, judgement.text, "self_ref")
        for name in ("prediction", "verdict", "prediction_correct", "verdict_correct"):
            assert read[name] == getattr(judgement, name)
    assert critic.prefer(ITEM["question"], ITEM["response_1"], ITEM["response_2"]) == pytest.approx(p)
    unknown = critic.judge(ITEM["question"], ITEM["response_1"], ITEM["response_2"])
    assert unknown.prediction_correct is None is unknown.verdict_correct


def test_each_solves_every_time(monkeypatch):
    critic = make(monkeypatch, writer := Fake(["yes", "no"]))
    made = critic.judge_many(both())
    assert [j.prediction for j in made] == ["yes", "no"] and [j.verdict for j in made] == [1, 2] and not made[1].reused
    with pytest.raises(ValueError, match="each"):
        critic.solve_once(ITEM["question"])
    assert all(call.analysis is None and not call.tags for call in writer.calls)


def test_first_reuses_the_first_judgement(monkeypatch):
    """Two questions at once: each one's first judgement writes its own answer, the later ones get it put in front."""
    critic = make(monkeypatch, writer := Fake(["no", "yes"]), solve="first")
    other = ITEM | {"question": "Does it roll?"}
    made = critic.judge_many([*both(), other, other | {"order": "21"}])
    assert [j.prediction for j in made] == ["no", "no", "yes", "yes"] and [j.reused for j in made] == [False, True] * 2
    assert [call.analysis for call in writer.calls] == [None, None, OWN.format("no"), OWN.format("yes")]
    assert made[1].text == OWN.format("no") + REST.format(1) and made[1].verdict == 2
    assert critic.judge(other["question"], "\\boxed{yes}", "\\boxed{no}").reused and len(writer.calls) == 5
    assert critic.solve_once(ITEM["question"], pair=("a", "b")) == OWN.format("no") and len(writer.calls) == 5
    assert critic.spent == Tokens(500, 200, 100)


def test_options_in_another_order_are_another_prompt(monkeypatch):
    critic, item = make(monkeypatch, writer := Fake(["A", "B"]), solve="first"), ITEM | {"options": {"A": "no", "B": "yes"}}
    critic.judge_many([item, item | {"options": {"B": "yes", "A": "no"}}])
    assert len({call.group for call in writer.calls}) == len(writer.calls) == 2


def test_first_by_votes(monkeypatch):
    writer = Fake(["no", "yes", "the yes", "yes"])
    critic = make(monkeypatch, writer, solve="first", votes=3, temperature=1.0)
    made = critic.judge_many(both())
    assert [j.prediction for j in made] == ["yes", "yes"] and all(j.reused for j in made)
    votes = writer.calls[:3]
    assert all(call.tags == ("</pred>",) for call in votes) and len({call.seed for call in votes}) == 3


def test_alone_shows_no_response(monkeypatch):
    critic = make(monkeypatch, writer := Fake(["no"]), solve="alone")
    made = critic.judge_many(both())
    assert writer.calls[0].messages == prompts.question_prompt(ITEM["question"], None, 0)
    assert writer.calls[0].group != writer.calls[1].group == writer.calls[2].group
    assert [j.verdict for j in made] == [2, 2] and made[0].text.startswith("<pred_think> seen </pred_think> <pred> no </pred>")
    assert critic.spent.input == 250 and sum(j.prompt_tokens for j in made) == 200, "what solving cost is in spent only"


def test_without_a_readable_self_prediction_each_solves_for_itself(monkeypatch):
    critic = make(monkeypatch, Fake(["", "yes", "no"]), solve="alone")
    made = critic.judge_many(both())
    assert [j.prediction for j in made] == ["yes", "no"] and critic.unsolved == 1 and not any(j.reused for j in made)


def test_a_failed_call_is_missing_and_asked_again(monkeypatch):
    critic = make(monkeypatch, writer := Fake(["yes"] * 9, fail=(1, 3)), solve="first")
    first, second = critic.judge_many(both())
    assert first.missing == "HTTP 500" and first.verdict is None is first.p_first and first.text == ""
    assert second.verdict == 1, "the second judgement solves for itself, since the first gave nothing"
    assert critic.judge_many(both())[0].missing == "HTTP 500"
    assert critic.judge_many(both())[0].verdict == 1 and len(writer.calls) == 5
    assert critic.prefer(ITEM["question"], ITEM["response_1"], ITEM["response_2"]) == pytest.approx(0.9)


def test_no_judgement_is_made_twice(monkeypatch):
    critic = make(monkeypatch, writer := Fake(["yes"] * 9))
    made = critic.judge_many([ITEM, ITEM, ITEM | {"id": "other"}]) + [
        critic.judge(*map(ITEM.get, ("question", "response_1", "response_2")))
    ]
    assert len(writer.calls) == 1 and [j.repeated for j in made] == [False, True, True, True]
    assert [j.computed_prompt_tokens for j in made] == [60, 0, 0, 0] and critic.spent == Tokens(100, 40, 20)
    critic.judge_many([ITEM | {"options": {"A": "yes", "B": "no"}}, ITEM | {"frames": [Image.new("RGB", (8, 8))]}])
    assert len(writer.calls) == 3, "other options or frames make another question"


def test_above_temperature_0_seed_and_id_decide(monkeypatch):
    seeds = {}
    for seed in (0, 0, 1):
        critic = make(monkeypatch, writer := Fake(["yes"] * 9), temperature=1.0, seed=seed)
        critic.judge_many([ITEM | {"id": "a"}, ITEM | {"id": "b"}, ITEM | {"id": "a", "order": "21"}])
        seeds.setdefault(seed, []).append([call.seed for call in writer.calls])
    assert seeds[0][0] == seeds[0][1] != seeds[1][0] and len({*seeds[0][0], *seeds[1][0]}) == 6


def test_a_verdict_in_other_words_has_no_probability(monkeypatch):
    """The number that stands first in the box is the loser's: its probability is not that of the verdict."""
    writer = Fake([])
    writer.run = lambda calls: iter(
        [(0, Reply(OWN.format("yes") + "\\boxed{Response 2 is worse than Response 1}", [0.1], Tokens()))]
    )
    judgement = make(monkeypatch, writer).judge_many([ITEM])[0]
    assert judgement.verdict == 1 and judgement.p_first is None


@pytest.mark.parametrize("n", [1, 2, 7])
def test_it_feeds_the_tournaments(monkeypatch, n):
    """The only candidate with the critic's answer wins, whichever tournament and wherever it stands."""
    for right in range(n):
        candidates = [f"Number {i}. \\boxed{{{'yes' if i == right else 'no'}}}" for i in range(n)]
        compare = make(monkeypatch, Fake(["yes"] * 99), solve="first").compare_many("Does it fall?", candidates)
        ranking = ppt.pivot_tournament(n, compare_many=compare)
        assert ranking.best == right and len(compare.judgements) == len(ranking.comparisons)
        assert ppt.knockout(n, lambda a, b, many=compare: many([(a, b)])[0]).best == right


@pytest.mark.parametrize(
    "settings, match",
    [
        ({}, "either path"),
        ({"path": "x", "base_url": "http://127.0.0.1:1/v1", "model": "m"}, "either path"),
        ({"base_url": "http://127.0.0.1:1/v1"}, "either path"),
        ({"path": "x", "solve": "once"}, "solve each, first or alone"),
        ({"path": "x", "prompt": "no_self_ref", "solve": "first"}, "no self-prediction"),
        ({"path": "x", "solve": "first", "votes": 3}, "greedy samples are equal"),
        ({"path": "x", "temperature": 1.0, "votes": 3}, "votes above 1 need"),
    ],
)
def test_settings_that_make_no_sense(settings, match):
    with pytest.raises(ValueError, match=match):
        Critic(**settings)


def test_a_critic_trained_on_videos_is_said_to_see_frames_now(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(LocalBackend, "load", classmethod(lambda cls, path, **settings: None))
    (tmp_path / "config.yaml").write_text("script:\n  prompt: self_ref\n  video_input: native\n")
    Critic(tmp_path)
    assert "trained with video_input native, now asked with frames" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change, match",
    [
        ({"response_2": None}, "item 1: field 'response_2' must be a text"),
        ({"order": "first"}, "item 1: field 'order'"),
        ({"frames": ["a.png"]}, "item 1: field 'frames' must hold PIL images"),
    ],
)
def test_items_that_cannot_be_judged(monkeypatch, change, match):
    critic = make(monkeypatch, writer := Fake([]))
    with pytest.raises(ValueError, match=match):
        critic.judge_many([ITEM, ITEM | change])
    assert not writer.calls


# --- the cache of the local model --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def items():
    """Judgements of three questions with unequal frames (a third of another size, none), responses and options, both orders."""
    fast, planning = make_clip("test", 1), make_clip("test", 3)
    wide = [frame.resize((84, 56)) for frame in planning.frames[:2]]
    texts = [
        "\\boxed{yes}",
        "I look at every frame. I check it again. So it is no. \\boxed{no}",
        "The answer is wait. \\boxed{wait}",
    ]
    made = []
    for clip, frames in ((fast, fast.frames), (planning, wide), (fast, [])):
        for a, b in ((0, 1), (1, 2)):
            item = {
                "question": clip.question,
                "options": clip.options,
                "frames": frames,
                "response_1": texts[a],
                "response_2": texts[b],
            }
            made += [item | {"order": order, "answer": clip.answer} for order in ("12", "21")]
    return made


def plain_logits(writer, call, more=""):
    """Logits after the whole text, (V,), one row, no cache, no padding: what the model says by itself."""
    text = (
        writer.processor.apply_chat_template(call.messages, add_generation_prompt=True, tokenize=False)
        + (call.analysis or "")
        + more
    )
    images = {"images": [list(call.images)]} if call.images else {}
    inputs = writer.processor(text=[text], return_tensors="pt", **images)
    with torch.no_grad():
        return writer.model(**inputs, use_cache=False).logits[0, -1].float()


def batch_logits(writer, calls):
    """(rows, logits) of the cached batch."""
    heads, suffixes = [], []
    for call in calls:
        text = writer._text(call)
        shared = common_prefix([writer._ids(text.partition("<response_1>")[0]), writer._ids(text)])
        head, _ = writer._head(call, text, writer._ids(text), shared)
        heads.append(head)
        suffixes.append(writer._ids(text)[len(head.ids) :])
    rows = writer._stack(heads)
    return rows, suffixes, writer._extend(rows, suffixes)


def fresh(tiny, **changes):
    """A writer with the loaded weights and an empty cache."""
    return LocalBackend(tiny.model, tiny.processor, **({"analysis_tokens": 48, "temperature": 0.0, "batch_size": 3} | changes))


@torch.no_grad()
def test_cached_and_plain_logits_agree(tiny, items, monkeypatch):
    """A batch of three questions whose heads and suffixes have unequal lengths, with and without a forced self-prediction."""
    writer = fresh(tiny)
    critic = make(monkeypatch, writer)
    calls = [critic._call(item) for item in items]
    calls += [dataclasses.replace(call, analysis=OWN.format("a wide block")) for call in calls[::3]]
    rows, suffixes, logits = batch_logits(writer, calls)
    plain = torch.stack([plain_logits(writer, call) for call in calls])
    assert (logits - plain).abs().max() < 1e-4 and len({len(suffix) for suffix in suffixes}) > 3
    assert len({head.length for head in writer.heads.values()}) == 3 == len(writer.heads)
    with_frames = [bool(call.images) for call in calls]
    assert [bool(shift) for shift in rows.shift[:, 0]] == with_frames, "only frames shift M-RoPE's positions"
    for head in writer.heads.values():
        head.rows.shift = 0
    wrong = (batch_logits(writer, calls)[2] - plain).abs().amax(1)
    assert all((gap > 1e-3) == shown for gap, shown in zip(wrong.tolist(), with_frames)), "and this test would see it"


@pytest.fixture(scope="module")
def plain_texts(tiny, items):
    """evaluate.complete's Completion of each item, one at a time: no cache over judgements, no padding."""
    asked = [tasks.task_prompt(item, item["order"], len(item["frames"]), "self_ref") for item in items]
    return [models.complete(tiny.model, tiny.processor, [a], [item["frames"]], 48)[0] for a, item in zip(asked, items)]


@pytest.mark.parametrize("batch_size", [1, 5, 32])
def test_texts_and_probabilities_are_those_of_the_plain_model(tiny, items, plain_texts, monkeypatch, batch_size):
    """Texts and token counts equal evaluate.complete's; p_first equals the plain model's at the verdict's token."""
    writer = fresh(tiny, batch_size=batch_size)
    made = make(monkeypatch, writer, batch_size=batch_size).judge_many(items)
    asked = [tasks.task_prompt(item, item["order"], len(item["frames"]), "self_ref") for item in items]
    for name in ("text", "prompt_tokens", "completion_tokens"):
        assert [getattr(j, name) for j in made] == [getattr(c, name) for c in plain_texts]
    read = [j for j in made if j.p_first is not None]
    assert len(read) >= 6, "the base keeps the form"
    tokens = tiny.tokenizer.convert_ids_to_tokens(range(len(tiny.tokenizer)))
    ones, twos = ([i for i, t in enumerate(tokens) if t.strip("Ġ}") == n] for n in "12")
    for item, judgement, prompt in zip(items, made, asked):
        if judgement.p_first is None:
            continue
        before = judgement.text[: verdict_place(judgement.text)[0]].removesuffix(" ")  # the number's token brings its space
        chances = plain_logits(writer, Call(prompt, (), None, tuple(item["frames"])), before).softmax(-1)
        first = (chances[ones].sum() / chances[ones + twos].sum()).item()
        assert judgement.p_first == pytest.approx(first if item["order"] == "12" else 1 - first, abs=1e-4)
        assert (judgement.p_first > 0.5) == (judgement.verdict == 1), "greedy: the verdict is the more probable one"


@pytest.mark.parametrize("solve", ["each", "first", "alone"])
def test_what_is_run_is_what_is_counted(tiny, items, monkeypatch, solve):
    """Every clip passes the vision tower once, its question once; all that the model is fed is counted, and nothing else."""
    writer, fed, seen = fresh(tiny), [], []
    critic = make(monkeypatch, writer, solve=solve)

    def count(module, args, given):
        width = given["input_ids"].shape[1]
        fed.append(int(given["attention_mask"][:, -width:].sum()))

    hooks = [tiny.model.register_forward_pre_hook(count, with_kwargs=True)]
    hooks += [tiny.model.model.visual.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))]
    try:
        made = critic.judge_many(items)
        critic.judge_many([item | {"response_2": "It is blue."} for item in items])
    finally:
        for hook in hooks:
            hook.remove()
    spent, texts = critic.spent, len(critic.made)
    assert sum(fed) == spent.input - spent.cached + spent.output - texts, "a text's last token is never fed back"
    assert len(seen) == 2, "two clips, one question without frames"
    assert len(writer.heads) == (6 if solve == "alone" else 3) and not writer.seen
    paid = [j.computed_prompt_tokens < j.prompt_tokens for j in made]
    assert paid.count(False) == 3, "one judgement a question pays for its head"


def test_first_continues_as_the_model_would(tiny, items, monkeypatch):
    """The judgement that is put the text of its own beginning writes the rest that it wrote by itself."""
    critic = make(monkeypatch, fresh(tiny), solve="first")
    naive = critic.judge_many([items[0]])[0]
    critic.made.clear()
    again = critic.judge_many([items[0]])[0]
    assert again.reused and again.text == naive.text and again.p_first == pytest.approx(naive.p_first, abs=1e-4)
    assert again.completion_tokens < naive.completion_tokens and own_part(naive.text)


def test_sampled_texts_do_not_depend_on_the_batch(tiny, items, monkeypatch):
    settings = {"temperature": 1.0}
    texts = []
    for batch_size, order in ((3, items), (5, items[::-1])):
        critic = make(monkeypatch, fresh(tiny, batch_size=batch_size, **settings), batch_size=batch_size, **settings)
        texts.append(sorted(j.text for j in critic.judge_many(order)))
    assert texts[0] == texts[1] and len(set(texts[0])) > 6


def test_votes_end_with_the_prediction(tiny, items, monkeypatch):
    writer = fresh(tiny, temperature=0.7)
    critic = make(monkeypatch, writer, solve="first", votes=3, temperature=0.7)
    part = critic.solve_once(
        *(items[0][name] for name in ("question", "frames", "options")), pair=("\\boxed{yes}", "\\boxed{no}")
    )
    texts = [made.text for made in critic.made.values()]
    assert len(texts) == 3 and part in texts and all(text.endswith("</pred>") for text in texts if "</pred>" in text)


def test_a_group_whose_prompts_differ_before_the_responses_is_only_slower(tiny, items):
    """Options in another key order under one group: the kept head does not fit, a new one is run, the texts stay right."""
    options, calls = {"A": "yes", "B": "no"}, []
    for given in (options, dict(reversed(options.items()))):
        messages = prompts.critic_prompt("Does it fall?", "\\boxed{yes}", "\\boxed{no}", given)
        calls.append(Call(messages, (), None, group="one"))
    alone = [next(fresh(tiny).run([call]))[1] for call in calls]
    together, writer = dict(fresh(tiny).run(calls)), fresh(tiny)
    later = [next(writer.run([call]))[1] for call in calls]
    assert [reply.text for reply in alone] == [together[0].text, together[1].text] == [reply.text for reply in later]
    assert later[1].tokens.cached == 0 and calls[0].messages != calls[1].messages


def test_without_keep_a_judgement_is_made_anew(monkeypatch):
    critic = make(monkeypatch, writer := Fake(["yes"] * 9), solve="first", keep=False)
    first, second = (critic.judge_many([ITEM, ITEM | {"id": "other"}]) for _ in range(2))
    assert [j.repeated for j in first] == [False, False] and len(writer.calls) == 3 and not critic.made
    assert [j.solves for j in first] == [True, False] and [j.solves for j in second] == [False, False]
    assert [j.repeated for j in second] == [False, True], "within a call nothing is made twice"


def test_old_questions_make_room(tiny, items, monkeypatch):
    monkeypatch.setattr("judging.local.KEPT_TOKENS", 100)
    writer = fresh(tiny)
    crowded = make(monkeypatch, writer).judge_many(items)
    monkeypatch.undo()
    assert len(writer.heads) < 3
    assert [j.text for j in crowded] == [j.text for j in make(monkeypatch, fresh(tiny)).judge_many(items)]


# --- a server ------------------------------------------------------------------------------------------------------------


def places(text, number, chance=0.8):
    """Log-probabilities of a text, token by word, with `chance` on the number of the last box."""
    head, _, tail = text.rpartition(f" {number}}}")
    other = [(f" {3 - number}", math.log((1 - chance) / 2)), (str(3 - number), math.log((1 - chance) / 2))]
    return [(head, []), (f" {number}", [(f" {number}", math.log(chance)), *other]), ("}" + tail, [])]


def upstream(request):
    """Solves with yes, prefers what is shown first; what was put in its mouth it does not repeat."""
    text = request["messages"][1]["content"]
    text = text if isinstance(text, str) else text[-1]["text"]
    if "<response_1>" not in text:
        return reply([("It moves. \\boxed{yes}", [])], usage=(40, 0, 7))
    forced = request["messages"][-1]["role"] == "assistant"
    return reply(places(("" if forced else OWN.format("yes")) + REST.format(1), 1), usage=(120, 90, 12 if forced else 30))


@pytest.mark.parametrize("solve", ["each", "first", "alone"])
def test_a_served_critic(solve):
    with FaultProxy(upstream) as proxy:
        critic = Critic(base_url=proxy.url, model="stub", solve=solve)
        frames = [Image.new("RGB", (8, 8), "red")]
        made = critic.judge_many(both(frames=frames))
        assert [j.verdict for j in made] == [1, 2] and [j.prediction for j in made] == ["yes", "yes"]
        assert [j.p_first for j in made] == pytest.approx([0.8, 0.2]) and [j.reused for j in made] == [
            solve == "alone",
            solve != "each",
        ]
        assert [j.computed_prompt_tokens for j in made] == [30, 30] and made[0].model == "stub"
        last = max((request for request, _ in proxy.log), key=lambda request: len(request["messages"]))
        assert last["logprobs"] is True and last["top_logprobs"] == 20
        assert last["messages"][1]["content"][0]["image_url"]["url"].startswith("data:image/png;base64,")
        if solve != "each":
            own = OWN.format("yes") if solve == "first" else "<pred_think> It moves </pred_think> <pred> yes </pred>"
            assert last["messages"][-1] == {"role": "assistant", "content": own} and last["continue_final_message"]


def test_a_served_vote_stops_at_the_prediction():
    def stopped(request):
        part = OWN.format("yes")
        return reply([(part.removesuffix("</pred>"), [])]) if request.get("stop") == ["</pred>"] else upstream(request)

    with FaultProxy(stopped) as proxy:
        critic = Critic(base_url=proxy.url, model="stub", solve="first", votes=3, temperature=1.0)
        assert critic.solve_once(ITEM["question"], pair=(ITEM["response_1"], ITEM["response_2"])) == OWN.format("yes")
        assert len({request["seed"] for request, _ in proxy.log}) == 3 == len(proxy.log)


REPLIES = {  # what a server may answer: (reply, verdict, p)
    "reasoning parsed out of the content": (
        reply(places(OWN.format("yes") + REST.format(2), 2), OWN.format("yes") + "\\boxed{Response 2}", "compare"), 2, 0.2),
    "an end token": (reply([*places(REST.format(1), 1), ("<|im_end|>", [])], REST.format(1)), 1, 0.8),
    "no verdict": (reply([(OWN.format("yes") + " <think> so", [])], finish="length"), None, None),
    "the number fused with its word": (reply([("\\boxed{", []), ("Response 1", [("Response 1", -0.1)]), ("}", [])]), 1, None),
    "another number in the reasoning": (
        reply([("<think> \\boxed{Response 2", [(" 2", -0.1)]), ("} no </think> ", []), *places("\\boxed{Response 1}", 1)]), 1, 0.8),
}  # fmt: skip


@pytest.mark.parametrize("kind", REPLIES)
def test_what_a_server_may_answer(kind):
    answer, verdict, p = REPLIES[kind]
    with FaultProxy(lambda request: answer) as proxy:
        judgement = Critic(base_url=proxy.url, model="stub").judge_many([ITEM])[0]
        assert judgement.verdict == verdict and judgement.p_first == (p and pytest.approx(p)) and judgement.missing is None
        assert "<|im_end|>" not in judgement.text


@pytest.mark.parametrize("fault", ["logprobs null", "cut JSON", "no choices", "two choices", "500"])
def test_a_faulty_server_gives_no_verdict(fault, monkeypatch):
    """Spoilt once it is asked again; spoilt for good it is missing, and the tournament gets an abstention."""
    with FaultProxy(
        upstream, lambda request: fault if "\\boxed{no}" not in str(request) and "boxed{no}" in str(request) else None
    ) as proxy:
        critic = Critic(base_url=proxy.url, model="stub")
        critic.writer = ServerBackend(proxy.url, "stub", retries=0, temperature=0.0)
        good, bad = critic.judge_many([ITEM | {"response_2": "so \\boxed{maybe}"}, ITEM])
        assert bad.missing and bad.p_first is None is bad.verdict and good.p_first == pytest.approx(0.8)
        assert critic.compare_many("q?", ["\\boxed{no}", "b"])([(0, 1), (1, 1)])[0] is None


def test_a_real_server():
    """SmolLM2 on llama.cpp goes on with what is put in its mouth, and repeats the number that stands there before.

    (Measured once: LocalBackend on the same GGUF gives 0.61 and 0.19 where this gives 0.62 and 0.21: 8-bit activations.)
    """
    forced = OWN.format("Paris") + " <think> 1, 2 </think>" + " \\boxed{{Response {0}}}" * 3 + " \\boxed{{Response"
    asked = prompts.critic_prompt("What is the capital of France?", "It is Paris.", "It is a potato.")
    calls = [Call(asked, (), None, analysis=forced.format(n), group="one") for n in (1, 2)]
    with served() as url:
        first, second = (
            r for _, r in sorted(ServerBackend(url, "smollm", analysis_tokens=3, temperature=0.0, timeout=600.0).run(calls))
        )
    assert first.text.strip().startswith("1}") and second.text.strip().startswith("2}")
    assert first.readings[0] > 0.5 > 0.4 > second.readings[0] and second.tokens.cached > second.tokens.input / 2


# --- the command -----------------------------------------------------------------------------------------------------------


def command(tmp_path, *more):
    clip = make_clip("test", 1)
    for i, frame in enumerate(clip.frames):
        frame.save(tmp_path / f"{i}.png")
    for name, text in (("a", "\\boxed{yes}"), ("b", "So it is no. \\boxed{no}")):
        (tmp_path / f"{name}.txt").write_text(text)
    frames = [str(tmp_path / f"{i}.png") for i in range(3)]
    words = [
        "--model",
        TINY,
        "--frames",
        *frames,
        "--question",
        clip.question,
        "--responses",
        tmp_path / "a.txt",
        tmp_path / "b.txt",
    ]
    words = [sys.executable, "critic.py", *map(str, words), "--max_new_tokens", "48", *more]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_command(tmp_path):
    done = command(tmp_path, "--solve", "alone", "--options", json.dumps({"A": "yes", "B": "no"}))
    assert done.returncode == 0, done.stderr
    for said in (
        "order 12",
        "order 21",
        "self-prediction",
        "comparison",
        "verdict",
        "p(a.txt is better), mean of both orders: 0.",
    ):
        assert said in done.stdout


@pytest.mark.parametrize(
    "change, said",
    [
        ({"votes": 3}, "votes above 1"),
        ({"options": "{"}, "--options: Expecting property name"),
        ({"responses": [Path("no"), Path("no")]}, "No such file"),
        ({"frames": ["no.png"]}, "no.png"),
        ({"responses": [Path("no")]}, "--responses takes two files, got 1"),
        ({"responses": [Path("no")] * 3}, "--responses takes two files, got 3"),
    ],
)
def test_the_command_with_bad_input(tmp_path, change, said):
    (tmp_path / "a.txt").write_text("yes")
    with pytest.raises((ValueError, OSError), match=said):
        judge_and_show(CriticConfig(**({"model": TINY, "question": "q?", "responses": [tmp_path / "a.txt"] * 2} | change)))
