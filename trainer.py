"""CriticGRPOTrainer: what TRL's GRPOTrainer does not do for a critic, and nothing else; and what both stages share.

Added to TRL 1.16.0 (pinned exactly: private methods are overridden, tests/test_trainer.py holds their signatures):

- rows whose external evidence is missing (`NOT_ADMITTED`) neither score zero nor move their group's baseline;
- metrics by name: verdict_first_share, phi, unreadable, not_admitted (frac_reward_zero_std is TRL's own);
- errors where TRL goes on in silence: a data set that gives zero steps, nothing to train, weights that do not move,
  prompts that leave no room for a completion; a resumed run whose weights were not loaded;
- clips read once a generation batch and completions sampled in slices (`generation_rows`): TRL reads every clip for every
  micro-batch and samples the whole batch at once;
- the batch counted in prompts (`prompts_per_step`), precision that follows the machine, PEFT starts merged so that the
  reference is the model that training starts from, and resuming from the newest checkpoint that is whole.
"""

import dataclasses
import json
import math
import os
import shlex
import shutil
import sys
import zipfile
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import datasets
import numpy as np
import torch
import yaml
from accelerate.utils import is_peft_model
from transformers import AutoProcessor, TrainerCallback
from transformers.utils import strtobool
from trl import GRPOConfig, GRPOTrainer, ModelConfig, TrlParser, get_peft_config, get_quantization_config
from trl.trainer.utils import RepeatSampler, create_model_from_path

import rewards

ROOT = Path(__file__).resolve().parent

# A reward function returns this for a row whose external evidence is missing (a served verifier that failed, a reply of
# another model that cannot be read). The policy's own unreadable completion scores 0; None means "does not apply".
NOT_ADMITTED = float("-inf")


def log(message):
    """Print one line, on the main process only."""
    if os.environ.get("RANK", "0") == "0":
        print(message, flush=True)


# ------------------------------------------------------------------------------------------------------------ arguments


@dataclass
class DataArguments:
    """What both stages read."""

    dataset: str | None = field(
        default=None, metadata={"help": "JSONL file of records; left out: physworld's, the embedded default."}
    )
    limit: int | None = field(default=None, metadata={"help": "Use the first so many records only."})
    max_frames: int = field(default=8, metadata={"help": "Frames taken from a clip given as a video, evenly spaced."})
    max_pixels: int | None = field(
        default=None, metadata={"help": "Larger frames are scaled down to this many pixels; left out: the model's own."}
    )


@dataclass
class CriticGRPOConfig(GRPOConfig):
    """GRPOConfig with the batch counted in prompts, and with precision that follows the machine."""

    prompts_per_step: int | None = field(
        default=None,
        metadata={
            "help": "Prompts per optimizer step over all processes; gradient_accumulation_steps follows from it. "
            "Left out: gradient_accumulation_steps counts."
        },
    )

    generation_rows: int | None = field(
        default=None,
        metadata={
            "help": "Completions sampled at once on a process, which bounds the memory that sampling takes; left out: its "
            "whole share of the generation batch, as TRL does."
        },
    )

    def __post_init__(self):
        self.notes = []  # lines for the log, printed once it is known where training starts
        wanted = self.use_cpu or strtobool(os.environ.get("ACCELERATE_USE_CPU", "0"))
        self.on_cpu = bool(wanted or not torch.accelerator.is_available())
        if self.on_cpu:
            if self.bf16 is not False or self.fp16:
                self.notes.append("no accelerator: bf16 and fp16 are off, the weights are float32")
            self.bf16 = self.fp16 = self.dataloader_pin_memory = False
        if self.prompts_per_step is not None:
            processes = int(os.environ.get("WORLD_SIZE", "1"))
            self.gradient_accumulation_steps = accumulation_steps(
                self.prompts_per_step, self.num_generations, self.per_device_train_batch_size, processes
            )
        super().__post_init__()
        if self.prompts_per_step is not None and self.world_size != processes:
            raise RuntimeError(
                f"the launcher set WORLD_SIZE to {processes} but {self.world_size} processes run; "
                "launch with `accelerate launch` or `torchrun`"
            )


