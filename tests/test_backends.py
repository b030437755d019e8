"""The verifier's backends: routes, faults, retries, 10,000 replies half of them faulty; the shared cache; a real server."""

import math
import threading
import time

import openai
import pytest
import torch
from llm_verifier.fine_grained_reward import extract_score
from PIL import Image
from transformers import LlamaConfig, LlamaForCausalLM

import prompts
from analysis.small_server import served
from analysis.small_server import smollm as smollm_file
from judging.calls import Call
from judging.local import LocalBackend
from judging.score_tokens import PAIRWISE, NoScoreToken, expected_score
from judging.server import ServerBackend, TwoStage
from physworld import tiny
from ppt import preference
from tests import tiny_critic
from tests.fault_proxy import FAULTS, FaultProxy, reply
from tests.stub_judge import GOOD, THREE, Fake, ask_half_faulty, by_length, fault_of, open_server, quiet, sampled_reply, server
from verifier import NoValidCall

# ---------------------------------------------------------------------------------------------------------------------
# A server, stubbed


def test_the_prefill_route():
    with FaultProxy(open_server) as proxy:
        result = quiet(server(proxy), repeats=1).compare("t", "a", "b")
        assert result.reward_a == pytest.approx(0.75 * 17 / 19) and result.reward_b == pytest.approx(0.75 * 15 / 19)
        analyse, first, second = (request for request, _ in proxy.log)
        assert analyse["stop"] == ["<score_A>"] and "logprobs" not in analyse and isinstance(analyse["seed"], int)
        assert first["messages"][-1]["content"] == "A is better.\n<score_A>"
        assert second["messages"][-1]["content"] == "A is better.\n<score_A> C </score_A>\n<score_B>"
        assert result.records[0]["tokens"] == {"input": 340, "cached": 220, "output": 11}


def test_the_prefill_route_without_an_analysis():
    with FaultProxy(open_server) as proxy:
        result = quiet(server(proxy, analysis_tokens=0), repeats=4).compare("t", "a", "b")
        assert result.p == 0.5 and result.records[0]["p"] == pytest.approx(preference(2 / 19, 0.5 / 19))  # it goes by slots
        assert proxy.log[0][0]["messages"][-1]["content"] == "<score_A>" and "seed" not in proxy.log[0][0]
        assert len(proxy.log) == 4  # two letters in two orders; without sampling, the other two repeats are the same calls


@pytest.mark.parametrize("kind", GOOD)
def test_the_sampled_route(kind):
    with FaultProxy(lambda request: GOOD[kind]) as proxy:
        result = quiet(server(proxy, route="sampled"), repeats=1).compare("t", "a", "b")
        assert (result.reward_a, result.reward_b) == pytest.approx((0.75 * 18 / 19, 0.75 * 12 / 19))
        (request, _), = proxy.log
        assert request["logprobs"] is True and request["top_logprobs"] == 20 and "stop" not in request


def test_the_two_stage_route():
    def closed(request):
        assert "logprobs" not in request and "stop" not in request
        return reply([("B is wrong. <score_A> A </score_A>", [])], reasoning="Step by step.", usage=(50, 0, 30)) | {"x": 1}

    with FaultProxy(closed) as writer, FaultProxy(open_server) as reader:
        backend = TwoStage(server(writer, route="text", model="closed"), server(reader))
        result = quiet(backend, repeats=1).compare("t", "a", "b")
        assert result.reward_a == pytest.approx(0.75 * 17 / 19)
        assert [r["messages"][-1]["content"] for r, _ in reader.log][0] == "Step by step.\nB is wrong.\n<score_A>"
        assert result.records[0]["tokens"] == {"input": 290, "cached": 220, "output": 32}
        with pytest.raises(ValueError, match="TwoStage"):
            quiet(server(writer, route="text"), repeats=1).compare("t", "a", "b")


