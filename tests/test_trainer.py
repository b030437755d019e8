"""CriticGRPOTrainer on the CPU: guards, rows that are not admitted, metrics, checkpoints."""

import inspect
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
import trl
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import Qwen2_5_VLForConditionalGeneration, TrainerCallback

import rewards
import trainer
from tests import tiny_critic
from tests.tiny_critic import config, critique
from training import batches, checkpoints, launch
from training.batches import of_prompts, processor_fields


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_critic.make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return tiny_critic.make_dataset(tmp_path_factory.mktemp("pairs"), pairs=8)


def longer_is_better(completions, completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]


def replay(model, args, dataset, reward_funcs, texts=lambda row, k: "It is red. " * (1 + k), **kwargs):
    return tiny_critic.Replay(texts, model, args, reward_funcs=reward_funcs, train_dataset=dataset, **kwargs)


# ---------------------------------------------------------------------------------------------------------- the pinned TRL


PRIVATE = {
    "_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
    "_load_from_checkpoint": ["self", "resume_from_checkpoint", "model"],
    "_load_rng_state": ["self", "checkpoint"],
    "_save_rng_state": ["self", "output_dir"],
    "_tokenize_prompts": ["self", "prompts"],
    "_compute_loss": ["self", "model", "inputs"],
    "_get_train_sampler": ["self", "dataset"],
    "_generate_and_score_completions": ["self", "inputs"],
    "_generate_single_turn": ["self", "prompt_ids", "images", "multimodal_fields", "num_generations", "has_tool_images"],
    "_get_learning_rate": ["self"],
    "get_train_dataloader": ["self"],
}


def test_private_methods_are_those_of_the_pinned_version():
    assert trl.__version__ == "1.16.0"
    for name, parameters in PRIVATE.items():
        assert list(inspect.signature(getattr(trl.GRPOTrainer, name)).parameters) == parameters, name
        own = inspect.signature(getattr(trainer.CriticGRPOTrainer, name)).parameters
        assert list(own) == parameters, name


# ------------------------------------------------------------------------------------------------------------- the batch


@pytest.mark.parametrize(
    "prompts, generations, per_device, processes, steps",
    [(8, 8, 64, 1, 1), (128, 8, 4, 8, 32), (6, 4, 3, 2, 4), (1, 4, 2, 2, 1), (3, 5, 15, 1, 1)],
)
def test_accumulation_steps(prompts, generations, per_device, processes, steps):
    assert launch.accumulation_steps(prompts, generations, per_device, processes) == steps


@pytest.mark.parametrize(
    "batch, message",
    [
        ((7, 8, 16, 1), "= 56 completions.*per_device_train_batch_size of 14"),
        ((2, 2, 64, 1), "= 4 completions.*per_device_train_batch_size of 4"),
        ((3, 5, 1, 2), "= 15 completions.*prompts_per_step \\* 5 a multiple of 2"),
        ((0, 8, 16, 1), "must be at least 1"),
    ],
)
def test_a_batch_that_cannot_be_shared_out(batch, message):
    with pytest.raises(ValueError, match=message):
        launch.accumulation_steps(*batch)


def test_the_config_follows_the_prompts_and_the_machine(tmp_path):
    args = config(tmp_path, prompts_per_step=6, per_device_train_batch_size=3, bf16=True)
    assert (args.gradient_accumulation_steps, args.steps_per_generation, args.generation_batch_size) == (8, 8, 24)
    assert args.bf16 is False and len(args.notes) == 1 and "no accelerator" in args.notes[0]
    assert config(tmp_path, bf16=False).notes == []


# ---------------------------------------------------------------------------------------------------------------- guards


def test_a_data_set_smaller_than_one_generation_batch(model, pairs, tmp_path):
    args = config(tmp_path, prompts_per_step=10, per_device_train_batch_size=40)
    with pytest.raises(ValueError, match="8 rows, fewer than the 10 prompts.*lower prompts_per_step"):
        replay(model, args, pairs, [longer_is_better])


