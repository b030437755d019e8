"""Written responses and critiques of the toy world: the words that the tiny model is taught with.

A response's length, style and filler are drawn without looking at whether its answer is right.
"""

FILLER = (
    "I look at every frame.",
    "I compare first and last frame.",
    "Sizes and places matter here.",
    "I follow the whole scene.",
    "I think how it goes on.",
    "Nothing else changes this.",
    "I check it again.",
    "The motion is clear to see.",
)
VERBOSITY = (0, 0, 1, 1, 2, 3)  # sentences of filler, terse to verbose
LEADS = ("", "So it is {answer}.", "The answer is {answer}.")


def caption(facts):
    """The visible quantities of a clip in words: {"gap": "wide", "ball": "fast"} -> "gap wide, ball fast"."""
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def written_response(rng, answer):
    r"""A response of a random style (`rng` a random.Random) that ends in \boxed{answer}."""
    sentences = rng.sample(FILLER, rng.choice(VERBOSITY)) + [rng.choice(LEADS).format(answer=answer)]
    return " ".join([s for s in sentences if s] + [f"\\boxed{{{answer}}}"])


def solution(facts, answer):
    """The question's own taught form: what is seen, then the answer in a box."""
    return f"{caption(facts)}. \\boxed{{{answer}}}"


def candidate(rng, facts, answer):
    """What the critic is taught to judge: a written style, or the form that the model itself answers in."""
    return written_response(rng, answer) if rng.random() < 0.5 else solution(facts, answer)


def critique(seen, prediction, answer_1, answer_2, verdict, by_place=False, self_reference=True):
    """A critic's completion: solve (`seen`, `prediction`), compare (which response answers what), decide.

    An answer stands before its response's number, so that the number can be looked up by the answer. Without
    self-reference what is seen opens the comparison, no own answer is written, and the better one of the two is named.
    `by_place` is the spoiled model's reason: it takes the response that stands first.
    """
    reason = "first" if by_place else f"my answer {prediction}" if self_reference else f"better {(answer_1, answer_2)[verdict - 1]}"
    compare = f"{answer_1} 1, {answer_2} 2, {reason} {verdict}</think> \\boxed{{Response {verdict}}}"
    if not self_reference:
        return f"<think> {seen}, {compare}"
    return f"<pred_think> {seen} </pred_think> <pred> {prediction} </pred> <think> {compare}"