def test_a_writer_that_fails_is_missing():
    spoil = lambda request: "500" if "question 1" in str(request) else None  # noqa: E731
    with FaultProxy(open_server, spoil) as writer, FaultProxy(open_server) as reader:
        judge = quiet(TwoStage(server(writer, route="text"), server(reader)), repeats=1, abstain=True)
        results = judge.compare_many([(f"question {i}", "a", "b") for i in range(3)])
        assert [result.p is None for result in results] == [False, True, False]


def test_images_travel_as_data_urls():
    with FaultProxy(open_server) as proxy:
        quiet(server(proxy, analysis_tokens=0), repeats=1).compare("t", "a", "b", [Image.new("RGB", (8, 8), "red")] * 2)
        blocks = proxy.log[0][0]["messages"][1]["content"]
        assert [block["type"] for block in blocks] == ["image_url", "image_url", "text"]
        assert blocks[0]["image_url"]["url"].startswith("data:image/png;base64,iVBOR")


def test_the_concurrency_limit_holds_for_callers_in_threads():
    def slow(request):
        time.sleep(0)  # the stub is quick; the proxy counts what is open at once
        return sampled_reply("B", "H")

    with FaultProxy(slow) as proxy:
        judge = quiet(server(proxy, route="sampled", concurrency=3), THREE, repeats=2)
        threads = [threading.Thread(target=judge.compare, args=(f"t{i}", "a", "b")) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(proxy.log) == 36 and proxy.peak <= 3


def test_a_group_is_led_by_one_call():
    """The first call of each prefix has its answer before the others are asked, so that they find it in the cache."""
    backend = server(type("P", (), {"url": "http://127.0.0.1:1/v1"}))
    order, lock = [], threading.Lock()

    def method(call, spent):
        with lock:
            order.append(call.group)
        return "", []

    list(backend.run([Call([], (), PAIRWISE, group=name) for name in "aaaabbbb"], method))
    assert sorted(order[:2]) == ["a", "b"] and len(order) == 8


def test_neighbours_share_a_prefix():
    """One call at a time: a group is asked to its end, and prompts that begin alike stand next to each other."""
    with FaultProxy(open_server) as proxy:
        judge = quiet(server(proxy, analysis_tokens=0, concurrency=1), THREE, repeats=2)
        judge.compare_many([("t", "xx", "yy"), ("t", "zz", "xx"), ("t", "yy", "zz")])
        asked = [request["messages"][1]["content"] for request, _ in proxy.log[::2]]  # two letters a call
    shown = [(text[text.index("<trajectory_A>") + 15 :][:2], text[text.index("<trajectory_B>") + 15 :][:2]) for text in asked]
    assert shown == [pair for pair in sorted(set(shown)) for _ in range(3)] and len(set(shown)) == 6
    assert len(set(asked)) == 18


RETRIED = ["429", "500", "503 of a gateway", "time-out", "hang-up", "cut on the wire", "cut JSON", "no choices", "logprobs null"]


@pytest.mark.parametrize("fault", RETRIED)
def test_what_is_asked_again(fault):
    """Two faults, then a good reply: the score of the good reply."""
    count = iter(range(9))
    with FaultProxy(lambda request: GOOD["plain"], lambda request: fault if next(count) < 2 else None) as proxy:
        result = quiet(server(proxy, route="sampled", retries=2, timeout=0.25), repeats=1).compare("t", "a", "b")
        assert result.reward_a == pytest.approx(0.75 * 18 / 19) and len(proxy.log) == 3


def test_what_fails_after_its_retries_is_missing():
    with FaultProxy(lambda request: GOOD["plain"], lambda request: "429") as proxy:
        with pytest.raises(NoValidCall, match="1 x HTTP 429"):
            quiet(server(proxy, route="sampled", retries=2), repeats=1).compare("t", "a", "b")
        assert len(proxy.log) == 3


def test_a_wrong_model_or_key_ends_the_run_at_once(monkeypatch):
    for status, error in ((401, openai.AuthenticationError), (404, openai.NotFoundError)):
        monkeypatch.setitem(FAULTS, "halt", (status, lambda body: "{}"))
        with FaultProxy(lambda request: GOOD["plain"], lambda request: "halt") as proxy, pytest.raises(error):
            quiet(server(proxy, route="sampled", retries=2), abstain=True).compare("t", "a", "b")


def test_no_server_is_missing_with_its_reason():
    with pytest.raises(NoValidCall, match="Connection error"):
        quiet(ServerBackend("http://127.0.0.1:9/v1", "m", retries=0)).compare("t", "a", "b")


OF_TEXT = {"cut off in its reasoning", "cut off in its analysis", "one tag", "no text", "logprobs of less text"}


@pytest.mark.parametrize("fault", [name for name in FAULTS if name not in OF_TEXT])
def test_no_fault_becomes_a_score_on_the_prefill_route(fault):
    """Faults at the letters' places; those of the text around them are none where one token's distribution is read."""
    with FaultProxy(open_server, lambda r: fault if r["messages"][-1]["role"] == "assistant" else None) as proxy:
        judge = quiet(server(proxy, timeout=0.25), repeats=1, abstain=True)
        assert judge.compare("t", "a", "b").p is None


def test_ten_thousand_replies_half_of_them_faulty():
    """5,000 faulty replies with 5,000 good ones among them: no faulty one becomes a score, no good one is lost."""
    total = 10_000
    results, judge, proxy = ask_half_faulty(total)
    assert len(proxy.log) == total and {fault for _, fault in proxy.log} == {*FAULTS, None}
    scored = [i for i, result in enumerate(results) if result.p is not None]
    assert [i for i in scored if fault_of(i)] == [] and len(scored) == total // 2
    rewards = {(round(results[i].reward_a, 9), round(results[i].reward_b, 9)) for i in scored}
    assert rewards == {(round(0.75 * 18 / 19, 9), round(0.75 * 12 / 19, 9))}
    assert judge.counts == {"paid": 5000, "missing": 5000} and sum(judge.reasons.values()) == 5000


# ---------------------------------------------------------------------------------------------------------------------
# A model in this process: what the shared, batched cache gives is what one plain pass over each whole prompt gives


@pytest.fixture(scope="module")
def text_model():
    """(model, tokenizer): two random layers."""
    tokenizer = tiny.build_processor(["The block is red. It is blue, and clear."], vocab_size=300).tokenizer
    tokenizer.chat_template = tiny.CHAT_TEMPLATE
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), initializer_range=0.3, **sizes)), tokenizer


