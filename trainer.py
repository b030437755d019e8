"""CriticGRPOTrainer: what TRL's GRPOTrainer does not do for a critic, and nothing else.

Added to TRL 1.16.0 (pinned exactly: private methods are overridden, tests/test_trainer.py holds their signatures):

- rows whose external evidence is missing (`NOT_ADMITTED`) neither score zero nor move their group's baseline;
- metrics by name: verdict_first_share, phi, unreadable, not_admitted (frac_reward_zero_std is TRL's own);
- errors where TRL goes on in silence: a data set that gives zero steps, nothing to train, weights that do not move,
  prompts that leave no room for a completion; a resumed run whose weights were not loaded;
- clips read once a generation batch and completions sampled in slices (`generation_rows`): TRL reads every clip for every
  micro-batch and samples the whole batch at once.
"""

import math
from pathlib import Path

import datasets
import numpy as np
import torch
from accelerate.utils import is_peft_model
from transformers import TrainerCallback
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler

import rewards
from launch import log

# A reward function returns this for a row whose external evidence is missing (a served verifier that failed, a reply of
# another model that cannot be read). The policy's own unreadable completion scores 0; None means "does not apply".
NOT_ADMITTED = float("-inf")


def text_of(completion):
    """The text of a completion as TRL passes it: a string, or a list of messages whose last one is the model's."""
    return completion if isinstance(completion, str) else completion[-1]["content"]


def phi_coefficient(n11, n10, n01, n00):
    """Phi of a 2 x 2 table, (n11 n00 - n10 n01) / sqrt(product of the margins); None where a margin is empty.

    >>> phi_coefficient(3, 1, 1, 3)
    0.5
    """
    margins = (n11 + n10) * (n01 + n00) * (n11 + n01) * (n10 + n00)
    return (n11 * n00 - n10 * n01) / math.sqrt(margins) if margins else None


def slice_fields(fields, images, start, stop):
    """What Qwen's processor adds to the token ids, for the prompts from `start` to `stop` of a batch."""
    unknown = set(fields) - {"pixel_values", "image_grid_thw", "mm_token_type_ids"}
    if unknown:
        raise ValueError(f"generation_rows cannot slice {sorted(unknown)} of this model's processor: leave generation_rows out")
    part = {name: fields[name][start:stop] for name in ("mm_token_type_ids",) if name in fields}  # a list for each prompt
    ends = torch.tensor([0] + [len(row or []) for row in images or []]).cumsum(0)  # images before each prompt
    first, last = ends[start].item() if images else 0, ends[min(stop, len(images))].item() if images else 0
    if last > first:
        grids = torch.as_tensor(np.array(fields["image_grid_thw"]))  # (images, 3)
        patches = torch.cat([torch.zeros(1, dtype=torch.long), grids.prod(dim=1).cumsum(0)])  # patches before each image
        pixels = torch.as_tensor(np.array(fields["pixel_values"]))  # (patches, values)
        part |= {"image_grid_thw": grids[first:last], "pixel_values": pixels[patches[first] : patches[last]]}
    return part


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


