"""What both training scripts do around the trainer: arguments, the model they start from, checkpoints, saving.

- `--config` with the embedded YAML as its default, and the command line on top;
- the batch counted in prompts (`prompts_per_step`), and precision that follows the machine;
- PEFT starts merged, so that the reference is the model that training starts from;
- resuming from the newest checkpoint that is whole.
"""

import atexit
import dataclasses
import gc
import importlib
import json
import os
import shlex
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch
import yaml
from transformers import AutoProcessor
from transformers.utils import is_bitsandbytes_available, is_flash_attn_2_available, strtobool
from trl import GRPOConfig, ModelConfig, TrlParser, get_peft_config, get_quantization_config
from trl.import_utils import is_vllm_available
from trl.trainer.utils import create_model_from_path

import data
from data import command
from data.command import ROOT, local_path
from data.files import commit
from training.arguments import DataArguments, OwnTraining
from training.checkpoints import log, resume_point


# ------------------------------------------------------------------------------------------------------------ arguments


@dataclass
class CriticGRPOConfig(OwnTraining, GRPOConfig):
    """GRPOConfig with the batch counted in prompts, and with precision that follows the machine."""

    def __post_init__(self):
        fit_machine(self)
        if self.use_vllm and self.generation_rows is not None:
            self.notes.append("generation_rows does not apply to vLLM, which bounds its own memory")
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


def fit_machine(args):
    """Set on_cpu, notes (lines for the log, printed once it is known where training starts), and the machine's precision."""
    args.notes = []
    wanted = args.use_cpu or strtobool(os.environ.get("ACCELERATE_USE_CPU", "0"))
    args.on_cpu = bool(wanted or not torch.accelerator.is_available())
    if args.on_cpu:
        if args.bf16 is not False or args.fp16:
            args.notes.append("no accelerator: bf16 and fp16 are off, the weights are float32")
        args.bf16 = args.fp16 = args.dataloader_pin_memory = False
        args.use_cpu = True  # else several processes without an accelerator would each be the only one


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


class TrainingParser(command.Front, TrlParser):
    """TrlParser with the manners of data/command.py, for the YAML too."""

    def check_config(self, given):
        """Exit where there is no YAML to read, where it has an unknown key, or a value that is none of the choices."""
        try:
            config = yaml.safe_load(Path(*given).read_text(encoding="utf-8")) if given else None
        except (OSError, yaml.YAMLError) as error:
            self.error(f"--config: {error}")
        if not isinstance(config, dict):
            self.error(f"--config takes a YAML file of `option: value`, got {' '.join(given) or 'nothing'}")
        options = {action.dest: action for action in self._actions}
        for key, value in config.items():
            if key != "env" and key not in options:
                self.error(f"{given[0]}: unknown key {key}{command.nearest(key, options)}")
            choices = options[key].choices if key in options else None
            if choices and value is not None and value not in choices:
                self.error(f"{given[0]}: {key} is one of {', '.join(map(str, choices))}, got {value}")


def parse(script_arguments, embedded, training_arguments=CriticGRPOConfig, argv=None):
    """(script, training, model) arguments: `embedded` (a YAML under the repository) where no --config is given, and the
    command line on top. Relative to the repository: the embedded YAML, its output_dir, and models and data sets that do
    not exist below the working directory."""
    words = sys.argv[1:] if argv is None else argv
    argv = [part for word in words for part in (word.split("=", 1) if word.startswith("--config=") else [word])]
    default = "--config" not in argv
    argv = ["--config", str(ROOT / embedded), *argv] if default else argv
    parser = TrainingParser((script_arguments, training_arguments, ModelConfig), allow_abbrev=False, formatter_class=command.Help)
    if "--help_all" in argv:
        parser.print_help()
        parser.exit()
    parser.check_config(argv[argv.index("--config") + 1 :][:1])
    try:
        script_args, args, model_args = parser.parse_args_and_config(argv)
    except ValueError as error:  # a check of TRL's: mended on the command line, like ours
        raise ValueError(str(error)) from error
    if default and not any(arg.split("=")[0] == "--output_dir" for arg in argv):
        args.output_dir = str(ROOT / args.output_dir)
    if model_args.use_peft and model_args.lora_target_modules is None:
        model_args.lora_target_modules = "all-linear"
    if args.on_cpu:
        model_args.dtype = "float32"
    if script_args.limit is not None and script_args.limit < 1:
        raise ValueError(f"limit must be at least 1, got {script_args.limit}; leave it out to use every record")
    return script_args, args, model_args


def physworld_file(args, kind, split):
    """Path of an embedded JSONL file (`kind`: questions or pairs), made by the main process where it is absent."""
    with args.main_process_first(local=False, desc=f"physworld {kind}"):
        return data.embedded(kind, split)


def starting_point(start):
    """The folder or hub id that training starts from; ValueError where there is none."""
    if start is None:
        raise ValueError("no model to start from: give --model_name_or_path, or set it in the YAML")
    return command.local_model(local_path(start))