@pytest.mark.parametrize("beta", [0.0, 0.01])
def test_no_trainable_parameter(model, pairs, tmp_path, beta):
    base = Qwen2_5_VLForConditionalGeneration.from_pretrained(model)
    get_peft_model(base, LoraConfig(target_modules=["q_proj"])).save_pretrained(tmp_path / "adapter")
    base = Qwen2_5_VLForConditionalGeneration.from_pretrained(model)
    frozen = PeftModel.from_pretrained(base, tmp_path / "adapter", is_trainable=False)
    processor = launch.AutoProcessor.from_pretrained(model, padding_side="left")
    with pytest.raises(ValueError, match="none of the model's .* parameters is trainable.*is_trainable=True"):
        replay(frozen, config(tmp_path, beta=beta), pairs, [longer_is_better], processing_class=processor)


def test_weights_that_do_not_move(model, pairs, tmp_path):
    grpo = replay(model, config(tmp_path, learning_rate=1e-50), pairs, [longer_is_better])
    with pytest.raises(RuntimeError, match="step 1 had learning rate 1e-50 and advantages, but none of .* moved"):
        grpo.train()


def test_weights_are_not_expected_to_move_at_learning_rate_0_or_without_an_advantage(model, pairs, tmp_path, capsys):
    grpo = replay(model, config(tmp_path, warmup_steps=1, lr_scheduler_type="constant_with_warmup", max_steps=2), pairs, [longer_is_better])
    grpo.train()
    assert [entry["learning_rate"] for entry in grpo.state.log_history if "loss" in entry] == [0.0, 1e-3]
    assert "nothing was learnt" not in capsys.readouterr().out
    grpo = replay(model, config(tmp_path, learning_rate=1e-50), pairs, [lambda completions, **kwargs: [1.0] * len(completions)])
    grpo.train()
    assert "step 1, and no step had a learning rate and an advantage" in capsys.readouterr().out


def test_a_prompt_longer_than_the_window(model, pairs, tmp_path):
    grpo = replay(model, config(tmp_path, max_completion_length=4090), pairs, [longer_is_better])
    with pytest.raises(ValueError, match=r"longest prompt has (\d+) tokens; with max_completion_length 4090 .* window of 4096"):
        grpo.train()


class Weights(TrainerCallback):
    """Keeps the weights as they are before the first step and after each."""

    def __init__(self):
        self.found = []

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.found.append({name: weight.detach().clone() for name, weight in model.named_parameters()})

    on_step_end = on_train_begin


# ------------------------------------------------------------------------------------------------- rewards and advantages


def scored(model, dataset, tmp_path, reward_funcs, texts, rows, **changes):
    """(advantages, metrics) of one generation batch: each row of `rows` four times."""
    args = config(tmp_path, prompts_per_step=len(rows), per_device_train_batch_size=4 * len(rows), **changes)
    grpo = replay(model, args, dataset, reward_funcs, texts)
    grpo.model.train()
    output = grpo._generate_and_score_completions([dataset[row] for row in rows for _ in range(4)])
    return output["advantages"].tolist(), {name: values[-1] for name, values in grpo._metrics["train"].items()}


def test_a_row_that_is_not_admitted_leaves_its_group_alone(model, pairs, tmp_path):
    """Group 1 is judged on three rows, group 2 on none but its own, and group 3 has no row left."""
    gone = trainer.NOT_ADMITTED
    first = [1.0, 0.0, gone, 1.0] + [1.0, 0.0, 0.0, 0.0] + [gone] * 4
    second = [0.0] * 12

    def served(completions, **kwargs):
        return first

    def other(completions, **kwargs):
        return second

    got, metrics = scored(model, pairs, tmp_path, [served, other], lambda row, k: "x", [0, 1, 2])
    std_1, std_2 = (1 / 3) ** 0.5, 0.5  # sample deviations of 1, 0, 1 and of 1, 0, 0, 0
    want = [(1 / 3) / (std_1 + 1e-4), (-2 / 3) / (std_1 + 1e-4), 0.0, (1 / 3) / (std_1 + 1e-4)]
    want += [0.75 / (std_2 + 1e-4)] + [-0.25 / (std_2 + 1e-4)] * 3 + [0.0] * 4
    assert got == pytest.approx(want, abs=1e-6)
    assert metrics["not_admitted"] == pytest.approx(5 / 12)
    assert metrics["rewards/served/mean"] == pytest.approx(3 / 7)
    assert metrics["reward"] == pytest.approx(3 / 7)


