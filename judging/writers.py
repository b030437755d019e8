"""Where critic.py's texts come from: a transformers model in this process, or an OpenAI-compatible server.

Both run calls (calls.Call). Calls of one `group` share their messages up to the responses, or to the end. A call's
`analysis` is put in the model's mouth, `tags` is what its text ends with (empty: it ends by itself), `seed` draws its
tokens. Reply.text is what was written after the analysis; Reply.readings holds one number, the probability that the verdict
names the response shown first and not the second, None where there is no verdict.

Locally, what calls of a group share runs once: instructions, frames and question stand before the responses, and their KV
cache is kept, one row a question, and copied into every batch (which may mix questions). A self-prediction stands behind
the responses, so its cache is of no use to another pair.
"""

import inspect
import math
import numbers
import re
from collections import OrderedDict
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers import DynamicCache

import rewards
from judging.calls import Reply, Tokens
from judging.local import LocalBackend, Rows, common_prefix
from judging.score_tokens import BLANK, NoScoreToken
from judging.server import ServerBackend, server_messages

RESPONSES = "<response_1>"  # where the critic's prompt stops being the question's alone
KEPT_TOKENS = 131072  # of questions' caches; 57 KB each for a 7B Qwen2.5-VL in bfloat16, 5 KB for the tiny model
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


@dataclass
class Head:
    """What calls of one group share: its tokens (an image counts one), its length with all of them, its KV cache."""

    ids: list
    length: int
    rows: Rows


