"""Clips as videos in training (--video_input native). TRL 1.16 reads no video (its issue 4144).

A data set has a column `videos`, a list of clips a row (data.open_clips). The trainer keeps what the processor makes of them
beside what TRL hands from method to method (batches.VIDEO_FIELDS) and gives it to the model in sampling and in every scoring
pass.
"""

import contextlib
import functools

import torch
from accelerate.utils import is_peft_model

from data.video_inputs import REMEDY, check, clips_of, inputs_of, text_after_videos
from training import batches


def has_videos(dataset):
    """Whether the first row has clips."""
    return dataset is not None and len(dataset) > 0 and bool(clips_of([dataset[0]]))


def start(trainer):
    """Make a trainer ready for videos, once; ValueError where its model or configuration cannot take them."""
    if trainer.reads_videos:
        return
    check(trainer.processing_class)
    video = getattr(trainer.model.config, "video_token_id", None)
    if video is None:
        raise ValueError(f"this model reads no video: its configuration has no video_token_id; {REMEDY}")
    if trainer.use_vllm or trainer.use_transformers_continuous_batching or not trainer.once:
        raise ValueError(f"videos are sampled by transformers' generate only, without vLLM and without tools; {REMEDY}")
    tokens = [*(trainer.generation_config.suppress_tokens or []), video]  # one that is sampled would have no patches
    trainer.generation_config.suppress_tokens = trainer.generation_kwargs["suppress_tokens"] = tokens
    for model in (trainer.model, trainer.ref_model):
        if model is not None:
            model = trainer.accelerator.unwrap_model(model)
            text_after_videos(model.get_base_model() if is_peft_model(model) else model)
    trainer.reads_videos = True


@contextlib.contextmanager
def put_in(trainer, prompts, clips):
    """The prompts with their clips, for TRL to tokenize while this lasts; as they are where clips is None."""
    own = trainer.chat_template_kwargs
    try:
        if clips:
            prompts, settings = inputs_of(trainer.processing_class, prompts, clips)
            trainer.chat_template_kwargs = own | {"processor_kwargs": settings}
        yield prompts
    finally:
        trainer.chat_template_kwargs = own


# ---------------------------------------------------------------------------------------------------------------- the passes


def of_completions(trainer, fields, number):
    """The video fields of every completion, on the trainer's device: number (B,) is each one's prompt among the fields'."""
    made = {name: trainer._prepare_input(fields[name]) for name in batches.VIDEO_FIELDS if name in fields}
    made = {name: [value[u] for u in number] for name, value in made.items()}  # the completions of a prompt share its tensors
    types = batches.left_padded({"mm_token_type_ids": [fields["mm_token_type_ids"][u] for u in number]})
    return made | trainer._prepare_input(types)


def widened(fields, width, completion_length):
    """Video fields for rows of `width` tokens: token types (B, P), where they are among them, get zeros around them."""
    types = fields.get("mm_token_type_ids")
    if types is None:
        return fields
    around = (width - completion_length - types.shape[1], completion_length)
    return fields | {"mm_token_type_ids": torch.nn.functional.pad(types, around)}


def score(ordinary, model, batch, completion_length, size, compute_entropy, compute_aux_loss):
    """TRL's scoring pass (`ordinary`) over a batch, so many rows at a time as it takes where that makes a difference: videos go
    past it to the model, and rows without pictures among others must not bring the model a picture field of nothing."""
    rows = len(batch["input_ids"])
    apart = "video_grid_thw" in batch or 0 in (batch.get("num_images") or [])
    size, found = size or rows, []
    for start in range(0, rows, size if apart else rows):
        part = batches.flat(batches.take(batch, range(start, min(start + size, rows)))) if apart else dict(batch)
        past = {name: part.pop(name) for name in batches.VIDEO_FIELDS if name in part}
        call = functools.partial(model, **past) if past else model
        ids, mask = part.pop("input_ids"), part.pop("attention_mask")
        found.append(ordinary(call, ids, mask, completion_length, size, compute_entropy, compute_aux_loss, **part))
    logps, entropies, losses = zip(*found)
    entropies = torch.cat(entropies) if compute_entropy else None
    return torch.cat(logps), entropies, torch.stack(losses).mean() if compute_aux_loss else None
