"""One pass of each distinct prompt for all its completions, in log-probabilities and in sampling.

The prompts of a batch run once, up to their last token, and leave their keys and values *with gradients*; these are repeated
for the completions, whose pass starts at the prompt's last token. It is the same arithmetic as running the prompt anew for
every completion, as TRL does, so losses and gradients agree up to rounding; vision tower and prompt cost 1/G of it.
Ideas: Prefix Grouper (arXiv 2506.05433). Plain PyTorch and transformers' own caches: any model whose layers keep keys and
values, text or vision. training/shared_prefix.py compares both ways on the model at hand before the trainer relies on it.
"""

import contextlib
import functools
import types

import torch
from accelerate.utils import is_peft_model
from torch.distributed.fsdp import FSDPModule
from transformers import DynamicCache, GenerationConfig
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.generation import GenerationMode

from training import batches, sharding
from training.checkpoints import log

# -------------------------------------------------------------------------------------------------------------- on or off


def refusal(trainer):
    """Why prompts cannot be shared with this model and configuration, as a text; None where they can."""
    model, config = trainer.model, trainer.model.config.get_text_config(decoder=True)
    adapters = getattr(model, "peft_config", {}).values()
    kinds = {type(layer) for layer in DynamicCache(config=config).layers} - {DynamicLayer, DynamicSlidingWindowLayer}
    dropout = sorted(name for name, part in model.named_modules() if isinstance(part, torch.nn.Dropout) and part.p > 0)
    if config.is_encoder_decoder or kinds:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        return f"layers of {model.config.model_type} keep no keys and values to share ({names})"
    if dropout or getattr(config, "attention_dropout", 0.0):
        where = f"{len(dropout)} modules, {dropout[:1]}"
        return f"dropout would be drawn once a prompt ({where}): set --disable_dropout true, or lora_dropout 0"
    if any(adapter.is_prompt_learning for adapter in adapters):
        return "adapters that add virtual tokens (prompt tuning) stand before the prompt"
    if trainer.aux_loss_enabled:
        return "the router's auxiliary loss counts the tokens of every repeated prompt"
    if trainer.tools:
        return "tools may put images into completions"
    return "torch_compile has not been tried with it" if trainer.args.torch_compile else None


def can_generate(config):
    """Whether sampling with this GenerationConfig can go on from a cache of repeated prompts."""
    plain = config.get_generation_mode() in (GenerationMode.SAMPLE, GenerationMode.GREEDY_SEARCH)
    own_cache = config.cache_implementation is not None or config.use_cache is False or config.prefill_chunk_size is not None
    return plain and not own_cache and config.num_return_sequences in (None, 1)


def start(trainer):
    """A trainer's Sharing, its models taught to share prompts, as --shared_prefix asks; None where it is off. Says so in the log.

    ValueError where it is to be on and cannot be.
    """
    args, accelerator, why = trainer.args, trainer.accelerator, refusal(trainer)
    sharded = sharding.sharded(trainer)
    if args.shared_prefix == "auto" and sharded:
        why = why or "with sharded weights (FSDP, ZeRO-3) it has been tried with tiny models only; --shared_prefix on tries it"
    if why and args.shared_prefix == "on":
        raise ValueError(f"shared_prefix cannot be on: {why}")
    if why or args.shared_prefix == "off":
        log(f"shared_prefix off: {why or 'as asked'}; every completion runs its own prompt, as in TRL")
        return None
    model = accelerator.unwrap_model(trainer.model)
    model = model.get_base_model() if is_peft_model(model) else model
    for one in [model] + [accelerator.unwrap_model(reference) for reference in [trainer.ref_model] if reference is not None]:
        install(one)
    half = accelerator.mixed_precision != "no" or args.tf32 or model.dtype not in (torch.float32, torch.float64)
    generates = not trainer.use_vllm and not trainer.use_transformers_continuous_batching
    generates = generates and can_generate(trainer.generation_config)
    passes = ["generation"] * generates + ["passes without gradients"] + ["training"] * (not args.gradient_checkpointing)
    log(f"shared_prefix on: prompts run once for all their completions in {', '.join(passes)}")
    if args.gradient_checkpointing:
        log("gradient_checkpointing and a cache exclude each other: the training pass is TRL's own")
    return Sharing(accelerator, model, torch.bfloat16 if half else model.dtype, generates, sharded)


# ---------------------------------------------------------------------------------------------------- what a model learns