def test_a_row_that_is_not_admitted_by_one_part_counts_in_none(model, pairs, tmp_path):
    def served(completions, **kwargs):
        return [1.0, trainer.NOT_ADMITTED, 0.0, None]

    def other(completions, **kwargs):
        return [0.0, 5.0, 1.0, 1.0]

    got, metrics = scored(model, pairs, tmp_path, [served, other], lambda row, k: "x", [0])
    assert got == [0.0, 0.0, 0.0, 0.0]  # 1, 1 and 1 are left; None counts as 0
    assert metrics["rewards/other/mean"] == pytest.approx(2 / 3) and metrics["not_admitted"] == 0.25


CRITIC = [rewards.self_prediction_reward, rewards.judgement_reward, rewards.format_reward]


def test_the_critics_metrics(model, pairs, tmp_path):
    """Pair 1: the answer is blue, Response 1 is right. One text a row; `own` and `judged` are right or wrong."""
    texts = {
        "p1": [critique("blue", 1), critique("blue", 1), critique("red", 2), "nothing to read"],
        "p3": [critique("grey", 2), critique("red", 1), critique("grey", 1), critique("grey", 2)],
    }
    _, metrics = scored(model, pairs, tmp_path, CRITIC, lambda row, k: texts[row][k], [1, 3])
    # own and judgement right: p1 0, 1 and p3 2; own only: p3 0, 3; judgement only: p3 1; neither: p1 2, 3
    assert metrics["phi"] == pytest.approx((3 * 2 - 2 * 1) / (5 * 3 * 4 * 4) ** 0.5)
    assert metrics["verdict_first_share"] == pytest.approx(4 / 7)
    assert metrics["unreadable"] == pytest.approx(1 / 8)
    assert metrics["not_admitted"] == 0.0 and metrics["frac_reward_zero_std"] == 0.0
    assert metrics["rewards/self_prediction_reward/mean"] == pytest.approx(5 / 8)
    assert metrics["rewards/judgement_reward/mean"] == pytest.approx(4 / 8)


def test_metrics_that_are_undefined_are_not_logged(model, pairs, tmp_path):
    _, metrics = scored(model, pairs, tmp_path, CRITIC, lambda row, k: "nothing", [0])
    assert metrics["unreadable"] == 1.0 and metrics["frac_reward_zero_std"] == 1.0
    assert "phi" not in metrics and "verdict_first_share" not in metrics


STAGE_2 = [0.2 * own + 0.7 * judged + 0.1 * form for own in (0, 1) for judged in (0, 1) for form in (0, 0.5, 1)]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(STAGE_2) | st.floats(-10, 10, width=32), st.integers(2, 16), st.integers(0, 3), st.booleans())
def test_equal_rewards_are_no_advantage_and_different_ones_are(value, size, absent, apart):
    """Of every value, with rows to which nothing applies; one reward that differs by 1e-3 of it, or by 1e-6 at least, counts."""
    rows = torch.full((size, 1), value)
    rows[: min(absent, size - 2)] = torch.nan
    other = rows.clone()
    other[-1] += max(abs(value) * 1e-3, 1e-6)
    got = batches.has_advantage(torch.cat([rows, other]), torch.ones(1), size, apart)
    assert got.tolist() == [False] * size + [True] * size


def test_equal_rewards_are_no_advantage_whatever_their_parts_add_up_to():
    """All 12 values of stage 2 in groups of 8, summed as TRL does; three parts that differ with one sum; one admitted row."""
    weights, kinds = torch.tensor([0.2, 0.7, 0.1]), [(own, judged, form) for own in (0, 1) for judged in (0, 1) for form in (0, 0.5, 1)]
    parts = torch.tensor(kinds, dtype=torch.float32).repeat_interleave(8, dim=0)  # (96, 3)
    assert not batches.has_advantage(parts, weights, 8).any() and not batches.has_advantage(parts, weights, 8, apart=True).any()
    one_sum = torch.tensor([[0.7, 0.2, 0.0], [0.0, 0.2, 0.7], [0.2, 0.0, 0.7], [0.7, 0.0, 0.2]])
    assert not batches.has_advantage(one_sum, torch.ones(3), 4).any() and batches.has_advantage(one_sum, torch.ones(3), 4, True).all()
    assert not batches.has_advantage(torch.tensor([[1.0], [torch.nan]]), torch.ones(1), 2).any()


