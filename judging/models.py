"""A transformers model in this process: loading it, and completing chat prompts with images or clips in batches.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml
from transformers import AutoModelForImageTextToText, AutoProcessor, GenerationConfig
from transformers.utils.peft_utils import find_adapter_config_file

from data import command, video_inputs


@dataclass(frozen=True)
class Completion:
    """One sampled text, without special tokens, and what it cost (padding not counted, the end token counted).

    `p` is the probability that the response shown first is better, of a judge that gives one instead of a verdict.
    """

    text: str
    prompt_tokens: int
    completion_tokens: int
    p: float | None = None


def load_model(path, device=None, dtype=None):
    """(model, processor) of a local folder or hub id, ready to generate: eval mode, left padding.

    A PEFT adapter is merged into its base. Default is cuda in bfloat16 where there is a GPU, else cpu in float32.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = dtype or (torch.float32 if str(device) == "cpu" else torch.bfloat16)
    adapter = find_adapter_config_file(str(command.local_model(path)))
    if adapter:
        from peft import PeftConfig, PeftModel

        model, processor = load_model(PeftConfig.from_pretrained(str(path)).base_model_name_or_path, device, dtype)
        return PeftModel.from_pretrained(model, str(path)).merge_and_unload().eval(), processor
    model = AutoModelForImageTextToText.from_pretrained(str(path), dtype=dtype).to(device).eval()
    processor = AutoProcessor.from_pretrained(str(path))
    processor.tokenizer.padding_side = "left"
    return model, processor


def warn_of_other_training(path, **asked):
    """Say on stderr where train_*.py's config.yaml beside a model has another `prompt` or `video_input` than is asked for."""
    saved = Path(path) / "config.yaml"
    script = (yaml.safe_load(saved.read_text(encoding="utf-8")) or {}).get("script") or {} if saved.is_file() else {}
    for name, value in asked.items():
        if script.get(name, value) != value:
            print(f"{saved}: trained with {name} {script[name]}, now asked with {value}: expect other answers", file=sys.stderr)


def generation_settings(model, tokenizer, max_new_tokens, temperature, top_p):
    """Every setting spelled out, so that a checkpoint's own defaults (Qwen's top_k 50, penalties) cannot leak in."""
    ends = model.generation_config.eos_token_id
    ends = {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None}
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(ends)
    sampling = {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0} if temperature > 0 else {}
    return GenerationConfig(max_new_tokens=max_new_tokens, eos_token_id=sorted(ends), pad_token_id=pad, **sampling)


@torch.no_grad()
def complete(model, processor, prompts, images, max_new_tokens, temperature=0.0, seed=0, top_p=1.0):
    """One Completion per prompt, made in one batch.

    `prompts` are chat messages with {"type": "image"} places; `images` a list of PIL images for each (may be empty), or
    with {"type": "video"} places and a list of clips (data.open_clips) for each.
    Temperature 0 is greedy. Above 0 the draw depends on `seed` and the batch alone; the global generator is left as
    it was. Raises ValueError where places and images differ in number.
    """
    for prompt, shown in zip(prompts, images, strict=True):
        blocks = [block["type"] for m in prompt if not isinstance(m["content"], str) for block in m["content"]]
        places = sum(kind in ("image", "video") for kind in blocks)
        if places != len(shown):
            raise ValueError(f"a prompt has {places} image places and {len(shown)} images")
    if any(isinstance(one, dict) for shown in images for one in shown):
        made = video_inputs.model_inputs(processor, prompts, images)
    else:
        texts = processor.apply_chat_template(prompts, add_generation_prompt=True, tokenize=False)
        made = processor(
            text=texts, images=[i for i in images if i] or None, padding=True, padding_side="left", return_tensors="pt"
        )
    seconds = made.get("second_per_grid_ts")
    inputs = made.to(model.device, model.dtype)  # input_ids: (B, P)
    if seconds is not None:
        inputs["second_per_grid_ts"] = seconds.to(model.device)  # half precision would move positions
    own = model.generation_config
    settings = generation_settings(model, processor.tokenizer, max_new_tokens, temperature, top_p)
    with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
        torch.manual_seed(seed)
        model.generation_config = settings
        try:
            output = model.generate(**inputs)  # (B, P + C)
        finally:
            model.generation_config = own
    tokens = output[:, inputs["input_ids"].shape[1] :]  # (B, C)
    ended = torch.isin(tokens, torch.tensor(settings.eos_token_id, device=tokens.device))  # (B, C)
    lengths = tokens.shape[1] - (ended.cumsum(1) - ended.long() > 0).sum(1)  # (B,), up to the first end token
    return [
        Completion(processor.decode(row[:n], skip_special_tokens=True), int(mask.sum()), int(n))
        for row, n, mask in zip(tokens, lengths, inputs["attention_mask"])
    ]
