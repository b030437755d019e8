"""Each row of the data set read once a generation batch, and each prompt's images processed once.

TRL's data loader reads a generation batch anew for every micro-batch, and its trainer processes the images of every
completion twice: once to sample, once for the log-probabilities.
"""

import operator

import torch
from trl.trainer.utils import RepeatSampler


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
