"""One pass of each distinct prompt for all its completions, in log-probabilities and in sampling.

The prompts of a batch run once, up to their last token, and leave their keys and values *with gradients*; these are repeated
for the completions, whose pass starts at the prompt's last token. It is the same arithmetic as running the prompt anew for
every completion, as TRL does, so losses and gradients agree up to rounding; vision tower and prompt cost 1/G of it.
Ideas: Prefix Grouper (arXiv 2506.05433). Plain PyTorch and transformers' own caches: any model whose layers keep keys and
values, text or vision. prefix_check.py compares both ways on the model at hand before the trainer relies on it.
"""

import functools
import types

import torch
from accelerate.utils import is_peft_model
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.generation import GenerationMode

import rows
from launch import log
from prefix_check import Sharing, generation_difference

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
    sharded = trainer.is_fsdp_enabled or (trainer.is_deepspeed_enabled and accelerator.state.deepspeed_plugin.zero_stage == 3)
    if args.shared_prefix == "auto" and sharded:
        why = why or "it has not been tried with sharded weights (FSDP, ZeRO-3); --shared_prefix on tries it"
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
        cache, shift = prompt_pass(self, self.base_model, prompt, prompt_rows)
        past, mask = cache.get_seq_length(), kwargs["attention_mask"]
        if shift is None:  # as transformers counts where no positions are given
            places = torch.arange(past, mask.shape[1], device=mask.device)[None].expand(len(mask), -1)  # (B, C)
        else:
            places = (mask.cumsum(dim=1) - 1)[:, past:] + shift  # (B, C)
        return score(*args, cache=cache, position_ids=places, fused_lm_head=True, **kwargs)

    @functools.wraps(type(model).generate)
    def generate(self, *args, prompt_rows=None, compare=None, **kwargs):
        if prompt_rows is None:
            return sample(*args, **kwargs)
        if compare is not None:
            self.generation_difference = generation_difference(self, prompt_rows=prompt_rows, **kwargs)
        config, ids, mask = kwargs.pop("generation_config"), kwargs.pop("input_ids"), kwargs.pop("attention_mask")
        first, length = rows.first_rows(prompt_rows), ids.shape[1] - 1
        prompt = {"input_ids": ids[first], "attention_mask": mask[first], **kwargs}
        places = self._prepare_position_ids_for_generation(prompt["input_ids"], prompt)  # (U, P), M-RoPE: (4, U, P) and its shift
        run = functools.partial(self, logits_to_keep=1, position_ids=places[..., :length])
        cache, shift = prompt_pass(self, run, cut(prompt, length), prompt_rows)
        if shift is not None:
            self.base_model.rope_deltas = shift
        return sample(input_ids=ids, attention_mask=mask, cache=cache, generation_config=config)

    model.forward, model.generate = types.MethodType(forward, model), types.MethodType(generate, model)


def prompt_pass(model, run, prompt, prompt_rows):
    """(cache, shift): keys and values of the prompts, one row for each of prompt_rows (B,), and M-RoPE's shift of
    positions after images, (B, 1), None for models and prompts that have none."""
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    run(**prompt, cache=cache, use_cache=True)
    cache.batch_select_indices(prompt_rows)
    shift = getattr(model.base_model, "rope_deltas", None)
    return cache, None if shift is None else shift.to(prompt_rows.device)[prompt_rows]


def cut(batch, length):
    """The first `length` tokens of a batch; images and videos are left as they are, for the model to take."""
    tokens, batch = ("input_ids", "attention_mask", *rows.TOKEN_FIELDS), rows.flat(batch)
    return {name: value[:, :length] if name in tokens else value for name, value in batch.items() if name != "num_images"}


# -------------------------------------------------------------------------------------------------------- log-probabilities


def log_probs(model, batch, completion_length):
    """Log-probabilities and entropies of the completions' tokens, both (B, C), zero where the mask is.

    batch: input_ids and attention_mask (B, P + C), prompts padded on the left, image fields as TRL passes them, and videos in
    lists of rows. Rows with nothing to score are not run.
    """
    rows_B, length = len(batch["input_ids"]), batch["input_ids"].shape[1] - completion_length
    scored = scored_rows(batch["attention_mask"][:, length:])
    part = rows.take(batch, scored)
    start = part["attention_mask"].any(dim=0).int().argmax().item()  # columns where every row is padded
    end = length + max(part["attention_mask"][:, length:].sum(dim=1).max().item(), 1)
    tokens = {name: part[name][:, start:end] for name in ("input_ids", "attention_mask", *rows.TOKEN_FIELDS) if name in part}
    ids, mask, last = tokens["input_ids"], tokens["attention_mask"], length - start - 1  # place of the prompts' last token
    first, row = rows.distinct_prompts(ids[:, : last + 1], mask[:, : last + 1], part)
    output = model(
        prompt=cut(rows.take(part | tokens, first), last),
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
