"""The formulas of analysis/scaling_budget.py against model classes, processors, and what two tiny models hold in memory.

Activations are what autograd holds after the forward pass of TRL's loss, ordinary and with shared prompts.
"""

import weakref
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from PIL import Image
from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration
from trl.trainer.utils import add_fused_lm_head

from analysis import headline, scaling_budget
from training import shared_prefix

ROOT = Path(__file__).resolve().parent.parent


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
    pixels = torch.randn(batch.prompts, batch.patches, scaling_budget.sizes(config).pixels, dtype=dtype)
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


@pytest.fixture(scope="module")
def tables():
    return scaling_budget.tables()


def test_docs_scaling_holds_the_tables_that_the_script_makes(tables):
    text = scaling_budget.DOC.read_text(encoding="utf-8")
    made = headline.rewritten(text, scaling_budget.BEGIN, tables, scaling_budget.END)
    assert made == text, "run `python -m analysis.scaling_budget`"


def measured(config):
    """What `predictions` predicts, in its order, measured: every tensor's bytes on the CPU."""
    torch.manual_seed(0)
    model, batch = Qwen2_5_VLForConditionalGeneration(config), scaling_budget.TINY_BATCH
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    shared_prefix.install(model)
    optimizer, fields = torch.optim.AdamW(model.parameters(), lr=1e-4), inputs_of(config, batch, torch.float32)
    scored_forward(model, batch, fields, "float32").sum().backward()
    optimizer.step()
    with torch.no_grad():
        layers = model(**fields, use_cache=True).cache.layers
    found = [
        sum(p.numel() for p in model.parameters()), sum(p.nbytes for p in model.parameters()),
        sum(p.grad.nbytes for p in model.parameters()),
        sum(v.nbytes for state in optimizer.state.values() for name, v in state.items() if name != "step"),
        sum(layer.keys.nbytes + layer.values.nbytes for layer in layers),
    ]  # fmt: skip
    for precision, shared in scaling_budget.PASSES:
        model = model.to(torch.bfloat16 if precision == "bf16" else torch.float32)
        one = replace(batch, shared=shared)
        fields = inputs_of(config, one, model.dtype)
        found.append(saved_bytes(model, lambda: scored_forward(model, one, fields, precision))[0])
    return tuple(found)


@pytest.mark.parametrize("name", scaling_budget.tiny_configs())
def test_bytes_are_exact_and_activations_within_three_percent(name):
    config = scaling_budget.tiny_configs()[name]
    for place, token in enumerate(("image", "video", "vision_start", "vision_end"), 500):
        if name == "7B made small":  # its vocabulary does not reach to 7B's own
            setattr(config, f"{token}_token_id", place)
    found = measured(config)
    assert found == scaling_budget.MEASURED[name]
    for (quantity, predicted), size in zip(scaling_budget.predictions(scaling_budget.sizes(config)).items(), found, strict=True):
        if quantity.startswith("activations"):
            assert predicted / size == pytest.approx(1, abs=0.03), quantity
        else:
            assert predicted == size, quantity


@pytest.mark.parametrize("name, published", [("7B", 8_292_166_656), ("72B", None)])
def test_parameters_of_the_real_architectures_equal_the_model_classes(name, published):
    config = scaling_budget.architecture(name)
    with torch.device("meta"):
        model = Qwen2_5_VLForConditionalGeneration(config)
    counts = scaling_budget.parameters(scaling_budget.sizes(config))
    assert sum(counts.values()) == sum(p.numel() for p in model.parameters())
    assert counts["vision"] == sum(p.numel() for p in model.model.visual.parameters())
    assert published in (None, sum(counts.values()))


@pytest.mark.parametrize("name", scaling_budget.tiny_configs())
def test_parameters_of_a_lora_equal_pefts(name):
    config = scaling_budget.tiny_configs()[name]
    model = get_peft_model(Qwen2_5_VLForConditionalGeneration(config), LoraConfig(r=8, target_modules="all-linear"))
    assert scaling_budget.lora_parameters(scaling_budget.sizes(config), 8) == sum(p.numel() for p in model.parameters() if p.requires_grad)


@settings(max_examples=25, deadline=None)
@given(height=st.integers(28, 700), width=st.integers(28, 700))
def test_visual_tokens_of_a_frame_equal_the_processors(height, width):
    processor = AutoProcessor.from_pretrained(ROOT / "physworld" / "tiny_vlm").image_processor
    most, image = 28 * 28 * 100, Image.new("RGB", (width, height))
    fields = processor(image, size={"shortest_edge": 56 * 56, "longest_edge": most}, return_tensors="pt")
    assert scaling_budget.visual_tokens(height, width, most) == fields["image_grid_thw"].prod().item() // 4


def test_more_frames_and_longer_completions_never_take_less():
    numbers = scaling_budget.sizes(scaling_budget.architecture("7B"))
    for way, gpus in (("ZeRO-2", 8), ("ZeRO-3", 8), ("FSDP2", 8), ("LoRA", 1), ("QLoRA", 1), ("one GPU", 1)):
        for more in ({"shared": True}, {"checkpointing": True}, {}):
            points = ((4, 512), (8, 512), (8, 2048), (16, 2048))
            batches = [scaling_budget.a_batch(frames, completion, 4, **more) for frames, completion in points]
            sizes = [scaling_budget.step_bytes(numbers, way, gpus, batch, 16)[1] for batch in batches]
            assert sizes == sorted(sizes) and sizes[0] < sizes[-1]
