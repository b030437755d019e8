"""One point of analysis/bench_train_step.py: its models, prompts and trainers, a step with clocks, the comparison of gradients.

Both trainers get the same prompts, seed and settings, shared_prefix on, one prompt and its G completions of exact length a
step. A frame has prompt/32 visual tokens. On the CPU they stand in one process, in turn: a Qwen2.5-VL of 57 million random
weights (hidden 512, 8 language layers with 2 of 8 heads for keys and values, 8 vision layers), float32, gradient checkpointing
off, beta 0.01. The vocabulary is the tiny tokenizer's (some hundred tokens): a large one would favour us, as TRL projects every
position of it on a CPU. Peak memory is of a process of its own that makes one step, comparison at first use included; loss and
gradients are compared on stock TRL's batch with equal weights.

On a GPU: 7B's architecture with random weights, made there in bf16 (nothing is downloaded), LoRA of rank 16, sdpa. By
docs/scaling.md stock TRL needs some 150 GiB for that without gradient checkpointing, so it is measured with it too; ours shares
the prompt in the training pass only without it. Gradients are compared on two layers in float32, all weights trained, beta 0.
"""

import math
import os
import random
import resource
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig
from PIL import Image
from transformers import GenerationConfig, Qwen2_5_VLForConditionalGeneration
from trl import GRPOTrainer

import prompts
from analysis import scaling_budget
from physworld import tiny
from trainer import CriticGRPOTrainer
from training.launch import CriticGRPOConfig

CONTENDERS = {"ours": (CriticGRPOTrainer, False), "stock, checkpoints": (GRPOTrainer, True), "stock": (GRPOTrainer, False)}
CPU_TEXT = dict(zip(scaling_budget.NAMES, (512, 1536, 8, 8, 2))) | {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5}
CPU_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [8, 12, 12]}}
CPU_VISION = {"hidden_size": 512, "intermediate_size": 1536, "depth": 8, "num_heads": 8, "out_hidden_size": 512}
MODELS = {  # changes to 7B's text_config and vision_config
    "cpu": (CPU_TEXT | CPU_ROPE, CPU_VISION | {"fullatt_block_indexes": [3, 7]}),
    "tiny": (scaling_budget.SMALL_TEXT, scaling_budget.SMALL_VISION | {"depth": 3, "fullatt_block_indexes": [2]}),
    "gpu": ({}, {}),
}


def build_processor():
    return tiny.build_processor([prompts.CRITIC_TASK], vocab_size=1024)


def build_model(kind, processor, layers=None):
    """The model of MODELS with random weights, on the GPU in bf16; `layers` cuts both towers, all of it in float32."""
    text, vision = MODELS[kind]
    if layers:
        text = text | {"num_hidden_layers": layers}
        vision = vision | {"depth": layers, "fullatt_block_indexes": [layers - 1]}
    token_id = processor.tokenizer.convert_tokens_to_ids
    ids = {"eos_token_id": token_id("<|im_end|>"), "pad_token_id": token_id("<|endoftext|>")}
    vocabulary = {} if kind == "gpu" else {"vocab_size": len(processor.tokenizer)}
    config = scaling_budget.architecture("7B", text | ids | vocabulary, vision)
    config.tie_word_embeddings = kind == "cpu"
    for name in ("image_pad", "video_pad", "vision_start", "vision_end"):
        setattr(config, f"{name.replace('_pad', '')}_token_id", token_id(f"<|{name}|>"))
    torch.manual_seed(0)
    with torch.device("cuda" if kind == "gpu" else "cpu"):
        dtype = torch.bfloat16 if kind == "gpu" and not layers else torch.float32
        model = Qwen2_5_VLForConditionalGeneration._from_config(config, dtype=dtype)
    model.generation_config = GenerationConfig(**ids)
    return model


def write_model(folder):
    """Write the CPU's model and processor to the folder; returns the processor."""
    processor = build_processor()
    build_model("cpu", processor).save_pretrained(folder)
    processor.save_pretrained(folder)
    return processor


