"""Rows of a batch as TRL hands it from method to method: choose some, join batches, put those of a prompt together.

A batch is a dict of tensors with one row a completion, of images that lie flat over the batch (`num_images` tells how many
each row has), of videos that stand in lists with an entry a row until the model is called (`flat`), and of numbers that belong
to the batch as a whole.
"""

import math

import numpy as np
import torch
from trl.trainer.utils import split_pixel_values_by_grid, unsplit_pixel_values_by_grid

# What a processor makes of images; everything else has one row a completion.
IMAGE_FIELDS = ("pixel_values", "image_grid_thw", "pixel_attention_mask", "spatial_shapes", "image_sizes", "image_position_ids")
# What a processor makes of videos: patches (N, D), grids (videos, 3) and seconds between them (videos,) of each row.
VIDEO_FIELDS = ("pixel_values_videos", "video_grid_thw", "second_per_grid_ts")
TOKEN_FIELDS = ("token_type_ids", "mm_token_type_ids")  # over prompt and completion


def by_row(batch):
    """The batch with its images as lists, one entry a row. ValueError where a field cannot be told apart by rows."""
    split = split_pixel_values_by_grid({name: value for name, value in batch.items() if value is not None})
    sizes = {name: len(value) for name, value in split.items() if isinstance(value, list) or value.ndim}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"fields of different numbers of rows: {sizes}; images in tiles cannot be told apart by prompts here")
    return split


def take(batch, rows):
    """The rows of a batch in this order, with their images; no image fields where they have none.

    >>> take({"ids": torch.tensor([[1], [2], [3]]), "items": torch.tensor(9)}, [2, 0])
    {'ids': tensor([[3],
            [1]]), 'items': tensor(9)}
    """
    chosen = {}
    for name, value in by_row(batch).items():
        if isinstance(value, list):
            chosen[name] = [value[i] for i in rows]
        else:
            chosen[name] = value[list(rows)] if value.ndim else value
    chosen = unsplit_pixel_values_by_grid(chosen)
    if "pixel_values" in chosen and not chosen["pixel_values"].numel():
        chosen = {name: value for name, value in chosen.items() if name not in IMAGE_FIELDS}
    return chosen


def flat(batch):
    """The batch with its videos as the model takes them, over all rows; without video fields where no row has any."""
    lists = {name: batch[name] for name in VIDEO_FIELDS if isinstance(batch.get(name), list)}
    rest = {name: value for name, value in batch.items() if name not in lists}
    any_video = any(map(len, lists.get("video_grid_thw", [])))
    return rest | {name: torch.cat(value) for name, value in lists.items() if any_video}


def distinct_prompts(ids, mask, batch):
    """(first, row): where each distinct prompt comes first, and each row's number among the distinct prompts.

    ids, mask: (B, P). Prompts are the same where tokens, images and videos are: tokens alone cannot tell pictures apart.

    >>> distinct_prompts(torch.tensor([[5, 7], [5, 8], [9, 7], [5, 7]]), torch.tensor([[0, 1], [1, 1], [0, 1], [1, 1]]), {})
    ([0, 1, 3], [0, 1, 0, 2])
    """
    keys = ids.masked_fill(mask == 0, -1).tolist()
    split = by_row(batch)
    images = [split[name] for name in IMAGE_FIELDS + VIDEO_FIELDS if name in split]
    first, row = [], []
    for i, key in enumerate(keys):
        same = (u for u, j in enumerate(first) if keys[j] == key and all(torch.equal(field[i], field[j]) for field in images))
        row.append(next(same, len(first)))
        if row[-1] == len(first):
            first.append(i)
    return first, row


def first_rows(prompt_rows):
    """Where each prompt comes first in prompt_rows (B,), the prompts' numbers from 0 on.

    >>> first_rows(torch.tensor([0, 0, 1, 2, 2]))
    [0, 2, 3]
    """
    numbers = prompt_rows.tolist()
    return [numbers.index(u) for u in range(max(numbers) + 1)]


