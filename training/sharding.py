"""Weights shared out over processes (ZeRO-3, FSDP2): every process must call the same layers the same number of times.

A layer's weights are gathered when it runs. A process whose rows have no picture would leave the vision tower out while the
others wait for it there: such rows get a grey picture, whose features count zero times.
"""

import functools
import types

import torch
from accelerate.utils import is_peft_model
from PIL import Image


def sharded(trainer):
    """Whether a trainer's weights are shared out over its processes."""
    plugin = trainer.accelerator.state.deepspeed_plugin if trainer.is_deepspeed_enabled else None
    return bool(trainer.is_fsdp_enabled or (plugin is not None and plugin.zero_stage == 3))


def start(trainer):
    """Teach a trainer's models that see to run their vision tower in every pass that begins a text, where that matters: with
    sharded weights, and with gradient checkpointing on several processes, where DistributedDataParallel waits for every
    gradient. Nothing is done for a model without a tower."""
    args, accelerator = trainer.args, trainer.accelerator
    image_processor = getattr(trainer.processing_class, "image_processor", None)
    if image_processor is None or accelerator.num_processes == 1 or not (sharded(trainer) or args.gradient_checkpointing):
        return
    made = dict(image_processor(images=[Image.new("RGB", (56, 56), "grey")], return_tensors="pt"))
    for model in filter(None, (trainer.model, trainer.ref_model)):
        model = accelerator.unwrap_model(model)
        model = model.get_base_model() if is_peft_model(model) else model
        if hasattr(model.base_model, "get_image_features"):
            model._supports_mm_encoder_outputs = lambda: False  # else generate looks at pictures before the model is called
            always_look(model.base_model, trainer._prepare_input(made), lambda: 1 + trainer.reads_videos)


def pictures_everywhere(accelerator, rows):
    """Whether every process has a row with a picture: TRL gathers pictures for its log in those that have, and waits there."""
    here = any(row.get("images") or row.get("image") is not None for row in rows)
    return bool(accelerator.gather(torch.tensor([here], device=accelerator.device)).all())


def always_look(base, picture, passes):
    """Change the forward of a model that sees (without its LM head): where a call begins texts and has fewer kinds of pixels
    than passes() -> int, the features of `picture` (an image processor's fields) are added to its embeddings, times zero."""
    ordinary = base.forward

    @functools.wraps(type(base).forward)  # generate reads the signature
    def forward(self, *args, cache=None, pixel_values=None, pixel_values_videos=None, **kwargs):
        pixels = {"pixel_values": pixel_values, "pixel_values_videos": pixel_values_videos}
        pixels = {name: value for name, value in pixels.items() if value is not None}
        call = functools.partial(ordinary, *args, cache=cache, **pixels, **kwargs)
        if cache is not None and cache.get_seq_length():
            return call()
        missing = passes() - len(pixels)

        def look(module, given, found):  # behind the embedding, as the model itself looks at pictures: layers run in one order
            return found + sum(zero_of(self.get_image_features(**picture, return_dict=True)) for _ in range(missing))

        hook = self.get_input_embeddings().register_forward_hook(look)
        try:
            return call()
        finally:
            hook.remove()

    base.forward = types.MethodType(forward, base)


def zero_of(features):
    """Zero, as a sum over all tensors of what a vision tower returns: each of its weights then has a gradient (of zero)."""
    if isinstance(features, (dict, list, tuple)):
        return sum(zero_of(part) for part in (features.values() if isinstance(features, dict) else features))
    return 0 if features is None else (features.float().mean() * 0).to(features.dtype)
