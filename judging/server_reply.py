"""What an OpenAI-compatible server sends: a chat completion, checked, with thinking and answer apart; an error, in its words.
"""

import json
from dataclasses import dataclass

import httpx2

from judging.calls import Tokens
from judging.score_tokens import NoScoreToken

MOST_BYTES = 64 * 2**20  # of one reply; the longest with 20 log-probabilities a token has a fifth of that
THINKING = ("thinking", "reasoning")  # types of a content's parts that are no answer


class FaultyReply(Exception):
    """A reply that is not what the protocol promises (cut JSON, no choices, no log-probabilities): asked again."""


def pairs_of(entry):
    """(token, [(token, log-probability), ...]) of one place of a server's log-probabilities; raises FaultyReply."""
    top = entry.get("top_logprobs") if isinstance(entry, dict) else None
    if not isinstance(top, list) or not isinstance(entry.get("token"), str):
        raise FaultyReply("log-probabilities without token or top_logprobs")
    if not all(isinstance(other, dict) and isinstance(other.get("token"), str) for other in top):
        raise FaultyReply("top_logprobs without tokens")
    return entry["token"], [(other["token"], other.get("logprob")) for other in top]


def text_of(value):
    """A text field of a reply, or a list of its parts joined; raises FaultyReply where it is neither, nor null."""
    if isinstance(value, list):
        return "".join(text_of(part.get("text") if isinstance(part, dict) else part) for part in value)
    if value is not None and not isinstance(value, str):
        raise FaultyReply(f"a {type(value).__name__} where text belongs")
    return value or ""


def said(body):
    """What a server says of an error: the message of its body, whatever its form; "" where it says nothing.

    >>> said({"error": {"message": "overloaded"}}), said({"detail": "no such model"}), said("<html>busy</html>"), said(None)
    ('overloaded', 'no such model', '<html>busy</html>', '')
    """
    while isinstance(body, dict):
        body = next((body[name] for name in ("error", "message", "detail", "msg") if body.get(name)), None)
    text = body if isinstance(body, str) else json.dumps(body) if body else ""
    return " ".join(text.split())[:200]


class Bounded(httpx2.SyncByteStream):
    """A reply's body that ends with an error where it is longer than MOST_BYTES."""

    def __init__(self, stream):
        self.stream = stream

    def __iter__(self):
        left = MOST_BYTES
        for part in self.stream:
            left -= len(part)
            if left < 0:
                raise FaultyReply(f"the reply has more than {MOST_BYTES} bytes")
            yield part

    def close(self):
        self.stream.close()


def bound(response):
    """Bound a response before its body is read; one that is compressed all the same could grow without bound, and is refused."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise FaultyReply("a compressed reply, though none was asked for")
    response.stream = Bounded(response.stream)


def apart(message):
    """(content, reasoning, refusal) of a message; content may be a list of parts, with thinking or a refusal among them."""
    if not isinstance(message, dict):
        return "", "", ""
    content = message.get("content")
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    thoughts = [part for part in parts if part.get("type") in THINKING]
    reasoning = text_of(message.get("reasoning_content")) or text_of(message.get("reasoning"))
    reasoning = reasoning or text_of([text_of(part.get("thinking") or part.get("text")) for part in thoughts])
    refusal = text_of(message.get("refusal")) or text_of([part.get("refusal") for part in parts])
    content = [part for part in content if part not in thoughts] if thoughts else content
    return text_of(content), reasoning, said(refusal)


@dataclass(frozen=True)
class ServerReply:
    """One checked chat completion; what the model thought before it answered (`reasoning`) is no part of `content`."""

    content: str
    reasoning: str
    finish: str | None
    entries: list

    @classmethod
    def parse(cls, body, logprobs):
        """Of a decoded body; raises FaultyReply unless it has one choice and, if asked for, log-probabilities.

        Raises NoScoreToken where a content filter ended it, or the model refused; what was said goes into the message.
        """
        choices = body.get("choices") if isinstance(body, dict) else None
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            count = len(choices) if isinstance(choices, list) else "no list of"
            raise FaultyReply(said(body) or f"{count} choices where one was asked for")
        choice = choices[0]
        if choice.get("error"):
            raise FaultyReply(said(choice))
        content, reasoning, refusal = apart(choice.get("message"))
        if choice.get("finish_reason") == "content_filter":
            raise NoScoreToken("the server's content filter ended the reply" + (f": {refusal}" if refusal else ""))
        if not isinstance(choice.get("message"), dict):
            raise FaultyReply("a choice without a message")
        if refusal and not content.strip():
            raise NoScoreToken(f"the model refused: {refusal}")
        entries = []
        if logprobs:
            given = choice.get("logprobs")
            given = given.get("content") if isinstance(given, dict) else None
            if not isinstance(given, list) or not given:
                raise FaultyReply("no log-probabilities; does the server give them, with top_logprobs?")
            entries = [pairs_of(entry) for entry in given]
        return cls(content, reasoning, choice.get("finish_reason"), entries)

    def answer(self):
        """What the model answers: the content; the reasoning only where nothing else is there and the model ended by itself.

        Then a server took all of it for reasoning. Reasoning that was cut off is no answer.
        """
        return self.content if self.content.strip() or self.finish != "stop" else self.reasoning


def usage_of(body):
    """Tokens of a decoded body, as far as it says."""
    usage, timings = ((body.get(name) if isinstance(body, dict) else None) or {} for name in ("usage", "timings"))
    if not isinstance(usage, dict):
        return Tokens()
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    if cached is None:
        cached = usage.get("prompt_cache_hit_tokens") or (isinstance(timings, dict) and timings.get("cache_n"))
    counts = (usage.get("prompt_tokens"), cached, usage.get("completion_tokens"))
    return Tokens(*(count if type(count) is int else 0 for count in counts))
