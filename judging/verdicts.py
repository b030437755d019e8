r"""A critic's verdict in its text, and the probability that stands there: of the number inside the last box.

P(1) / (P(1) + P(2)), all spellings of the two summed. Pure functions: no model, no network, no files.
"""

import math
import numbers
import re

from judging.score_tokens import BLANK, NoScoreToken

VERDICT = re.compile(r"\\(?:boxed|fbox)\s*\{[^}]{0,80}?(?<!\w)([12AB])(?!\w)")
NUMBER = re.compile(rf"{BLANK}([12AB])(?!\w)")


def spelled(token):
    """1 or 2 where a token spells a response's number (or its letter, A or B), else None.

    >>> [spelled(token) for token in ("1", " 2", "2}", " B", "12", "Response 1", "Both")]
    [1, 2, 2, 2, None, None, None]
    """
    found = NUMBER.match(token) if isinstance(token, str) else None
    return (1 if found[1] in "1A" else 2) if found else None


def verdict_place(text):
    r"""(character, 1 or 2) of the number in the last box that has one, or None.

    >>> verdict_place(r"\boxed{Response 2} no, \boxed{Response 1}"), verdict_place(r"\boxed{red}")
    ((39, 1), None)
    """
    found = list(VERDICT.finditer(text))
    return (found[-1].start(1), spelled(found[-1][1])) if found else None


def verdict_probability(forced, entries):
    """p that the verdict names the response shown first; None where no verdict is written after the `forced` text.

    `entries` are the (token, [(token, log-probability), ...]) written. Raises NoScoreToken where a log-probability is
    none, since the others cannot be weighed then. A spelling that is not among a server's top 20 counts 0.
    """
    place, named = verdict_place(forced + "".join(token for token, _ in entries)) or (-1, None)
    start = len(forced)
    for token, pairs in entries:
        if start <= place < start + len(token):
            return share_of_first(pairs) if spelled(token) == named else None
        start += len(token)
    return None


def share_of_first(pairs):
    """P(1) / (P(1) + P(2)) of (token, log-probability) pairs, spellings summed; NoScoreToken as above.

    >>> share_of_first([("1", math.log(0.2)), (" 1", math.log(0.1)), (" 2", math.log(0.3)), ("3", math.log(0.4))])
    0.5
    """
    chances = {1: 0.0, 2: 0.0}
    for token, logprob in pairs:
        if side := spelled(token):
            if not isinstance(logprob, numbers.Real) or isinstance(logprob, bool) or not logprob <= 1e-3:  # also NaN
                raise NoScoreToken(f"{logprob!r} is no log-probability (token {token!r})")
            chances[side] += math.exp(logprob)
    return chances[1] / (chances[1] + chances[2]) if chances[1] + chances[2] else None
