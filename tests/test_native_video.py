"""Clips as videos through TRL: half the visual tokens, times as shown, and in every pass what a direct call gives."""

import json
import os
import subprocess
import sys
from pathlib import Path

import av
import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoProcessor, GenerationConfig, Qwen2_5_VLForConditionalGeneration
from transformers.video_utils import VideoMetadata

import data
import evaluate
import physworld.dataset
import trainer
from data import video_inputs
from judging.models import complete, load_model
from tests import tiny_models
from tests.test_shared_prefix import NEW, agree, build, replayed, run
from training import batches

ROOT = Path(__file__).resolve().parent.parent
FAMILIES = ["qwen2_5_vl", "qwen3_vl"]
COLOURS = [(200, 40, 40), (40, 40, 200)]
ASKED = {"question": "Which colour?", "suite": "perception", "answer": "red", "options": None}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Path of a family's model, made once; Qwen2.5-VL's looks at clips, Qwen3-VL's processor takes small frames as they are."""
    made = {}

    def path(family):
        if family not in made:
            made[family] = tiny_models.make(family, tmp_path_factory.mktemp(family))
            if family == "qwen2_5_vl":
                model = Qwen2_5_VLForConditionalGeneration.from_pretrained(made[family])
                for parameter in model.parameters():  # random weights as they come attend to nothing in particular
                    parameter.data.mul_(1 if parameter.ndim < 2 else 3)
                model.save_pretrained(made[family])
            if family == "qwen3_vl":
                processor = AutoProcessor.from_pretrained(made[family])
                processor.video_processor.size = {"shortest_edge": 32 * 32, "longest_edge": 32 * 32 * 768}
                processor.save_pretrained(made[family])
        return made[family]

    return path


def clip(colour, seconds, size=(64, 64)):
    """Frames that grow lighter, shown at these seconds."""
    frames = [Image.new("RGB", size, tuple(part + 15 * i for part in colour)) for i in range(len(seconds))]
    return {"frames": frames, "seconds": list(map(float, seconds))}


HALVES = [0, 0.5, 1, 1.5]
ROWS = [  # (text, clips)
    ("Which colour?", [clip(COLOURS[0], HALVES)]),
    ("Which colour?", [clip(COLOURS[1], HALVES)]),  # the same text, another clip
    ("Which colour has it?", [clip(COLOURS[0], HALVES)]),
    ("Which colour has it?", [clip(COLOURS[0], [0, 2, 2.5, 9])]),  # the same frames, other times
    ("Look at both frames. Which?", [clip(COLOURS[0], [0, 1, 2]), clip(COLOURS[1], [4.0], (96, 64))]),  # odd, and a single one
    ("Which colour is it if none is shown?", []),
]


def make_dataset(shown=ROWS):
    def fill(batch):
        asked = [[{"type": "video"}] * len(shown[i][1]) + [{"type": "text", "text": shown[i][0]}] for i in batch["row"]]
        return {
            "prompt": [[{"role": "user", "content": content}] for content in asked],
            "videos": [shown[i][1] for i in batch["row"]],
            "row": batch["row"],
        }

    return datasets.Dataset.from_dict({"row": list(range(len(shown)))}).with_transform(fill)


def directly(processor, text, clips):
    """What the processor makes of one prompt by its own interface; frames at a steady 2 a second are given as such."""
    content = [{"type": "video"}] * len(clips) + [{"type": "text", "text": text}]
    prompt = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False)
    films, about = [], []
    for one in clips:
        films.append(np.stack([np.array(frame) for frame in one["frames"]]))
        n, steady = len(films[-1]), one["seconds"] == HALVES
        rate = 2.0 if steady else 1000.0
        places = list(range(n)) if steady else [round(1000 * time) for time in one["seconds"]]
        total = n if steady else n * ((places[-1] - places[0]) / (n - 1) or 500)
        about.append(VideoMetadata(total_num_frames=total, fps=rate, frames_indices=places))
    settings = {"videos": films, "video_metadata": about, "do_sample_frames": False} if clips else {}
    return processor(text=[prompt], return_tensors="pt", **settings)


# ---------------------------------------------------------------------------------------------------- records and processors


def write_record(folder, count, size=(64, 64), **more):
    """A record of `count` frames on disk."""
    for i in range(count):
        Image.new("RGB", size, (20 * i, 90, 30)).save(folder / f"{i}.png")
    return ASKED | {"id": "r", "frames": [str(folder / f"{i}.png") for i in range(count)]} | more


