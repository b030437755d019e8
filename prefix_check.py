"""Is a shared prompt (shared_prefix.py) the same as TRL's own pass on the model at hand? Compared at first use, and whenever
prompts or completions grow past what was compared, on a few rows: losses that drift apart in silence would be the worst.
"""

import torch
from transformers import GenerationConfig

import rows
from launch import log

# Largest accepted difference of log-probabilities or logits (mean over tokens) and of gradients (relative to their norm).
# Half precision differs from itself by about a hundredth when a row stands in another batch.
TOLERANCE, COARSE = (1e-4, 1e-3), (5e-2, 0.2)
PROBE_TOKENS = 4  # sampled to compare generation
SMALL = 2**20  # gradients of parameters up to this size are compared: norms, biases and adapters of every layer
STEP = 64  # lengths count as compared up to the next multiple of this


class Sharing:
    """Whether a trainer shares prompts, and up to which lengths each kind of pass was compared with the ordinary one."""

    def __init__(self, accelerator, model, dtype, generates, sharded):
        """model: the transformers model itself; dtype: what it computes in; generates: sampling too; sharded: over processes."""
        self.accelerator, self.model, self.dtype, self.generates, self.sharded = accelerator, model, dtype, generates, sharded
        self.on, self.compared = True, {}

    def __bool__(self):
        return self.on

    def agrees(self, kind, lengths, compare):
        """Whether to share prompts in this pass. Where it is the first of its kind, or longer than those before it,
        compare() -> {name: difference} is asked, in every process; a difference beyond rounding ends all sharing."""
        known = self.compared.get(kind)
        grown = known is None or any(new > old for new, old in zip(lengths, known))
        if not self.on or not self.anywhere(grown):
            return self.on
        try:
            found, harm = compare(), ""
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a model whose forward pass takes no cache, say: the ordinary pass still trains it
            found, harm = {}, f"{type(error).__name__}: {error}"
        if self.anywhere(bool(harm) or not within(found, self.dtype)):
            self.on = False
            seen = harm or found or "in another process"
            log(f"shared_prefix: off from here on, TRL's own passes train; {kind} would differ: {seen}")
        else:
            up = [-(-new // STEP) * STEP for new in lengths]
            self.compared[kind] = up if known is None else [max(pair) for pair in zip(up, known)]
        return self.on

    def anywhere(self, flag):
        """Whether the flag is set in any process."""
        flag = torch.tensor(float(flag), device=self.accelerator.device)
        return self.accelerator.reduce(flag, reduction="sum").item() > 0


def difference(shared, ordinary, batch, completion_length, parameters):
    """{"log_prob": mean difference over tokens, "gradient": relative difference}: prompts shared against TRL's own pass.

    shared, ordinary: functions of (batch) -> log-probabilities (B, C). On the longest row, another one of its prompt, and
    the row of the shortest prompt. The ordinary pass takes them one by one: it needs the memory of a single row.
    """
    part = rows.take(batch, probe_rows(batch, completion_length))
    weights = torch.cos(torch.arange(len(part["input_ids"]) * completion_length, device=part["input_ids"].device))
    weights = weights.view(
        -1, completion_length
    )  # (B, C): a fixed sum of log-probabilities, so that gradients have something to add up
    passes = [(shared, [list(range(len(weights)))]), (ordinary, [[i] for i in range(len(weights))])]
    (logps, grads), (true_logps, true_grads) = (weighed(score, part, pieces, weights, parameters) for score, pieces in passes)
    count = part["attention_mask"][:, -completion_length:].sum().clamp(min=1)
    found = {"log_prob": ((logps - true_logps).abs().sum() / count).item()}
    if parameters:
        found["gradient"] = ((grads - true_grads).norm() / true_grads.norm().clamp(min=1e-12)).item()
    return found


def weighed(score, batch, pieces, weights, parameters):
    """Log-probabilities (B, C) of score over pieces (lists of rows), and the gradient of their weighed sum as one vector."""
    logps, total = [], None
    for piece in pieces:
        values = score(rows.take(batch, piece)).float()  # (len(piece), C)
        logps.append(values.detach())
        if parameters:
            grads = torch.autograd.grad((values * weights[piece]).sum(), parameters, allow_unused=True)
            flat = torch.cat([(p.new_zeros(p.shape) if g is None else g).flatten().float() for p, g in zip(parameters, grads)])
            total = flat if total is None else total + flat
    return torch.cat(logps), total


def probe_rows(batch, completion_length):
    """The longest row, another one of its prompt where there is one, and the row of the shortest prompt."""
    mask = batch["attention_mask"]
    prompts = mask[:, :-completion_length].sum(dim=1).tolist()
    longest = max(range(len(mask)), key=mask.sum(dim=1).tolist().__getitem__)
    ids = batch["input_ids"][:, :-completion_length]
    twin = [i for i in range(len(mask)) if i != longest and torch.equal(ids[i], ids[longest])][:1]
    return list(dict.fromkeys([longest, *twin, min(range(len(mask)), key=prompts.__getitem__)]))


def compared_parameters(model):
    """Trainable parameters small enough to hold their gradients twice; the smallest one where none is."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    return [p for p in trainable if p.numel() <= SMALL] or sorted(trainable, key=torch.numel)[:1]


def generation_difference(model, input_ids, attention_mask, prompt_rows, generation_config, **fields):
    """{"logit": mean difference}: the first tokens after each prompt, chosen greedily, prompts shared against generate's own.

    input_ids, attention_mask: (B, P). fields: what the processor made of the distinct prompts.
    """
    first, ids, mask = rows.first_rows(prompt_rows), input_ids, attention_mask
    settings = {name: getattr(generation_config, name) for name in ("pad_token_id", "bos_token_id", "suppress_tokens")}
    config = GenerationConfig(
        **settings, max_new_tokens=PROBE_TOKENS, output_logits=True, return_dict_in_generate=True, disable_compile=True
    )
    ours = model.generate(input_ids=ids, attention_mask=mask, prompt_rows=prompt_rows, generation_config=config, **fields)
    own = model.generate(input_ids=ids[first], attention_mask=mask[first], generation_config=config, **fields)
    steps = []
    for step, (a, b) in enumerate(zip(ours.logits, own.logits)):  # (B, V), (U, V)
        steps.append((a[first] - b).abs().mean().item())
        if not torch.equal(ours.sequences[first, : ids.shape[1] + step + 1], own.sequences[:, : ids.shape[1] + step + 1]):
            break  # from here on they speak of different texts
    return {"logit": max(steps)}


def within(found, dtype):
    """Whether differences are no more than rounding in `dtype`."""
    value, gradient = TOLERANCE if dtype in (torch.float32, torch.float64) else COARSE
    return all(number <= (gradient if name == "gradient" else value) for name, number in found.items())