class LocalCritic(LocalBackend):
    """A transformers model, vision or text; the settings are LocalBackend's, `analysis_tokens` caps a text."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.heads, self.seen = OrderedDict(), {}
        pieces = self.tokenizer.convert_ids_to_tokens(range(len(self.tokenizer)))
        maybe = [i for i, piece in enumerate(pieces) if piece and re.search("[12AB]", piece)]
        named = {i: spelled(self.tokenizer.decode([i])) for i in maybe}
        self.spellings = [torch.tensor([i for i in named if named[i] == side], device=self.model.device) for side in (1, 2)]
        if not all(map(len, self.spellings)):
            raise ValueError("the tokenizer has no token for 1 or 2; p_first could not be read")

    @torch.no_grad()
    def run(self, calls):
        """Yield (place, Reply), a batch at a time, calls of a group together."""
        order = sorted(range(len(calls)), key=lambda i: calls[i].group)
        for start in range(0, len(order), self.batch_size):
            places = order[start : start + self.batch_size]
            with self.lock:
                replies = self._judge([calls[i] for i in places])
            yield from zip(places, replies)

    def _ids(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _text(self, call):
        plain = self.processor is self.tokenizer
        if plain and call.images:
            raise ValueError(f"{type(self.model).__name__} reads no images; give no frames, or load a vision model")
        messages = server_messages(call.messages, ()) if plain else call.messages
        text = self.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return text + (call.analysis or "")

    def _head(self, call, text, ids):
        """The group's Head, and whether it had to be run; `ids` (one token an image) are those of `text`."""
        if call.group in self.heads:
            self.heads.move_to_end(call.group)
            head = self.heads[call.group]
            assert ids[: len(head.ids)] == head.ids and len(ids) > len(head.ids), "calls of one group differ before the responses"
            return head, False
        shared = common_prefix([self._ids(text.partition(RESPONSES)[0]), ids])
        if self.processor is self.tokenizer:
            inputs = {"input_ids": torch.tensor([ids], device=self.model.device)}
        else:
            images = {"images": [list(call.images)]} if call.images else {}
            inputs = self.processor(text=[text], return_tensors="pt", **images).to(self.model.device, self.model.dtype)
        length = shared + inputs["input_ids"].shape[1] - len(ids)
        head = Head(ids[:shared], length, self._prefix(self._see(call, inputs), length, bool(call.images)))
        self.heads[call.group] = head
        while len(self.heads) > 1 and sum(kept.length for kept in self.heads.values()) > KEPT_TOKENS:
            self.heads.popitem(last=False)
        return head, True

    def _see(self, call, inputs):
        """Inputs with the frames' features instead of pixels, where the model takes them: a clip is looked at once.

        A question asked alone leaves them to its judgements, whose prompt is another one.
        """
        if not call.images or "mm_encoder_outputs" not in inspect.signature(self.model.forward).parameters:
            return inputs
        inputs = dict(inputs)
        pixels, features = inputs.pop("pixel_values"), self.seen.pop(call.image_shas, None)
        if features is None:
            features = self.model.get_image_features(pixels, inputs["image_grid_thw"], return_dict=True)
        if RESPONSES not in call.messages[-1]["content"][-1]["text"]:
            self.seen[call.image_shas] = features
            if len(self.seen) > self.batch_size:  # asked alone and never judged
                self.seen.pop(next(iter(self.seen)))
        return inputs | {"mm_encoder_outputs": {"image": features}}

    def _judge(self, calls):
        """One Reply per call, in one batch."""
        heads, suffixes, costs = [], [], []
        for call in calls:
            text = self._text(call)
            ids = self._ids(text)
            head, run = self._head(call, text, ids)
            heads.append(head)
            suffixes.append(ids[len(head.ids) :])
            costs.append((head.length + len(suffixes[-1]), 0 if run else head.length))
        rows = self._stack(heads)
        drawn, odds = self._draw_all(rows, self._extend(rows, suffixes), calls)
        return [self._reply(*parts) for parts in zip(calls, drawn, odds, costs)]

    def _stack(self, heads):
        """A batch that begins with these heads, padded on the left."""
        width, device = max(head.length for head in heads), self.model.device
        pads = [width - head.length for head in heads]
        layers = zip(*([(layer.keys, layer.values) for layer in head.rows.cache.layers] for head in heads))
        # of each layer keys and values, (B, heads, T, D)
        data = [[torch.cat([F.pad(x, (0, 0, n, 0)) for x, n in zip(xs, pads)]) for xs in zip(*layer)] for layer in layers]
        mask = torch.tensor([[0] * n + [1] * (width - n) for n in pads], device=device)  # (B, T)
        lengths = torch.tensor([head.length for head in heads], device=device)  # (B,)
        shifts = torch.tensor([[int(head.rows.shift)] for head in heads], device=device)  # (B, 1)
        return Rows(DynamicCache(data), mask, lengths, shifts)

    def _draw_all(self, rows, logits, calls):
        """Per call the tokens drawn, end token included, and at each place log P(1) - log P(2), whatever the temperature."""
        drawn, odds, live = [[] for _ in calls], [[] for _ in calls], set(range(len(calls)))
        draws = [torch.Generator().manual_seed(call.seed or 0) for call in calls]
        for left in reversed(range(self.analysis_tokens)):
            first, second = (logits[:, ids].logsumexp(1) for ids in self.spellings)  # (B,)
            gaps = (first - second).tolist()
            greedy = logits.argmax(1).tolist() if self.temperature == 0 else None
            for i in sorted(live):
                token = greedy[i] if greedy else self._draw(logits[i], draws[i])
                drawn[i].append(token)
                odds[i].append(gaps[i])
                if token in self.ends or any(tag in self._decode(drawn[i][-24:]) for tag in calls[i].tags):
                    live.discard(i)
            if not live or not left:
                break
            logits = self._extend(rows, [[drawn[i][-1]] if i in live else [] for i in range(len(calls))])
        return drawn, odds

    def _reply(self, call, drawn, odds, cost):
        """Text, probability and cost; the verdict's token is the one that covers its number's character."""
        text, forced, p = self._decode(drawn), call.analysis or "", None
        start, named = verdict_place(forced + text) or (-1, None)
        if start >= len(forced):
            n = len(drawn) - 1
            while n and len(forced + self._decode(drawn[:n])) > start:
                n -= 1
            if spelled(self.tokenizer.decode([drawn[n]])) == named:
                p = 1 / (1 + math.exp(-max(min(odds[n], 700), -700)))
        return Reply(text, [p], Tokens(cost[0], cost[1], len(drawn)))


class ServerCritic(ServerBackend):
    """A server that continues an assistant's turn and gives log-probabilities; the settings are ServerBackend's."""

    def run(self, calls):
        """Yield (place, Reply or Missing), the first call of each group ahead of the others."""
        return super().run(calls, self._critique)

    def _critique(self, call, spent):
        messages, fields = server_messages(call.messages, call.images), {"stop": list(call.tags)} if call.tags else {}
        if call.analysis:
            messages.append({"role": "assistant", "content": call.analysis})
            fields["extra_body"] = self.PREFILL
        reply = self._request(messages, spent, logprobs=True, **fields, **self._sampling(call))
        forced, joined = call.analysis or "", "".join(token for token, _ in reply.entries)
        content = reply.content.removeprefix(forced)
        # a server that takes <think> for its own reasoning cuts it out of the content, not out of the tokens
        text = rewards.END_TOKEN.sub("", joined) if content.strip() in joined else content
        if call.tags and reply.finish == "stop" and call.tags[0] not in text:
            text += call.tags[0]
        return text, [verdict_probability(forced, reply.entries)]


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