def film(path, rate, n, size=(64, 48)):
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        for i in range(n):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((*size[::-1], 3), 8 * i, np.uint8), format="rgb24")))
        container.mux(stream.encode())
    return str(path)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("count, layers", [(8, 4), (5, 3), (1, 1)])
def test_a_video_costs_half_the_visual_tokens_of_its_frames(models, tmp_path, family, count, layers):
    """Exactly: a layer of tokens for two frames, the last one alone where their number is odd."""
    record, tokens = write_record(tmp_path, count), {}
    for mode in ("frames", "native"):
        dataset = data.training_dataset([record], video_input=mode)
        assert ("videos" if mode == "native" else "images") in dataset[0]
        grpo, _ = build(trainer.CriticGRPOTrainer, models(family), tmp_path, dataset=dataset, prompts_per_step=1,
                        per_device_train_batch_size=4, max_completion_length=2)  # fmt: skip
        ids = grpo._generate_and_score_completions([dataset[0]] * 4)["prompt_ids"][0]
        pads = [grpo.model.config.image_token_id, grpo.model.config.video_token_id]
        tokens[mode] = [int((ids == pad).sum()) for pad in pads]
    (images, no_video), (no_images, video) = tokens["frames"], tokens["native"]
    assert no_video == no_images == 0 and images == count * (images // count) > 0
    assert video == layers * images // count


SECONDS = [
    ("a listed clip without times counts as 2 frames a second", {"count": 4}, 1.0, [0.2, 1.2]),
    ("times of its own, at 1 frame a second", {"count": 4, "times": [0, 1, 2, 3]}, 2.0, [0.5, 2.5]),
    ("at 3 frames a second, not from 0 on", {"count": 4, "times": [2, 7 / 3, 8 / 3, 3]}, 2 / 3, [2.2, 2.8]),
    ("uneven: the mean interval counts", {"count": 4, "times": [0, 0.1, 0.4, 6]}, 4.0, [0.1, 3.2]),
    ("an odd number: the last frame is its own pair", {"count": 3, "times": [0, 1, 2]}, 2.0, [0.5, 2.0]),
    ("a single frame", {"count": 1}, 1.0, [0.0]),
    ("every 5th frame of a video of 10 a second", {"rate": 10, "n": 16, "asked": 4}, 1.0, [0.2, 1.2]),
    ("every frame of a video of 25 a second", {"rate": 25, "n": 4, "asked": 8}, 0.08, [0.0, 0.1]),
    ("a span of a video", {"rate": 10, "n": 30, "asked": 3, "span": [10, 20]}, 1.0, [1.2, 2.0]),
]


@pytest.mark.parametrize("why, clip, second_per_grid, times", SECONDS, ids=[case[0] for case in SECONDS])
def test_the_seconds_between_layers_are_those_of_the_frames(models, tmp_path, why, clip, second_per_grid, times):
    """2 / rate for Qwen2.5-VL, and in Qwen3-VL's text the mean time of each layer's two frames."""
    if "count" in clip:
        record = write_record(tmp_path, clip["count"], times=clip.get("times"))
    else:
        record = ASKED | {"id": "r", "video": film(tmp_path / "c.mp4", clip["rate"], clip["n"]), "span": clip.get("span")}
    row = data.training_dataset([record], max_frames=clip.get("asked", 8), video_input="native")[0]
    made = {}
    for family in FAMILIES:
        processor = AutoProcessor.from_pretrained(models(family))
        prompts, settings = video_inputs.inputs_of(processor, [row["prompt"]], [row["videos"]])
        made[family] = processor.apply_chat_template(prompts, tokenize=True, return_dict=True, processor_kwargs=settings)
    assert video_inputs.by_prompt(made["qwen2_5_vl"], [row["videos"]])["second_per_grid_ts"][0].tolist() == pytest.approx(
        [second_per_grid]
    )
    text = processor.decode(made["qwen3_vl"]["input_ids"][0])
    assert [float(part.split(" seconds>")[0][-3:]) for part in text.split("<") if " seconds>" in part] == times


BAD = [
    ({"times": [0, 1]}, "'times' must be rising seconds, one for each"),
    ({"times": [0, 2, 1]}, "'times' must be rising"),
    ({"times": [0, "1", 2]}, "'times' must be rising"),
    ({"times": [0, 1, float("nan")]}, "'times' must be rising"),
    ({"times": 2.0}, "'times' must be rising"),
]


@pytest.mark.parametrize("change, message", BAD)
def test_times_that_are_none(tmp_path, change, message):
    record = write_record(tmp_path, 3, **change)
    (tmp_path / "records.jsonl").write_text(json.dumps(record))
    with pytest.raises(data.RecordError, match=f"records.jsonl:1: field {message}"):
        data.load_records(tmp_path / "records.jsonl")


@pytest.mark.parametrize(
    "clips, message",
    [
        ([clip(COLOURS[0], [0, 1]), clip(COLOURS[0], [0, 1])], "1 video places and 2 videos"),
        ([clip(COLOURS[0], [0, 1]) | {"seconds": [0.0]}], "give each frame its time"),
        ([{"frames": [], "seconds": []}], "0 frames"),
        ([{"frames": [Image.new("RGB", (n, 64)) for n in (64, 96)], "seconds": [0.0, 1.0]}], "sizes.*--video_input frames"),
    ],
)
def test_clips_that_are_none(models, clips, message):
    asked = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "Which?"}]}]
    with pytest.raises(ValueError, match=message):
        video_inputs.inputs_of(AutoProcessor.from_pretrained(models("qwen2_5_vl")), [asked], [clips])