def make_prompts(processor, tokens, frames, count=8):
    """Rows with `frames` random frames of tokens/32 visual tokens each, and text up to `tokens` in all."""
    visual = max(tokens // 32, 2)
    height = 2 ** (int(math.log2(visual)) // 2)

    def length(images, text):
        content = [*({"type": "image", "image": image} for image in images), {"type": "text", "text": text}]
        settings = {"tokenize": True, "add_generation_prompt": True, "return_dict": True}
        return len(processor.apply_chat_template([{"role": "user", "content": content}], **settings)["input_ids"][0])

    rows = []
    for i in range(count):
        chance = random.Random(f"bench {tokens} {frames} {i}")
        size = (28 * (visual // height), 28 * height)
        images = [Image.frombytes("RGB", size, chance.randbytes(3 * size[0] * size[1])) for _ in range(frames)]
        text = "".join(chance.choice("abcdefghijklmnop ") for _ in range(tokens))
        while (over := length(images, text) - tokens) != 0:
            if not text:
                raise ValueError(f"{frames} frames of {visual} visual tokens leave no room in a prompt of {tokens} tokens")
            text = text[: -max(1, over // 2)] if over > 0 else text + chance.choice("qrstuvwxyz")
        rows.append({"prompt": [{"role": "user", "content": text}], "images": images})
    return Dataset.from_list(rows)


def settle():
    """Wait until a GPU has done what it was asked, so that a clock can be read."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def timed(base):
    """The trainer with the seconds of its parts in `seconds`, and the tokens that went through the language model in `tokens`."""

    class Timed(base):
        def clock(self, name, call):
            settle()
            start = time.perf_counter()
            result = call()
            settle()
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
            return result

        def _generate_single_turn(self, *args, **kwargs):
            sample = super()._generate_single_turn
            return self.clock("generation", lambda: sample(*args, **kwargs))

        def _get_per_token_logps_and_entropies(self, *args, **kwargs):
            score = super()._get_per_token_logps_and_entropies
            return self.clock("forward" if torch.is_grad_enabled() else "reference", lambda: score(*args, **kwargs))

    return Timed


def reward(completion_ids, **kwargs):
    return [float(sum(ids) % 7) for ids in completion_ids]


def make_trainer(name, model, point, folder, processor, dataset, lora=False, beta=0.01):
    """A timed trainer of CONTENDERS on a model, or on the path of one, with one prompt a step."""
    (base, checkpointing), (_, completion, group, _) = CONTENDERS[name], point
    on_cpu = isinstance(model, str) or model.device.type == "cpu"
    args = CriticGRPOConfig(
        output_dir=str(folder), report_to="none", gradient_checkpointing=checkpointing, seed=0, use_cpu=on_cpu,
        bf16=lora and not on_cpu, num_generations=group, prompts_per_step=1, per_device_train_batch_size=group, beta=beta,
        max_completion_length=completion, generation_kwargs={"min_new_tokens": completion}, learning_rate=1e-6,
        shared_prefix="on", disable_tqdm=True,
    )  # fmt: skip
    adapter = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear") if lora else None
    grpo = timed(base)(model, [reward], args, dataset, processing_class=processor, peft_config=adapter)
    grpo.seconds, grpo.tokens, grpo.current_gradient_accumulation_steps = {}, Counter(), 1
    grpo.create_optimizer()
    grpo.model.train()
    if checkpointing:  # as train() does
        grpo.model.gradient_checkpointing_enable(grpo.args.gradient_checkpointing_kwargs)
    layer = next(m for name, m in grpo.model.named_modules() if name.endswith("language_model.layers.0"))
    layer.register_forward_pre_hook(lambda module, args: grpo.tokens.update(language=args[0].shape[0] * args[0].shape[1]))
    return grpo


def inputs_of(grpo, number):
    """One generation batch: sampled, scored by the reference, rewarded. Seeded by the step's number."""
    torch.manual_seed(number)
    grpo._buffered_inputs = None
    row = grpo.train_dataset[number % len(grpo.train_dataset)]
    return grpo._prepare_inputs([row] * grpo.num_generations)


def make_step(grpo, number):
    """{part: seconds} of one step; the tokens go to grpo.tokens."""
    grpo.seconds, start = {}, time.perf_counter()
    grpo.tokens.clear()
    loss = grpo.compute_loss(grpo.model, inputs_of(grpo, number))
    grpo.clock("backward", lambda: grpo.accelerator.backward(loss))
    grpo.optimizer.step()
    grpo.optimizer.zero_grad()
    grpo._step += 1
    settle()
    return grpo.seconds | {"step": time.perf_counter() - start}


def gradients(grpo, inputs):
    """(loss, {name: gradient}) of a batch."""
    grpo.model.zero_grad()
    loss = grpo.compute_loss(grpo.model, inputs)
    grpo.accelerator.backward(loss)
    found = {name: p.grad.clone() for name, p in grpo.model.named_parameters() if p.grad is not None}
    grpo.model.zero_grad()
    return loss.item(), found


def compare(stock, ours):
    """Differences on stock's batch with equal weights: of the loss, of gradients (all as one vector, relative), of sampling."""
    batch, own = inputs_of(stock, 0), inputs_of(ours, 0)
    batch["has_advantage"] = own["has_advantage"]  # ours takes note of it, and the loss does not read it
    (loss, grads), (own_loss, own_grads) = gradients(stock, batch), gradients(ours, batch)
    apart = math.sqrt(sum((own_grads[name] - grad).square().sum().item() for name, grad in grads.items()))
    norm = math.sqrt(sum(grad.square().sum().item() for grad in grads.values()))
    same = (batch["completion_ids"] == own["completion_ids"]).float().mean().item()
    if not ours.sharing:
        raise RuntimeError("prompts were not shared: see the log above")
    return {"loss": abs(loss - own_loss), "gradient": apart / norm, "same_tokens": same}


def measure(point, part, repeats):
    """One row: of `part` "time" both trainers in turn, of "stock" and "ours" the peak memory of one step of that trainer."""
    with tempfile.TemporaryDirectory() as folder:
        processor = write_model(folder)
        rest = (folder, point, folder, processor, make_prompts(processor, point[0], point[3]))
        if part != "time":
            grpo, before = make_trainer(part, *rest), resident()
            make_step(grpo, 1)
            return {"before_mib": before, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10}
        trainers = {name: make_trainer(name, *rest) for name in ("stock", "ours")}
        row = {"difference": compare(*trainers.values()), "seconds": {name: [] for name in trainers}, "tokens": {}}
        for number in range(repeats + 1):  # the first one warms up
            for name, grpo in trainers.items():
                seconds = make_step(grpo, number)
                if number:
                    row["seconds"][name].append(seconds)
                row["tokens"][name] = grpo.tokens["language"]
        if not trainers["ours"].sharing:
            raise RuntimeError("prompts were not shared: see the log above")
        return row


def measure_gpu(kind, point, part, repeats):
    """One row: of "difference" that of gradients, else a contender's seconds and peak memory; "failed" where it does not fit."""
    processor, gpu = build_processor(), kind == "gpu"
    with tempfile.TemporaryDirectory() as folder:
        rest = (point, folder, processor, make_prompts(processor, point[0], point[3]))
        if part == "difference":
            both = [make_trainer(name, build_model(kind, processor, layers=2), *rest, beta=0.0) for name in ("stock", "ours")]
            return {"difference": compare(*both)}
        steps = []
        try:
            grpo = make_trainer(part, build_model(kind, processor), *rest, lora=True)
            for number in range(repeats + 1):  # the first one warms up; ours compares its passes with TRL's there
                if gpu and number == 1:
                    torch.cuda.reset_peak_memory_stats()
                steps.append(make_step(grpo, number))
        except torch.OutOfMemoryError:
            return {"failed": "out of memory"}
        if part == "ours" and not grpo.sharing:
            return {"failed": "prompts were not shared: see the log"}
        return {"seconds": {part: steps[1:]}} | ({"peak_mib": torch.cuda.max_memory_allocated() / 2**20} if gpu else {})


def resident():
    """MiB of memory that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
