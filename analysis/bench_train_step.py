"""A GRPO step of this repository's trainer (shared prompts) against stock TRL's: time, memory, and the same gradients.

    python -m analysis.bench_train_step --point 64 8 2 1 --repeats 1          one point, printed: a look, seconds
    python -m analysis.bench_train_step --grid claims                         the 2 points that the claims are about
    python -m analysis.bench_train_step --grid small                          9 points
    python -m analysis.bench_train_step --grid full --claim                   54 points; hours on two cores

Both trainers train in one process, in turn, on the same prompts with the same seed and settings: a Qwen2.5-VL of 57 million
random weights (hidden 512, 8 language layers with 2 of 8 heads for keys and values, 8 vision layers), float32, gradient
checkpointing off, beta 0.01, one prompt and its G completions of exact length a step. A frame has prompt/32 visual tokens.
The vocabulary is the tiny tokenizer's (some hundred tokens): a large one would favour us, as TRL projects every position of
it on a CPU.
Peak memory is of a process of its own that makes one step, comparison at first use included; loss and gradients are compared
on stock TRL's batch with equal weights. A point that does not fit into memory is recorded as such.

Writes rows.jsonl (a point that is there and whose code has not changed is not measured again), results.json, table.md and
bench.png (not of --grid claims) to --out; --claim updates experiments/headline.json.
"""

import argparse
import hashlib
import json
import math
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from datasets import Dataset
from PIL import Image
from tqdm import tqdm
from transformers import GenerationConfig, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from trl import GRPOTrainer

import prompts
from analysis import headline
from analysis.headline import write_summary
from launch import CriticGRPOConfig
from physworld import tiny
from trainer import CriticGRPOTrainer

AXES = {"prompt": (256, 1024, 2048), "completion": (64, 256), "group": (4, 8, 16), "frames": (4, 8, 16)}
MAIN, SMALL, BASE = (2048, 256, 8, 8), (256, 64, 4, 4), (1024, 64, 8, 8)
PARTS = ("generation", "reference", "forward", "backward", "step")
CODE = ("analysis/bench_train_step.py", "shared_prefix.py", "prefix_check.py", "trainer.py", "rows.py", "once.py")


def grid(name):
    """Points (prompt, completion, group, frames) of a grid, the ones that the claims are about first.

    >>> len(grid("full")), len(grid("small")), grid("small")[0]
    (54, 9, (2048, 256, 8, 8))
    """
    lines = [BASE[:i] + (value,) + BASE[i + 1 :] for i, values in enumerate(AXES.values()) for value in values if i != 1]
    whole = [(p, c, g, f) for p in AXES["prompt"] for c in AXES["completion"] for g in AXES["group"] for f in AXES["frames"]]
    return list(dict.fromkeys([MAIN, SMALL, *(lines if name != "claims" else []), *(whole if name == "full" else [])]))


# --- One point ----------------------------------------------------------------------------------------------------


