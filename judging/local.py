"""A transformers model in this process, text or vision, that writes for a critic and for a verifier, in batches.

Calls (calls.Call) of one `group` share the frames and the beginning of their prompt: up to the responses for a critic, up
to the criterion for a verifier. What they share runs once; its KV cache, one row, is copied into every batch, which may
mix groups. A self-prediction stands behind the responses, so it is no part of that.

A verifier's call has a scale: an analysis is drawn up to the first of its `tags`, then a letter is read at each tag. A
critic's call has none: it goes on from its `analysis` until it ends by itself or with one of its `tags`, and its reading is
the probability that the verdict names the response shown first, None where there is no verdict.
"""

import hashlib
import inspect
import math
import re
import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.utils.peft_utils import find_adapter_config_file

from data import command
from judging import models
from judging.calls import Reply, Tokens
from judging.score_tokens import NoScoreToken, between, cut, opening
from judging.server import TOP, server_messages
from judging.verdicts import spelled, verdict_place

RESPONSES = "<response_1>"  # where a critic's prompt stops being the question's alone
KEPT_TOKENS = 131072  # of questions' caches; 57 KB each for a 7B Qwen2.5-VL in bfloat16, 5 KB for the tiny model


@dataclass
class Rows:
    """A batch under way: its KV cache, which places of it count, and each row's length in positions."""

    cache: object
    mask: torch.Tensor  # (B, T)
    lengths: torch.Tensor  # (B,)
    shift: torch.Tensor | int = 0  # (B, 1), of M-RoPE's positions after images


@dataclass
class Head:
    """What calls of one group share: its tokens (an image counts one), its length with all of them, its KV cache."""

    ids: list
    length: int
    rows: Rows


def common_prefix(rows):
    """How many leading tokens all rows share, each row keeping at least one of its own.

    >>> common_prefix([[1, 2, 3, 4], [1, 2, 5]]), common_prefix([[1, 2]]), common_prefix([[1, 2], [1, 2]])
    (2, 1, 1)
    """
    low, high = min(rows), max(rows)
    shared = next((i for i, (a, b) in enumerate(zip(low, high)) if a != b), min(len(low), len(high)))
    return min(shared, min(map(len, rows)) - 1)


def best_letter(pairs, scale):
    """The most probable letter; the first one where there is none to be read, which the verifier will report as missing."""
    try:
        return scale.best_letter(pairs)
    except NoScoreToken:
        return scale.letters[0]