def start_model(start, args, model_args, max_pixels=None):
    """The trainer's arguments about the model: where it starts from, its processor, adapter and quantization.

    A directory with a PEFT adapter is merged into its base under output_dir/merged_start first. TRL reads the reference
    model from the same place, so the KL term is against the model that training starts from.
    """
    for note in args.notes:
        log(note)
    check_packages(args, model_args)
    check_settings(args)
    start = starting_point(start)
    if (Path(start) / "adapter_config.json").is_file():
        merged = Path(args.output_dir) / "merged_start"
        with args.main_process_first(local=False, desc="merging the adapter"):
            if args.process_index == 0:
                merge_adapter(start, merged, model_args)
        start = str(merged)
    revision = "main" if Path(start).is_dir() else model_args.model_revision
    kwargs = {"dtype": model_args.dtype, "attn_implementation": attention(args, model_args), "revision": revision}
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


def check_packages(args, model_args):
    """ValueError where the arguments ask for a package that is not installed: before the model is loaded, with the remedy."""
    if (model_args.load_in_4bit or model_args.load_in_8bit) and not is_bitsandbytes_available():
        raise ValueError(
            "load_in_4bit and load_in_8bit need bitsandbytes, which is not installed: pip install bitsandbytes "
            "(requirements-gpu.txt; a GPU box), or leave them out and train LoRA on bf16 weights (--dtype bfloat16)"
        )
    if getattr(args, "use_vllm", False) and not is_vllm_available():
        raise ValueError(
            "use_vllm needs vllm, in the server mode too, and it is not installed. It cannot share the environment of "
            "requirements.txt: make one of its own from requirements-vllm.txt, or leave use_vllm out"
        )


def check_settings(args):
    """ValueError for settings with which a run would end without a model, or learn nothing of long completions, unseen."""
    plugin = getattr(args, "deepspeed_plugin", None)
    zero = plugin.deepspeed_config.get("zero_optimization", {}) if plugin is not None and plugin.zero_stage == 3 else None
    if zero is not None and not zero.get("stage3_gather_16bit_weights_on_model_save"):
        raise ValueError(
            "ZeRO-3 without stage3_gather_16bit_weights_on_model_save would save no weights that can be loaded: launch with "
            "--config_file accelerate_configs/eight_gpus_zero3.yaml, or add --zero3_save_16bit_model true"
        )
    if getattr(args, "use_vllm", False) and args.vllm_importance_sampling_correction:
        asked = {"top_p": args.top_p, "top_k": args.top_k, "min_p": args.min_p} | (args.generation_kwargs or {})
        if asked["top_p"] < 1 or (asked["top_k"] or 0) > 0 or asked["min_p"]:
            raise ValueError(
                "with vLLM's importance-sampling correction, top_p below 1, top_k and min_p take the gradient of long "
                "completions away: the correction multiplies the shares of probability that they cut (top_p 0.99: by 0.13 to "
                "0.31 after 256 tokens). Add --vllm_importance_sampling_correction false, or --top_p 1 --top_k 0"
            )


def attention(args, model_args):
    """attn_implementation as asked; left out, flash_attention_2 where flash-attn can be imported and the model computes in
    half precision on an accelerator, sdpa otherwise. The log says which."""
    if model_args.attn_implementation is not None:
        return model_args.attn_implementation
    half = args.bf16 or args.fp16 or model_args.dtype in ("bfloat16", "float16")
    if args.use_cpu or not torch.accelerator.is_available() or not half:
        chosen, why = "sdpa", "flash-attn computes in half precision on an accelerator only"
    elif is_flash_attn_2_available() and importable("flash_attn"):
        chosen, why = "flash_attention_2", "flash-attn is installed"
    else:
        chosen, why = "sdpa", "flash-attn cannot be imported"
    log(f"attention: {chosen} ({why}); --attn_implementation asks for another")
    return chosen


def importable(package):
    """Whether a package can be imported; one that was built for another torch is installed and cannot."""
    try:
        importlib.import_module(package)
        return True
    except (ImportError, OSError):
        return False


def merge_adapter(directory, target, model_args):
    """Write base + adapter of `directory` as one model, with the processor, to `target`."""
    from peft import PeftConfig, PeftModel

    base = local_path(PeftConfig.from_pretrained(directory).base_model_name_or_path)
    log(f"{directory} holds an adapter: merged into {base}, written to {target}")
    model = create_model_from_path(base, dtype=model_args.dtype, device_map=None)
    PeftModel.from_pretrained(model, directory).merge_and_unload().save_pretrained(target)
    AutoProcessor.from_pretrained(directory).save_pretrained(target)


def write_config(script_args, args, model_args):
    """Write everything the run was started with to output_dir/config.yaml."""
    if args.process_index:
        return
    packages = ["torch", "transformers", "trl", "peft", "accelerate", "datasets"]
    config = {
        "command": shlex.join(sys.argv),
        "commit": commit(),
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
    """Record the configuration, train (resuming where asked), save the model and its processor to output_dir.

    The process group is left when the process ends, as the trainer, which holds it, is then gone.
    """
    write_config(script_args, grpo.args, model_args)
    grpo.train(resume_from_checkpoint=resume_point(grpo.args))
    grpo.save_model(grpo.args.output_dir)
    log(f"saved in {grpo.args.output_dir}")
    atexit.register(leave_process_group)


def leave_process_group():
    """Destroy the process group and, with it, its threads.

    A thread of Gloo that lets go of the last collective's tensors while Python shuts down ends a finished run with "terminate
    called without an active exception" and exit code 134 (pytorch issue 190489).
    """
    if torch.distributed.is_initialized():
        gc.collect()  # DistributedDataParallel holds the group, and is part of a cycle
        torch.distributed.destroy_process_group()
