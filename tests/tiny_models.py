"""Random models of some 100,000 parameters, one of each family that shared prompts are compared on, and a data set for them."""

from pathlib import Path

import datasets
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3ImageProcessor,
    Gemma3Processor,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    Qwen2VLImageProcessor,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from physworld import tiny
from tests import tiny_critic

TEXT = [
    "Which colour has block 7, and why is it so? Look at the frames: it is red, blue, green or grey.",
    "<think> see </think> \\boxed{red}",
]
FAMILIES = ["qwen2_5_vl", "qwen3_vl", "qwen3", "llava", "gemma3"]
LLAVA = tiny.CHAT_TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", "<|image_pad|>")
GEMMA = tiny.CHAT_TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", "<|vision_start|>")


def tokenizer(**special):
    """Byte-level BPE of 320 tokens with the special tokens of physworld/tiny.py."""
    base = Tokenizer(models.BPE())
    base.pre_tokenizer, base.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    base.train_from_iterator(
        TEXT, trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, special_tokens=tiny.SPECIAL, show_progress=False)
    )
    ends = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return PreTrainedTokenizerFast(
        tokenizer_object=base, padding_side="left", chat_template=tiny.CHAT_TEMPLATE, **ends, **special
    )


def text_settings(words, **more):
    """What every language model here has: two layers of 32, grouped keys and values."""
    ids = {"eos_token_id": words.eos_token_id, "pad_token_id": words.pad_token_id, "bos_token_id": None}
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    return {"vocab_size": len(words), "max_position_embeddings": 2048, "head_dim": 8} | sizes | ids | more


def qwen3_vl(words):
    processor = Qwen3VLProcessor(
        Qwen2VLImageProcessor(patch_size=16), words, Qwen3VLVideoProcessor(), chat_template=tiny.CHAT_TEMPLATE
    )
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
    token_id = words.convert_tokens_to_ids
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 32,
        "deepstack_visual_indexes": [0, 1],
    }
    config = Qwen3VLConfig(
        text_config=text_settings(words, rope_parameters=rope, num_hidden_layers=3),  # what deepstack adds must reach a layer
        vision_config=vision | {"num_position_embeddings": 64},
        image_token_id=token_id("<|image_pad|>"),
        video_token_id=token_id("<|video_pad|>"),
        vision_start_token_id=token_id("<|vision_start|>"),
        vision_end_token_id=token_id("<|vision_end|>"),
    )
    return Qwen3VLForConditionalGeneration(config), processor


def qwen3(words):
    return Qwen3ForCausalLM(Qwen3Config(**text_settings(words))), words


def llava(words):
    size = {"height": 28, "width": 28}
    images = CLIPImageProcessor(size=size, crop_size=size)
    processor = LlavaProcessor(
        images,
        words,
        patch_size=14,
        vision_feature_select_strategy="default",
        chat_template=LLAVA,
        image_token="<|image_pad|>",
        num_additional_image_tokens=1,
    )
    vision = CLIPVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=LlamaConfig(**text_settings(words)),
        image_token_id=words.convert_tokens_to_ids("<|image_pad|>"),
    )
    return LlavaForConditionalGeneration(config), processor


def gemma3(words):
    """Images attend both ways, and one of the two layers sees a window of 16 tokens only."""
    size = {"height": 28, "width": 28}
    processor = Gemma3Processor(Gemma3ImageProcessor(size=size), words, chat_template=GEMMA, image_seq_length=4)
    text = text_settings(words, sliding_window=16, layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=8)
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    token_id = words.convert_tokens_to_ids
    config = Gemma3Config(
        text_config=text,
        vision_config=vision,
        mm_tokens_per_image=4,
        image_token_id=token_id("<|image_pad|>"),
        boi_token_id=token_id("<|vision_start|>"),
        eoi_token_id=token_id("<|vision_end|>"),
    )
    return Gemma3ForConditionalGeneration(config), processor


def make(family, directory):
    """Write a model of the family and its processor to `directory`; returns the path as a string."""
    if family == "qwen2_5_vl":
        return tiny_critic.make_model(directory, layers=2)
    special = (
        {"boi_token": "<|vision_start|>", "eoi_token": "<|vision_end|>", "image_token": "<|image_pad|>"}
        if family == "gemma3"
        else {}
    )
    torch.manual_seed(0)
    model, processor = {"qwen3_vl": qwen3_vl, "qwen3": qwen3, "llava": llava, "gemma3": gemma3}[family](tokenizer(**special))
    for parameter in model.parameters():  # random weights as they come attend to nothing in particular
        parameter.data.mul_(1 if parameter.ndim < 2 else 3)
    model.generation_config.eos_token_id = processor.eos_token_id if family == "qwen3" else processor.tokenizer.eos_token_id
    model.save_pretrained(directory)
    processor.save_pretrained(directory)
    return str(Path(directory))


def make_dataset(count=6, images=True):
    """Prompts of different lengths with one picture and two in turn; two prompts differ in their picture only."""
    records = []
    for i in range(count):
        question = f"Which colour has block {i // 2 * 2}?" + " Look at the frames." * (i // 2)
        pictures = [Image.new("RGB", (56, 56), (40 * i, 90, 200 - 30 * i + 5 * k)) for k in range(1 + i // 2 % 2)]
        records.append(
            {"id": f"q{i}", "prompt": [{"role": "user", "content": question}]} | ({"images": pictures} if images else {})
        )
    return datasets.Dataset.from_list(records)
