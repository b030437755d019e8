"""Clips as a Qwen-VL processor takes them: videos with their times, in place of lists of images.

These models merge two frames into one layer of visual tokens, half of what the frames cost as images, and know the times of
the layers: Qwen2.5-VL by their positions (M-RoPE, `second_per_grid_ts`), Qwen3-VL by times in the text. A row's clips are
{"frames": PIL images, "seconds": floats} (data.open_clips), and its prompt has a {"type": "video"} place for each.
"""

import functools

import torch

from data import media

REMEDY = "use --video_input frames, which shows the frames as images"


# --------------------------------------------------------------------------------------------------------- what can read it


def refusal(processor):
    """Why a processor cannot give videos to its model, as a text; None where it can."""
    made = getattr(getattr(processor, "video_processor", None), "model_input_names", [])
    if "video_grid_thw" not in made:
        return f"{type(processor).__name__} makes no video of the Qwen-VL family"
    asked = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "?"}]}]
    if processor.video_token not in processor.apply_chat_template(asked, tokenize=False):
        return "its chat template has no place for a video"
    return None


def check(processor):
    """ValueError where the processor reads no video."""
    why = refusal(processor)
    if why:
        raise ValueError(f"this model reads no video: {why}; {REMEDY}")


def text_after_videos(model):
    """Let text go on after the last position of a video, in all of a model's ways to be called.

    So Qwen2-VL and Qwen2.5-VL were trained (the example in transformers' first modeling_qwen2_5_vl.py: layers at 0, 50 and 100,
    text from 101), and so vLLM counts. transformers 5.24 lets text go on after a video's height and width, before its later
    layers, and sampled tokens after the last position of all: a completion would be sampled at other positions than it is
    scored at. Nothing changes for images, nor for Qwen3-VL, whose layers stand apart.
    """
    inner = model.base_model
    given = inner.get_rope_index

    @functools.wraps(given)
    def get_rope_index(input_ids, mm_token_type_ids, *args, attention_mask=None, **kwargs):
        places, shift = given(input_ids, mm_token_type_ids, *args, attention_mask=attention_mask, **kwargs)  # (3, B, L), (B, 1)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        for row, kinds in enumerate(mm_token_type_ids):
            real = mask[row].nonzero().flatten()  # (N,)
            kinds = kinds[real].tolist()
            for end in [i for i in range(1, len(kinds)) if kinds[i - 1] == 2 and kinds[i] != 2]:
                late = places[:, row, real[:end]].max() + 1 - places[:, row, real[end]].min()
                places[:, row, real[end:]] += late.clamp(min=0)
            shift[row] = places[:, row, real].max() + 1 - len(kinds)
        return places, shift

    inner.get_rope_index = get_rope_index


# ------------------------------------------------------------------------------------------------------------- the processor


def clips_of(inputs):
    """The clips of each row of a generation batch; None where no row has any."""
    clips = [row.get("videos") or [] for row in inputs]
    return clips if any(clips) else None


def metadata(seconds):
    """transformers' VideoMetadata of frames shown at these seconds.

    A frame's number over frames a second is its time (Qwen3-VL), and (frames / total * fps) is the mean rate of the frames that
    are there (Qwen2.5-VL: second_per_grid = 2 / rate). Numbers are seconds here, at 1 frame a second.

    >>> metadata([0.0, 0.5, 1.0])
    {'fps': 1.0, 'frames_indices': [0.0, 0.5, 1.0], 'total_num_frames': 1.5}
    """
    span = seconds[-1] - seconds[0]
    interval = span / (len(seconds) - 1) if span > 0 else 1 / media.FPS
    return {"fps": 1.0, "frames_indices": list(seconds), "total_num_frames": len(seconds) * interval}


def checked(clip, most):
    """(frames, seconds) of a clip, two frames at least, frames of at most so many pixels; ValueError where it is no clip."""
    frames, seconds = clip["frames"], clip["seconds"]
    if not frames or len(frames) != len(seconds) or any(before > after for before, after in zip(seconds, seconds[1:])):
        raise ValueError(f"a clip has {len(frames)} frames and the times {seconds}: give each frame its time, in rising order")
    sizes = sorted({frame.size for frame in frames})
    if len(sizes) > 1:
        raise ValueError(f"frames of one clip have the sizes {sizes}: make them equal, or {REMEDY}")
    frames = [media.shrink(frame, most) for frame in frames]
    alone = len(frames) == 1  # the processors fill a layer up with the last frame; Qwen3-VL's wants two to begin with
    return frames * (1 + alone), list(seconds) * (1 + alone)


def filled(prompt, clips):
    """The messages with their clips' frames in the video places; a plain text gets the places before the first user's turn."""
    messages, left = [], list(clips)
    for message in prompt:
        content = message["content"]
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
            first = message["role"] == "user" and not any(before["role"] == "user" for before in messages)
            content = [{"type": "video"}] * len(left) * first + content
        here = [block | {"video": left.pop(0)[0]} if block["type"] == "video" and left else block for block in content]
        messages.append({**message, "content": here})
    places = sum(block["type"] == "video" for message in messages for block in message["content"])
    if places != len(clips):
        raise ValueError(f"a prompt has {places} video places and {len(clips)} videos")
    return messages


def inputs_of(processor, prompts, clips):
    """(prompts with their frames, processor_kwargs for apply_chat_template). clips: those of each prompt."""
    most = dict(processor.image_processor.size).get("longest_edge")  # --max_pixels; the video processor's own least still holds
    clips = [[checked(clip, most) for clip in row] for row in clips]
    about = [metadata(seconds) for row in clips for _, seconds in row]
    settings = {"videos_kwargs": {"video_metadata": about, "do_sample_frames": False}}
    return [filled(prompt, row) for prompt, row in zip(prompts, clips, strict=True)], settings


def model_inputs(processor, prompts, clips):
    """What the processor makes of prompts and their clips, (B, P), padded on the left."""
    prompts, settings = inputs_of(processor, prompts, clips)
    settings |= {"padding": True, "padding_side": "left"}
    how = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, "return_tensors": "pt"}
    return processor.apply_chat_template(prompts, processor_kwargs=settings, **how)


def by_prompt(fields, clips):
    """What a processor made of prompts, its videos as lists with an entry a prompt."""
    grids, counts = torch.as_tensor(fields["video_grid_thw"]), [len(row) for row in clips]  # (videos, 3)
    patches = [int(grid.prod(-1).sum()) for grid in grids.split(counts)]
    made = {"video_grid_thw": grids.split(counts)}
    made["pixel_values_videos"] = torch.as_tensor(fields["pixel_values_videos"]).split(patches)  # (patches, D)
    if "second_per_grid_ts" in fields:
        made["second_per_grid_ts"] = torch.tensor(fields["second_per_grid_ts"], dtype=torch.float32).split(counts)
    return fields | {name: list(value) for name, value in made.items()}
