"""A GRPO step of 7B with LoRA on one GPU, stock TRL's trainer against ours: time and peak memory. NOT RUN ON A GPU YET.

    python -m analysis.bench_gpu --out runs/bench_gpu           one GPU of 80 GB, at most eight minutes
    python -m analysis.bench_gpu --tiny --out /tmp/bench        a small cut of it on the CPU, seconds: to see that it runs

Qwen2.5-VL-7B's architecture with random weights, made on the GPU from its config in bf16 (nothing is downloaded); LoRA of
rank 16, sdpa, beta 0.01, one prompt of 2,048 tokens with 8 frames and its 8 completions of 512 tokens a step. By
docs/scaling.md stock TRL needs some 150 GiB for that without gradient checkpointing, so it is measured with it too; ours
shares the prompt in the training pass only without it. What does not fit is recorded as "out of memory".
Gradients are compared first, on two layers in float32 with all weights trained and beta 0: same batch, same weights.
Prompts, clocks and the comparison are those of analysis/bench_train_step.py. A step after the deadline is not begun;
results.json is written after each part.
"""

import argparse
import gc
import json
import platform
import sys
import tempfile
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import torch
from peft import LoraConfig
from transformers import GenerationConfig, Qwen2_5_VLForConditionalGeneration
from trl import GRPOTrainer

import prompts
from analysis import bench_train_step as bench
from analysis import scaling_budget
from data.files import write_result
from physworld import tiny
from trainer import CriticGRPOTrainer
from training.launch import CriticGRPOConfig

FULL = {"prompt": 2048, "completion": 512, "group": 8, "frames": 8}
SMALL = {"prompt": 64, "completion": 8, "group": 4, "frames": 2}
TINY_TEXT = {"hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 4, "num_key_value_heads": 2}
TINY_TEXT |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}}
TINY_VISION = {"hidden_size": 32, "intermediate_size": 96, "num_heads": 2, "out_hidden_size": 64}
CONTENDERS = {"ours": (CriticGRPOTrainer, False), "stock, checkpoints": (GRPOTrainer, True), "stock": (GRPOTrainer, False)}


def build_model(processor, device, dtype, is_tiny, layers=None):
    """Qwen2.5-VL-7B with random weights on the device; `layers` cuts both towers, is_tiny makes it small."""
    text, vision = (dict(TINY_TEXT), dict(TINY_VISION)) if is_tiny else ({}, {})
    if layers is not None or is_tiny:
        layers = layers or 3
        text |= {"num_hidden_layers": layers}
        vision |= {"depth": layers, "fullatt_block_indexes": [layers - 1]}
    if is_tiny:
        text["vocab_size"] = len(processor.tokenizer)
    token_id = processor.tokenizer.convert_tokens_to_ids
    ids = {"eos_token_id": token_id("<|im_end|>"), "pad_token_id": token_id("<|endoftext|>")}
    config = scaling_budget.architecture("7B", text | ids, vision)
    for name in ("image_pad", "video_pad", "vision_start", "vision_end"):
        setattr(config, f"{name.replace('_pad', '')}_token_id", token_id(f"<|{name}|>"))
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen2_5_VLForConditionalGeneration._from_config(config, dtype=dtype)
    model.generation_config = GenerationConfig(**ids)
    return model


def synced(base, device):
    """The benchmark's clocks on a trainer, waiting for the GPU before they are read."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None

    class Synced(bench.timed(base)):
        def clock(self, name, call):
            def finished():
                result = call()
                wait()
                return result

            wait()
            return super().clock(name, finished)

    return Synced


def make_trainer(base, model, processor, dataset, point, folder, device, checkpointing=False, lora=True):
    """A trainer of one prompt a step, as analysis/bench_train_step.py makes it, on a model at hand."""
    args = CriticGRPOConfig(
        output_dir=str(folder), report_to="none", gradient_checkpointing=checkpointing, seed=0, use_cpu=device == "cpu",
        bf16=device == "cuda" and lora, num_generations=point["group"], prompts_per_step=1, learning_rate=1e-6,
        per_device_train_batch_size=point["group"], max_completion_length=point["completion"], beta=0.01 if lora else 0.0,
        generation_kwargs={"min_new_tokens": point["completion"]}, shared_prefix="on", disable_tqdm=True,
    )  # fmt: skip
    adapter = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear") if lora else None
    grpo = synced(base, device)(model, [bench.reward], args, dataset, processing_class=processor, peft_config=adapter)
    grpo.seconds, grpo.tokens, grpo.current_gradient_accumulation_steps = {}, Counter(), 1
    grpo.create_optimizer()
    grpo.model.train()
    if checkpointing:  # as train() does
        grpo.model.gradient_checkpointing_enable(grpo.args.gradient_checkpointing_kwargs)
    return grpo


def free(device):
    """Give back what deleted models and trainers held."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def gradient_difference(processor, dataset, point, folder, device, is_tiny):
    """{"loss", "gradient", "same_tokens"}: ours against stock TRL's on two layers in float32, all weights trained."""
    models = [build_model(processor, device, torch.float32, is_tiny, layers=2) for _ in range(2)]
    rest = (processor, dataset, point, folder, device)
    stock = make_trainer(GRPOTrainer, models[0], *rest, lora=False)
    ours = make_trainer(CriticGRPOTrainer, models[1], *rest, lora=False)
    found = bench.compare(stock, ours)
    if not ours.sharing:
        raise RuntimeError("prompts were not shared: see the log above")
    return found