@pytest.mark.parametrize("value", [0.1, 0.3, 0.7, 0.8, 0.9])
def test_a_batch_of_equal_rewards_takes_no_step_and_no_draw(model, pairs, tmp_path, capsys, value):
    """With skip_zero_variance no weight moves, though AdamW's momentum (of step 1, which has advantages) and decay would."""

    def equal_from_step_2(completions, trainer_state, **kwargs):
        return [value + 0.1 * (i % 3) * (trainer_state.global_step == 0) for i in range(len(completions))]

    changes = {"num_generations": 8, "skip_zero_variance": True, "dynamic_sampling": 1, "max_steps": 3, "weight_decay": 0.1}
    grpo = replay(model, config(tmp_path, per_device_train_batch_size=16, **changes), pairs, [equal_from_step_2])
    kept = Weights()
    grpo.add_callback(kept)
    grpo.train()
    first, second, third = [entry for entry in grpo.state.log_history if "loss" in entry]
    assert (first["steps_left_out"], first["frac_reward_zero_std"], first["dynamic_sampling/accepted"]) == (0.0, 0.0, 1.0)
    for entry in (second, third):
        assert (entry["steps_left_out"], entry["frac_reward_zero_std"], entry["dynamic_sampling/accepted"]) == (1.0, 1.0, 0.0)
        assert entry["grad_norm"] == 0.0
    start, *steps = kept.found
    assert any(not torch.equal(start[name], weight) for name, weight in steps[0].items())
    assert all(torch.equal(steps[0][name], steps[2][name]) for name in start)


def test_what_rounding_leaves_of_equal_rewards_is_not_taken_for_learning(model, pairs, tmp_path, capsys):
    """As TRL trains, without skip_zero_variance: the log counts the groups, and says that nothing was learnt."""
    args = config(tmp_path, num_generations=8, per_device_train_batch_size=16, max_steps=2)
    grpo = replay(model, args, pairs, [lambda completions, **kwargs: [0.7] * len(completions)])
    grpo.train()
    assert [entry["frac_reward_zero_std"] for entry in grpo.state.log_history if "loss" in entry] == [1.0, 1.0]
    assert "no step had a learning rate and an advantage: nothing was learnt" in capsys.readouterr().out


def test_a_nan_is_an_error_that_names_the_function_and_the_row(model, pairs, tmp_path):
    def served(completions, **kwargs):
        return [None, 1.0, float("nan"), 0.0]

    with pytest.raises(ValueError, match="reward function served returned NaN for row 'p3' .1 of 4.: return a number, or None"):
        scored(model, pairs, tmp_path, [served], lambda row, k: "x", [3])


def test_the_adapter_of_a_quantized_base_stays_float32(model, pairs, tmp_path):
    """TRL makes it bfloat16; a base in bfloat16 that says it is quantized stands in for one."""
    base = Qwen2_5_VLForConditionalGeneration.from_pretrained(model, dtype=torch.bfloat16)
    base.is_loaded_in_4bit = True
    processor = launch.AutoProcessor.from_pretrained(model, padding_side="left")
    adapter = LoraConfig(target_modules=["q_proj"])
    grpo = replay(base, config(tmp_path), pairs, [longer_is_better], processing_class=processor, peft_config=adapter)
    kinds = {weight.requires_grad: set() for weight in grpo.model.parameters()}
    for weight in grpo.model.parameters():
        kinds[weight.requires_grad].add(weight.dtype)
    assert kinds == {True: {torch.float32}, False: {torch.bfloat16}}


@pytest.mark.parametrize("settings, fine", [({"zero3_save_16bit_model": True}, True), ({}, False)])
def test_zero_3_that_would_save_no_weights_is_refused(tmp_path, settings, fine):
    gathers = {"stage3_gather_16bit_weights_on_model_save": settings.get("zero3_save_16bit_model", False)}
    args = config(tmp_path)
    args.deepspeed_plugin = SimpleNamespace(zero_stage=3, deepspeed_config={"zero_optimization": {"stage": 3} | gathers})
    if fine:
        return launch.check_settings(args)
    with pytest.raises(ValueError, match="eight_gpus_zero3.yaml, or add --zero3_save_16bit_model true"):
        launch.check_settings(args)
    args.deepspeed_plugin.zero_stage = 2
    launch.check_settings(args)


