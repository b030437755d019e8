"""Score letters: two scales, the expected score of a distribution, and where in a reply that distribution stands.

Source: LLM-as-a-Verifier (arXiv 2607.05391), equation 3.1. Pure functions: no model, no network, no files.
"""

import math
import numbers
import re
from dataclasses import dataclass, replace
from typing import NamedTuple

LETTERS = "ABCDEFGHIJKLMNOPQRST"
BLANK = r"[\s▁ĠĊ]*"  # also as raw vocabularies write a space and a line break
SPELLING = re.compile(rf"{BLANK}(?:[\w\"']*>)?{BLANK}([A-Za-z]){BLANK}(?:</?)?")


class NoScoreToken(ValueError):
    """A distribution, or a whole reply, from which no score can be read."""


class Score(NamedTuple):
    """Expected value in [0, 1], and the probability that lay on the scale's letters at all."""

    value: float
    mass: float


@dataclass(frozen=True)
class Scale:
    """Letters and what they are worth, evenly spaced from 1 to 0 (A best) or from 0 to 1.

    >>> PAIRWISE.value("A"), PAIRWISE.value("T"), PROGRESS.value("T"), PAIRWISE.at(3).letters, PAIRWISE.at(3).value("B")
    (1.0, 0.0, 1.0, 'ABC', 0.5)
    """

    name: str
    best_first: bool
    letters: str = LETTERS

    def at(self, granularity):
        """This scale with 2 to 20 letters."""
        if isinstance(granularity, bool) or not isinstance(granularity, int) or not 2 <= granularity <= len(LETTERS):
            raise ValueError(f"granularity must be a whole number from 2 to {len(LETTERS)}, got {granularity!r}")
        return replace(self, letters=LETTERS[:granularity])

    def value(self, letter):
        """phi of equation 3.1, scaled to [0, 1]."""
        share = self.letters.index(letter) / (len(self.letters) - 1)
        return 1 - share if self.best_first else share

    def letter_of(self, token):
        """The letter that a token spells, or None: " a", ">A", "_A>A" and "A</" are A; a word is not its first letter.

        >>> [PAIRWISE.letter_of(token) for token in ("A", " b", ">C", "D</", "Absolutely", "", "Z", "A>")]
        ['A', 'B', 'C', 'D', None, None, None, None]
        """
        found = SPELLING.fullmatch(token) if isinstance(token, str) else None
        letter = found[1].upper() if found else None
        return letter if letter and letter in self.letters else None

    def letter_logprobs(self, top_logprobs):
        """Log-probability of each letter present, its spellings summed; raises NoScoreToken (see expected_score)."""
        if top_logprobs is None:
            raise NoScoreToken("no log-probabilities")
        spellings = {}
        for token, logprob in top_logprobs.items() if hasattr(top_logprobs, "items") else top_logprobs:
            letter = self.letter_of(token)
            if letter is None:
                continue
            real = isinstance(logprob, numbers.Real) and not isinstance(logprob, bool)
            if not real or not logprob <= 1e-3:  # also NaN; a little above 0 is rounding
                raise NoScoreToken(f"{logprob!r} is no log-probability (token {token!r})")
            if logprob > -math.inf:
                spellings.setdefault(letter, []).append(float(logprob))
        if not spellings:
            raise NoScoreToken(f"no letter {self.letters[0]}-{self.letters[-1]} among {shorten(top_logprobs)}")
        return {letter: logsumexp(values) for letter, values in sorted(spellings.items())}

    def best_letter(self, top_logprobs):
        """The most probable letter, in capitals (ties: the first); raises NoScoreToken."""
        letters = self.letter_logprobs(top_logprobs)
        return max(letters, key=letters.get)


PAIRWISE = Scale("pairwise", best_first=True)
PROGRESS = Scale("progress", best_first=False)


def shorten(top_logprobs):
    """Tokens of a distribution, for a message."""
    tokens = list(top_logprobs)
    return ", ".join(repr(token if isinstance(token, str) else token[0]) for token in tokens[:5]) or "no tokens"


def logsumexp(values):
    """log(sum(exp(values))), without underflow."""
    top = max(values)
    return top + math.log(math.fsum(math.exp(value - top) for value in values))


def expected_score(top_logprobs, scale):
    """Score(value, mass) of one distribution: sum over letters of p(letter) * phi(letter), p renormalised over those present.

    `top_logprobs` maps token text to log-probability, or is a list of such pairs (a text may then occur twice).
    Source: equation 3.1 of arXiv 2607.05391, inner sum. Range [0, 1]; mass is the probability of all letters together.
    Raises NoScoreToken where no letter has a probability, and where that of a letter is None, NaN or positive: then the
    others cannot be weighed either.

    >>> score = expected_score({"A": math.log(0.3), " a": math.log(0.3), "T": math.log(0.2), "the": math.log(0.2)}, PAIRWISE)
    >>> round(score.value, 12), round(score.mass, 12)
    (0.75, 0.8)
    """
    letters = scale.letter_logprobs(top_logprobs)
    total = logsumexp(letters.values())
    value = math.fsum(math.exp(logprob - total) * scale.value(letter) for letter, logprob in letters.items())
    return Score(min(max(value, 0.0), 1.0), math.exp(total))


def closing(tag):
    """The tag that closes `tag`."""
    return "</" + tag[1:]


def cut(text, tags):
    """The text before the first score tag.

    >>> cut("B is wrong. <score_A> C </score_A>", ("<score_A>", "<score_B>"))
    'B is wrong.'
    """
    return text[: min((text.find(tag) for tag in tags if tag in text), default=len(text))].rstrip()


def opening(text, tag):
    """What leads from an analysis (or none) to the place of the first letter."""
    return f"\n{tag}" if text else tag


def between(letter, tag, following):
    """What stands between the places of two letters, the first letter included.

    >>> between("C", "<score_A>", "<score_B>")
    ' C </score_A>\\n<score_B>'
    """
    return f" {letter} {closing(tag)}\n{following}"


def after_last_tag(entries, content, tag, scale):
    """The (token, log-probability) pairs at the place of the letter after the last `tag` of a sampled reply.

    `entries` are the (token, pairs) of a reply, reasoning included or not; `content` is its answer. Where a token
    fuses the tag's end with the letter (">A"), only the alternatives that end the tag count. Raises NoScoreToken unless a
    letter of the scale was sampled there and both views of the reply agree.

    >>> after_last_tag([("<score_A", []), (">C", [(">C", -0.1), (">", -3.0), ("D", -4.0)])], "<score_A>C", "<score_A>", PAIRWISE)
    [('C', -0.1), ('', -3.0)]
    """
    joined = "".join(token for token, _ in entries)
    place, seen = joined.rfind(tag), content.rfind(tag)
    if place < 0 or seen < 0:
        raise NoScoreToken(f"the reply has no {tag}")
    end, tail = place + len(tag), content[seen + len(tag) :]
    if not joined[end:].startswith(tail[:20].rstrip()):
        raise NoScoreToken(f"the log-probabilities after {tag} do not belong to the reply's text")
    word, start = re.match(r"\s*(\w*)", tail)[1], 0
    for token, pairs in entries:
        rest = token[max(0, end - start) :]
        if start + len(token) > end and rest.strip():
            if scale.letter_of(rest) is None or scale.letter_of(word) is None:
                break
            head = token[: len(token) - len(rest)]
            return [(other[len(head) :], logprob) for other, logprob in pairs if other.startswith(head)]
        start += len(token)
    raise NoScoreToken(f"the reply gives no letter of the scale after {tag}: {tail[:40]!r}")
