"""Memory and tokens of a GRPO step for Qwen2.5-VL 7B and 72B, from the model's config alone; writes docs/scaling.md's tables.

    python -m analysis.scaling_budget             rewrite the tables between the two marks of docs/scaling.md, half a minute

Exact: parameters, weights, gradients, AdamW's states, keys and values, visual tokens. Estimated: activations, counted as the
tensors that transformers 5.24 saves for the backward pass, layer by layer; what a layer without gradients holds at once; what
ZeRO and FSDP gather. Not counted: the CUDA context, fragmentation, communication buffers. Nothing here has run on a GPU.
"""

from collections import namedtuple
from dataclasses import dataclass, replace
from itertools import product
from types import SimpleNamespace

from analysis import headline
from data import command

GIB, SIDE = 2**30, 28  # SIDE: pixels along one visual token
BEGIN, END = "<!-- tables: python -m analysis.scaling_budget -->", "<!-- /tables -->"
DOC = headline.ROOT / "docs" / "scaling.md"
# Values of the public config.json of Qwen/Qwen2.5-VL-{7B,72B}-Instruct, read in copies of it (none could be downloaded here).
# 7B: its count is the published 8,292,166,656. 72B: copies disagree about the vision tower's intermediate size (3456, 3420);
# 3456 is the technical report's (arXiv 2502.13923), the difference is 4.4 million parameters.
ROPE = {"rope_type": "default", "rope_theta": 1e6}
IDS = {"bos_token_id": None, "eos_token_id": 151645}
TEXT = {"vocab_size": 152064, "max_position_embeddings": 128000, "rms_norm_eps": 1e-6} | IDS
VISION = {"depth": 32, "hidden_size": 1280, "num_heads": 16, "patch_size": 14, "fullatt_block_indexes": [7, 15, 23, 31]}
NAMES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
SIZES = {  # of the language model, and of the vision tower
    "7B": ((3584, 18944, 28, 28, 4), {"intermediate_size": 3420, "out_hidden_size": 3584}),
    "72B": ((8192, 29568, 80, 64, 8), {"intermediate_size": 3456, "out_hidden_size": 8192}),
}
SMALL_TEXT = dict(zip(NAMES, (64, 192, 3, 4, 2))) | {"rope_parameters": ROPE | {"mrope_section": [2, 3, 3]}}  # 7B made small
SMALL_VISION = {"hidden_size": 32, "intermediate_size": 96, "num_heads": 2, "out_hidden_size": 64}


def architecture(name, text=None, vision=None):
    """The Qwen2_5_VLConfig of "7B" or "72B", with changes to its text_config and vision_config where given."""
    from transformers import Qwen2_5_VLConfig  # here, as below: --help and the report need no torch

    numbers, tower = SIZES[name]
    text = TEXT | {"rope_parameters": ROPE | {"mrope_section": [16, 24, 24]}} | dict(zip(NAMES, numbers)) | (text or {})
    vision = VISION | {"tokens_per_second": 2} | tower | (vision or {})
    return Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=False)