@pytest.mark.parametrize("cut", [{"top_p": 0.99}, {"top_k": 50}, {"min_p": 0.1}, {"generation_kwargs": {"top_p": 0.9}}, {}])
def test_sampling_that_vllms_correction_punishes_is_refused(tmp_path, cut):
    args = config(tmp_path, **cut)
    launch.check_settings(args)  # transformers samples
    args.use_vllm = True
    if cut:
        with pytest.raises(ValueError, match="--vllm_importance_sampling_correction false, or --top_p 1 --top_k 0"):
            launch.check_settings(args)
        args.vllm_importance_sampling_correction = False
    launch.check_settings(args)


def test_questions_and_pairs_in_one_batch(model, tmp_path):
    """Each part applies to its own rows; a group's baseline never mixes the two kinds."""
    mixed = tiny_critic.make_dataset(tmp_path, questions=2, pairs=2)
    assert [mixed[i]["id"] for i in range(4)] == ["q0", "q1", "p0", "p1"]
    texts = {
        "q0": ["It is \\boxed{red}", "\\boxed{blue}", "\\boxed{blue}", ""],
        "p1": [critique("blue", 1), critique("blue", 2), critique("red", 2), critique("red", 1, form=False)],
    }
    plain = {"reward_weights": [0.2, 0.7, 0.1, 1.0], "scale_rewards": "none"}
    funcs = [*CRITIC, rewards.accuracy_reward]
    got, metrics = scored(model, mixed, tmp_path, funcs, lambda row, k: texts[row][k], [0, 3], **plain)
    assert got[:4] == pytest.approx([0.75, -0.25, -0.25, -0.25])
    totals = torch.tensor([1.0, 0.3, 0.1, 0.7 + 0.05])
    assert got[4:] == pytest.approx((totals - totals.mean()).tolist(), abs=1e-6)
    assert metrics["rewards/accuracy_reward/mean"] == 0.25 and metrics["rewards/judgement_reward/mean"] == 0.5
    assert metrics["unreadable"] == pytest.approx(1 / 8) and metrics["verdict_first_share"] == 0.5


def test_rows_are_read_once_and_training_is_that_of_trl(model, tmp_path, monkeypatch):
    """The data loader reads no repeat of a generation batch, and the rows trained on are the ones TRL would take."""
    reads, taken = [], []
    dataset = tiny_critic.make_dataset(tmp_path, pairs=8)
    whole = type(dataset).__getitems__
    monkeypatch.setattr(type(dataset), "__getitems__", lambda self, keys: reads.append(len(keys)) or whole(self, keys))
    for once in (True, False):
        if not once:
            monkeypatch.setattr(trainer.CriticGRPOTrainer, "_get_train_sampler", trl.GRPOTrainer._get_train_sampler)
        grpo = replay(model, config(tmp_path, per_device_train_batch_size=2, max_steps=3), dataset, [longer_is_better])
        grpo.train()
        taken.append(([[row for row, _ in batch] for batch in grpo.outputs], [e["loss"] for e in grpo.state.log_history if "loss" in e]))
        assert reads == [2] * (3 + 1 if once else 3 * 4 + 1)  # accelerate reads one batch ahead
        reads.clear()
    assert taken[0] == taken[1] and len(taken[0][0]) == 3 and taken[0][1][0] != 0


# ----------------------------------------------------------------------------------------------------------- checkpoints


def make_checkpoint(folder, step):
    folder = folder / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    safetensors.torch.save_file({"a": torch.zeros(100)}, folder / "model.safetensors")
    torch.save({"a": torch.zeros(100)}, folder / "optimizer.pt")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return folder


def cut(path):
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "trainer_state.json"])
@pytest.mark.parametrize("harm", [cut, Path.unlink])
def test_an_incomplete_checkpoint_is_skipped(tmp_path, name, harm, capsys):
    whole, harmed = make_checkpoint(tmp_path, 2), make_checkpoint(tmp_path, 10)
    args = config(tmp_path, resume_from_checkpoint="true")
    assert checkpoints.resume_point(args) == str(harmed)
    harm(harmed / name)
    assert checkpoints.missing_from_checkpoint(harmed)
    assert checkpoints.resume_point(args) == str(whole)
    assert f"{harmed} is skipped" in capsys.readouterr().out
    with pytest.raises(ValueError, match="cannot be resumed from"):
        checkpoints.resume_point(config(tmp_path, resume_from_checkpoint=str(harmed)))


