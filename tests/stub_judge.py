"""What the tests of the verifier share: a backend that answers from the prompt, and replies of a stubbed server."""

import math
import re

from judging.calls import Missing, Reply, Tokens
from judging.server import ServerBackend
from tests.fault_proxy import FAULTS, FaultProxy, reply
from verifier import Criterion, Verifier

LOG = math.log
ONE = [Criterion("Truth", "Is it true?")]
THREE = [Criterion(name, f"Is it {name}?") for name in ("true", "short", "clear")]


def shown(call):
    """The user's text of a call."""
    return call.messages[1]["content"][-1]["text"]


class Fake:
    """Answers with `letters(call)` for the slots, one at a time; None is a call that failed. Keeps what it was asked."""

    stochastic, identity = False, {"fake": 1}

    def __init__(self, letters):
        self.letters, self.calls = letters, []

    def run(self, calls):
        for i, call in enumerate(calls):
            self.calls.append(call)
            said = self.letters(call)
            if said is None:
                yield i, Missing("HTTP 500", Tokens(5, 0, 0))
            else:
                yield i, Reply("text", [[[letter, 0.0]] for letter in said], Tokens(100, 60, 2))


def by_length(call):
    """Grades each trajectory by its length, a letter a character."""
    slots = re.findall(r"<trajectory_[AB]>\n(.*?)\n</trajectory_[AB]>", shown(call), re.S)
    return [call.scale.letters[-min(len(slot), 20)] for slot in slots]


def quiet(backend, criteria=ONE, **settings):
    return Verifier(backend, criteria, progress=False, **settings)


def distribution(best, worst=" T", share=0.75):
    """Most on one letter, the rest on another."""
    return [(best, LOG(share)), (worst, LOG(1 - share))]


def sampled_reply(letter_a, letter_b, before="Both are fine.\n"):
    """A reply that a model samples whole."""
    places = [(before, [(before, 0.0)]), ("<score_A>", []), (f" {letter_a}", distribution(f" {letter_a}")), (" </score_A>\n", [])]
    return reply([*places, ("<score_B>", []), (f" {letter_b}", distribution(f" {letter_b}")), (" </score_B>", [])])


def open_server(request):
    """A server that continues the assistant's turn: C after <score_A>, E after <score_B> of what went before."""
    last = request["messages"][-1]
    if last["role"] != "assistant":
        return reply([("A is better. <score_A> Q", [])], usage=(100, 0, 9))
    assert request["max_tokens"] == 1 and request["continue_final_message"] and request["top_logprobs"] == 20
    letter = " C" if last["content"].endswith("<score_A>") else " E"
    return reply([(letter, distribution(letter))], usage=(120, 110, 1), finish="length")


def server(proxy, **settings):
    values = {"model": "stub", "timeout": 5.0, "retries": 0, "backoff": 0.001, "concurrency": 4} | settings
    return ServerBackend(proxy.url, **values)


GOOD = {  # sampled replies with B at the first tag and H at the second, and what is peculiar about them
    "plain": sampled_reply("B", "H"),
    "lower case": sampled_reply("b", "h"),
    "form quoted before": sampled_reply("B", "H", "I end with <score_A> Q </score_A>\n<score_B> Q </score_B>.\n"),
    "reasoning in another field, its tokens among the log-probabilities": reply(
        [("Hm, <score_A> T </score_A> or <score_B> A </score_B>?", []), ("</think>", []), ("<score_A>", []),
         (" B", distribution(" B")), (" </score_A>\n", []), ("<score_B>", []), (" H", distribution(" H")), (" </score_B>", [])],
        "<score_A> B </score_A>\n<score_B> H </score_B>", "Hm, <score_A> T </score_A> or <score_B> A </score_B>?"),
    "reasoning in another field, without log-probabilities": reply(
        [("<score_A>", []), (" B", distribution(" B")), (" </score_A>\n", []), ("<score_B>", []), (" H", distribution(" H")),
         (" </score_B>", [])], None, "Hm, <score_A> T </score_A>"),
    "everything in the reasoning field, ended by itself": reply(
        [("Hm. ", []), ("<score_A>", []), (" B", distribution(" B")), (" </score_A>\n", []), ("<score_B>", []),
         (" H", distribution(" H")), (" </score_B>", [])], "", "Hm. <score_A> B </score_A>\n<score_B> H </score_B>"),
    "letters fused to the tag's end": reply(
        [("<score_A", []), (">B", distribution(">B", ">T")), ("</score_A>", []), ("<score_B", []),
         (">H", distribution(">H", ">T")), ("</score_B>", [])]),
    "blank tokens, an end token, text behind": reply(
        [("<score_A>", []), (" ", []), ("", []), ("B", distribution("B", "T")), ("</score_A>", []), ("<score_B>", []), ("\n", []),
         ("H", distribution("H", "T")), ("</score_B>", []), ("\nDone.", []), ("<|im_end|>", [])],
        "<score_A> B</score_A><score_B>\nH</score_B>\nDone."),
    "cut off right behind the last tag": reply(
        [("<score_A>", []), (" B", distribution(" B")), (" </score_A>\n", []), ("<score_B>", []), (" H", distribution(" H")),
         (" </score_B>", [])], finish="length"),
}  # fmt: skip


def fault_of(i):
    """The fault of reply `i`: every even one has one, all kinds in turn; a time-out takes its time, so there are fewer."""
    names = sorted(FAULTS)
    turn, name = divmod(i // 2, len(names))
    return None if i % 2 else "500" if names[name] == "time-out" and turn % 60 else names[name]


def ask_half_faulty(total):
    """(comparisons, verifier, proxy) after one call for each of `total` questions, every other reply faulty."""
    kinds = sorted(GOOD)

    def number(request):
        return int(re.search(r"question (\d+)", request["messages"][1]["content"])[1])

    def upstream(request):
        i = number(request)
        return GOOD[kinds[i // 2 % len(kinds)] if i % 2 else "plain"]

    with FaultProxy(upstream, lambda request: fault_of(number(request))) as proxy:
        judge = quiet(server(proxy, route="sampled", timeout=10.0), repeats=1, abstain=True)
        return judge.compare_many([(f"question {i}", "a", "b") for i in range(total)]), judge, proxy
