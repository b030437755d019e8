"""The formulas of analysis/scaling_budget.py against what two tiny models hold in memory: every tensor's bytes, on the CPU.

    python -m analysis.scaling_checks             print both, seconds

Weights, gradients, AdamW's states, keys and values must agree to the byte. Activations are what autograd holds after the
forward pass of TRL's loss (torch.autograd.graph.saved_tensors_hooks), ordinary and with shared prompts.
"""

import sys
import weakref
from contextlib import nullcontext
from dataclasses import replace

import torch
from transformers import AutoConfig, Qwen2_5_VLForConditionalGeneration
from trl.trainer.utils import add_fused_lm_head

from analysis import headline
from analysis import scaling_budget as budget
from training import shared_prefix


class Saved:
    """A tensor that autograd holds for a backward pass."""

    def __init__(self, tensor):
        self.tensor = tensor


def saved_bytes(model, call):
    """(bytes of the tensors that autograd holds after call(), each storage once and no parameter; what call returned)."""
    alive = weakref.WeakSet()

    def keep(tensor):
        saved = Saved(tensor)
        alive.add(saved)
        return saved

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved.tensor):
        result = call()
    held = {saved.tensor.untyped_storage().data_ptr(): saved.tensor.untyped_storage().nbytes() for saved in alive}
    for parameter in model.parameters():
        held.pop(parameter.untyped_storage().data_ptr(), None)
    return sum(held.values()), result


def inputs_of(config, batch, dtype):
    """What TRL passes to the model for a batch whose prompts hold one square picture, the last row padded by two tokens."""
    side = round((batch.patches / 4) ** 0.5)
    image, ids = config.image_token_id, list(range(10, 10 + batch.prompt + batch.completion))
    ids[1 : 2 + side**2] = [config.vision_start_token_id] + [image] * side**2
    ids = torch.tensor([ids] * batch.rows)  # (B, P + C)
    mask = torch.ones_like(ids)
    mask[-1, -2:] = 0
    torch.manual_seed(0)
    pixels = torch.randn(batch.prompts, batch.patches, budget.sizes(config).pixels, dtype=dtype)
    pixels = pixels.repeat_interleave(batch.rows // batch.prompts, dim=0).flatten(0, 1)  # (B patches, numbers)
    grid = torch.tensor([[1, 2 * side, 2 * side]] * batch.rows)
    images = {"pixel_values": pixels, "image_grid_thw": grid, "mm_token_type_ids": (ids == image).int()}
    return {"input_ids": ids, "attention_mask": mask} | images


def scored_forward(model, batch, fields, precision):
    """Log-probabilities of a batch's completions as the trainer computes them, prompts shared or not."""
    with torch.autocast("cpu", torch.bfloat16) if precision == "autocast" else nullcontext():
        if batch.shared:
            return shared_prefix.log_probs(model, fields | {"num_images": [1] * batch.rows}, batch.completion)[0]
        labels = fields["input_ids"].masked_fill(fields["attention_mask"] == 0, -100)
        labels[:, : batch.prompt] = -100
        return model(**fields, labels=labels, fused_lm_head=True).log_probs


def tiny_configs():
    """{name: config}: physworld's model, and 7B's architecture made small (fewer heads for keys, a head of its own)."""
    text = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 3, "num_attention_heads": 4}
    text |= {"num_key_value_heads": 2, "vocab_size": 512, "eos_token_id": 2}
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
    tower = {"depth": 2, "hidden_size": 32, "intermediate_size": 96, "num_heads": 2, "out_hidden_size": 64}
    cut = budget.architecture("7B", text, tower | {"fullatt_block_indexes": [1]})
    for place, name in enumerate(("image", "video", "vision_start", "vision_end"), 500):
        setattr(cut, f"{name}_token_id", place)
    return {"physworld's model": AutoConfig.from_pretrained(headline.ROOT / "physworld" / "tiny_vlm"), "7B made small": cut}


def activation_checks(config, model, batch):
    """(quantity, predicted, measured) of forward passes in each precision, prompts run for each row and shared."""
    weights, found = sum(a * b * count for a, b, count in budget.linears(config)), []
    matrices = weights + budget.sizes(config).pixels * budget.sizes(config).d  # autocast keeps a copy of each, 2 bytes a number
    for precision, shared in (("float32", False), ("float32", True), ("autocast", False), ("bf16", False), ("bf16", True)):
        model = model.to(torch.bfloat16 if precision == "bf16" else torch.float32)
        one = replace(batch, shared=shared)
        fields = inputs_of(config, one, model.dtype)
        size, _ = saved_bytes(model, lambda: scored_forward(model, one, fields, precision))
        predicted = budget.activation_bytes(config, precision, one, every_position=True)
        predicted += 2 * matrices * (precision == "autocast")
        found.append((f"activations, {precision}, prompts {'shared' if shared else 'run for each row'}", predicted, size))
    return found


def state_checks(config, model, batch):
    """(quantity, predicted, measured) of what a float32 model and AdamW hold after a step, and of the prompts' cache."""
    count, optimizer = sum(budget.parameters(config).values()), torch.optim.AdamW(model.parameters(), lr=1e-4)
    fields = inputs_of(config, batch, torch.float32)
    scored_forward(model, batch, fields, "float32").sum().backward()
    optimizer.step()
    moments = sum(v.nbytes for state in optimizer.state.values() for name, v in state.items() if name != "step")
    with torch.no_grad():
        layers = model(**fields, use_cache=True).cache.layers
    cached = sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)
    return [
        ("parameters", count, sum(p.numel() for p in model.parameters())),
        ("weights, float32", 4 * count, sum(p.nbytes for p in model.parameters())),
        ("gradients, float32", 4 * count, sum(p.grad.nbytes for p in model.parameters())),
        ("AdamW's states", 8 * count, moments),
        ("keys and values, float32", budget.cache_bytes(config, fields["input_ids"].numel(), 4), cached),
    ]


def checks():
    """[(model, quantity, predicted, measured)] on the two tiny models; bytes, but for the number of parameters."""
    found, batch = [], budget.Batch(rows=8, prompts=2, prompt=90, completion=40, patches=64)
    for name, config in tiny_configs().items():
        torch.manual_seed(0)
        model = Qwen2_5_VLForConditionalGeneration(config)
        add_fused_lm_head(model, outputs=("log_probs", "entropy"))
        shared_prefix.install(model)
        rows = state_checks(config, model, batch) + activation_checks(config, model, batch)
        found += [(name, *row) for row in rows]
    return found


if __name__ == "__main__":
    sys.exit(print("\n".join(budget.check_table())))