def regroup(batches, window):
    """Micro-batches of equal size in which completions of a prompt stand together, `window` of them at a time.

    TRL shuffles a generation batch before it cuts it up, so that a prompt's completions are scattered. A window holds the
    micro-batches of one optimizer step: no row leaves its step, so the accumulated gradient stays what it was.
    """
    done = []
    for start in range(0, len(batches), window):
        whole = join(batches[start : start + window])
        _, row = distinct_prompts(whole["prompt_ids"], whole["prompt_mask"], whole)
        order = sorted(range(len(row)), key=row.__getitem__)
        size = len(order) // len(batches[start : start + window])
        done += [take(whole, order[i : i + size]) for i in range(0, len(order), size)]
    return done


def join(batches):
    """One batch of several, padded to the longest prompt (on the left) and completion (on the right) among them.

    What belongs to the batch as a whole is the first one's. Rows of a batch without images get none.
    """
    splits = [by_row(batch) for batch in batches]
    names = list(dict.fromkeys(name for split in splits for name in split))
    prompt = max(split["prompt_ids"].shape[1] for split in splits)
    completion = max(split["completion_ids"].shape[1] for split in splits)
    joined = {}
    for name in names:
        parts = [field_or_none(name, split, splits) for split in splits]
        if isinstance(parts[0], list):
            joined[name] = sum(parts, [])
        elif parts[0].ndim == 0:
            joined[name] = parts[0]
        else:
            joined[name] = torch.cat([widen(name, part, split, prompt, completion) for part, split in zip(parts, splits)])
    return unsplit_pixel_values_by_grid(joined)


def field_or_none(name, split, splits):
    """A batch's field; where only other batches have it, nothing for each of its rows (no images, token type 0)."""
    if name in split:
        return split[name]
    rows, other = len(split["prompt_ids"]), next(one[name] for one in splits if name in one)
    if name == "num_images":
        return [0] * rows
    if name in TOKEN_FIELDS:
        return other.new_zeros(rows, split["prompt_ids"].shape[1] + split["completion_ids"].shape[1])
    if isinstance(other, list):
        return [other[0][:0]] * rows
    raise ValueError(f"only some of the batches to join have the field {name}")


def widen(name, value, split, prompt, completion):
    """A field (rows, ...) padded with zeros to `prompt` and `completion` tokens, whichever of them it covers."""
    left, right = prompt - split["prompt_ids"].shape[1], completion - split["completion_ids"].shape[1]
    if name in ("prompt_ids", "prompt_mask"):
        right = 0
    elif name not in TOKEN_FIELDS:
        left, right = 0, right if value.shape[1:] == split["completion_ids"].shape[1:] else 0
    return torch.nn.functional.pad(value, (left, right)) if left or right else value


def processor_fields(fields, images):
    """What a processor adds to prompts' token ids, as a batch: lists of arrays become tensors, values a token stay lists."""
    batch = {} if images is None else {"num_images": [len(row or []) for row in images]}
    for name, value in fields.items():
        a_token = isinstance(value, list) and value and isinstance(value[0], list)
        keep = a_token or name in VIDEO_FIELDS or isinstance(value, torch.Tensor)
        batch[name] = value if keep else torch.as_tensor(np.array(value))
    return batch


def window_of(steps_per_generation, gradient_accumulation_steps):
    """Micro-batches that surely belong to one optimizer step, wherever a generation batch begins.

    >>> window_of(8, 8), window_of(8, 4), window_of(4, 8), window_of(4, 6)
    (8, 4, 4, 2)
    """
    return math.gcd(steps_per_generation, gradient_accumulation_steps)


def separable(fields, images):
    """Whether a processor's fields can be told apart by prompts."""
    try:
        by_row(processor_fields(fields, images))
        return True
    except (ValueError, RuntimeError):  # RuntimeError: torch.split of images that come in tiles
        return False


def of_prompts(fields, numbers):
    """The fields of these prompts, as TRL's generation takes them."""
    return {name: value for name, value in flat(take(fields, numbers)).items() if name != "num_images"}


def left_padded(batch):
    """A processor's fields with the values a token (lists of lists) as one tensor, padded with zeros on the left."""
    padded = {}
    for name, value in batch.items():
        if isinstance(value, list):
            width = max(map(len, value))
            value = torch.tensor([[0] * (width - len(row)) + list(row) for row in value])
        padded[name] = value
    return padded