@pytest.fixture(scope="module")
def vision_model(tmp_path_factory):
    """(model, processor): a random Qwen2.5-VL."""
    backend = LocalBackend.load(tiny_critic.make_model(tmp_path_factory.mktemp("tiny"), layers=2))
    return backend.model, backend.processor


def calls_of(frames=None, criteria=THREE, backend=None, repeats=2):
    """Calls of one comparison, both orders: two groups."""
    judge = quiet(backend or Fake(by_length), criteria, repeats=repeats)
    return [call for _, call in judge._pair_calls("Which is it?", "It is red, I see it.", "It is blue.", frames)]


def plain(model, processor, call, parts):
    """Log-probabilities after the prompt and each of `parts`, one pass over the whole without a cache; a list of (V,)."""
    tokenizer, found = getattr(processor, "tokenizer", processor), []
    text = processor.apply_chat_template(call.messages, add_generation_prompt=True, tokenize=False) + parts[0]
    if processor is tokenizer:
        inputs = tokenizer(text, add_special_tokens=False, return_tensors="pt")
    else:
        inputs = processor(text=[text], images=[list(call.images)] if call.images else None, return_tensors="pt")
    for following in (*parts[1:], None):
        with torch.no_grad():
            found.append(model(**inputs, use_cache=False).logits[0, -1].float().log_softmax(-1))
        if following:
            more = torch.tensor([tokenizer.encode(following, add_special_tokens=False)])
            for name, fill in (("input_ids", more), ("attention_mask", more * 0 + 1), ("mm_token_type_ids", more * 0)):
                if name in inputs:
                    inputs[name] = torch.cat([inputs[name], fill], 1)
    return found