def accumulation_steps(prompts_per_step, num_generations, per_device, processes):
    """Micro-batches per optimizer step.

    >>> accumulation_steps(128, 8, 4, 8)
    32
    """
    if min(prompts_per_step, num_generations, per_device, processes) < 1:
        raise ValueError(
            f"prompts_per_step ({prompts_per_step}), num_generations ({num_generations}) and "
            f"per_device_train_batch_size ({per_device}) must be at least 1"
        )
    completions, at_once = prompts_per_step * num_generations, per_device * processes
    if completions % at_once:
        fits = [size for size in range(1, completions + 1) if completions % (size * processes) == 0]
        remedy = (
            f"use a per_device_train_batch_size of {max((s for s in fits if s <= per_device), default=fits[0])}"
            if fits
            else f"use a prompts_per_step that makes prompts_per_step * {num_generations} a multiple of {processes}"
        )
        raise ValueError(
            f"prompts_per_step {prompts_per_step} * num_generations {num_generations} = {completions} completions, "
            f"which {processes} process(es) of per_device_train_batch_size {per_device} cannot share evenly "
            f"({completions} is no multiple of {at_once}): {remedy}"
        )
    return completions // at_once


def parse(script_arguments, embedded):
    """(script, training, model) arguments: `embedded` (a YAML under the repository) where no --config is given, and the
    command line on top. Relative to the repository: the embedded YAML, its output_dir, and models and data sets that do
    not exist below the working directory."""
    argv = [part for arg in sys.argv[1:] for part in (arg.split("=", 1) if arg.startswith("--config=") else [arg])]
    default = "--config" not in argv
    parser = TrlParser((script_arguments, CriticGRPOConfig, ModelConfig), allow_abbrev=False)
    script_args, args, model_args = parser.parse_args_and_config(
        ["--config", str(ROOT / embedded), *argv] if default else argv
    )
    if default and not any(arg.split("=")[0] == "--output_dir" for arg in argv):
        args.output_dir = str(ROOT / args.output_dir)
    if model_args.use_peft and model_args.lora_target_modules is None:
        model_args.lora_target_modules = "all-linear"
    if args.on_cpu:
        model_args.dtype = "float32"
    if script_args.limit is not None and script_args.limit < 1:
        raise ValueError(f"limit must be at least 1, got {script_args.limit}; leave it out to use every record")
    return script_args, args, model_args


def local_path(name):
    """`name` where it exists, else the same below the repository where that exists, else `name` (a hub id).

    >>> local_path("Qwen/Qwen2.5-VL-7B-Instruct")
    'Qwen/Qwen2.5-VL-7B-Instruct'
    """
    return str(ROOT / name) if not Path(name).exists() and (ROOT / name).exists() else str(name)


def physworld_file(args, kind, split):
    """Path of an embedded JSONL file (`kind`: questions or pairs), made by the main process where it is absent."""
    import physworld.dataset

    make = {"questions": physworld.dataset.questions_file, "pairs": physworld.dataset.pairs_file}[kind]
    with args.main_process_first(local=False, desc=f"physworld {kind}"):
        return make(split)


def start_model(start, args, model_args, max_pixels=None):
    """The trainer's arguments about the model: where it starts from, its processor, adapter and quantization.

    A directory with a PEFT adapter is merged into its base under output_dir/merged_start first. TRL reads the reference
    model from the same place, so the KL term is against the model that training starts from.
    """
    for note in args.notes:
        log(note)
    if start is None:
        raise ValueError("no model to start from: give --model_name_or_path, or set it in the YAML")
    start = local_path(start)
    if (Path(start) / "adapter_config.json").is_file():
        merged = Path(args.output_dir) / "merged_start"
        with args.main_process_first(local=False, desc="merging the adapter"):
            if args.process_index == 0:
                merge_adapter(start, merged, model_args)
        start = str(merged)
    revision = "main" if Path(start).is_dir() else model_args.model_revision
    kwargs = {"dtype": model_args.dtype, "attn_implementation": model_args.attn_implementation, "revision": revision}
    args.model_init_kwargs = kwargs | (args.model_init_kwargs or {})
    processor = AutoProcessor.from_pretrained(start, padding_side="left", truncation_side="left", revision=revision)
    if max_pixels is not None:
        size = dict(processor.image_processor.size)
        processor.image_processor.size = size | {"longest_edge": min(max_pixels, size["longest_edge"])}  # in pixels
    return {
        "model": start,
        "processing_class": processor,
        "quantization_config": get_quantization_config(model_args),
        "peft_config": get_peft_config(model_args),
    }


