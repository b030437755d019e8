"""The tiny vision-language model: Qwen2.5-VL's architecture through transformers' own classes, untrained.

The tokenizer is a byte-level BPE trained on the suite's text. Each fixed sentence group of prompts.py is one token of
it: the instructions cost a real model some 300 tokens, and a model of this size could neither read them nor afford them.
"""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

import prompts

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
TAGS = [f"<{slash}{name}>" for name in ("pred_think", "pred", "think", "response_1", "response_2") for slash in ("", "/")]
WINDOW = 4096  # tokens
FRAME = 56  # px, a multiple of the 28 px that one visual token covers

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_processor(texts, vocab_size=1024):
    """A Qwen2.5-VL processor whose tokenizer is trained on `texts` (an iterable of strings)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=SPECIAL, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    sentences = dict.fromkeys([prompts.QUESTION_INSTRUCTIONS] + [part for parts in prompts.VARIANTS.values() for part in parts])
    fixed = list(sentences) + TAGS + ["\\boxed{", "boxed{"]
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in fixed])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left", model_max_length=WINDOW
    )
    pixels = {"size": {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 64}}
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(**pixels),
        tokenizer=fast,
        video_processor=Qwen2VLVideoProcessor(**pixels),
        chat_template=CHAT_TEMPLATE,
    )


def build_model(processor, hidden=128, layers=5, vision_hidden=96, vision_layers=3):
    """A Qwen2.5-VL with random weights, its special token ids taken from the processor's tokenizer."""
    token_id = processor.tokenizer.convert_tokens_to_ids
    half = hidden // 4 // 2  # rotary frequencies of a head, shared out to time, height and width as in Qwen2.5-VL
    ids = {"eos_token_id": token_id("<|im_end|>"), "pad_token_id": token_id("<|endoftext|>"), "bos_token_id": None}
    config = Qwen2_5_VLConfig(
        text_config=dict(
            vocab_size=len(processor.tokenizer), hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=WINDOW,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [half // 4, half * 3 // 8, half * 3 // 8]},
            **ids,
        ),
        vision_config=dict(
            depth=vision_layers, hidden_size=vision_hidden, intermediate_size=3 * vision_hidden, num_heads=4, patch_size=14,
            out_hidden_size=hidden, fullatt_block_indexes=list(range(vision_layers)),
        ),
        image_token_id=token_id("<|image_pad|>"), video_token_id=token_id("<|video_pad|>"),
        vision_start_token_id=token_id("<|vision_start|>"), vision_end_token_id=token_id("<|vision_end|>"),
        tie_word_embeddings=True,
    )
    model = Qwen2_5_VLForConditionalGeneration(config)
    model.generation_config = GenerationConfig(do_sample=True, temperature=1.0, top_k=0, **{k: v for k, v in ids.items() if v is not None})
    return model
