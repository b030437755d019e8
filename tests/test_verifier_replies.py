"""40 recorded replies of a real server, read by llm-verifier 0.3.0 and by us: where the scores differ, and why.

Both clients are run whole against a server that replays the replies; made by tests/make_replies.py.
"""

import json
import math
from collections import Counter
from pathlib import Path

import openai
import pytest
from llm_verifier.fine_grained_reward import score_pair_criterion

import prompts
from judging.calls import Call, Missing
from judging.score_tokens import PAIRWISE, expected_score
from tests.fault_proxy import FaultProxy
from tests.stub_judge import server

ROWS = [json.loads(line) for line in (Path(__file__).parent / "data" / "replies.jsonl").read_text().splitlines()]
TAGS = prompts.VERIFIER_TAGS


def whole(body):
    """The server's reply again, of what was kept of it."""
    places = [
        {"token": token, "logprob": logprob, "top_logprobs": [{"token": t, "logprob": p} for t, p in top]}
        for token, logprob, top in body["places"]
    ]
    choice = {"index": 0, "message": {"role": "assistant", "content": body["content"]}, "finish_reason": body["finish"]}
    choice["logprobs"] = {"content": places} if places else None
    return {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}


def replay(row):
    """A server that gives the row's replies: to a prefilled tag the one after that tag, else the first."""

    def upstream(request):
        last = request["messages"][-1]
        place = 0 if last["role"] != "assistant" else 1 + [last["content"].endswith(tag) for tag in TAGS].index(True)
        return whole(row["bodies"][place])

    return upstream


def theirs(row):
    """llm-verifier's two scores; its path for servers without prefill is named after DeepSeek."""
    with FaultProxy(replay(row)) as proxy:
        client = openai.OpenAI(base_url=proxy.url, api_key="none", max_retries=0)
        client._llm_verifier_deepseek = row["kind"] == "sampled"
        return score_pair_criterion(client, "task", "a", "b", {"name": "n", "description": "d"}, "", model="m")


def ours(row):
    """Our two scores, or the reason why the call is missing."""
    with FaultProxy(replay(row)) as proxy:
        backend = server(proxy, route=row["kind"])
        [(_, reply)] = backend.run([Call(prompts.messages("s", 0, "t"), TAGS, PAIRWISE)])
    if isinstance(reply, Missing):
        return reply.reason
    return tuple(expected_score(reading, PAIRWISE).value for reading in reply.readings)


def distribution(row, tag):
    """The recorded distribution at the place of the letter after a tag; None where the reply has no such place."""
    if row["kind"] == "prefill":
        return row["bodies"][1 + TAGS.index(tag)]["places"][0][2]
    text = ""
    for token, _, top in row["bodies"][0]["places"]:
        if text.endswith(tag) and token.strip():
            return top
        text += token
    return None


def loudest(top):
    """Their rule: of the spellings of a letter the most probable one alone. As a distribution for our reader."""
    best = {}
    for token, logprob in top:
        letter = PAIRWISE.letter_of(token)
        if letter:
            best[letter] = max(best.get(letter, -math.inf), logprob)
    return best


def explain(row, their, our):
    """Why the two scores of a reply differ, as facts.md has it; None where nothing explains it."""
    tops = [distribution(row, tag) for tag in TAGS]
    if isinstance(our, str):  # missing, where the peer gives numbers all the same
        silent = [tag for tag, top, score in zip(TAGS, tops, their) if top is None and score == 0.5]
        return "no tag: their silent 0.5" if our in [f"the reply has no {tag}" for tag in silent] else None
    by_their_rule = tuple(expected_score(loudest(top), PAIRWISE).value for top in tops)
    return "spellings summed, not maximised" if by_their_rule == pytest.approx(their, abs=1e-9) else None


@pytest.fixture(scope="module")
def readings():
    """(row, their scores, ours or why there are none, "same" or the reason of the difference or None) of each reply."""
    both = [(row, theirs(row), ours(row)) for row in ROWS]
    return [(*one, "same" if one[2] == pytest.approx(one[1], abs=1e-9) else explain(*one)) for one in both]


def test_every_difference_is_one_that_we_mean(readings):
    assert Counter(row["kind"] for row in ROWS) == {"sampled": 20, "prefill": 20}
    assert [i for i, (*_, verdict) in enumerate(readings) if verdict is None] == []
    counts = {"same": 5, "spellings summed, not maximised": 33, "no tag: their silent 0.5": 2}
    assert Counter(verdict for *_, verdict in readings) == counts


def test_the_scores_are_the_same_exactly_where_no_letter_has_two_spellings(readings):
    """Read off the recorded tokens alone, without either reader."""
    for row, _, our, verdict in readings:
        if not isinstance(our, str):
            spelled = [[token.strip().upper() for token, _ in distribution(row, tag)] for tag in TAGS]
            twice = any(letters.count(letter) > 1 for letters in spelled for letter in PAIRWISE.letters)
            assert twice == (verdict != "same")


def test_a_reply_without_a_tag_is_missing_and_the_peer_gives_half(readings):
    silent = [(their, our) for row, their, our, _ in readings if any(distribution(row, tag) is None for tag in TAGS)]
    assert [(their, our) for their, our in silent if 0.5 not in their or not our.startswith("the reply has no <score_")] == []
    assert len(silent) == 2
