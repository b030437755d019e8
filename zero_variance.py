"""Groups in which every completion has the same reward: no advantage, so nothing to learn from them.

skip_zero_variance leaves them out of forward and backward passes (trainer.py masks their tokens, and rows without a token to
score are not run). dynamic_sampling replaces them by groups of further prompts before training, as DAPO does (arXiv
2503.14476), with a bound on the draws.
"""

import random

import torch

import rows
from once import OnceDataset


def check(trainer):
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


def has_advantage(trainer, advantages):
    """Whether each row's group has an advantage anywhere, (B,); a group may be spread over processes."""
    groups = trainer.accelerator.gather(advantages).view(-1, trainer.num_generations).ne(0).any(dim=1)
    first = trainer.accelerator.process_index * len(advantages)
    return groups.repeat_interleave(trainer.num_generations)[first : first + len(advantages)]


def filled(trainer, output):
    """The batch with groups of further prompts in place of those without an advantage, as far as dynamic_sampling goes."""
    size, accelerator, draws = trainer.num_generations, trainer.accelerator, 0
    good = has_advantage(trainer, output["advantages"])[::size]  # (groups of this process,)
    drawn, accepted = len(good), int(good.sum())
    while draws < trainer.args.dynamic_sampling:
        count = int(accelerator.gather((~good).sum()).max())  # the same in every process, as rewards are gathered
        if count == 0:
            break
        draws += 1
        more = trainer.draw(further_rows(trainer, draws, count))
        found = has_advantage(trainer, more["advantages"])[::size].nonzero().flatten().tolist()
        order = list(range(len(output["advantages"])))
        for slot, new in zip((~good).nonzero().flatten().tolist(), found):
            order[slot * size : slot * size + size] = range(len(order) + new * size, len(order) + new * size + size)
        output = rows.take(rows.join([output, more]), order)
        good = has_advantage(trainer, output["advantages"])[::size]
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