def test_shards_of_a_checkpoint_are_looked_for(tmp_path):
    folder = make_checkpoint(tmp_path, 2)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}))
    assert "model-2.safetensors" in checkpoints.missing_from_checkpoint(folder)


def test_a_fresh_run_sets_earlier_checkpoints_aside(tmp_path, capsys):
    make_checkpoint(tmp_path, 150)
    assert checkpoints.resume_point(config(tmp_path)) is None
    assert [path.name for path in tmp_path.iterdir()] == ["earlier-checkpoint-150"]
    assert checkpoints.resume_point(config(tmp_path, resume_from_checkpoint="true")) is None
    assert "training starts from the beginning" in capsys.readouterr().out


def test_completions_sampled_in_slices_are_those_of_one_batch(model, tmp_path):
    """Greedily, with one image, two and none in turn, so that each slice must find its own frames."""
    processor, found = launch.AutoProcessor.from_pretrained(model, padding_side="left"), []
    dataset = tiny_critic.make_dataset(tmp_path, questions=4)
    for rows in (None, 3, 1):
        args = config(tmp_path, generation_rows=rows, generation_kwargs={"do_sample": False})
        grpo = trainer.CriticGRPOTrainer(model, [longer_is_better], args, dataset, processing_class=processor)
        prompts = []
        for i in range(8):
            images = dataset[i % 4]["images"] * (1, 2, 0)[i % 3]
            text = {"type": "text", "text": f"block {i}"}
            prompts.append([{"role": "user", "content": [*({"type": "image", "image": image} for image in images), text]}])
        prompt_ids, images, fields = grpo._tokenize_prompts(prompts)
        found.append(grpo._generate_single_turn(prompt_ids, images, fields, 4)[0])
    assert found[0] == found[1] == found[2]
    for i, prompt in enumerate(prompts):  # a slice of one holds what the processor makes of that prompt alone
        _, _, alone = grpo._tokenize_prompts([prompt])
        own = of_prompts(processor_fields(fields, images), [i])
        assert own.keys() == alone.keys() and own["mm_token_type_ids"] == alone["mm_token_type_ids"]
        for name in own.keys() - {"mm_token_type_ids"}:
            torch.testing.assert_close(torch.as_tensor(own[name]), torch.as_tensor(alone[name]), rtol=0, atol=0)


def ids_as_reward(completions, completion_ids, **kwargs):
    return [float(sum(ids) % 7) for ids in completion_ids]


@pytest.mark.parametrize("adapter, stop", [(None, 3), (None, 6), (LoraConfig(target_modules="all-linear"), 6)])
def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(model, tmp_path, adapter, stop):
    """Weights, optimizer, rows and samples, across the end of an epoch (8 pairs, 2 a step)."""
    dataset = tiny_critic.make_dataset(tmp_path, pairs=8)
    processor = launch.AutoProcessor.from_pretrained(model, padding_side="left")
    histories, weights = [], []
    for checkpoint in (None, str(tmp_path / f"checkpoint-{stop}")):
        args = config(tmp_path, max_steps=10, save_strategy="steps", save_steps=3, beta=0.01, per_device_train_batch_size=4)
        rest = {"train_dataset": dataset, "processing_class": processor, "peft_config": adapter}
        grpo = trainer.CriticGRPOTrainer(model, [ids_as_reward], args, **rest)
        grpo.train(resume_from_checkpoint=checkpoint)
        history = [entry for entry in grpo.state.log_history if "loss" in entry]
        histories.append([(entry["step"], entry["loss"], entry["reward"], entry["kl"]) for entry in history])
        weights.append({name: weight for name, weight in grpo.model.named_parameters() if weight.requires_grad})
    assert len({loss for _, loss, _, _ in histories[0]}) > 5
    assert histories[1] == histories[0]
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, rtol=0, atol=0, msg=name)
