"""A transformers model in this process: loading it, completing chat prompts in batches, sampling candidates of one.
"""

import torch
from transformers import AutoModelForImageTextToText, AutoProcessor, GenerationConfig, LogitsProcessor, LogitsProcessorList
from transformers.utils.peft_utils import find_adapter_config_file

from data import command, video_inputs
from judging.calls import Completion


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


def generation_settings(model, tokenizer, max_new_tokens, temperature, top_p):
    """Every setting spelled out, so that a checkpoint's own defaults (Qwen's top_k 50, penalties) cannot leak in."""
    ends = model.generation_config.eos_token_id
    ends = {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None}
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(ends)
    sampling = {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0} if temperature > 0 else {}
    return GenerationConfig(max_new_tokens=max_new_tokens, eos_token_id=sorted(ends), pad_token_id=pad, **sampling)


@torch.no_grad()
def generate(model, tokenizer, inputs, seed, max_new_tokens, temperature, top_p=1.0, copies=1, processors=()):
    """(tokens (B, C), lengths (B,) up to the first end token, it counted) of prompts, `copies` of each.

    Temperature 0 is greedy. Above 0 the draw depends on `seed` and the batch alone; the global generator is left as it was.
    """
    own, settings = model.generation_config, generation_settings(model, tokenizer, max_new_tokens, temperature, top_p)
    settings.num_return_sequences = copies
    with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
        torch.manual_seed(seed)
        model.generation_config = settings
        try:
            output = model.generate(**inputs, logits_processor=LogitsProcessorList(processors))  # (B, P + C)
        finally:
            model.generation_config = own
    tokens = output[:, inputs["input_ids"].shape[1] :]  # (B, C)
    ended = torch.isin(tokens, torch.tensor(settings.eos_token_id, device=tokens.device))  # (B, C)
    return tokens, tokens.shape[1] - (ended.cumsum(1) - ended.long() > 0).sum(1)


def complete(model, processor, prompts, images, max_new_tokens, temperature=0.0, seed=0, top_p=1.0):
    """One Completion per prompt, made in one batch (see generate).

    `prompts` are chat messages with {"type": "image"} places; `images` a list of PIL images for each (may be empty), or
    with {"type": "video"} places and a list of clips (data.open_clips) for each.
    Raises ValueError where places and images differ in number.
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
    tokens, lengths = generate(model, processor.tokenizer, inputs, seed, max_new_tokens, temperature, top_p)
    return [
        Completion(processor.decode(row[:n], skip_special_tokens=True), int(mask.sum()), int(n))
        for row, n, mask in zip(tokens, lengths, inputs["attention_mask"])
    ]


class Likelihood(LogitsProcessor):
    """Adds up the log-probability of each sampled token while generating, at temperature 1; keeps no logits but the last."""

    def __init__(self):
        self.last, self.sums = None, []

    def __call__(self, input_ids, scores):
        self.take(input_ids[:, -1])
        self.last = scores.float().log_softmax(-1)  # (B, V)
        return scores

    def take(self, tokens):
        """Count the tokens, (B,), drawn after the last call; none at the first."""
        if self.last is not None:
            self.sums.append(self.last.gather(1, tokens[:, None])[:, 0])


def sample_candidates(model, processor, prompt, images, n, max_new_tokens, temperature, seed):
    """(candidates, prompt tokens) of one question: `n` dicts of text, tokens and log_likelihood, made in one batch.

    log_likelihood is the mean over the candidate's tokens, the end token included, of log p under the policy at
    temperature 1, in nats, at most 0. The draw depends on `seed` and n alone.
    """
    [text] = processor.apply_chat_template([prompt], add_generation_prompt=True, tokenize=False)
    inputs = processor(text=[text], images=[images] if images else None, return_tensors="pt").to(model.device, model.dtype)
    likelihood, prompt_tokens = Likelihood(), inputs["input_ids"].shape[1]
    tokens, lengths = generate(
        model, processor.tokenizer, inputs, seed, max_new_tokens, temperature, copies=n, processors=[likelihood]
    )
    likelihood.take(tokens[:, -1])
    counted = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]  # (B, C)
    means = (torch.stack(likelihood.sums, 1) * counted).sum(1) / lengths  # (B,)
    return [
        {"text": processor.decode(row[:n], skip_special_tokens=True), "tokens": n, "log_likelihood": mean}
        for row, n, mean in zip(tokens, lengths.tolist(), means.tolist())
    ], prompt_tokens
