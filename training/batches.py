"""Rows of a batch as TRL hands it from method to method: choose some, join batches, put those of a prompt together; prompts read
once a group, not once a completion; and groups without an advantage.

A batch is a dict of tensors with one row a completion, of images that lie flat over the batch (`num_images` tells how many
each row has), of videos that stand in lists with an entry a row until the model is called (`flat`), and of numbers that belong
to the batch as a whole.
"""

import math
import operator
import random

import numpy as np
import torch
from transformers import TrainerCallback
from trl.trainer.utils import RepeatSampler, split_pixel_values_by_grid, unsplit_pixel_values_by_grid

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


class OnceSampler(RepeatSampler):
    """TRL's sampler, with None in place of the indices when a generation batch is repeated.

    TRL asks the data loader for the whole generation batch at every micro-batch and uses the first one only. With
    clips to decode that is most of a step's time: 256 times too many frames in the paper's configuration.
    The order of the rows follows from (seed, epoch), so that a resumed run goes on in the order it began.
    """

    epoch = staticmethod(lambda: 0)  # set by the trainer

    def __iter__(self):
        if self.shuffle:
            self.generator.manual_seed(self.seed + self.epoch())
        batch = self.batch_size * self.mini_repeat_count  # completions of one generation batch
        for place, index in enumerate(super().__iter__()):
            yield index if place // batch % self.repeat_count == 0 else None