class LocalBackend:
    """A transformers model, text or vision, for critics and verifiers.

    analysis_tokens caps a text; 0 (verifier only) reads the letters at once, then repeats in the same order are equal. A
    verifier's letters come from the whole vocabulary (top 20 and every spelling of a letter), so none is missing.
    """

    def __init__(self, model, processor, analysis_tokens=512, temperature=1.0, batch_size=8):
        if analysis_tokens < 0 or batch_size < 1:
            raise ValueError(f"analysis_tokens >= 0 and batch_size >= 1 are needed, got {analysis_tokens}, {batch_size}")
        self.model, self.processor, self.tokenizer = model.eval(), processor, getattr(processor, "tokenizer", processor)
        self.analysis_tokens, self.temperature, self.batch_size = analysis_tokens, temperature, batch_size
        self.stochastic = temperature > 0 and analysis_tokens > 0
        self.lock, self.letters, self.heads, self.seen = threading.Lock(), {}, OrderedDict(), {}
        ends = model.generation_config.eos_token_id if model.generation_config else None
        self.ends = {self.tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None}
        self.identity = {"weights": self._fingerprint(), "dtype": str(model.dtype)}
        self.identity |= {"analysis_tokens": analysis_tokens, "temperature": temperature}

    @classmethod
    def load(cls, path, gguf_file=None, device=None, dtype=None, **settings):
        """Of a local folder or hub id: a vision model or PEFT adapter as evaluate.py loads it, else a language model."""
        adapter = find_adapter_config_file(str(command.local_model(path)))
        if not gguf_file and (adapter or hasattr(AutoConfig.from_pretrained(path), "vision_config")):
            return cls(*models.load_model(path, device, dtype), **settings)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        dtype = dtype or (torch.float32 if str(device) == "cpu" else torch.bfloat16)
        model = AutoModelForCausalLM.from_pretrained(path, gguf_file=gguf_file, dtype=dtype).to(device)
        return cls(model, AutoTokenizer.from_pretrained(path, gguf_file=gguf_file), **settings)

    def _fingerprint(self):
        """Sixteen hex digits of the chat template and the first 64 values of every parameter: other model, other replies."""
        digest = hashlib.sha256(f"{type(self.model).__name__} {self.processor.chat_template}".encode())
        for name, values in self.model.named_parameters():
            digest.update(name.encode() + values.detach().reshape(-1)[:64].float().cpu().numpy().tobytes())
        return digest.hexdigest()[:16]

    @torch.no_grad()
    def run(self, calls):
        """Yield (place, Reply), a batch at a time, calls of a group together."""
        texts = [self._text(call) for call in calls]
        ids, groups, alike = [self._ids(text) for text in texts], {}, {}
        for i in sorted(range(len(calls)), key=lambda i: calls[i].group):
            groups.setdefault((calls[i].tags, calls[i].group), []).append(i)
        shared = {
            key: common_prefix([self._ids(texts[places[0]].partition(RESPONSES)[0]), *(ids[i] for i in places)])
            for key, places in groups.items()
        }
        for (tags, _), places in groups.items():
            alike.setdefault(tags, []).extend(places)
        for tags, places in alike.items():
            for start in range(0, len(places), self.batch_size):
                batch = places[start : start + self.batch_size]
                with self.lock:
                    heads = [self._head(calls[i], texts[i], ids[i], shared[tags, calls[i].group]) for i in batch]
                    replies = self._batch([calls[i] for i in batch], heads, [ids[i] for i in batch])
                yield from zip(batch, replies)

    # --- Prompts and what they share ----------------------------------------------------------------------------------

    def _ids(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _text(self, call):
        """A call's prompt, with what is put in the model's mouth."""
        messages, given = call.messages, call.analysis or ""
        if call.scale and (call.analysis is not None or not self.analysis_tokens):
            given += opening(given, call.tags[0])
        if self.processor is self.tokenizer:
            if call.images:
                raise ValueError(f"{type(self.model).__name__} reads no images; give no frames, or load a vision model")
            messages = server_messages(messages, ())
        return self.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False) + given

    def _head(self, call, text, ids, shared):
        """(the group's Head, whether it had to be run); `ids` (one token an image) are those of `text`.

        The kept Head of a group serves as long as the text begins with it; else the first `shared` tokens make a new one.
        """
        head = self.heads.get(call.group)
        if head and ids[: len(head.ids)] == head.ids and len(ids) > len(head.ids):
            self.heads.move_to_end(call.group)
            return head, False
        if self.processor is self.tokenizer:
            inputs = {"input_ids": torch.tensor([ids], device=self.model.device)}
        else:
            images = {"images": [list(call.images)]} if call.images else {}
            inputs = self.processor(text=[text], return_tensors="pt", **images).to(self.model.device, self.model.dtype)
        length = shared + inputs["input_ids"].shape[1] - len(ids)
        self.heads[call.group] = Head(ids[:shared], length, self._prefix(self._see(call, inputs), length, bool(call.images)))
        self.heads.move_to_end(call.group)
        kept = 0 if call.scale else KEPT_TOKENS  # a verifier's groups are asked once
        while len(self.heads) > 1 and sum(head.length for head in self.heads.values()) > kept:
            self.heads.popitem(last=False)
        return self.heads[call.group], True

    def _see(self, call, inputs):
        """Inputs with the frames' features instead of pixels, where the model takes them: a clip is looked at once.

        They are left to the next group with the same frames: a question's judgements after the question asked alone, a
        verifier's other order.
        """
        if not call.images or "mm_encoder_outputs" not in inspect.signature(self.model.forward).parameters:
            return inputs
        inputs = dict(inputs)
        pixels, features = inputs.pop("pixel_values"), self.seen.pop(call.image_shas, None)
        if features is None:
            features = self.model.get_image_features(pixels, inputs["image_grid_thw"], return_dict=True)
        if RESPONSES not in call.messages[-1]["content"][-1]["text"]:
            self.seen[call.image_shas] = features
            if len(self.seen) > self.batch_size:  # looked at and never asked about again
                self.seen.pop(next(iter(self.seen)))
        return inputs | {"mm_encoder_outputs": {"image": features}}

    def _prefix(self, inputs, shared, images):
        """One row of `shared` tokens, images included, in a cache that batches copy."""
        cache, device = DynamicCache(), self.model.device  # whole layers, also of a sliding window: batches pad them
        rows = Rows(cache, torch.ones(1, shared, dtype=torch.long, device=device), torch.tensor([shared], device=device))
        if shared:
            length = inputs["input_ids"].shape[1]
            names = ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids")
            given = {k: v[:, :shared] if k in names and v.shape[1] == length else v for k, v in inputs.items()}
            if not images:  # else the model makes them; without this it could take those of an earlier call's images
                given["position_ids"] = torch.arange(shared, device=device)[None]
            self.model(**given, cache=cache, use_cache=True, logits_to_keep=1)
            shift = getattr(self.model.base_model, "rope_deltas", None) if images else None
            rows.shift = 0 if shift is None else shift.to(device)
        return rows

    # --- Batches ------------------------------------------------------------------------------------------------------

    def _stack(self, heads):
        """A batch that begins with these heads, padded on the left."""
        width, device = max(head.length for head in heads), self.model.device
        pads = [width - head.length for head in heads]
        layers = zip(*([(layer.keys, layer.values) for layer in head.rows.cache.layers] for head in heads))
        # of each layer keys and values, (B, heads, T, D)
        data = [[torch.cat([F.pad(x, (0, 0, n, 0)) for x, n in zip(xs, pads)]) for xs in zip(*layer)] for layer in layers]
        mask = torch.tensor([[0] * n + [1] * (width - n) for n in pads], dtype=torch.long, device=device)  # (B, T)
        lengths = torch.tensor([head.length for head in heads], device=device)  # (B,)
        shifts = torch.tensor([[int(head.rows.shift)] for head in heads], device=device)  # (B, 1)
        return Rows(DynamicCache(data), mask, lengths, shifts)

    def _extend(self, rows, chunks):
        """Run each row's next tokens (some rows may have none); returns the logits after each row's last one, (B, V)."""
        width, device = max(map(len, chunks)), self.model.device
        pad = next(iter(self.ends), 0)
        ids = torch.tensor([[pad] * (width - len(c)) + c for c in chunks], device=device)  # (B, W), padded on the left
        new = torch.tensor([[0] * (width - len(c)) + [1] * len(c) for c in chunks], device=device)  # (B, W)
        rows.mask = torch.cat([rows.mask, new], 1)  # (B, T + W)
        places = (rows.lengths[:, None] + new.cumsum(1) - 1).clamp(min=0) + rows.shift  # (B, W)
        output = self.model(
            input_ids=ids, attention_mask=rows.mask, position_ids=places, cache=rows.cache, use_cache=True, logits_to_keep=1
        )
        rows.lengths = rows.lengths + new.sum(1)
        return output.logits[:, -1].float()

    def _batch(self, calls, heads, ids):
        """One Reply per call; heads: (Head, whether it was run for this call), ids: of the whole prompts."""
        suffixes = [row[len(head.ids) :] for (head, _), row in zip(heads, ids)]
        costs = [Tokens(head.length + len(s), 0 if run else head.length) for (head, run), s in zip(heads, suffixes)]
        rows = self._stack([head for head, _ in heads])
        logits = self._extend(rows, suffixes)
        if calls[0].scale is None:
            drawn, odds = self._draw_all(rows, logits, calls, self._odds)
            return [self._judged(*parts) for parts in zip(calls, drawn, odds, costs)]
        texts = [call.analysis or "" for call in calls]
        if self.analysis_tokens and calls[0].analysis is None:
            texts, logits, spent = self._analyse(rows, logits, calls)
            costs = [cost + more for cost, more in zip(costs, spent)]
        return [Reply(*parts) for parts in zip(texts, *self._read_letters(rows, logits, calls, costs))]

    def _draw_all(self, rows, logits, calls, watch=None):
        """Per call the tokens drawn, up to one of its tags, an end token (included) or the cap, and what `watch` says of the
        logits, (B,), at each place. All tokens but each row's last one stand in the cache then."""
        drawn, watched, live = [[] for _ in calls], [[] for _ in calls], set(range(len(calls)))
        draws = [torch.Generator().manual_seed(call.seed or 0) for call in calls]
        for left in reversed(range(self.analysis_tokens)):
            values = watch(logits) if watch else [None] * len(calls)
            greedy = logits.argmax(1).tolist() if self.temperature == 0 else None
            for i in sorted(live):
                token = greedy[i] if greedy else self._draw(logits[i], draws[i])
                drawn[i].append(token)
                watched[i].append(values[i])
                if token in self.ends or any(tag in self._decode(drawn[i][-24:]) for tag in calls[i].tags):
                    live.discard(i)
            if not live or not left:
                break
            logits = self._extend(rows, [[drawn[i][-1]] if i in live else [] for i in range(len(calls))])
        return drawn, watched

    def _draw(self, logits, generator):
        """One token id; the draw depends on the row's own seed, not on its batch. logits: (V,)."""
        return int(torch.multinomial((logits.cpu() / self.temperature).softmax(-1), 1, generator=generator))

    def _decode(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    # --- What a verifier reads ----------------------------------------------------------------------------------------

    def _analyse(self, rows, logits, calls):
        """(analyses, logits at the first letter's place, Tokens spent): each row of the cache then ends with its analysis
        and the first tag; what was drawn of a tag is masked out again."""
        drawn, _ = self._draw_all(rows, logits, calls)
        texts, chunks, costs = [], [], []
        for i, (call, tokens) in enumerate(zip(calls, drawn)):
            fed, n = len(tokens) - 1, len(tokens) - (tokens[-1] in self.ends)
            text = cut(self._decode(tokens), call.tags)
            while n and len(self._decode(tokens[:n])) > len(text):
                n -= 1
            if n < fed:
                real = rows.mask[i].nonzero()[:, 0]
                rows.mask[i, real[len(real) - (fed - n) :]] = 0
                rows.lengths[i] -= fed - n
            texts.append(self._decode(tokens[:n]))
            tag = self._ids(opening(texts[i], call.tags[0]))
            chunks.append(tokens[fed:n] + tag)
            costs.append(Tokens(len(tag), 0, len(tokens)))
        return texts, self._extend(rows, chunks), costs

    def _read_letters(self, rows, logits, calls, costs):
        """(readings, costs with them): for each tag the pairs at its letter, the most probable letters put in between."""
        readings, tags = [[] for _ in calls], calls[0].tags
        for tag, following in zip(tags, (*tags[1:], None)):
            for row, call, scores in zip(readings, calls, logits.log_softmax(-1).cpu()):
                row.append(self._pairs(scores, call.scale))
            costs = [cost + Tokens(0, 0, 1) for cost in costs]
            if following:
                letters = [best_letter(row[-1], call.scale) for row, call in zip(readings, calls)]
                chunks = [self._ids(between(letter, tag, following)) for letter in letters]
                costs = [cost + Tokens(len(chunk)) for cost, chunk in zip(costs, chunks)]
                logits = self._extend(rows, chunks)
        return readings, costs

    def _pairs(self, scores, scale):
        """(token, log-probability) of the top 20 and of every token that spells a letter of the scale; scores: (V,)."""
        if scale.letters not in self.letters:
            pieces = self.tokenizer.convert_ids_to_tokens(range(min(len(self.tokenizer), len(scores))))
            self.letters[scale.letters] = [i for i, piece in enumerate(pieces) if piece and scale.letter_of(piece)]
        ids = dict.fromkeys([*scores.topk(min(TOP, len(scores))).indices.tolist(), *self.letters[scale.letters]])
        return [(self.tokenizer.decode([i]), scores[i].item()) for i in ids]

    # --- What a critic reads ------------------------------------------------------------------------------------------

    @cached_property
    def spellings(self):
        """The ids of all tokens that spell 1, and of those that spell 2."""
        pieces = self.tokenizer.convert_ids_to_tokens(range(len(self.tokenizer)))
        maybe = [i for i, piece in enumerate(pieces) if piece and re.search("[12AB]", piece)]
        named = {i: spelled(self.tokenizer.decode([i])) for i in maybe}
        sides = [torch.tensor([i for i in named if named[i] == side], device=self.model.device) for side in (1, 2)]
        if not all(map(len, sides)):
            raise ValueError("the tokenizer has no token for 1 or 2; p_first could not be read")
        return sides

    def _odds(self, logits):
        """log P(1) - log P(2) of each row, whatever the temperature; logits: (B, V)."""
        first, second = (logits[:, ids].logsumexp(1) for ids in self.spellings)  # (B,)
        return (first - second).tolist()

    def _judged(self, call, drawn, odds, cost):
        """Text, probability and cost; the verdict's token is the one that covers its number's character."""
        text, forced, p = self._decode(drawn), call.analysis or "", None
        start, named = verdict_place(forced + text) or (-1, None)
        if start >= len(forced):
            n = len(drawn) - 1
            while n and len(forced + self._decode(drawn[:n])) > start:
                n -= 1
            if spelled(self.tokenizer.decode([drawn[n]])) == named:
                p = 1 / (1 + math.exp(-max(min(odds[n], 700), -700)))
        return Reply(text, [p], cost + Tokens(0, 0, len(drawn)))