def merge_adapter(directory, target, model_args):
    """Write base + adapter of `directory` as one model, with the processor, to `target`."""
    from peft import PeftConfig, PeftModel

    base = local_path(PeftConfig.from_pretrained(directory).base_model_name_or_path)
    log(f"{directory} holds an adapter: merged into {base}, written to {target}")
    model = create_model_from_path(base, dtype=model_args.dtype, device_map=None)
    PeftModel.from_pretrained(model, directory).merge_and_unload().save_pretrained(target)
    AutoProcessor.from_pretrained(directory).save_pretrained(target)


# ---------------------------------------------------------------------------------------------------------- checkpoints


def missing_from_checkpoint(checkpoint):
    """What a checkpoint lacks to resume from it, as a text; None where it is whole.

    A run that is killed while it saves leaves files absent or cut off. The Trainer writes trainer_state.json last.
    """
    checkpoint = Path(checkpoint)
    try:
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "trainer_state.json is absent or cut off"
    weights = sorted(checkpoint.glob("*.safetensors")) + sorted(checkpoint.glob("*/adapter_model.safetensors"))
    index = checkpoint / "model.safetensors.index.json"
    if index.is_file():
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        weights += [checkpoint / name for name in names - {path.name for path in weights}]
    for path in weights:
        if not whole_safetensors(path):
            return f"{path.name} is absent or cut off"
    sharded = any(path.is_dir() for path in checkpoint.glob("*"))  # DeepSpeed and FSDP keep their state in folders
    if not weights and not sharded:
        return "no weights"
    if not zipfile.is_zipfile(checkpoint / "optimizer.pt") and not sharded:
        return "optimizer.pt is absent or cut off"
    return None


def whole_safetensors(path):
    """Whether the file is as long as its header says."""
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
    except (OSError, ValueError, MemoryError, OverflowError):
        return False
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return os.path.getsize(path) == 8 + length + max(ends, default=0)


def resume_point(args):
    """Checkpoint for `grpo.train`, or None to start from the beginning.

    --resume_from_checkpoint true takes the newest whole checkpoint of output_dir, and starts from the beginning, with a
    line in the log, where there is none; a path must be a whole checkpoint. A run that starts from the beginning sets
    an earlier run's checkpoints aside (earlier-checkpoint-N), so that resuming it later cannot pick one of them.
    """
    wanted = str(args.resume_from_checkpoint).lower()
    if wanted not in ("true", "false", "none", ""):
        missing = missing_from_checkpoint(args.resume_from_checkpoint)
        if missing:
            raise ValueError(
                f"{args.resume_from_checkpoint} cannot be resumed from: {missing}. Give another checkpoint, or "
                "--resume_from_checkpoint true for the newest whole one of output_dir"
            )
        return args.resume_from_checkpoint
    found = [path for path in Path(args.output_dir).glob("checkpoint-*") if path.name.split("-")[1].isdigit()]
    found.sort(key=lambda path: int(path.name.split("-")[1]), reverse=True)
    if wanted == "true":
        for checkpoint in found:
            missing = missing_from_checkpoint(checkpoint)
            if missing is None:
                log(f"resuming from {checkpoint}")
                return str(checkpoint)
            log(f"{checkpoint} is skipped: {missing}")
        log(f"no whole checkpoint in {args.output_dir}: training starts from the beginning")
    for checkpoint in found if args.process_index == 0 else []:
        aside = checkpoint.with_name(f"earlier-{checkpoint.name}")
        shutil.rmtree(aside, ignore_errors=True)
        checkpoint.rename(aside)
        log(f"{checkpoint} is of an earlier run: renamed to {aside.name}")
    return None


def write_config(script_args, args, model_args):
    """Write everything the run was started with to output_dir/config.yaml."""
    if args.process_index:
        return
    packages = ["torch", "transformers", "trl", "peft", "accelerate", "datasets"]
    config = {
        "command": shlex.join(sys.argv),
        "processes": args.world_size,
        "versions": {name: version(name) for name in packages},
        "script": dataclasses.asdict(script_args),
        "training": args.to_dict(),
        "model": dataclasses.asdict(model_args),
    }
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    plain = json.loads(json.dumps(config, default=str))
    (Path(args.output_dir) / "config.yaml").write_text(yaml.safe_dump(plain, sort_keys=False), encoding="utf-8")


def train_and_save(grpo, script_args, model_args):
    """Record the configuration, train (resuming where asked), save the model and its processor to output_dir."""
    write_config(script_args, grpo.args, model_args)
    grpo.train(resume_from_checkpoint=resume_point(grpo.args))
    grpo.save_model(grpo.args.output_dir)
    log(f"saved in {grpo.args.output_dir}")


# -------------------------------------------------------------------------------------------------------------- trainer


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