def test_max_pixels_holds_for_the_frames_of_a_video(models):
    processor = AutoProcessor.from_pretrained(models("qwen2_5_vl"))
    processor.image_processor.size = {"shortest_edge": 784, "longest_edge": 56 * 56}
    large = [clip(COLOURS[0], HALVES, (112, 112))]
    prompts, settings = video_inputs.inputs_of(processor, [[{"role": "user", "content": "Which?"}]], [large])
    made = processor.apply_chat_template(prompts, tokenize=True, return_dict=True, processor_kwargs=settings)
    assert made["video_grid_thw"].tolist() == [[2, 4, 4]]  # 56 x 56 pixels, 14 a patch


# ---------------------------------------------------------------------------------------------------------------- positions


def test_text_goes_on_after_the_last_position_of_a_video(models):
    """The example in transformers' own docstring: 3 layers of 2 x 2 at 0, 50 and 100, then text from 101 on. Images stay."""
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(models("qwen2_5_vl"))
    model.config.vision_config.tokens_per_second = 25
    image, video = [0, 1, 1, 1, 1, 0, 0], [2] * 12 + [0] * 5
    grids = {1: torch.tensor([[1, 4, 4]]), 2: torch.tensor([[3, 4, 4]])}
    ids = torch.zeros(1, 7, dtype=torch.long)
    before = model.base_model.get_rope_index(ids, torch.tensor([image]), image_grid_thw=grids[1])
    video_inputs.text_after_videos(model)
    after = model.base_model.get_rope_index(ids, torch.tensor([image]), image_grid_thw=grids[1])
    assert torch.equal(before[0], after[0]) and torch.equal(before[1], after[1])
    kinds = torch.tensor([[0] * 3 + video])  # three tokens of padding
    mask = torch.tensor([[0] * 3 + [1] * 17])
    settings = {"video_grid_thw": grids[2], "second_per_grid_ts": torch.tensor([2.0]), "attention_mask": mask}
    places, shift = model.base_model.get_rope_index(torch.zeros_like(kinds), kinds, **settings)
    assert places[0, 0, 3:].tolist() == [0] * 4 + [50] * 4 + [100] * 4 + [101, 102, 103, 104, 105]
    assert places[1, 0, 3:].tolist() == [0, 0, 1, 1] * 3 + [101, 102, 103, 104, 105]
    assert places[2, 0, 3:].tolist() == [0, 1] * 6 + [101, 102, 103, 104, 105]
    assert shift.tolist() == [[106 - 17]]


LONG = [("Now?", [clip(COLOURS[0], [0, 20, 40, 60])]), ("Now?", [clip(COLOURS[1], [0, 20, 40, 60])])]