def assert_same(reading, logprobs, tokenizer, scale=PAIRWISE):
    """A reading holds every spelling of every letter with the plain pass's probability."""
    spelled = [(i, scale.letter_of(tokenizer.decode([i]))) for i in range(len(tokenizer))]
    expected = {c: logprobs[[i for i, letter in spelled if letter == c]].logsumexp(0).item() for c in scale.letters}
    assert scale.letter_logprobs(reading) == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("kind, frames", [("text", None), ("vision", None), ("vision", 2)])
def test_the_shared_cache_changes_nothing(request, kind, frames):
    model, processor = request.getfixturevalue(f"{kind}_model")
    images = [Image.new("RGB", (56, 56), colour) for colour in ("red", "blue")] if frames else None
    calls = calls_of(images)
    backend = LocalBackend(model, processor, analysis_tokens=0, batch_size=2)
    replies = dict(backend.run(calls))
    assert len(calls) == 6 == len(replies) and len({call.group for call in calls}) == 2
    for i, call in enumerate(calls):
        letter = call.scale.best_letter(replies[i].readings[0])
        parts = ["<score_A>", f" {letter} </score_A>\n<score_B>"]
        for reading, logprobs in zip(replies[i].readings, plain(model, processor, call, parts)):
            assert_same(reading, logprobs, backend.tokenizer)
    firsts = [i for i in range(6) if replies[i].tokens.cached == 0]
    assert len(firsts) == 2 and all(0.5 < replies[i].tokens.cached / replies[i].tokens.input < 1 for i in {*range(6)} - {*firsts})


SCRIPTS = [  # (what the model writes, what is kept as its analysis, why)
    ("It is red.\n<score_A> T </score_A>", "It is red.", "ends at the first tag"),
    ("It is red.\n\n\n<score_B> A", "It is red.", "the other tag ends it as well"),
    ("<score_A> T", "", "nothing before the tag"),
    ("It is red.<|im_end|>", "It is red.", "an end token"),
    ("It is red. It is blue, and clear. " * 9, None, "the cap"),
]


@pytest.mark.parametrize("script, kept, why", SCRIPTS, ids=[s[-1] for s in SCRIPTS])
def test_an_analysis_leaves_no_trace_but_its_own(text_model, monkeypatch, script, kept, why):
    """After the analysis is cut, the letters are those after exactly its tokens; rows of a batch end at different places."""
    model, tokenizer = text_model
    backend = LocalBackend(model, tokenizer, analysis_tokens=24)
    calls = calls_of(backend=backend)
    scripts = [script, "It is clear.\n<score_A> B", script]
    queues = {call.seed: iter(tokenizer.encode(scripts[i % 3])) for i, call in enumerate(calls)}
    monkeypatch.setattr(backend, "_draw", lambda logits, generator: next(queues[generator.initial_seed()]))
    replies = dict(backend.run(calls))
    for i in (0, 1, 2):
        text = replies[i].text
        capped = tokenizer.decode(tokenizer.encode(script)[:24]).rstrip()
        assert text == ("It is clear." if i == 1 else capped if kept is None else kept)
        ids, opening = tokenizer.encode(text), "\n<score_A>" if text else "<score_A>"
        first = plain(model, tokenizer, calls[i], [tokenizer.decode(ids)] + [opening] if text else [opening])[-1]
        assert_same(replies[i].readings[0], first, tokenizer)


def test_batches_do_not_change_a_draw(text_model):
    """A row's analysis depends on its own seed, not on the rows beside it."""
    model, tokenizer = text_model
    texts = []
    for batch_size in (1, 4):
        backend = LocalBackend(model, tokenizer, analysis_tokens=12, batch_size=batch_size)
        texts.append([reply.text for _, reply in sorted(backend.run(calls_of(backend=backend)), key=lambda pair: pair[0])])
    assert texts[0] == texts[1] and len(set(texts[0])) == 6