class OnceDataset(torch.utils.data.Dataset):
    """Reads each row of a batch once (its num_generations copies share the frames), and no row where the index is None."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitems__(self, indices):
        wanted = sorted({index for index in indices if index is not None})
        found = dict(zip(wanted, self.rows.__getitems__(wanted), strict=True)) if wanted else {}
        return [{} if index is None else found[index] for index in indices]


def numbered(things, same=operator.is_):
    """Each thing's number, where one that is the same as the thing before it keeps its number.

    >>> numbered("aabbba", operator.eq)
    [0, 0, 1, 1, 1, 2]
    """
    numbers = [0]
    for before, thing in zip(things, things[1:]):
        numbers.append(numbers[-1] + (not same(thing, before)))
    return numbers


class Processed:
    """A processor that TRL calls a second time with the same images: that call gets what the first one made of them."""

    def __init__(self, processor):
        self.processor, self.made = processor, None

    def __getattr__(self, name):
        return getattr(self.processor, name)

    def __call__(self, **inputs):
        made, self.made = self.made, None
        return self.processor(**inputs) if made is None else made


def check_groups(trainer):
    """ValueError where skip_zero_variance or dynamic_sampling would change more than they say."""
    args = trainer.args
    if args.skip_zero_variance and trainer.counts_by_micro_batch:
        raise ValueError(
            "skip_zero_variance is exact only where the loss does not count the tokens of a micro-batch: use another "
            "loss_type than bnpo, no entropy bonus and top_entropy_quantile 1"
        )
    if args.skip_zero_variance and trainer.aux_loss_enabled:
        raise ValueError("skip_zero_variance would leave tokens out of the router's auxiliary loss: use one of the two")
    if args.dynamic_sampling < 0:
        raise ValueError(f"dynamic_sampling counts extra draws, 0 or more; got {args.dynamic_sampling}")
    if args.dynamic_sampling and (args.scale_rewards == "batch" or args.multi_objective_aggregation != "sum_then_normalize"):
        raise ValueError("dynamic_sampling mixes groups of several draws: use scale_rewards group or none, sum_then_normalize")
    if args.dynamic_sampling and not hasattr(trainer.train_dataset, "__getitem__"):
        raise ValueError("dynamic_sampling draws rows by number: use a data set that is no stream")
    held = args.per_device_train_batch_size * args.steps_per_generation
    if args.dynamic_sampling and held % trainer.num_generations:
        raise ValueError(
            "dynamic_sampling needs whole groups in every process: per_device_train_batch_size "
            f"{args.per_device_train_batch_size} * steps_per_generation {args.steps_per_generation} = {held} is no multiple of "
            f"num_generations {trainer.num_generations}"
        )


def has_advantage(parts, weights, size, apart=False):
    """Whether each row's group has rewards that differ beyond rounding, (B,).

    parts: (B, F) rewards of F functions, NaN where one does not apply; a row of nothing else counts for nothing. apart: each
    function is standardised on its own (TRL's normalize_then_sum). Decided from the rewards: what standardising leaves of
    equal ones is up to 6e-4 in float32, as their mean is not quite their value (TRL's frac_reward_zero_std is taken in by it).

    >>> has_advantage(torch.tensor([[0.7], [0.7], [0.1], [torch.nan], [1.0], [0.0]]), torch.ones(1), 2)
    tensor([False, False, False, False,  True,  True])
    """
    values, absent = parts * weights, parts.isnan().all(dim=1, keepdim=True)
    values = values if apart else values.nansum(dim=1, keepdim=True).masked_fill(absent, torch.nan)
    groups = values.view(-1, size, values.shape[1])  # (groups, G, F), or one sum in place of F
    low = groups.masked_fill(groups.isnan(), torch.inf).amin(dim=1)
    high = groups.masked_fill(groups.isnan(), -torch.inf).amax(dim=1)
    differ = (low < high) & ~torch.isclose(low, high, rtol=1e-6)
    return differ.any(dim=1).repeat_interleave(size)


class NoEmptyStep(TrainerCallback):
    """Takes the gradients away before an optimizer step in which no process had a group with an advantage.

    They are zeros, by which AdamW's momentum and weight decay would still move weights. Only the step's effect is missing: it
    counts, and the learning rate goes on. (DeepSpeed's engine has stepped by then.)
    """

    def __init__(self, trainer):
        self.trainer, self.informative = trainer, False

    def on_step_begin(self, args, state, control, **kwargs):
        self.informative = False

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        device = self.trainer.accelerator.device
        empty = not self.trainer.accelerator.gather(torch.tensor([self.informative], device=device)).any()
        self.trainer._metrics["train"]["steps_left_out"].append(float(empty))
        if empty:
            model.zero_grad(set_to_none=True)


def filled(trainer, output):
    """The batch with groups of further prompts in place of those without an advantage, as far as dynamic_sampling goes."""
    size, accelerator, draws = trainer.num_generations, trainer.accelerator, 0
    good = output["has_advantage"][::size]  # (groups of this process,)
    drawn, accepted = len(good), int(good.sum())
    while draws < trainer.args.dynamic_sampling:
        count = int(accelerator.gather((~good).sum()).max())  # the same in every process, as rewards are gathered
        if count == 0:
            break
        draws += 1
        more = trainer.draw(further_rows(trainer, draws, count))
        found = more["has_advantage"][::size].nonzero().flatten().tolist()
        order = list(range(len(output["advantages"])))
        for slot, new in zip((~good).nonzero().flatten().tolist(), found):
            order[slot * size : slot * size + size] = range(len(order) + new * size, len(order) + new * size + size)
        output = take(join([output, more]), order)
        good = output["has_advantage"][::size]
        drawn, accepted = drawn + count, accepted + len(found)
    output["num_items_in_batch"] = accelerator.gather(output["completion_mask"].sum()).sum()
    counts = torch.tensor([[drawn, accepted, len(good), int(good.sum())]], device=good.device)
    drawn, accepted, groups, informative = accelerator.gather(counts).sum(dim=0).tolist()
    for name, value in (("accepted", accepted / drawn), ("informative", informative / groups), ("extra_draws", draws)):
        trainer._metrics["train"][f"dynamic_sampling/{name}"].append(value)
    return output


def further_rows(trainer, draw, count):
    """`count` prompts that follow from (seed, step, process, draw), each num_generations times."""
    dataset, accelerator = trainer.train_dataset, trainer.accelerator
    place = trainer._step % trainer.args.gradient_accumulation_steps
    chance = random.Random(f"{trainer.args.seed} {trainer.state.global_step} {place} {accelerator.process_index} {draw}")
    picks = chance.sample(range(len(dataset)), min(count, len(dataset)))
    picks += chance.choices(range(len(dataset)), k=count - len(picks))
    return OnceDataset(dataset).__getitems__([pick for pick in picks for _ in range(trainer.num_generations)])