def write_model(folder):
    """Write the benchmark's model and processor to the folder; returns the processor."""
    processor = tiny.build_processor([prompts.CRITIC_TASK], vocab_size=1024)
    token_id = processor.tokenizer.convert_tokens_to_ids
    ids = {"eos_token_id": token_id("<|im_end|>"), "pad_token_id": token_id("<|endoftext|>"), "bos_token_id": None}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [8, 12, 12]}
    sizes = {"hidden_size": 512, "intermediate_size": 1536}
    torch.manual_seed(0)
    config = Qwen2_5_VLConfig(
        text_config=dict(
            vocab_size=len(processor.tokenizer), num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=2,
            max_position_embeddings=4096, rope_parameters=rope, **sizes, **ids,
        ),
        vision_config=dict(depth=8, num_heads=8, patch_size=14, out_hidden_size=512, fullatt_block_indexes=[3, 7], **sizes),
        image_token_id=token_id("<|image_pad|>"), video_token_id=token_id("<|video_pad|>"),
        vision_start_token_id=token_id("<|vision_start|>"), vision_end_token_id=token_id("<|vision_end|>"),
        tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen2_5_VLForConditionalGeneration(config)
    model.generation_config = GenerationConfig(**{name: value for name, value in ids.items() if value is not None})
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return processor


def make_prompts(processor, tokens, frames, count=8):
    """Rows with `frames` random frames of tokens/32 visual tokens each, and text up to `tokens` in all."""
    visual = max(tokens // 32, 2)
    height = 2 ** (int(math.log2(visual)) // 2)
    rows = []
    for i in range(count):
        chance = random.Random(f"bench {tokens} {frames} {i}")
        size = (28 * (visual // height), 28 * height)
        images = [Image.frombytes("RGB", size, chance.randbytes(3 * size[0] * size[1])) for _ in range(frames)]
        text = "".join(chance.choice("abcdefghijklmnop ") for _ in range(tokens))
        while True:
            message = [
                {
                    "role": "user",
                    "content": [*({"type": "image", "image": image} for image in images), {"type": "text", "text": text}],
                }
            ]
            length = len(
                processor.apply_chat_template(message, tokenize=True, add_generation_prompt=True, return_dict=True)["input_ids"][
                    0
                ]
            )
            if length == tokens:
                break
            if not text:
                raise ValueError(f"{frames} frames of {visual} visual tokens leave no room in a prompt of {tokens} tokens")
            text = text[: -max(1, (length - tokens) // 2)] if length > tokens else text + chance.choice("qrstuvwxyz")
        rows.append({"prompt": [{"role": "user", "content": text}], "images": images})
    return Dataset.from_list(rows)


def timed(base):
    """The trainer with the seconds of its parts in `seconds`, and the tokens that went through the language model in `tokens`."""

    class Timed(base):
        def clock(self, name, call):
            start = time.perf_counter()
            result = call()
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


def make_trainer(base, folder, processor, dataset, completion, group):
    args = CriticGRPOConfig(
        output_dir=str(folder), report_to="none", gradient_checkpointing=False, seed=0, use_cpu=True, num_generations=group,
        prompts_per_step=1, per_device_train_batch_size=group, max_completion_length=completion, beta=0.01, learning_rate=1e-6,
        generation_kwargs={"min_new_tokens": completion}, shared_prefix="on", disable_tqdm=True,
    )  # fmt: skip
    grpo = timed(base)(str(folder), [reward], args, dataset, processing_class=processor)
    grpo.seconds, grpo.tokens, grpo.current_gradient_accumulation_steps = {}, Counter(), 1
    grpo.create_optimizer()
    grpo.model.train()
    layer = grpo.model.model.language_model.layers[0]
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
    (loss, grads), (own_loss, own_grads) = gradients(stock, batch), gradients(ours, batch)
    apart = math.sqrt(sum((own_grads[name] - grad).square().sum().item() for name, grad in grads.items()))
    norm = math.sqrt(sum(grad.square().sum().item() for grad in grads.values()))
    same = (batch["completion_ids"] == own["completion_ids"]).float().mean().item()
    return {"loss": abs(loss - own_loss), "gradient": apart / norm, "same_tokens": same}


def measure(point, part, repeats):
    """One row: of `part` "time" both trainers in turn, of "stock" and "ours" the peak memory of one step of that trainer."""
    tokens, completion, group, frames = point
    with tempfile.TemporaryDirectory() as folder:
        processor = write_model(folder)
        dataset = make_prompts(processor, tokens, frames)
        rest = (folder, processor, dataset, completion, group)
        if part != "time":
            grpo = make_trainer({"stock": GRPOTrainer, "ours": CriticGRPOTrainer}[part], *rest)
            before = resident()
            make_step(grpo, 1)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
            return {"before_mib": before, "peak_mib": peak}
        trainers = {"stock": make_trainer(GRPOTrainer, *rest), "ours": make_trainer(CriticGRPOTrainer, *rest)}
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


def resident():
    """MiB of memory that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


# --- The grid -----------------------------------------------------------------------------------------------------


def code():
    """Sixteen hex digits of the code that is measured."""
    return hashlib.sha256(b"".join((headline.ROOT / name).read_bytes() for name in CODE)).hexdigest()[:16]


def run_grid(points, out, repeats):
    """Measure what rows.jsonl lacks, each part of a point in a process of its own; returns {(point, part): row}."""
    file, now = out / "rows.jsonl", code()
    done = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    found = {(tuple(row["point"]), row["part"]): row for row in done if row["code"] == now}
    todo = [(point, part) for point in points for part in ("time", "stock", "ours") if (point, part) not in found]
    for point, part in tqdm(todo, desc="points"):
        command = [
            sys.executable,
            "-m",
            "analysis.bench_train_step",
            "--point",
            *map(str, point),
            "--part",
            part,
            "--repeats",
            str(repeats),
        ]
        child = subprocess.run(command, cwd=headline.ROOT, stdout=subprocess.PIPE, text=True)
        row = {"point": list(point), "part": part, "code": now, "threads": torch.get_num_threads()}
        row |= (
            json.loads(child.stdout.splitlines()[-1]) if child.returncode == 0 else {"failed": f"exit status {child.returncode}"}
        )
        found[point, part] = row
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(row) + "\n")
    return found


def ratios(seconds, parts):
    """Stock's seconds over ours, step by step: {"value": mean, "low", "high": range, "n"}."""
    each = [sum(s[p] for p in parts) / sum(o[p] for p in parts) for s, o in zip(seconds["stock"], seconds["ours"])]
    return {"value": sum(each) / len(each), "low": min(each), "high": max(each), "n": len(each)}


def summarise(point, found):
    """What is known of one point: mean seconds of the parts, speedups, memory, differences."""
    summary = dict(zip(AXES, point))
    time_row, stock, ours = (found.get((point, part), {}) for part in ("time", "stock", "ours"))
    if "seconds" in time_row:
        seconds = time_row["seconds"]
        summary["seconds"] = {who: {p: sum(s[p] for s in each) / len(each) for p in PARTS} for who, each in seconds.items()}
        summary |= {"step_speedup": ratios(seconds, ["step"]), "fwd_bwd_speedup": ratios(seconds, ["forward", "backward"])}
        summary |= {"tokens": time_row["tokens"], "difference": time_row["difference"]}
    if "peak_mib" in stock and "peak_mib" in ours:
        summary |= {
            "peak_mib": {"stock": stock["peak_mib"], "ours": ours["peak_mib"]},
            "memory_ratio": ours["peak_mib"] / stock["peak_mib"],
        }
    failed = {part: row["failed"] for part, row in (("time", time_row), ("stock", stock), ("ours", ours)) if "failed" in row}
    return summary | ({"failed": failed} if failed else {})


def claims(summaries):
    """Entries of experiments/headline.json."""
    by = {tuple(s[axis] for axis in AXES): s for s in summaries}
    main, small, measured = by[MAIN], by[SMALL], [s for s in summaries if "difference" in s]
    worst, ratio = max(s["difference"]["gradient"] for s in measured), main["memory_ratio"]
    times = "times (range over repeats)"
    return {
        "step_fwd_bwd_speedup": main["fwd_bwd_speedup"] | {"unit": times},
        "step_speedup": main["step_speedup"] | {"unit": times},
        "small_prompt_speedup": small["step_speedup"] | {"unit": times},
        "step_memory_ratio": {"value": ratio, "low": ratio, "high": ratio, "n": 1, "unit": "of stock TRL's peak (one run)"},
        "gradient_difference": {
            "value": worst, "low": min(s["difference"]["gradient"] for s in measured), "high": worst,
            "n": len(measured), "unit": "of the gradient's norm (range over points)",
        },
    }  # fmt: skip


# --- Output -------------------------------------------------------------------------------------------------------


def table_lines(results):
    """The results as Markdown, one row a point."""
    names = ", ".join(f"{name} {value}" for name, value in results["versions"].items())
    lines = [f"{results['machine']}, {results['threads']} threads; {names}. Seconds are stock TRL / ours.", ""]
    lines += ["| prompt | completion | G | frames | generation | reference | forward | backward | step | fwd and bwd, times | "
              "step, times | peak memory, GiB | gradient difference |", "|" + "---|" * 13]  # fmt: skip
    for s in results["points"]:
        cells = [str(s[axis]) for axis in AXES]
        if "seconds" in s:
            cells += [f"{s['seconds']['stock'][p]:.2f} / {s['seconds']['ours'][p]:.2f}" for p in PARTS]
            cells += [f"{r['value']:.2f} [{r['low']:.2f}, {r['high']:.2f}]" for r in (s["fwd_bwd_speedup"], s["step_speedup"])]
        else:
            cells += [s.get("failed", {}).get("time", "not measured")] + [""] * 6
        memory = f"{s['peak_mib']['stock'] / 1024:.2f} / {s['peak_mib']['ours'] / 1024:.2f}" if "peak_mib" in s else "-"
        cells += [memory, f"{s['difference']['gradient']:.1e}" if "difference" in s else "-"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def draw(summaries, path):
    """How the step's seconds grow with the group, the frames and the prompt around one point; both axes logarithmic."""
    figure, panels = plt.subplots(1, 3, figsize=(10.5, 3.3), sharey=True, layout="constrained")
    for panel, axis in zip(panels, ("group", "frames", "prompt")):
        others = {name: value for name, value in zip(AXES, BASE) if name != axis}
        line = sorted(
            (s for s in summaries if "seconds" in s and all(s[n] == v for n, v in others.items())), key=lambda s: s[axis]
        )
        for who, colour, marker in (("stock", "tab:gray", "s"), ("ours", "tab:blue", "o")):
            panel.plot([s[axis] for s in line], [s["seconds"][who]["step"] for s in line], color=colour, marker=marker, label=who)
        panel.set(xscale="log", yscale="log", xlabel=axis, title=", ".join(f"{n} {v}" for n, v in others.items()))
        panel.title.set_fontsize(8)
        panel.set_xticks([s[axis] for s in line], [str(s[axis]) for s in line], minor=False)
        panel.minorticks_off()
    panels[0].set_ylabel("seconds a step")
    panels[0].legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--grid", choices=["claims", "small", "full"], default="small", help="points to measure")
    parser.add_argument("--repeats", type=int, default=3, help="timed steps of each trainer, after one that warms up")
    parser.add_argument("--out", type=Path, default=Path("experiments/bench_train_step"), help="folder of the results")
    parser.add_argument("--claim", action="store_true", help="update experiments/headline.json")
    parser.add_argument("--point", type=int, nargs=4, metavar=tuple(AXES), help="measure this point alone and print it")
    parser.add_argument(
        "--part", choices=["time", "stock", "ours"], default="time", help="of --point: seconds, or a trainer's peak memory"
    )
    args = parser.parse_args(argv)
    if args.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {args.repeats}")
    return args


def main(argv=None):
    args = parse(argv)
    if args.point:
        [line] = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable")]
        free = int(line.split()[1]) * 2**10 * 95 // 100
        resource.setrlimit(resource.RLIMIT_DATA, (free, free))  # an error of this process, not the end of another one
        print(json.dumps(measure(tuple(args.point), args.part, args.repeats)))
        return
    args.out.mkdir(parents=True, exist_ok=True)
    points = grid(args.grid)
    found = run_grid(points, args.out, args.repeats)
    packages = ["torch", "transformers", "trl"]
    results = {
        "machine": platform.processor() or platform.machine(), "threads": torch.get_num_threads(), "repeats": args.repeats,
        "versions": {name: version(name) for name in packages}, "points": [summarise(point, found) for point in points],
    }  # fmt: skip
    (args.out / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (args.out / "table.md").write_text("\n".join(table_lines(results)) + "\n", encoding="utf-8")
    if args.grid != "claims":  # two points give no curves
        draw(results["points"], args.out / "bench.png")
    write_summary(args.out, claims(results["points"]), f"python -m analysis.bench_train_step --grid {args.grid}", args.claim)
    print("\n".join(table_lines(results)))


if __name__ == "__main__":
    sys.exit(main())