def test_local_two_stage(text_model):
    model, tokenizer = text_model
    with FaultProxy(open_server) as writer:
        reader = LocalBackend(model, tokenizer, analysis_tokens=24)
        backend = TwoStage(server(writer, route="text"), reader)
        calls = calls_of(backend=backend)
        replies = dict(backend.run(calls))
        assert {reply.text for reply in replies.values()} == {"A is better."}
        assert_same(replies[3].readings[0], plain(model, tokenizer, calls[3], ["A is better.\n<score_A>"])[0], tokenizer)


def test_local_whole_verifier(text_model, vision_model):
    """From a comparison to a record, with and without images, and progress."""
    for (model, processor), frames in ((text_model, None), (vision_model, [Image.new("RGB", (56, 56), "red")])):
        judge = quiet(LocalBackend(model, processor, analysis_tokens=4), "physical", repeats=2, min_mass=0)
        result = judge.compare("Which is it?", "red", "blue", frames)
        assert 0 <= result.reward_a <= 1 and not result.missing and len(result.records) == 8
        assert all(0 <= value <= 1 for value in judge.track("Find it.", ["look", "take"], frames))


def test_local_errors_and_identity(text_model):
    model, tokenizer = text_model
    with pytest.raises(ValueError, match="no images"):
        quiet(LocalBackend(model, tokenizer)).compare("t", "a", "b", [Image.new("RGB", (8, 8))])
    with pytest.raises(ValueError, match="batch_size"):
        LocalBackend(model, tokenizer, batch_size=0)
    before = LocalBackend(model, tokenizer).identity
    assert before == LocalBackend(model, tokenizer).identity != LocalBackend(model, tokenizer, temperature=0.5).identity
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    assert LocalBackend(model, tokenizer).identity != before


# ---------------------------------------------------------------------------------------------------------------------
# A real server (llama.cpp) and a real model (SmolLM2-135M, 4 bits), and the same weights in transformers


@pytest.fixture(scope="module")
def smollm():
    """(URL of a llama.cpp server, folder of the GGUF, its name)."""
    file = smollm_file()
    with served() as url:
        yield url, file.parent, file.name


TRUTH = ["physical/truthfulness.md"]
EASY = [  # (task, right, wrong)
    ("What is the capital of France?", "The capital of France is Paris.", "The capital of France is a potato."),
    ("How many legs has a cat?", "A cat has four legs.", "A cat has ninety legs, because it is a spoon."),
]


def real(url, **settings):
    return ServerBackend(url, "smollm", concurrency=1, retries=1, timeout=600.0, **settings)  # a busy machine is no fault


GRADES = (
    "{task}\n<trajectory_A>{right}</trajectory_A>\n<trajectory_B>{wrong}</trajectory_B>\n"
    "Grade each with one letter, A, B, C, D or E. A is best."
)
PRIMED = "Grades are letters: A, B, C, D, E. For example <score_A> B </score_A>, <score_A> D </score_A>, <score_A> A </score_A>."


def test_server_and_local_model_agree(smollm):
    """The same questions to llama.cpp and to transformers: letter probabilities within the error of 8-bit activations.

    A model of this size puts some 7% on letters after the verifier's own prompt, two of them in the server's top 20; the
    text put in its mouth here makes it answer in letters.
    """
    url, folder, name = smollm
    texts = [GRADES.format(task=task, right=right, wrong=wrong) for task, right, wrong in EASY]
    asked = [prompts.messages("You grade.", 0, text) for text in texts]
    calls = [Call(said, ("<score_A>", "<score_B>"), PAIRWISE, analysis=PRIMED) for said in asked]
    served = dict(real(url).run(calls))
    local = dict(LocalBackend.load(folder, gguf_file=name).run(calls))
    for i in range(len(calls)):
        for ours, theirs in zip(local[i].readings, served[i].readings):
            ours, theirs = PAIRWISE.letter_logprobs(ours), PAIRWISE.letter_logprobs(theirs)
            assert len(theirs) >= 5 and sum(map(math.exp, theirs.values())) > 0.5
            for letter, logprob in theirs.items():
                assert math.exp(logprob) == pytest.approx(math.exp(ours[letter]), abs=0.03)  # measured: at most 0.018


