"""A call to a judge's model, its reply, what it cost, and the file that remembers it."""

import hashlib
import json
import threading
from dataclasses import asdict, dataclass

import data
from data.files import append


@dataclass(frozen=True)
class Tokens:
    """What calls cost: prompt tokens, those of them that came from a cache, and generated tokens."""

    input: int = 0
    cached: int = 0
    output: int = 0

    def __add__(self, other):
        return Tokens(self.input + other.input, self.cached + other.cached, self.output + other.output)


@dataclass(frozen=True)
class Call:
    """One question to a verifier or, with `scale` None, to a critic (judging/local.py); calls of one `group` share images and
    the beginning of the prompt.

    `analysis` is put in the model's mouth: a verifier's by another model (two-stage route; None: it writes its own), a
    critic's self-prediction. `tags` end what is written, `seed` draws its tokens.
    """

    messages: list
    tags: tuple
    scale: object
    images: tuple = ()
    image_shas: tuple = ()
    group: str = ""
    seed: int | None = None
    analysis: str | None = None


@dataclass(frozen=True)
class Reply:
    """The text written, and what was read: of a verifier for each tag the (token, log-probability) pairs after it, of a
    critic the probability that its verdict names the response shown first (None: no verdict)."""

    text: str
    readings: list
    tokens: Tokens = Tokens()


@dataclass(frozen=True)
class Missing:
    """A call without a score, and why."""

    reason: str
    tokens: Tokens = Tokens()


@dataclass(frozen=True)
class Completion:
    """One sampled text, without special tokens, and what it cost (padding not counted, the end token counted).

    `p` is the probability that the response shown first is better, of a judge that gives one instead of a verdict.
    """

    text: str
    prompt_tokens: int
    completion_tokens: int
    p: float | None = None


class CallCache:
    """Replies by content hash, appended to a JSONL file one line a call; without a path, kept in memory only.

    A line is written whole or, by kill -9, cut: a cut last line is removed when the file is opened again. Failed calls
    are on record too, with "missing" and its reason, and are asked again by the next run.
    """

    def __init__(self, path=None):
        self.replies, self.stream, self.lock = {}, None, threading.Lock()
        if path is None:
            return
        try:
            self.stream = data.open_lines(path)
        except BlockingIOError:
            raise ValueError(f"{path}: another verifier is writing this file; wait for it, or give another cache") from None
        self.stream.seek(0)
        for number, line in enumerate(self.stream, 1):
            self._take(line, f"{path}:{number}")

    def _take(self, line, where):
        try:
            row = json.loads(line)
            if row.get("missing") is None:
                self.replies[row["key"]] = Reply(row["text"], row["readings"], Tokens(**row["tokens"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{where}: not a line of a call cache ({error}); remove the line, or give another cache") from error

    def add(self, key, reply, about):
        """Keep a Reply, or put a Missing on record."""
        row = {"key": key, **about, "missing": getattr(reply, "reason", None), **asdict(reply)}
        row.pop("reason", None)
        with self.lock:
            if isinstance(reply, Reply):
                self.replies[key] = reply
            if self.stream:
                append(self.stream, json.dumps(row).encode() + b"\n")


def image_sha(image):
    """Hex digits that stand for an image's pixels."""
    return hashlib.sha256(f"{image.mode} {image.size}".encode() + image.tobytes()).hexdigest()
