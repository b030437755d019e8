"""The verifier's calls on a transformers model in this process, text or vision, batched.

All calls of a group (one task, one order of the trajectories; criteria and repeats differ) share the tokens up to the
criterion. Those run once; each batch copies their KV cache and runs only what is its own.
"""

import copy
import hashlib
import threading
from dataclasses import dataclass, replace

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.utils.peft_utils import find_adapter_config_file

from data import command
from judging import models
from judging.calls import Reply, Tokens
from judging.score_tokens import NoScoreToken, between, cut, opening
from judging.server import TOP, server_messages


@dataclass
class Rows:
    """A batch under way: its KV cache, which places of it count, and each row's length in positions."""

    cache: object
    mask: torch.Tensor  # (B, T)
    lengths: torch.Tensor  # (B,)
    shift: torch.Tensor | int = 0  # (1, 1), of M-RoPE's positions after images


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
    """A transformers model, text or vision. Calls of a group run the common prefix once and share its KV cache.

    Each row's letters come from the whole vocabulary (top 20 and every spelling of a letter), so none is missing.
    analysis_tokens = 0 reads the letters at once, without an analysis; then repeats in the same order are equal.
    """

    def __init__(self, model, processor, analysis_tokens=512, temperature=1.0, batch_size=8):
        if analysis_tokens < 0 or batch_size < 1:
            raise ValueError(f"analysis_tokens >= 0 and batch_size >= 1 are needed, got {analysis_tokens}, {batch_size}")
        self.model, self.processor, self.tokenizer = model.eval(), processor, getattr(processor, "tokenizer", processor)
        self.analysis_tokens, self.temperature, self.batch_size = analysis_tokens, temperature, batch_size
        self.stochastic = temperature > 0 and analysis_tokens > 0
        self.lock, self.letters = threading.Lock(), {}
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

    def run(self, calls):
        """Yield (place, Reply), a batch at a time."""
        groups = {}
        for i, call in enumerate(calls):
            groups.setdefault((call.group, call.tags), []).append(i)
        for places in groups.values():
            with self.lock:
                inputs = [self._encode(calls[i]) for i in places]
                rows = [one["input_ids"][0].tolist() for one in inputs]
                shared = common_prefix(rows)
                prefix = self._prefix(inputs[0], shared, bool(calls[places[0]].images))
            for start in range(0, len(places), self.batch_size):
                batch = slice(start, start + self.batch_size)
                with self.lock:
                    replies = self._batch([calls[i] for i in places[batch]], [row[shared:] for row in rows[batch]], prefix)
                for k, (place, reply) in enumerate(zip(places[batch], replies)):
                    paid = Tokens(len(rows[start + k]), shared if start + k else 0)
                    yield place, replace(reply, tokens=reply.tokens + paid)

    def _encode(self, call):
        """Model inputs of one call, (1, L): its prompt, and the opening of the reply where that is given."""
        messages, text = call.messages, ""
        if call.analysis is not None or not self.analysis_tokens:
            text = call.analysis or ""
            text += opening(text, call.tags[0])
        if self.processor is self.tokenizer:
            if call.images:
                raise ValueError(f"{type(self.model).__name__} reads no images; give frames=None, or load a vision model")
            messages = server_messages(messages, ())
        text = self.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False) + text
        if self.processor is self.tokenizer:
            return self.tokenizer(text, add_special_tokens=False, return_tensors="pt").to(self.model.device)
        images = {"images": [list(call.images)]} if call.images else {}
        return self.processor(text=[text], return_tensors="pt", **images).to(self.model.device, self.model.dtype)

    @torch.no_grad()
    def _prefix(self, inputs, shared, images):
        """One row of `shared` tokens, images included, in a cache that batches copy."""
        cache, device = DynamicCache(config=self.model.config.get_text_config()), self.model.device
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

    @torch.no_grad()
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

    def _batch(self, calls, suffixes, prefix):
        """One Reply per call; its tokens count what comes after the prompt."""
        count, encode = len(calls), lambda text: self.tokenizer.encode(text, add_special_tokens=False)
        cache = copy.deepcopy(prefix.cache)
        cache.batch_repeat_interleave(count)
        rows = Rows(cache, prefix.mask.repeat(count, 1), prefix.lengths.repeat(count), prefix.shift)
        logits = self._extend(rows, suffixes)
        texts, costs = [call.analysis or "" for call in calls], [Tokens() for _ in calls]
        if self.analysis_tokens and calls[0].analysis is None:
            texts, drawn = self._write(rows, logits, calls)
            chunks = [encode(opening(text, call.tags[0])) for text, call in zip(texts, calls)]
            costs = [Tokens(len(chunk), 0, n) for chunk, n in zip(chunks, drawn)]
            logits = self._extend(rows, chunks)
        readings = [[] for _ in calls]
        tags = calls[0].tags
        for tag, following in zip(tags, (*tags[1:], None)):
            for row, call, scores in zip(readings, calls, logits.log_softmax(-1).cpu()):
                row.append(self._pairs(scores, call.scale))
            costs = [cost + Tokens(0, 0, 1) for cost in costs]
            if following:
                letters = [best_letter(row[-1], call.scale) for row, call in zip(readings, calls)]
                chunks = [encode(between(letter, tag, following)) for letter in letters]
                costs = [cost + Tokens(len(chunk)) for cost, chunk in zip(costs, chunks)]
                logits = self._extend(rows, chunks)
        return [Reply(*parts) for parts in zip(texts, readings, costs)]

    def _pairs(self, scores, scale):
        """(token, log-probability) of the top 20 and of every token that spells a letter of the scale; scores: (V,)."""
        if scale.letters not in self.letters:
            pieces = self.tokenizer.convert_ids_to_tokens(range(min(len(self.tokenizer), len(scores))))
            self.letters[scale.letters] = [i for i, piece in enumerate(pieces) if piece and scale.letter_of(piece)]
        ids = dict.fromkeys([*scores.topk(min(TOP, len(scores))).indices.tolist(), *self.letters[scale.letters]])
        return [(self.tokenizer.decode([i]), scores[i].item()) for i in ids]

    def _write(self, rows, logits, calls):
        """Analyses, drawn token by token up to a score tag, an end token or the cap; (texts, tokens drawn).

        Afterwards each row of the cache ends with its analysis: what was drawn of the tag is masked out again.
        """
        drawn, kept, live = [[] for _ in calls], [0] * len(calls), set(range(len(calls)))
        draws = [torch.Generator().manual_seed(call.seed or 0) for call in calls]
        paid = [0] * len(calls)
        for _ in range(self.analysis_tokens):
            for i in sorted(live):
                token, paid[i] = self._draw(logits[i], draws[i]), paid[i] + 1
                if token in self.ends:
                    live.discard(i)
                    continue
                drawn[i].append(token)
                if any(tag in self.tokenizer.decode(drawn[i][-24:]) for tag in calls[i].tags):
                    live.discard(i)
            if not live:
                break
            logits = self._extend(rows, [[drawn[i][-1]] if i in live else [] for i in range(len(calls))])
            for i in live:
                kept[i] += 1
        texts = []
        for i, call in enumerate(calls):
            text, n = cut(self._decode(drawn[i]), call.tags), kept[i]
            while n and len(self._decode(drawn[i][:n])) > len(text):
                n -= 1
            real = rows.mask[i].nonzero()[:, 0]
            rows.mask[i, real[len(real) - (kept[i] - n) :]] = 0
            rows.lengths[i] -= kept[i] - n
            texts.append(self._decode(drawn[i][:n]))
        return texts, paid

    def _decode(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def _draw(self, logits, generator):
        """One token id; the draw depends on the row's own seed, not on its batch. logits: (V,)."""
        if self.temperature == 0:
            return int(logits.argmax())
        return int(torch.multinomial((logits.cpu() / self.temperature).softmax(-1), 1, generator=generator))