def test_the_real_server_through_the_proxy(smollm):
    """Both routes with an analysis, every third request spoilt once: each call is a score, or missing with its reason."""
    turns = iter(range(1000))
    kinds = ["429", "500", "cut JSON", "logprobs null", "no choices", "two choices"]
    spoil = lambda request: kinds[turn // 3 % len(kinds)] if (turn := next(turns)) % 3 == 0 else None  # noqa: E731
    with FaultProxy(smollm[0], spoil) as proxy:
        judge = quiet(real(proxy.url, analysis_tokens=12, backoff=0.01), TRUTH, repeats=2, min_mass=0)
        result = judge.compare(*EASY[0])
        assert not result.missing and len(result.records) == 2 and 0 < result.reward_a < 1
        assert all(record["tokens"]["cached"] > record["tokens"]["input"] / 2 for record in result.records)
        writer = quiet(real(proxy.url, route="sampled", analysis_tokens=16, backoff=0.01), TRUTH, repeats=1, abstain=True)
        record, = writer.compare(*EASY[1]).records
        assert (record["missing"] is None) == (record["p"] is not None)


# ---------------------------------------------------------------------------------------------------------------------
# The public package of the paper, llm-verifier 0.3.0, on the same replies


def peer_score(body, tag):
    """What llm-verifier's reader makes of one tag of a chat completion."""
    places = body["choices"][0]["logprobs"]["content"]
    tops = [[(top["token"], top["logprob"]) for top in place["top_logprobs"]] for place in places]
    return extract_score(body["choices"][0]["message"]["content"], [place["token"] for place in places], tops, tag)


@pytest.mark.parametrize("kind", GOOD)
def test_the_peer_reads_the_same_score(kind):
    """The two readers agree on every good reply of the stub (ours: test_the_sampled_route), save one.

    Where blank tokens stand between the tag and the letter, the peer looks at the blank's place, finds no letter there
    and takes the sampled letter as certain.
    """
    share = 1.0 if kind.startswith("blank tokens") else 0.75
    assert peer_score(GOOD[kind], "<score_A>") == pytest.approx(share * 18 / 19)
    assert peer_score(GOOD[kind], "<score_B>") == pytest.approx(share * 12 / 19)


DIFFERENT = [  # (distribution after the tag, the peer's score, ours or None where we raise, why)
    ([(" A", math.log(0.3)), ("A", math.log(0.3)), (" T", math.log(0.4))], 0.3 / 0.7, 0.6, "the maximum, ours the sum"),
    ([(" a", math.log(0.3)), (" A", math.log(0.3)), (" T", math.log(0.4))], 0.3 / 0.7, 0.6, "lower case is a spelling too"),
    ([(" 85", -0.1), (" 90", -2.5)], 0.5, None, "no letter: the peer's silent 0.5, our error"),
    ([], 0.5, None, "no distribution: the same"),
]


@pytest.mark.parametrize("top, theirs, ours, why", DIFFERENT, ids=[d[-1] for d in DIFFERENT])
def test_where_the_peer_reads_another_score(top, theirs, ours, why):
    body = reply([("Fine.\n", []), ("<score_A>", []), (" ?", top), ("</score_A>", [])])
    assert peer_score(body, "<score_A>") == pytest.approx(theirs)
    if ours is None:
        with pytest.raises(NoScoreToken):
            expected_score(top, PAIRWISE)
    else:
        assert expected_score(top, PAIRWISE).value == pytest.approx(ours)
