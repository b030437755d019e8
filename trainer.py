"""CriticGRPOTrainer: what TRL's GRPOTrainer does not do for a critic, and nothing else.

Added to TRL 1.16.0 (pinned exactly: private methods are overridden, tests/test_trainer.py holds their signatures):

- rows whose external evidence is missing (`NOT_ADMITTED`) neither score zero nor move their group's baseline;
- metrics by name: verdict_first_share, phi, unreadable, not_admitted, steps_left_out (frac_reward_zero_std is corrected);
- errors where TRL goes on in silence: a data set that gives zero steps, nothing to train, weights that do not move,
  prompts that leave no room for a completion; a resumed run whose weights were not loaded; a NaN among the rewards;
- a reward function that fails in one process ends the run in all (training/reward_calls.py);
- rows without a picture where weights are shared out over processes (training/sharding.py);
- the adapter of a quantized base stays float32;
- clips read once a generation batch and completions sampled in slices (`generation_rows`): TRL reads every clip for every
  micro-batch and samples the whole batch at once;
- each prompt's images processed once, and each prompt run once for all its completions (training/shared_prefix.py): TRL does both
  for every completion, twice and up to four times;
- videos: a column `videos` in place of `images` (training/video.py);
- groups without any advantage left out (`skip_zero_variance`) or replaced by further prompts (`dynamic_sampling`);
- a generation batch that several steps train on saved with a checkpoint between them (training/checkpoints.py).
"""

import functools
import operator

import datasets
import torch
from transformers import TrainerCallback
from trl import GRPOTrainer

import rewards
from data import video_inputs
from training import batches, checkpoints, sharding, shared_prefix, video
from training.batches import OnceDataset, OnceSampler, Processed, numbered
from training.checkpoints import LoadsStrictly, log
from training.reward_calls import guarded, raise_everywhere
from training.shared_prefix import compared_parameters, difference

# A reward function returns this for a row whose external evidence is missing (a served verifier that failed, a reply of
# another model that cannot be read). The policy's own unreadable completion scores 0; None means "does not apply".
NOT_ADMITTED = float("-inf")


def text_of(completion):
    """The text of a completion as TRL passes it: a string, or a list of messages whose last one is the model's."""
    return completion if isinstance(completion, str) else completion[-1]["content"]