class CriticGRPOTrainer(GRPOTrainer):
    """GRPOTrainer with rows that are not admitted, the critic's metrics, and guards. Same arguments."""

    def __init__(self, model, reward_funcs=None, args=None, train_dataset=None, **kwargs):
        prompts = args.generation_batch_size // args.num_generations
        if train_dataset is not None and len(train_dataset) < prompts:
            raise ValueError(
                f"the data set has {len(train_dataset)} rows, fewer than the {prompts} prompts of one generation batch: "
                "TRL would train zero steps. Use a larger data set, or lower prompts_per_step "
                f"(num_generations {args.num_generations}, {args.world_size} process(es))"
            )
        super().__init__(model=model, reward_funcs=reward_funcs, args=args, train_dataset=train_dataset, **kwargs)
        total, trainable = 0, 0
        for name, parameter in self.model.named_parameters():
            size = getattr(parameter, "ds_numel", parameter.numel())
            total += size
            trainable += size * (parameter.requires_grad and ".ref." not in name)  # .ref. is TRL's frozen copy
        if trainable == 0:
            raise ValueError(
                f"none of the model's {total} parameters is trainable: load an adapter with is_trainable=True, "
                "or start from a merged model with --use_peft"
            )
        log(f"training {trainable:,} of {total:,} parameters")
        self.weights_move = WeightsMove(self)
        self.add_callback(self.weights_move)

    def get_train_dataloader(self):
        rows = self.train_dataset
        try:
            self.train_dataset = OnceDataset(rows) if isinstance(rows, datasets.Dataset) else rows
            return super().get_train_dataloader()
        finally:
            self.train_dataset = rows

    def _get_train_sampler(self, dataset=None):
        sampler = super()._get_train_sampler(dataset)
        if self.args.gradient_accumulation_steps % sampler.repeat_count:
            return sampler  # a resumed run could begin inside a generation batch: every repeat must be readable
        once = OnceSampler(
            sampler.data_source,
            mini_repeat_count=sampler.mini_repeat_count,
            batch_size=sampler.batch_size,
            repeat_count=sampler.repeat_count,
            shuffle=sampler.shuffle,
            seed=sampler.seed,
        )
        once.epoch = lambda: int(self.state.epoch or 0)
        return once

    def _tokenize_prompts(self, prompts):
        prompt_ids, images, multimodal_fields = super()._tokenize_prompts(prompts)
        window = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        longest = max(len(ids) for ids in prompt_ids)
        if window is not None and longest + self.max_completion_length > window:
            raise ValueError(
                f"the longest prompt has {longest} tokens; with max_completion_length {self.max_completion_length} "
                f"that is {longest + self.max_completion_length}, more than the model's window of {window}. "
                "Lower max_completion_length, max_frames or max_pixels"
            )
        return prompt_ids, images, multimodal_fields

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        rows = self.args.generation_rows
        if rows is None or rows >= len(prompt_ids) or self.use_vllm:
            return super()._generate_single_turn(prompt_ids, images, multimodal_fields, num_generations, has_tool_images)
        completion_ids = []
        for start in range(0, len(prompt_ids), rows):
            fields = slice_fields(multimodal_fields, images, start, start + rows)
            some = images[start : start + rows] if images is not None else None
            prompts = prompt_ids[start : start + rows]
            completion_ids += super()._generate_single_turn(prompts, some, fields, num_generations, has_tool_images)[0]
        return completion_ids, None  # transformers' generation gives no log-probabilities

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        """A checkpoint holds the hub's names of the weights, which for Qwen2.5-VL are not the module's: transformers 5.24
        loads none of them and goes on with a warning. from_pretrained translates, and strict loading leaves no doubt."""
        folder = Path(resume_from_checkpoint)
        if is_peft_model(self.model) or self.is_fsdp_enabled or not list(folder.glob("model*.safetensors")):
            return super()._load_from_checkpoint(resume_from_checkpoint, model)
        loaded = type(self.model).from_pretrained(folder, dtype=self.model.dtype)
        self.model.load_state_dict(loaded.state_dict(), strict=True)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)  # (B, F), gathered
        metrics = self._metrics["train" if self.model.training else "eval"]
        not_admitted = torch.isneginf(rewards_per_func).any(dim=1)  # (B,)
        rewards_per_func[not_admitted] = torch.nan  # TRL leaves a row of NaN out of the baseline, advantage 0
        metrics["not_admitted"].append(not_admitted.float().mean().item())

        first = second = unreadable = 0
        for example, completion in zip(inputs, completions, strict=True):
            text = text_of(completion)
            if example.get("preference") is None:
                unreadable += rewards.extract_answer(text, example.get("options")) is None
            else:
                verdict = rewards.parse_critique(text).verdict
                first, second, unreadable = first + (verdict == 1), second + (verdict == 2), unreadable + (verdict is None)
        counts = torch.tensor([[first, second, unreadable, len(inputs)]], device=self.accelerator.device)
        first, second, unreadable, rows = self.accelerator.gather(counts).sum(dim=0).tolist()
        metrics["unreadable"].append(unreadable / rows)
        if first + second:
            metrics["verdict_first_share"].append(first / (first + second))

        names = self.reward_func_names
        if "self_prediction_reward" in names and "judgement_reward" in names:
            own = rewards_per_func[:, names.index("self_prediction_reward")]  # (B,)
            judged = rewards_per_func[:, names.index("judgement_reward")]  # (B,)
            table = [((own == a) & (judged == b)).sum().item() for a, b in ((1, 1), (1, 0), (0, 1), (0, 0))]
            phi = phi_coefficient(*table)
            if phi is not None:
                metrics["phi"].append(phi)
        return rewards_per_func

    def _compute_loss(self, model, inputs):
        if not self.weights_move.done:
            self.weights_move.had_advantage |= bool(inputs["advantages"].any())
        return super()._compute_loss(model, inputs)


class WeightsMove(TrainerCallback):
    """Stops a run whose weights do not move: checked at the first step that had a learning rate and an advantage."""

    def __init__(self, trainer):
        self.trainer, self.before, self.rate, self.had_advantage, self.done = trainer, None, 0.0, False, False

    def fingerprint(self):
        """One sum per trainable parameter (of this process's shard, under ZeRO-3 or FSDP)."""
        shards = [getattr(p, "ds_tensor", p) for p in self.trainer.model.parameters() if p.requires_grad]
        shards = [shard.to_local() if hasattr(shard, "to_local") else shard for shard in shards]
        sums = [shard.detach().sum(dtype=torch.float32 if shard.is_mps else torch.float64).cpu() for shard in shards]
        return torch.stack(sums)  # (parameters,)

    def on_step_begin(self, args, state, control, **kwargs):
        if not self.done:
            self.had_advantage, self.rate, self.before = False, self.trainer._get_learning_rate(), self.fingerprint()

    def on_step_end(self, args, state, control, **kwargs):
        accelerator = self.trainer.accelerator
        if self.done or not self.rate or accelerator.optimizer_step_was_skipped:
            return
        moved = not torch.equal(self.fingerprint(), self.before)
        flags = accelerator.gather(torch.tensor([[self.had_advantage, moved]], device=accelerator.device))  # (processes, 2)
        had_advantage, moved = flags.any(dim=0).tolist()
        if had_advantage and not moved:
            raise RuntimeError(
                f"step {state.global_step} had learning rate {self.rate:g} and advantages, but none of {len(self.before)} "
                "trainable parameters moved. Does the loss reach them (an adapter that is switched off?), does the optimizer "
                "hold them, and is the learning rate above their precision?"
            )
        self.done = had_advantage

    def on_train_end(self, args, state, control, **kwargs):
        if self.before is not None and not self.done:
            log(f"step {state.global_step}, and no step had a learning rate and an advantage: nothing was learnt")