def install(model):
    """Teach a transformers model, which TRL has given its fused LM head, two more ways to be called. Both share prompts.

    model(prompt=..., prompt_rows=..., input_ids=..., ...) scores completions (see `log_probs`): one call through whatever
    wraps the model (PEFT, DistributedDataParallel), whose hooks count forward passes.
    model.generate(prompt_rows=..., ...) samples completions: prompt_rows (B,) numbers the prompts of input_ids (B, P), images
    are those of the distinct prompts. With compare=..., `generation_difference` goes into an attribute of that name first.
    """
    score, sample = model.forward, model.generate

    @functools.wraps(type(model).forward)  # generate reads the signature
    def forward(self, *args, prompt=None, prompt_rows=None, **kwargs):
        if prompt is None:
            return score(*args, **kwargs)
        if hasattr(self.base_model, "rope_deltas"):
            self.base_model.rope_deltas = None  # else it may be an earlier batch's
        cache, shift, seen = prompt_pass(self, self.base_model, prompt, prompt_rows)
        past, mask = cache.get_seq_length(), kwargs["attention_mask"]
        if shift is None:  # as transformers counts where no positions are given
            places = torch.arange(past, mask.shape[1], device=mask.device)[None].expand(len(mask), -1)  # (B, C)
        else:
            places = (mask.cumsum(dim=1) - 1)[:, past:] + shift  # (B, C)
        output = score(*args, cache=cache, position_ids=places, fused_lm_head=True, **kwargs)
        if isinstance(self, FSDPModule):  # gathers a layer's weights again where a gradient reaches its output, not its cache
            output.log_probs = output.log_probs + seen.last_hidden_state.mean() * 0
        return output

    @functools.wraps(type(model).generate)
    def generate(self, *args, prompt_rows=None, compare=None, **kwargs):
        if prompt_rows is None:
            return sample(*args, **kwargs)
        if compare is not None:
            self.generation_difference = generation_difference(self, prompt_rows=prompt_rows, **kwargs)
        config, ids, mask = kwargs.pop("generation_config"), kwargs.pop("input_ids"), kwargs.pop("attention_mask")
        first, length = batches.first_rows(prompt_rows), ids.shape[1] - 1
        prompt = {"input_ids": ids[first], "attention_mask": mask[first], **kwargs}
        places = self._prepare_position_ids_for_generation(prompt["input_ids"], prompt)  # (U, P), M-RoPE: (4, U, P) and its shift
        run = functools.partial(self, logits_to_keep=1, position_ids=places[..., :length])
        cache, shift, _ = prompt_pass(self, run, cut(prompt, length), prompt_rows)
        if shift is not None:
            self.base_model.rope_deltas = shift
        return sample(input_ids=ids, attention_mask=mask, cache=cache, generation_config=config)

    model.forward, model.generate = types.MethodType(forward, model), types.MethodType(generate, model)


def prompt_pass(model, run, prompt, prompt_rows):
    """(cache, shift, output): keys and values of the prompts, one row for each of prompt_rows (B,), and M-RoPE's shift of
    positions after images, (B, 1), None for models and prompts that have none; and what the model returned."""
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    output = run(**prompt, cache=cache, use_cache=True)
    cache.batch_select_indices(prompt_rows)
    shift = getattr(model.base_model, "rope_deltas", None)
    return cache, None if shift is None else shift.to(prompt_rows.device)[prompt_rows], output


def cut(batch, length):
    """The first `length` tokens of a batch; images and videos are left as they are, for the model to take."""
    tokens, batch = ("input_ids", "attention_mask", *batches.TOKEN_FIELDS), batches.flat(batch)
    return {name: value[:, :length] if name in tokens else value for name, value in batch.items() if name != "num_images"}


# -------------------------------------------------------------------------------------------------------- log-probabilities


def log_probs(model, batch, completion_length):
    """Log-probabilities and entropies of the completions' tokens, both (B, C), zero where the mask is.

    batch: input_ids and attention_mask (B, P + C), prompts padded on the left, image fields as TRL passes them, and videos in
    lists of rows. Rows with nothing to score are not run.
    """
    rows_B, length = len(batch["input_ids"]), batch["input_ids"].shape[1] - completion_length
    scored = scored_rows(batch["attention_mask"][:, length:])
    part = batches.take(batch, scored)
    start = part["attention_mask"].any(dim=0).int().argmax().item()  # columns where every row is padded
    end = length + max(part["attention_mask"][:, length:].sum(dim=1).max().item(), 1)
    tokens = {name: part[name][:, start:end] for name in ("input_ids", "attention_mask", *batches.TOKEN_FIELDS) if name in part}
    ids, mask, last = tokens["input_ids"], tokens["attention_mask"], length - start - 1  # place of the prompts' last token
    first, row = batches.distinct_prompts(ids[:, : last + 1], mask[:, : last + 1], part)
    output = model(
        prompt=cut(batches.take(part | tokens, first), last),
        prompt_rows=torch.tensor(row, device=ids.device),
        input_ids=ids[:, last:-1],
        attention_mask=mask[:, :-1],
        shift_labels=ids[:, last + 1 :].masked_fill(mask[:, last + 1 :] == 0, -100),
    )
    return tuple(spread(values, scored, rows_B, completion_length) for values in (output.log_probs, output.entropy))