@pytest.mark.parametrize("shared", ["on", "off"])
def test_a_long_clip_and_a_short_text_are_sampled_where_they_are_scored(models, tmp_path, shared):
    """Layers up to position 160, text of a few tokens: with transformers' own counting both would disagree."""
    dataset = make_dataset(LONG)
    changes = {"generation_kwargs": {"do_sample": False}, "prompts_per_step": 2, "per_device_train_batch_size": 8}
    grpo, _ = build(trainer.CriticGRPOTrainer, models("qwen2_5_vl"), tmp_path, dataset=dataset, shared_prefix=shared, **changes)
    output = grpo._generate_and_score_completions([dataset[i // 4] for i in range(8)])
    assert bool(grpo.sharing) == (shared == "on")  # it found no difference
    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
    mask = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
    fields = {name: output[name] for name in (*batches.VIDEO_FIELDS, "mm_token_type_ids")}
    with torch.no_grad():
        logits = grpo.model(input_ids=ids, attention_mask=mask, **batches.flat(fields)).logits  # (B, L, V)
    logits[..., grpo.generation_config.suppress_tokens] = -torch.inf
    length = output["completion_ids"].shape[1]
    best, sampled = logits[:, -length - 1 : -1].argmax(dim=-1), output["completion_ids"]
    assert torch.equal(best[output["completion_mask"].bool()], sampled[output["completion_mask"].bool()])


# ---------------------------------------------------------------------------------------------------------- through the trainer


def own_completion(base):
    """Each completion of a generation batch another one, which names its row: (40 + row, ...); what was scored last is kept."""

    class Numbered(base):
        def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
            return [[40 + i, *range(60, 62 + i % 5), self._tokenizer.eos_token_id] for i in range(len(prompt_ids))], None

        def _get_per_token_logps_and_entropies(self, *args, **kwargs):
            self.scored = super()._get_per_token_logps_and_entropies(*args, **kwargs)
            return self.scored

    return Numbered


@pytest.mark.parametrize("shared", ["on", "off"])
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_keep_their_clips_and_score_as_a_direct_call(models, tmp_path, family, shared):
    """Shuffled, cut into micro-batches and put together again; log-probabilities are those of one row after the other."""
    dataset = make_dataset()
    kind = own_completion(trainer.CriticGRPOTrainer)
    changes = {"prompts_per_step": 6, "per_device_train_batch_size": 8, "shared_prefix": shared, "num_iterations": 2}
    grpo, _ = build(kind, models(family), tmp_path, dataset=dataset, **changes)
    grpo.model.train()
    grpo.current_gradient_accumulation_steps = grpo.args.gradient_accumulation_steps
    grpo._prepare_inputs([dataset[i // 4] for i in range(24)])
    seen = []
    for batch in grpo._buffered_inputs:
        grpo._compute_loss(grpo.model, batch)
        batch["policy"] = grpo.scored[0].detach()
        for i, completion in enumerate(batch["completion_ids"]):
            row = int(completion[0]) - 40
            seen.append(row)
            text, clips = ROWS[row // 4]
            inputs = directly(grpo.processing_class, text, [double(one) for one in clips])
            for name in batches.VIDEO_FIELDS if clips else ():
                if name in inputs:
                    torch.testing.assert_close(batch[name][i], torch.as_tensor(inputs[name]), msg=f"row {row}, {name}")
            tokens = completion[batch["completion_mask"][i].bool()][None]
            prompt = inputs["input_ids"].shape[1]
            inputs["input_ids"] = torch.cat([inputs["input_ids"], tokens], dim=1)
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
            inputs["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(tokens)], dim=1)
            with torch.no_grad():
                logits = grpo.model(**inputs).logits[:, prompt - 1 : -1]  # (1, C, V)
            want = logits.log_softmax(dim=-1).gather(2, tokens[..., None])[0, :, 0]
            for kept in ("policy", "old_per_token_logps", "ref_per_token_logps"):
                got = batch[kept][i][: tokens.shape[1]]
                torch.testing.assert_close(got, want, atol=2e-5, rtol=0, msg=f"row {row}, {kept}: {got} {want}")
    assert sorted(seen) == list(range(24))


def double(one):
    """A single frame twice, as two frames make a layer."""
    return one if len(one["frames"]) > 1 else {name: values * 2 for name, values in one.items()}


COMBINATIONS = [
    ("qwen2_5_vl", {"per_device_train_batch_size": 4}),
    ("qwen3_vl", {"per_device_train_batch_size": 4}),
    ("qwen2_5_vl", {"num_iterations": 2, "max_steps": 2}),
    ("qwen2_5_vl", {"loss_type": "bnpo", "per_device_train_batch_size": 2}),
    ("qwen2_5_vl", {"peft": NEW, "max_steps": 1}),
]


@pytest.mark.parametrize("family, changes", COMBINATIONS)
def test_shared_and_ordinary_pass_agree(models, tmp_path, family, changes):
    """Policy, old and reference pass; samples too, in the first combination of each family."""
    samples = "max_steps" not in changes and "loss_type" not in changes
    kind = trainer.CriticGRPOTrainer if samples else replayed(trainer.CriticGRPOTrainer)
    settings = {"dataset": make_dataset(), "prompts_per_step": 6, "per_device_train_batch_size": 24} | changes
    ours = run(kind, models(family), tmp_path, **settings)
    ordinary = run(kind, models(family), tmp_path, shared_prefix="off", **settings)
    agree(ours, ordinary)
    texts = [str(found[2]._logs["completion"]) for found in (ours, ordinary)]
    assert texts[0] == texts[1]
    assert set(ours[2].sharing.compared) == {"scoring", "training"} | ({"generation"} if samples else set())


@pytest.mark.parametrize("shared, rows_at_once", [("on", None), ("on", 8), ("off", None), ("off", 6)])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_samples_are_those_of_the_model_itself(models, tmp_path, family, shared, rows_at_once):
    dataset = make_dataset()
    changes = {"generation_kwargs": {"do_sample": False}, "shared_prefix": shared, "generation_rows": rows_at_once}
    grpo, _ = build(trainer.CriticGRPOTrainer, models(family), tmp_path, dataset=dataset, prompts_per_step=6,
                    per_device_train_batch_size=24, **changes)  # fmt: skip
    output, found = grpo._generate_and_score_completions([dataset[i // 4] for i in range(24)]), []
    for i, (text, clips) in enumerate(ROWS):
        inputs = directly(grpo.processing_class, text, [double(one) for one in clips])
        never = grpo.generation_config.suppress_tokens
        want = greedy(grpo.model, grpo.processing_class, inputs, suppress_tokens=never)
        for row in range(4 * i, 4 * i + 4):
            assert output["completion_ids"][row][output["completion_mask"][row].bool()].tolist() == want, ROWS[i][0]
        found.append(want)
    assert found[0] != found[1]  # the text is the same: the clip decided
    assert bool(grpo.sharing) == (shared == "on")


def dull(completion_ids, row, **kwargs):
    """No reward differs for the first four prompts."""
    return [float(sum(ids) % 7) if number > 3 else 1.0 for ids, number in zip(completion_ids, row)]


def test_further_draws_bring_their_own_clips(models, tmp_path):
    dataset = make_dataset()
    grpo, _ = build(
        replayed(trainer.CriticGRPOTrainer), models("qwen2_5_vl"), tmp_path, reward=dull, dataset=dataset, dynamic_sampling=6
    )
    grpo.model.train()
    output = grpo._generate_and_score_completions([dataset[i // 4] for i in range(16)])
    assert output["advantages"].view(4, 4).any(dim=1).all()
    video = grpo.model.config.video_token_id
    for ids, grids in zip(output["prompt_ids"], output["video_grid_thw"]):
        assert int((ids == video).sum()) == int(grids.prod(-1).sum()) // 4


def test_images_and_videos_in_one_batch(models, tmp_path):
    """A row with both, and rows with one of them: the image goes TRL's way, the clip ours, to the same forward pass."""
    picture = Image.new("RGB", (56, 56), (90, 200, 60))
    places = [["video", "image"], ["image"], ["video"], []]

    def fill(batch):
        content = [
            [{"type": kind} for kind in places[i]] + [{"type": "text", "text": f"Which is it, {i}?"}] for i in batch["row"]
        ]
        return {
            "prompt": [[{"role": "user", "content": blocks}] for blocks in content],
            "images": [[picture] * ("image" in places[i]) for i in batch["row"]],
            "videos": [[clip(COLOURS[1], HALVES)] * ("video" in places[i]) for i in batch["row"]],
        }

    dataset = datasets.Dataset.from_dict({"row": list(range(4))}).with_transform(fill)
    ours = run(trainer.CriticGRPOTrainer, models("qwen2_5_vl"), tmp_path, dataset=dataset, per_device_train_batch_size=4)
    off = run(
        trainer.CriticGRPOTrainer,
        models("qwen2_5_vl"),
        tmp_path,
        dataset=dataset,
        per_device_train_batch_size=4,
        shared_prefix="off",
    )
    agree(ours, off)


# -------------------------------------------------------------------------------------------------------------- evaluation


def greedy(model, processor, inputs, **more):
    """The model's own greedy completion of one prompt, tokens after the prompt."""
    ends = {"eos_token_id": processor.tokenizer.eos_token_id, "pad_token_id": processor.tokenizer.pad_token_id}
    settings = GenerationConfig(max_new_tokens=8, do_sample=False, **ends, **more)
    return model.generate(**inputs, generation_config=settings)[0, inputs["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_an_evaluated_model_sees_the_clips_that_it_was_trained_on(models, family):
    model, processor = load_model(models(family))
    video_inputs.text_after_videos(model)
    asked = [
        [{"role": "user", "content": [{"type": "video"}] * len(clips) + [{"type": "text", "text": text}]}] for text, clips in ROWS
    ]
    made = complete(model, processor, asked, [clips for _, clips in ROWS], max_new_tokens=8)
    for (text, clips), completion in zip(ROWS, made):
        inputs = directly(processor, text, [double(one) for one in clips])
        want = processor.decode(greedy(model, processor, inputs), skip_special_tokens=True)
        assert completion.text == want and completion.prompt_tokens == inputs["input_ids"].shape[1], text
    with pytest.raises(ValueError, match="1 image places and 2"):
        complete(model, processor, asked[:1], [ROWS[4][1]], max_new_tokens=8)


def test_evaluate_with_native_video(models, tmp_path):
    records = [write_record(tmp_path, 4) | {"id": name} for name in "ab"]
    (tmp_path / "records.jsonl").write_text("\n".join(map(json.dumps, records)))
    common = {"model": models("qwen2_5_vl"), "mode": "question", "dataset": str(tmp_path / "records.jsonl"), "max_new_tokens": 4}
    spent = {}
    for mode in ("frames", "native"):
        config = evaluate.EvaluateConfig(out=str(tmp_path / f"{mode}.json"), video_input=mode, **common)
        result = evaluate.evaluate(config)
        assert result["finished"] and result["config"].get("video_input", "frames") == mode
        spent[mode] = result["prompt_tokens"] // 2
    assert spent["frames"] - spent["native"] == (4 - 2) * 4 + (4 - 1) * 2  # tokens of two frames, and of three starts and ends
    config = evaluate.EvaluateConfig(out=str(tmp_path / "s.json"), video_input="native", base_url="http://localhost:1", **common)
    with pytest.raises(SystemExit, match="use --video_input frames"):
        evaluate.evaluate(config)


# ------------------------------------------------------------------------------------------------------- refused, and as typed


@pytest.mark.parametrize("family, message", [("qwen3", "Tokenizer.*makes no video"), ("llava", "LlavaProcessor makes no video")])
def test_a_model_without_video_is_refused_at_the_start(models, tmp_path, family, message):
    with pytest.raises(ValueError, match=f"reads no video: .*{message}.*--video_input frames"):
        build(trainer.CriticGRPOTrainer, models(family), tmp_path, dataset=make_dataset())


def test_a_template_without_a_place_for_a_video_is_refused(models):
    processor = AutoProcessor.from_pretrained(models("qwen2_5_vl"))
    processor.chat_template = processor.chat_template.replace("<|video_pad|>", "")
    with pytest.raises(ValueError, match="its chat template has no place for a video.*--video_input frames"):
        video_inputs.check(processor)


def test_the_first_row_may_be_without_a_clip(models, tmp_path):
    dataset = make_dataset(ROWS[::-1])
    grpo, _ = build(trainer.CriticGRPOTrainer, models("qwen2_5_vl"), tmp_path, dataset=dataset)
    assert not grpo.reads_videos
    output = grpo._generate_and_score_completions([dataset[i // 4] for i in range(16)])
    assert grpo.reads_videos and [len(grid) for grid in output["video_grid_thw"]] == [0] * 4 + [2] * 4 + [1] * 8
    assert grpo.model.config.video_token_id in grpo.generation_config.suppress_tokens


def test_stage_2_with_native_video_as_typed(tmp_path):
    pairs = physworld.dataset.pairs_file("pairs", n=6, root=tmp_path / "data")
    words = "--max_steps 2 --video_input native --prompts_per_step 2 --num_generations 2 --per_device_train_batch_size 4"
    words += f" --max_completion_length 8 --model_name_or_path physworld/tiny_vlm --dataset {pairs} --output_dir {tmp_path}/out"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "train_stage2.py"), *words.split()], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "shared_prefix on" in done.stdout and "off from here on" not in done.stdout
    assert (tmp_path / "out" / "model.safetensors").is_file() and "video_input: native" in (
        tmp_path / "out" / "config.yaml"
    ).read_text()