def sizes(config):
    """What the formulas take as `s`: h, i, layers, heads, kv (width of the keys), V; d, m, depth of the vision tower ..."""
    t, v = config.text_config, config.vision_config
    kv = t.hidden_size // t.num_attention_heads * t.num_key_value_heads
    pixels = v.in_channels * v.temporal_patch_size * v.patch_size**2  # numbers in a patch
    return SimpleNamespace(
        h=t.hidden_size, i=t.intermediate_size, layers=t.num_hidden_layers, heads=t.num_attention_heads, kv=kv, V=t.vocab_size,
        d=v.hidden_size, m=v.intermediate_size, depth=v.depth, vision_heads=v.num_heads, pixels=pixels, out=v.out_hidden_size,
        merge=v.spatial_merge_size**2, tied=config.tie_word_embeddings,
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------------------- exact


def linears(s):
    """(inputs, outputs, how many) of every linear layer but the head: what LoRA's all-linear and 4-bit quantization take."""
    wide = s.merge * s.d
    tower = [(s.d, 3 * s.d, s.depth), (s.d, s.d, s.depth), (s.d, s.m, 2 * s.depth), (s.m, s.d, s.depth)]
    tower += [(wide, wide, 1), (wide, s.out, 1)]
    text = [(s.h, s.h, 2), (s.h, s.kv, 2), (s.h, s.i, 2), (s.i, s.h, 1)]
    return tower + [(a, b, count * s.layers) for a, b, count in text]


def parameters(s):
    """{"vision", "embeddings", "layers", "head"}: numbers of parameters; the head is 0 where it is the embeddings'."""
    block = 2 * s.d + 4 * s.d**2 + 4 * s.d + 3 * s.d * s.m + 2 * s.m + s.d
    wide = s.merge * s.d
    vision = s.pixels * s.d + s.depth * block + s.d + wide**2 + wide + wide * s.out + s.out
    layer = 2 * s.h**2 + s.h + 2 * (s.h * s.kv + s.kv) + 3 * s.h * s.i + 2 * s.h
    return {"vision": vision, "embeddings": s.V * s.h, "layers": s.layers * layer + s.h, "head": 0 if s.tied else s.V * s.h}


def lora_parameters(s, r):
    """Parameters of a LoRA of rank r on all linear layers but the head (PEFT's all-linear), vision tower included."""
    return sum(r * (a + b) * count for a, b, count in linears(s))


def quantized_bytes(s):
    """Weights with their linear layers in 4 bits (NF4; 8 bits of scale for 64 weights, 32 for 256 scales), the rest bf16."""
    packed = sum(a * b * count for a, b, count in linears(s))
    return packed * (0.5 + (1 + 4 / 256) / 64) + 2 * (sum(parameters(s).values()) - packed)


def cache_bytes(s, tokens, number=2):
    """Keys and values of so many tokens, `number` bytes each."""
    return 2 * s.layers * s.kv * tokens * number


def visual_tokens(height, width, max_pixels=14 * 14 * 4 * 1280):
    """Visual tokens of one frame given as an image, as transformers' processor resizes it.

    >>> visual_tokens(448, 448), visual_tokens(480, 640), visual_tokens(720, 1280, max_pixels=200704)
    (256, 391, 252)
    """
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    height, width = smart_resize(height, width, factor=SIDE, max_pixels=max_pixels)
    return height * width // SIDE**2


# ----------------------------------------------------------------------------------------------------------- estimated


# Bytes of a number: of what matmuls take, of the residual stream, of normalised vectors (text, vision); and how often a norm's
# output is saved (attention and MLP; text, vision): autocast casts it anew for every linear layer that reads it
Precision = namedtuple("Precision", "number stream normal normal_vision copies copies_vision")
PRECISIONS = {
    "float32": Precision(4, 4, 4, 4, 2, 2),
    "autocast": Precision(2, 4, 4, 2, 5, 3),  # float32 weights, bf16 matmuls
    "bf16": Precision(2, 2, 2, 2, 2, 2),
}


@dataclass(frozen=True)
class Batch:
    """One forward and backward pass on a GPU: `rows` completions of `prompts` distinct prompts."""

    rows: int
    prompts: int
    prompt: int  # tokens, visual ones included
    completion: int
    patches: int  # of one prompt
    shared: bool = False
    checkpointing: bool = False


def layer_bytes(s, p, rows, queries, keys):
    """What one layer of the language model saves for its backward pass; sdpa with a mask repeats the keys for every head."""
    tokens = rows * queries
    norms = tokens * (2 * s.h * (4 + p.normal) + 8 + p.copies * s.h * p.number)
    attention = p.number * 2 * s.h * (tokens + rows * keys) + 4 * s.heads * tokens
    return norms + attention + 4 * tokens * s.i * p.number + rows * queries * keys * p.number


def vision_bytes(s, p, patches, checkpointing):
    """What the vision tower saves for its backward pass."""
    norms = 2 * s.d * (4 + p.normal_vision) + 8 + p.copies_vision * s.d * p.number
    block = norms + p.number * (7 * s.d + 4 * s.m) + 4 * s.vision_heads
    merger = s.d * (4 + p.normal_vision) + 4 + 3 * s.d * p.number
    blocks = s.depth * s.d * p.number + block if checkpointing else s.depth * block
    return patches * (s.pixels * p.number + blocks + merger)


def activation_bytes(s, precision, batch, every_position=False):
    """What forward leaves for backward. every_position: the head scores prompts too, as TRL does on a CPU."""
    p, b = PRECISIONS[precision], batch
    if b.shared:
        layer = layer_bytes(s, p, b.rows, b.completion, b.prompt + b.completion)
        layers = s.layers * (layer + layer_bytes(s, p, b.prompts, b.prompt, b.prompt))
        tokens = b.prompts * b.prompt + b.rows * b.completion
    else:
        whole = b.prompt + b.completion
        layer, tokens = layer_bytes(s, p, b.rows, whole, whole), b.rows * whole
        layers = s.layers * tokens * s.h * p.stream + layer if b.checkpointing else s.layers * layer
    scored = b.rows * (whole if every_position and not b.shared else b.completion)
    end = (b.rows * b.completion if b.shared else tokens) * s.h * (4 + p.normal) + scored * s.h * p.stream
    images = vision_bytes(s, p, b.patches * (b.prompts if b.shared else b.rows), b.checkpointing)
    return layers + end + images + 2 * tokens * (s.h // s.heads) * p.stream  # the last: cosines and sines of the positions


# Bytes a parameter on each of n GPUs: weights, gradients, AdamW's states with a float32 copy, the reference model's weights
WAYS = {
    "one GPU": lambda n: (4 + 2, 4, 8, 4),  # float32, and the copies in bf16 that autocast keeps
    "ZeRO-2": lambda n: (2, 2 / n, 12 / n, 2),
    "ZeRO-3": lambda n: (2 / n, 2 / n, 12 / n, 2 / n),
    "FSDP2": lambda n: (4 / n, 4 / n, 8 / n, 4 / n),
}


def state_bytes(s, way, gpus):
    """{"weights", "gradients", "optimizer", "reference"} on one GPU. LoRA, r 16: bf16 weights and a float32 adapter, which
    switched off is the reference; QLoRA: 4-bit weights, and TRL keeps its adapter in bf16."""
    count, adapter = sum(parameters(s).values()), lora_parameters(s, 16)
    found = {
        "LoRA": (2 * count + 4 * adapter, 4 * adapter, 8 * adapter, 0),
        "QLoRA": (quantized_bytes(s) + 2 * adapter, 2 * adapter, 4 * adapter, 0),
    }.get(way) or [share * count for share in WAYS[way](gpus)]
    return dict(zip(("weights", "gradients", "optimizer", "reference"), found))


def step_bytes(s, way, gpus, batch, generated, gather=True):
    """(peak of sampling, `generated` completions at once; peak of training) of a step, in bytes on one GPU.

    gather: ZeRO-3 holds all weights while it samples (TRL's ds3_gather_for_generation).
    """
    states = state_bytes(s, way, gpus)
    precision = "autocast" if way in ("one GPU", "FSDP2") else "bf16"
    counts, count = parameters(s), sum(parameters(s).values())
    layer = counts["layers"] // s.layers
    two = 2 * layer + counts["embeddings"] + counts["head"]  # FSDP2: two layers, and what is in no layer
    live = {"ZeRO-3": 2 * min(10**9 + layer, count), "FSDP2": 2 * two}.get(way, 0)  # ZeRO-3: stage3_max_live_parameters
    whole = 2 * count if gather and way == "ZeRO-3" else live
    prefilled = (-(-generated * batch.prompts // batch.rows) if batch.shared else generated) * batch.prompt
    prefill = 2 * prefilled * (3 * s.i + 5 * s.h)  # what one layer holds at once without gradients
    cache = cache_bytes(s, generated * (batch.prompt + batch.completion))
    scored = batch.rows * batch.completion  # TRL's head: a tile of logits, float32 gradients of hidden states and of the head
    logits = min(scored, 4096) * 32768 * PRECISIONS[precision].number + 4 * scored * s.h
    logits += 0 if way in ("LoRA", "QLoRA") else 4 * s.V * s.h
    held = states["weights"] + states["optimizer"] + states["reference"]
    return held + whole + cache + prefill, held + states["gradients"] + live + activation_bytes(s, precision, batch) + logits


# -------------------------------------------------------------------------------------------------------------- tables

FRAME, WORDS = 256, 512  # visual tokens of a frame of 448 x 448 px; tokens of text in a judgement's prompt: a guess
CARD = {"24 GB": 24.0, "80 GB": 79.6}  # GiB that nvidia-smi shows of an RTX 4090 and an H100
SPARE = 2.0  # GiB for CUDA's context and fragmentation: a guess


def prompt_tokens(frames):
    """Tokens of a prompt: each frame stands between two marks."""
    return frames * (FRAME + 2) + WORDS


def a_batch(frames, completion, rows, **more):
    """A Batch of one prompt with so many frames; a visual token is made of 4 patches."""
    return Batch(rows, 1, prompt_tokens(frames), completion, 4 * FRAME * frames, **more)


def gib(number):
    return f"{number / GIB:.1f}" if number < 100 * GIB else f"{number / GIB:,.0f}"


def markdown(head, rows):
    """Lines of a Markdown table; numbers stand on the right."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return [f"| {' | '.join(f'{cell:,}' if isinstance(cell, int) else cell for cell in line)} |" for line in lines]


def parameter_table():
    rows = []
    for name in SIZES:
        counts = parameters(sizes(architecture(name))).values()
        rows.append([name, *counts, sum(counts), lora_parameters(sizes(architecture(name)), 16)])
    return markdown(["Qwen2.5-VL", "vision tower", "embeddings", "layers", "head", "all", "LoRA, r 16"], rows)


def frame_table():
    shapes, limits = [(224, 224), (448, 448), (480, 640), (720, 1280), (1080, 1920)], (200_704, 1_003_520, 4_194_304)
    rows = [[f"{h} x {w}", *(str(visual_tokens(h, w, limit)) for limit in limits)] for h, w in shapes]
    return markdown(["Visual tokens of a frame", "max_pixels 200,704", "1,003,520 (transformers)", "4,194,304 (the YAMLs)"], rows)


def state_table():
    rows, many = [], {"ZeRO-2": [8], "ZeRO-3": [8, 16, 64], "FSDP2": [8, 16, 64]}
    for name, way in product(SIZES, (*WAYS, "LoRA", "QLoRA")):
        for gpus in many.get(way, [1]):
            states = state_bytes(sizes(architecture(name)), way, gpus).values()
            rows.append([f"{name}, {way}", gpus, *map(gib, states), gib(sum(states))])
    return markdown(["GiB on each GPU", "GPUs", "weights", "gradients", "AdamW", "reference", "all"], rows)


def cache_table():
    rows, columns = [], list(product(SIZES, (1, 8)))
    for frames in (4, 8, 16, 32):
        sizes_of = [gib(cache_bytes(sizes(architecture(name)), count * prompt_tokens(frames))) for name, count in columns]
        rows.append([f"{frames} frames", frames * FRAME, prompt_tokens(frames), *sizes_of])
    heads = [f"{name}, {count} row{'s' * (count > 1)}" for name, count in columns]
    return markdown(["Keys and values of a prompt, bf16, GiB", "visual tokens", "tokens", *heads], rows)


def step_table(name, way, gpus, rows, ways, card, generated=16, gather=True):
    """Peaks of a step by frames and completion length; in bold what a card with SPARE left does not hold."""
    lines = []
    for frames, completion in product((4, 8, 16, 32), (512, 2048)):
        batches = [a_batch(frames, completion, rows, **more) for more in ways]
        peaks = [peak for batch in batches for peak in step_bytes(sizes(architecture(name)), way, gpus, batch, generated, gather)]
        shown = [gib(peak) if peak / GIB < CARD[card] - SPARE else f"**{gib(peak)}**" for peak in peaks]
        lines.append([f"{frames} frames, completion {completion:,}", prompt_tokens(frames), *shown])
    names = ["shared" if more.get("shared") else "TRL, checkpoints" for more in ways]
    heads = [f"{name}: {peak}" for name, peak in product(names, ("sampling", "training"))]
    return markdown([f"{name}, {way}, {gpus} GPU{'s' * (gpus > 1)}, {rows} rows", "prompt", *heads], lines)


def token_table(prompts=128, group=8):
    """Thousands of tokens and of patches in one pass over an optimizer step's batch."""
    rows = []
    for frames, completion in ((8, 512), (8, 2048), (16, 2048), (32, 2048)):
        prompt, patches = prompt_tokens(frames), 4 * frames * FRAME
        counts = [group * (prompt + completion), prompt + group * completion, group * patches, patches]
        stock, ours, *images = [f"{prompts * count / 1000:,.0f}" for count in counts]
        rows.append([f"{frames} frames, completion {completion:,}", prompt, stock, ours, f"{counts[0] / counts[1]:.1f}", *images])
    heads = ["tokens, TRL", "tokens, shared", "ratio", "patches, TRL", "patches, shared"]
    return markdown([f"Thousands, {prompts} prompts, G = {group}", "prompt", *heads], rows)


TINY_BATCH = Batch(rows=8, prompts=2, prompt=90, completion=40, patches=64)
PASSES = (("float32", False), ("float32", True), ("autocast", False), ("bf16", False), ("bf16", True))  # prompts shared or not
MEASURED = {  # of `predictions`, in their order; tests/test_scaling_budget.py measures them anew
    "physworld's model": (1842816, 7371264, 7371264, 14742528, 5324800, 81568600, 37875530, 55630872, 44548632, 20568522),
    "7B made small": (303712, 1214848, 1214848, 2429696, 798720, 26328920, 11800298, 17222808, 14356120, 6425066),
}


def tiny_configs():
    """{name: config}: physworld's model, and 7B's architecture made small (fewer heads for keys, a head of its own)."""
    from transformers import AutoConfig

    tower = SMALL_VISION | {"depth": 2, "fullatt_block_indexes": [1]}
    small = architecture("7B", SMALL_TEXT | {"vocab_size": 512, "eos_token_id": 2}, tower)
    return {"physworld's model": AutoConfig.from_pretrained(headline.ROOT / "physworld" / "tiny_vlm"), "7B made small": small}


def predictions(s):
    """{quantity: what a float32 model and AdamW hold after a step, its cache, and passes over TINY_BATCH}: bytes, or a count."""
    count, tokens = sum(parameters(s).values()), TINY_BATCH.rows * (TINY_BATCH.prompt + TINY_BATCH.completion)
    found = {"parameters": count, "weights, float32": 4 * count, "gradients, float32": 4 * count, "AdamW's states": 8 * count}
    found["keys and values, float32"] = cache_bytes(s, tokens, 4)
    matrices = sum(a * b * n for a, b, n in linears(s)) + s.pixels * s.d  # autocast keeps a copy of each in bf16
    for precision, shared in PASSES:
        size = activation_bytes(s, precision, replace(TINY_BATCH, shared=shared), every_position=True)
        name = f"activations, {precision}, prompts {'shared' if shared else 'run for each row'}"
        found[name] = size + 2 * matrices * (precision == "autocast")
    return found


def check_table():
    rows = []
    for name, config in tiny_configs().items():
        for (quantity, predicted), measured in zip(predictions(sizes(config)).items(), MEASURED[name], strict=True):
            rows.append([f"{name}: {quantity}", round(predicted), measured, f"{predicted / measured:.3f}"])
    return markdown(["Tiny model: bytes, or a count", "predicted", "measured", "ratio"], rows)


def tables():
    """All lines between the marks."""
    plain, ours = {"checkpointing": True}, {"shared": True}
    far = step_table("72B", "ZeRO-3", 64, 2, [plain, ours], "80 GB", 8, gather=False)
    parts = {
        "Parameters": parameter_table(),
        "A frame": frame_table(),
        "What training holds, whatever the batch": state_table(),
        "Keys and values": cache_table(),
        "A step of 7B on eight GPUs with ZeRO-3": step_table("7B", "ZeRO-3", 8, 4, [plain, ours], "80 GB"),
        "A step of 7B on eight GPUs with FSDP2": step_table("7B", "FSDP2", 8, 4, [plain, ours], "80 GB"),
        "A step of 72B on 64 GPUs with ZeRO-3, weights not gathered for sampling": far,
        "LoRA of 7B on one GPU": step_table("7B", "LoRA", 1, 1, [plain], "24 GB", 8),
        "QLoRA of 7B on one GPU": step_table("7B", "QLoRA", 1, 1, [plain], "24 GB", 8),
        "Tokens": token_table(),
        "Predicted and measured": check_table(),
    }
    return [line for title, lines in parts.items() for line in ("", f"### {title}", "", *lines)] + [""]


if __name__ == "__main__":
    command.Parser(description=__doc__).parse_args()
    DOC.write_text(headline.rewritten(DOC.read_text(encoding="utf-8"), BEGIN, tables(), END), encoding="utf-8")