def scored_rows(completion_mask):
    """The rows with a token to score; the first one where there is none: gradients must flow in every process."""
    return completion_mask.any(dim=1).nonzero().flatten().tolist() or [0]


def spread(values, scored, rows_B, width):
    """(len(scored), C) values at their rows of (rows_B, width), zeros elsewhere; None stays None."""
    if values is None:
        return None
    values = torch.nn.functional.pad(values, (0, width - values.shape[1]))
    return values.new_zeros(rows_B, width).index_put((torch.tensor(scored, device=values.device),), values)


def can_share(model, batch, completion_length):
    """Whether every prompt has two tokens and ends with a token of text, as a chat template's does."""
    last = batch["input_ids"].shape[1] - completion_length - 1
    if last < 1 or (batch["attention_mask"][:, : last + 1].sum(dim=1) < 2).any():
        return False
    names = ["image_token_id"] + ["video_token_id"] * ("video_grid_thw" in batch)
    visual = [getattr(model.config, name, None) for name in names]
    return not any((batch["input_ids"][:, last:] == token).any().item() for token in visual if token is not None)


# Largest accepted difference of log-probabilities or logits (mean over tokens) and of gradients (relative to their norm).
# Half precision differs from itself by about a hundredth when a row stands in another batch.
TOLERANCE, COARSE = (1e-4, 1e-3), (5e-2, 0.2)
PROBE_ROWS = 3  # scored to compare log-probabilities
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
    part = batches.take(batch, probe_rows(batch, completion_length))
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
        values = score(batches.take(batch, piece)).float()  # (len(piece), C)
        logps.append(values.detach())
        if parameters:
            grads = torch.autograd.grad((values * weights[piece]).sum(), parameters, allow_unused=True)
            flat = torch.cat([(p.new_zeros(p.shape) if g is None else g).flatten().float() for p, g in zip(parameters, grads)])
            total = flat if total is None else total + flat
    return torch.cat(logps), total


def probe_rows(batch, completion_length):
    """The longest row, another one of its prompt where there is one, and the row of the shortest prompt; the longest again
    where these are fewer: with sharded weights every process must run as many passes."""
    mask = batch["attention_mask"]
    prompts = mask[:, :-completion_length].sum(dim=1).tolist()
    longest = max(range(len(mask)), key=mask.sum(dim=1).tolist().__getitem__)
    ids = batch["input_ids"][:, :-completion_length]
    twin = [i for i in range(len(mask)) if i != longest and torch.equal(ids[i], ids[longest])][:1]
    rows = list(dict.fromkeys([longest, *twin, min(range(len(mask)), key=prompts.__getitem__)]))
    return rows + [longest] * (PROBE_ROWS - len(rows))


@contextlib.contextmanager
def compared_parameters(model):
    """Parameters small enough to hold their gradients twice, the smallest one where none is; frozen ones have a gradient, too,
    while this lasts: in half precision a fault of the cache may hide in the values, not in the gradients."""
    floating = sorted((p for p in model.parameters() if p.is_floating_point()), key=torch.numel)
    chosen = [p for p in floating if p.numel() <= SMALL] or floating[:1]
    frozen = [p for p in chosen if not p.requires_grad]
    try:
        for parameter in frozen:
            parameter.requires_grad_(True)
        with torch.enable_grad():
            yield chosen
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


def generation_difference(model, input_ids, attention_mask, prompt_rows, generation_config, **fields):
    """{"logit": mean difference}: the first tokens after each prompt, chosen greedily, prompts shared against generate's own.

    input_ids, attention_mask: (B, P). fields: what the processor made of the distinct prompts.
    """
    first, ids, mask = batches.first_rows(prompt_rows), input_ids, attention_mask
    settings = {name: getattr(generation_config, name) for name in ("pad_token_id", "bos_token_id", "suppress_tokens")}
    settings |= {"max_new_tokens": PROBE_TOKENS, "min_new_tokens": PROBE_TOKENS}  # as many passes in every process
    config = GenerationConfig(**settings, output_logits=True, return_dict_in_generate=True, disable_compile=True)
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