def measure(name, processor, dataset, point, folder, device, is_tiny, repeats, deadline):
    """{"seconds": one dict a step, "before_gib", "peak_gib"} of a contender; "failed" where it does not fit."""
    base, checkpointing = CONTENDERS[name]
    found, gpu = {"seconds": []}, device == "cuda"
    try:
        model = build_model(processor, device, torch.bfloat16 if gpu else torch.float32, is_tiny)
        grpo = make_trainer(base, model, processor, dataset, point, folder, device, checkpointing)
        for number in range(repeats + 1):  # the first one warms up; ours compares its passes with TRL's there
            if time.monotonic() > deadline:
                break
            if gpu and number == 1:
                found["before_gib"] = torch.cuda.memory_allocated() / 2**30
                torch.cuda.reset_peak_memory_stats()
            start = time.perf_counter()
            seconds = bench.make_step(grpo, number)
            if gpu:
                torch.cuda.synchronize()
            if number:
                found["seconds"].append(seconds | {"step": time.perf_counter() - start})
                found["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30 if gpu else None
        if name == "ours" and not grpo.sharing:
            found["failed"] = "prompts were not shared: see the log"
    except torch.OutOfMemoryError:
        found["failed"] = "out of memory"
    return found


def summarise(contenders):
    """{contender: {"step_speedup", "fwd_bwd_speedup", "memory_ratio"}} of ours against each stock that was measured."""
    ours, summary = contenders.get("ours", {}), {}
    for name, row in contenders.items():
        if name != "ours" and row["seconds"] and ours.get("seconds") and "failed" not in row and "failed" not in ours:
            pair = {"stock": row["seconds"], "ours": ours["seconds"]}
            summary[name] = {"step_speedup": bench.ratios(pair, ["step"])}
            summary[name]["fwd_bwd_speedup"] = bench.ratios(pair, ["forward", "backward"])
            if ours["peak_gib"]:
                summary[name]["memory_ratio"] = ours["peak_gib"] / row["peak_gib"]
    return summary


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=Path("runs/bench_gpu"), help="folder of results.json")
    parser.add_argument("--repeats", type=int, default=2, help="timed steps of each trainer, after one that warms up")
    parser.add_argument("--minutes", type=float, default=7.0, help="no step begins later than this")
    parser.add_argument("--tiny", action="store_true", help="a small cut of the model on the CPU, to see that it runs")
    args = parser.parse_args(argv)
    if not args.tiny and not torch.cuda.is_available():
        parser.error("no GPU is at hand: this measures a 7B model on one. --tiny runs a small cut of it on the CPU")
    return args


def main(argv=None):
    args = parse(argv)
    deadline, device, point = time.monotonic() + 60 * args.minutes, "cpu" if args.tiny else "cuda", SMALL if args.tiny else FULL
    args.out.mkdir(parents=True, exist_ok=True)
    processor = tiny.build_processor([prompts.CRITIC_TASK], vocab_size=1024)
    dataset = bench.make_prompts(processor, point["prompt"], point["frames"])
    machine = platform.machine() if args.tiny else torch.cuda.get_device_name()
    versions = {name: version(name) for name in ("torch", "transformers", "trl", "peft")}
    results = {"machine": machine, "versions": versions, "point": point, "tiny": args.tiny, "contenders": {}}
    with tempfile.TemporaryDirectory() as folder:
        results["difference"] = gradient_difference(processor, dataset, point, folder, device, args.tiny)
        write_result(args.out / "results.json", results)
        for name in CONTENDERS:
            free(device)
            rest = (processor, dataset, point, folder, device, args.tiny, args.repeats, deadline)
            results["contenders"][name] = measure(name, *rest)
            results["ratios"] = summarise(results["contenders"])
            write_result(args.out / "results.json", results)
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    sys.exit(main())