class CriticGRPOTrainer(LoadsStrictly, GRPOTrainer):
    """GRPOTrainer with rows that are not admitted, the critic's metrics, and guards. Same arguments."""

    def __init__(self, model, reward_funcs=None, args=None, train_dataset=None, **kwargs):
        prompts = args.generation_batch_size // args.num_generations
        if train_dataset is not None and len(train_dataset) < prompts:
            raise ValueError(
                f"the data set has {len(train_dataset)} rows, fewer than the {prompts} prompts of one generation batch: "
                "TRL would train zero steps. Use a larger data set, or lower prompts_per_step "
                f"(num_generations {args.num_generations}, {args.world_size} process(es))"
            )
        videos = video.has_videos(train_dataset)
        if videos and kwargs.get("processing_class") is not None:
            video_inputs.check(kwargs["processing_class"])  # before a large model is loaded
        super().__init__(model=model, reward_funcs=reward_funcs, args=args, train_dataset=train_dataset, **kwargs)
        if getattr(self.model, "is_loaded_in_4bit", False) or getattr(self.model, "is_loaded_in_8bit", False):
            for parameter in self.model.parameters():  # TRL has made them bfloat16, which rounds steps of 1e-5 away
                if parameter.requires_grad:
                    parameter.data = parameter.data.float()
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
        self.no_empty_step = batches.NoEmptyStep(self)
        if args.skip_zero_variance:
            self.add_callback(self.no_empty_step)
        self.once = not self.tools and self.environment_factories is None  # images are processed once a prompt
        self.told = False  # how long prompts are
        self.reads_videos, self.clips, self.video_fields = False, None, {}  # each row's clips; what TRL would not pass on
        if videos:
            video.start(self)
        sharding.start(self)
        self.sharing = shared_prefix.start(self)
        # what a micro-batch contributes depends on the rest of it: rows must stay where TRL put them
        self.counts_by_micro_batch = args.loss_type == "bnpo" or self._entropy_bonus_enabled or args.top_entropy_quantile < 1
        batches.check_groups(self)

    def get_train_dataloader(self):
        rows = self.train_dataset
        try:
            self.train_dataset = OnceDataset(rows) if isinstance(rows, datasets.Dataset) else rows
            return super().get_train_dataloader()
        finally:
            self.train_dataset = rows

    def _get_train_sampler(self, dataset=None):
        sampler = super()._get_train_sampler(dataset)
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
        """As TRL, each prompt of a run of equal ones once: ids and images are repeated, fields are of the distinct prompts."""
        things = list(zip(prompts, self.clips, strict=True)) if self.clips else prompts
        number = numbered(things, operator.eq if self.once else lambda this, before: False)
        first = [number.index(u) for u in range(number[-1] + 1)]
        clips = self.clips and [self.clips[i] for i in first]
        with video.put_in(self, [prompts[i] for i in first], clips) as distinct:
            prompt_ids, images, fields = super()._tokenize_prompts(distinct)
        if clips:
            fields = video_inputs.by_prompt(fields, clips)
            self.video_fields = video.of_completions(self, fields, number)
        if self.once and not batches.separable(fields, images):
            if self.args.generation_rows:
                raise ValueError("this processor's images cannot be told apart by prompts: leave generation_rows out")
            log("this processor's images cannot be told apart by prompts: they are processed and run for every completion")
            self.once = self.sharing = None
            return self._tokenize_prompts(prompts)
        window = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        longest = max(len(ids) for ids in prompt_ids)
        if window is not None and longest + self.max_completion_length > window:
            raise ValueError(
                f"the longest prompt has {longest} tokens; with max_completion_length {self.max_completion_length} "
                f"that is {longest + self.max_completion_length}, more than the model's window of {window}. "
                "Lower max_completion_length, max_frames or max_pixels"
            )
        if not self.told:
            self.told = True
            visual = [i for i in (getattr(self.model.config, f"{kind}_token_id", None) for kind in ("image", "video")) if i is not None]
            seen = [sum(ids.count(i) for i in visual) for ids in map(list, prompt_ids)]
            log(
                f"first batch: prompts of {sum(map(len, prompt_ids)) / len(prompt_ids):.0f} tokens in the mean, {longest} at most, "
                f"of them visual {sum(seen) / len(seen):.0f} and {max(seen)}; max_pixels and max_frames lower these"
            )
        if self.once and images is not None and isinstance(self.processing_class, Processed):
            self.processing_class.made = batches.left_padded(batches.of_prompts(batches.processor_fields(fields, images), number))
        return [prompt_ids[u] for u in number], images and [images[u] for u in number], fields

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        sample = super()._generate_single_turn
        if not self.once or self.use_vllm or self.use_transformers_continuous_batching:
            return sample(prompt_ids, images, multimodal_fields, num_generations, has_tool_images)
        number, completion_ids = numbered(prompt_ids), []
        fields = batches.processor_fields(multimodal_fields, images and [images[number.index(u)] for u in range(number[-1] + 1)])
        share = self._generates_shared(sample, prompt_ids, number, fields, num_generations)
        size = self.args.generation_rows or len(prompt_ids)
        for start in range(0, len(prompt_ids), size):
            wanted = number[start : start + size]
            part = batches.of_prompts(fields, sorted(set(wanted)) if share else wanted)
            if share:
                part["prompt_rows"] = [u - wanted[0] for u in wanted]
            completion_ids += sample(prompt_ids[start : start + size], None, part, num_generations)[0]
        return completion_ids, None  # transformers' generation gives no log-probabilities

    def _generates_shared(self, sample, prompt_ids, number, fields, num_generations):
        """Whether to sample from shared prompts; compared first where need be, on the longest and the shortest prompt."""
        lengths = [len(ids) for ids in prompt_ids]
        if not self.sharing or not self.sharing.generates or self.sharing.anywhere(min(lengths) < 2):
            return False

        def compare():
            pair = dict.fromkeys([number[lengths.index(max(lengths))], number[lengths.index(min(lengths))]])
            part = batches.of_prompts(fields, list(pair)) | {
                "prompt_rows": [k for k in range(len(pair)) for _ in "ab"],
                "compare": True,
            }
            with torch.random.fork_rng(devices=[self.accelerator.device] if self.accelerator.device.type == "cuda" else []):
                sample([prompt_ids[number.index(u)] for u in pair for _ in "ab"], None, part, num_generations)
            return self.sharing.model.generation_difference

        return self.sharing.agrees("generation", [max(lengths)], compare)

    def _save_rng_state(self, output_dir):
        super()._save_rng_state(output_dir)
        checkpoints.save_buffer(self, output_dir)

    def _load_rng_state(self, checkpoint):
        super()._load_rng_state(checkpoint)
        checkpoints.load_buffer(self, checkpoint)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        functions, faults = self.reward_funcs, []
        self.reward_funcs = [guarded(func, name, faults) for func, name in zip(functions, self.reward_func_names, strict=True)]
        try:
            rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)  # (B, F), gathered
        finally:
            self.reward_funcs = functions
        raise_everywhere(self.accelerator, faults)
        metrics = self._metrics["train" if self.model.training else "eval"]
        not_admitted = torch.isneginf(rewards_per_func).any(dim=1)  # (B,)
        rewards_per_func[not_admitted] = torch.nan  # TRL leaves a row of NaN out of the baseline, advantage 0
        metrics["not_admitted"].append(not_admitted.float().mean().item())
        size, apart = self.num_generations, self.multi_objective_aggregation == "normalize_then_sum"
        if self.model.training:
            self.has_advantage = batches.has_advantage(rewards_per_func, self.reward_weights.to(not_admitted.device), size, apart)

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
            both = torch.stack([own, judged])[:, ~(own + judged).isnan()].double()  # (2, rows to which both apply)
            if (both.amin(dim=1) < both.amax(dim=1)).all() if both.numel() else False:
                metrics["phi"].append(torch.corrcoef(both)[0, 1].item())  # of two binary variables, Pearson's r is phi
        return rewards_per_func

    def _get_per_token_logps_and_entropies(
        self,
        model,
        input_ids,
        attention_mask,
        logits_to_keep,
        batch_size=None,
        compute_entropy=False,
        compute_aux_loss=False,
        **fields,
    ):
        def ordinary(batch, model=model, size=batch_size):
            return video.score(score, model, batch, logits_to_keep, size, compute_entropy, compute_aux_loss)

        def shared(batch, model=model):
            with self.accelerator.autocast():
                return shared_prefix.log_probs(model, batch, logits_to_keep)

        score = super()._get_per_token_logps_and_entropies
        batch = {"input_ids": input_ids, "attention_mask": attention_mask}
        batch |= {name: value for name, value in fields.items() if value is not None}
        batch |= video.widened(self.video_fields, input_ids.shape[1], logits_to_keep)
        if not self._scores_shared(batch, logits_to_keep, model, ordinary, shared):
            return self._without_empty_rows(ordinary, batch, logits_to_keep)
        size, found = batch_size or len(input_ids), []
        for start in range(0, len(input_ids), size):
            found.append(shared(batches.take(batch, range(start, min(start + size, len(input_ids))))))
        logps, entropies = (torch.cat(part) if part[0] is not None else None for part in zip(*found))
        return logps, entropies if compute_entropy else None, None

    def _scores_shared(self, batch, completion_length, model, ordinary, shared):
        """Whether to score from shared prompts; compared first where need be."""
        gradients = torch.is_grad_enabled()
        if not self.sharing or (gradients and self.args.gradient_checkpointing):
            return False
        if self.sharing.anywhere(not shared_prefix.can_share(self.sharing.model, batch, completion_length)):
            return False

        def compare():
            inner = self.accelerator.unwrap_model(model)
            compared = functools.partial(difference, lambda part: shared(part, inner)[0], lambda part: ordinary(part, inner)[0])
            if self.sharing.sharded:  # a parameter is spread over the processes
                return compared(batch, completion_length, [])
            try:
                with compared_parameters(inner) as parameters:
                    return compared(batch, completion_length, parameters)
            except torch.OutOfMemoryError:
                if gradients:
                    raise
            log("shared_prefix: no memory for a gradient in the pass without gradients: values alone are compared there")
            return compared(batch, completion_length, [])

        lengths = (batch["input_ids"].shape[1] - completion_length, completion_length)
        return self.sharing.agrees("training" if gradients else "scoring", lengths, compare)

    def _without_empty_rows(self, ordinary, batch, completion_length):
        """The ordinary pass; with skip_zero_variance, of the rows that have something to score.

        In the training pass only, which is one call of the model however many rows are left. Without gradients TRL goes over a
        batch so many rows at a time: the number of calls would differ between processes, which sharded weights wait for.
        """
        mask = batch["attention_mask"][:, -completion_length:]
        leave_out = self.args.skip_zero_variance and torch.is_grad_enabled()
        scored = shared_prefix.scored_rows(mask) if leave_out else range(len(mask))
        if len(scored) == len(mask):
            return ordinary(batch)
        logps, entropies, _ = ordinary(batches.take(batch, scored))
        return *(shared_prefix.spread(values, scored, *mask.shape) for values in (logps, entropies)), None

    def _prepare_inputs(self, generation_batch):
        before, inputs = self._buffered_inputs, super()._prepare_inputs(generation_batch)
        drawn = self.model.training and self._buffered_inputs is not before
        if drawn and self.sharing and not self.counts_by_micro_batch:
            window = batches.window_of(self.args.steps_per_generation, self.args.gradient_accumulation_steps)
            self._buffered_inputs = batches.regroup(self._buffered_inputs, window)
            inputs = self._buffered_inputs[self._step % self.args.steps_per_generation]
        return inputs

    def _generate_and_score_completions(self, inputs):
        output = self.draw(inputs)
        if not self.model.training:
            return output
        if self.args.dynamic_sampling:
            output = batches.filled(self, output)
        if self.args.skip_zero_variance:
            output["completion_mask"] = output["completion_mask"] * output["has_advantage"][:, None]
        return output

    def draw(self, inputs):
        """TRL's completions with their advantages, each prompt's images processed once, and their videos."""
        self.clips, self.video_fields = video_inputs.clips_of(inputs), {}
        if self.clips:  # where the first row had none
            video.start(self)
        self.log_multimodal = self.args.log_multimodal and sharding.pictures_everywhere(self.accelerator, inputs)
        processor, self.processing_class = self.processing_class, Processed(self.processing_class)
        try:
            output = super()._generate_and_score_completions(inputs)
        finally:
            self.processing_class, self.clips = processor, None
        if self.model.training:
            first = self.accelerator.process_index * len(inputs)
            output["has_advantage"] = self.has_advantage[first : first + len(inputs)]
            if self.args.skip_zero_variance or self.args.dynamic_sampling:  # else as TRL leaves them, and recorded runs have them
                output["advantages"] = output["advantages"] * output["has_advantage"]
            if self.scale_rewards != "batch" and self.multi_objective_aggregation == "sum_then_normalize":
                self._metrics["train"]["frac_reward_zero_std"][-1] = 1 - self.has_advantage.float().mean().item()
        prompt, completion = output["prompt_ids"].shape[1], output["completion_ids"].shape[1]
        return output | video.widened(self.video_fields, prompt + completion, completion)

    def _compute_loss(self, model, inputs):
        if self.model.training:
            informative = bool(inputs["has_advantage"].any())
            self.weights_move.had_advantage |= informative
            self.no_empty_step.informative |= informative
        self.video_fields = {name: inputs[name] for name in batches.VIDEO_FIELDS if name in inputs}
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
