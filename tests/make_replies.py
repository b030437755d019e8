"""Record 40 replies of a real server, which the tests read with llm-verifier's reader and with ours.

    python -m tests.make_replies            a minute, one core

SmolLM2-135M-Instruct on llama.cpp. 20 replies are sampled whole, with two examples in front so that so small a model writes
the tags at all; 10 are read by prefill after the same examples, 10 by prefill after the verifier's own prompt. All are kept as
they come, those without a letter too. A row is {"kind": "sampled" | "prefill", "bodies": [..]}: the reply, or the analysis and
the reply after each tag; a body holds what readers read, [token, log-probability, [[token, log-probability], ..]] a place.
The proxy of analysis/verifier_cost.py removes the prefilled text that llama.cpp repeats in its reply.
"""

import argparse
import json
from pathlib import Path

from tqdm import tqdm

import prompts
from analysis.small_server import served
from analysis.verifier_cost import Meter
from data import write_whole
from judging.score_tokens import PAIRWISE, NoScoreToken, between, cut, opening
from judging.server import ServerBackend, server_messages
from verifier import Verifier

CAP = 40  # tokens of a sampled reply
PAIRS = [  # (task, a trajectory, another)
    ("What is the capital of France?", "It is Paris.", "It is a potato."),
    ("How many legs has a cat?", "A cat has four legs.", "A cat has ninety legs, because it is a spoon."),
    ("Which way does a dropped ball fall?", "It falls up.", "It falls down."),
    ("What colour is grass?", "Grass is green.", "Grass is made of red iron."),
    ("Can the arm reach the cup behind the wall?", "No, the wall is in the way.", "Yes, it goes through the wall."),
]
EXAMPLES = [
    ("What is two and two?", "It is four.", "It is nine.", "B", "R"),
    ("Is ice hot?", "Yes, very.", "No, it is cold.", "S", "A"),
]


class Nobody:
    """A backend for a verifier that only makes prompts."""

    stochastic, identity = False, {}


def example_messages(task, a, b):
    """Two graded examples, then the pair, in short words."""
    said = []
    for question, one, other, *letters in (*EXAMPLES, (task, a, b)):
        said.append({"role": "user", "content": f"Task: {question}\nA: {one}\nB: {other}\nGrade both, A (best) to T (worst)."})
        if letters:
            reply = f"I compared them.\n<score_A> {letters[0]} </score_A>\n<score_B> {letters[1]} </score_B>"
            said.append({"role": "assistant", "content": reply})
    return said


def own_messages(task, a, b):
    """The verifier's own prompt."""
    judge = Verifier(Nobody(), "physical/truthfulness.md", repeats=1, progress=False)
    [(_, call)] = judge._pair_calls(task, a, b, None)
    return server_messages(call.messages, ())


def small(body):
    """What readers read of a reply."""
    [choice] = body["choices"]
    places = (choice.get("logprobs") or {}).get("content") or []
    return {
        "content": choice["message"]["content"], "finish": choice["finish_reason"],
        "places": [[p["token"], round(p["logprob"], 4), [[t["token"], round(t["logprob"], 4)] for t in p["top_logprobs"]]]
                   for p in places],
    }  # fmt: skip


def sampled(ask, messages, seed):
    """A reply that the model writes whole."""
    settings = {"max_tokens": CAP, "temperature": 1.0, "seed": seed, "logprobs": True, "top_logprobs": 20}
    return {"kind": "sampled", "bodies": [small(ask({"model": "m", "messages": messages, **settings}))]}


def prefilled(ask, messages, seed):
    """Analysis, then the place after each tag; as a letter between them the most probable one (without any: the first)."""
    bodies = [small(ask({"model": "m", "messages": messages, "max_tokens": 12, "temperature": 1.0, "seed": seed}))]
    text, tags = cut(bodies[0]["content"], prompts.VERIFIER_TAGS), prompts.VERIFIER_TAGS
    turn = text + opening(text, tags[0])
    settings = {"max_tokens": 1, "temperature": 1.0, "seed": seed, "logprobs": True, "top_logprobs": 20, **ServerBackend.PREFILL}
    for tag, following in zip(tags, (*tags[1:], None)):
        said = [*messages, {"role": "assistant", "content": turn}]
        bodies.append(small(ask({"model": "m", "messages": said, **settings})))
        if following:
            try:
                letter = PAIRWISE.best_letter(bodies[-1]["places"][0][2])
            except NoScoreToken:
                letter = PAIRWISE.letters[0]
            turn += between(letter, tag, following)
    return {"kind": "prefill", "bodies": bodies}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=Path("tests/data/replies.jsonl"), help="JSONL to write")
    args = parser.parse_args(argv)
    both = [(task, *pair) for task, a, b in PAIRS for pair in ((a, b), (b, a))]  # 10
    plan = [(sampled, example_messages, 2 * both), (prefilled, example_messages, both), (prefilled, own_messages, both)]
    plan = [(record, say, pair) for record, say, pairs in plan for pair in pairs]
    with served() as url:
        ask = Meter(url, CAP)
        rows = [record(ask, say(*pair), seed) for seed, (record, say, pair) in enumerate(tqdm(plan, desc="replies"))]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows]
    write_whole(args.out, "".join(lines))


if __name__ == "__main__":
    main()
