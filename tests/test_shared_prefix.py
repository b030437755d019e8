"""Shared prompts against stock TRL in float32: loss within 1e-5, gradients within 1e-4 relative, for each combination."""

import inspect
import re
from types import SimpleNamespace

import pytest
import torch
import trl.trainer.utils
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    AutoProcessor,
    AutoTokenizer,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3_5TextConfig,
    Qwen3Config,
    TrainerCallback,
)
from trl import GRPOTrainer

import trainer
from tests import tiny_models
from tests.tiny_critic import config
from training import shared_prefix
from training.batches import by_row, join, regroup, take
from training.shared_prefix import Sharing


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Path of a family's model, made once."""
    made = {}

    def path(family):
        if family not in made:
            made[family] = tiny_models.make(family, tmp_path_factory.mktemp(family))
        return made[family]

    return path


class Gradients(TrainerCallback):
    """Keeps the gradients of each optimizer step as they are just before it."""

    def __init__(self):
        self.steps = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.steps.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})


def recorded(prompt_ids, k):
    """The k-th completion of a prompt: tokens and length follow from both; some end, some are cut off."""
    chance = torch.Generator().manual_seed(len(prompt_ids) * 100 + k)
    return torch.randint(40, 250, (3 + (len(prompt_ids) + 3 * k) % 6,), generator=chance).tolist()


def replayed(base, choose=recorded):
    """A trainer class with recorded completions in place of sampling."""

    class Replayed(base):
        def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
            first = self.accelerator.process_index * len(prompt_ids)
            chosen = [choose(ids, (first + i) % num_generations) for i, ids in enumerate(prompt_ids)]
            return [ids + [self._tokenizer.eos_token_id] * (sum(ids) % 3 > 0) for ids in chosen], None

    return Replayed


def spread_rewards(completion_ids, **kwargs):
    return [float(sum(ids) % 7) for ids in completion_ids]


def build(base, path, directory, reward=spread_rewards, dataset=None, peft=None, model=None, **changes):
    text_only = "qwen3" in str(path).split("/")[-1] and "vl" not in str(path).split("/")[-1]
    processor = AutoTokenizer.from_pretrained(path) if text_only else AutoProcessor.from_pretrained(path)
    values = {"prompts_per_step": 4, "per_device_train_batch_size": 16, "beta": 0.01, "max_grad_norm": 0.0, "shared_prefix": "on"}
    gradients = Gradients()
    grpo = base(
        model or path,
        [reward],
        config(directory, **(values | changes)),
        dataset or tiny_models.make_dataset(6, images=not text_only),
        processing_class=processor,
        callbacks=[gradients],
        peft_config=peft,
    )
    return grpo, gradients


def run(base, *args, **kwargs):
    """(losses, gradients of each step, the trainer) of a short training run."""
    grpo, gradients = build(base, *args, **kwargs)
    grpo.train()
    return [entry["loss"] for entry in grpo.state.log_history if "loss" in entry], gradients.steps, grpo


def relative(got, want):
    """Largest relative difference of a parameter's gradient, measured against the largest gradient of all."""
    scale = max(gradient.norm() for gradient in want.values())
    return max(float((got[name] - gradient).norm() / scale) for name, gradient in want.items())


def agree(ours, stock, shared=True):
    """Both runs have the same losses and gradients, and there were some."""
    losses, steps, grpo = ours
    assert len(steps) == len(stock[1]) > 0 and steps[0].keys() == stock[1][0].keys()
    assert losses == pytest.approx(stock[0], abs=1e-5)
    assert max(float(g.abs().max()) for g in stock[1][0].values()) > 1e-4
    for got, want in zip(steps, stock[1]):
        assert relative(got, want) < 1e-4
    assert bool(grpo.sharing) == shared and (not shared or "training" in grpo.sharing.compared)


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_every_family_samples_and_trains_as_with_stock_trl(models, tmp_path, family):
    """Sampling, policy and reference pass; prompts of different lengths, one picture and two, two that differ in it only."""
    stock = run(GRPOTrainer, models(family), tmp_path)
    ours = run(trainer.CriticGRPOTrainer, models(family), tmp_path)
    texts = [list(grpo._logs["completion"]) for grpo in (ours[2], stock[2])]
    assert texts[0] == texts[1] and len({str(text) for text in texts[0]}) > 8
    agree(ours, stock)
    assert set(ours[2].sharing.compared) == {"generation", "scoring", "training"}


def dull_for(words):
    """The rewards of prompts with these words in them are all 0."""

    def reward(completion_ids, prompts, **kwargs):
        return [float(sum(ids) % 7) * (words not in str(prompt)) for ids, prompt in zip(completion_ids, prompts)]

    return reward


NEW = LoraConfig(target_modules="all-linear", lora_dropout=0.0)
COMBINATIONS = {
    "a prompt's completions scattered over micro-batches": {"per_device_train_batch_size": 4},
    "micro-batches that cut through groups": {"per_device_train_batch_size": 2, "loss_type": "grpo"},
    "old log-probabilities, two passes over a batch": {"num_iterations": 2, "max_steps": 2},
    "two optimizer steps a generation batch": {
        "prompts_per_step": None,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "steps_per_generation": 4,
        "max_steps": 2,
    },
    "a loss that counts the tokens of a micro-batch": {"loss_type": "bnpo", "per_device_train_batch_size": 4},
    "completions without a token to score": {"mask_truncated_completions": True, "per_device_train_batch_size": 4},
    "a new adapter, the reference is the model without it": {"peft": NEW},
    "groups without an advantage left out, loss over tokens": {
        "reward": dull_for("block 0"),
        "beta": 0.0,
        "skip_zero_variance": True,
    },
    "the same, loss over rows, every completion runs its prompt": {
        "reward": dull_for("block 2"),
        "beta": 0.0,
        "skip_zero_variance": True,
        "loss_type": "grpo",
        "per_device_train_batch_size": 4,
        "shared_prefix": "off",
    },
}


@pytest.mark.parametrize("name", COMBINATIONS)
def test_combinations(models, tmp_path, name):
    changes = dict(COMBINATIONS[name])
    ours = run(replayed(trainer.CriticGRPOTrainer), models("qwen2_5_vl"), tmp_path, **changes)
    stock = run(replayed(GRPOTrainer), models("qwen2_5_vl"), tmp_path, **changes)
    agree(ours, stock, shared=changes.get("shared_prefix") != "off")
    if changes.get("skip_zero_variance"):
        assert 0 < ours[2].state.log_history[0]["frac_reward_zero_std"] < 1


def test_a_continued_adapter_has_its_start_as_reference(models, tmp_path):
    base = Qwen2_5_VLForConditionalGeneration.from_pretrained(models("qwen2_5_vl"))
    start = get_peft_model(base, LoraConfig(target_modules=["q_proj", "up_proj"], init_lora_weights=False))
    start.save_pretrained(tmp_path / "adapter")
    runs = []
    for kind in (trainer.CriticGRPOTrainer, GRPOTrainer):
        base = Qwen2_5_VLForConditionalGeneration.from_pretrained(models("qwen2_5_vl"))
        model = PeftModel.from_pretrained(base, tmp_path / "adapter", is_trainable=True)
        runs.append(run(replayed(kind), models("qwen2_5_vl"), tmp_path, model=model, num_iterations=2, max_steps=2))
    agree(*runs)
    assert runs[0][2].state.log_history[1]["kl"] == pytest.approx(runs[1][2].state.log_history[1]["kl"], rel=1e-3)
    assert runs[0][2].state.log_history[1]["kl"] > 0


def test_bf16_autocast_differs_from_stock_no_more_than_bf16_from_float32(models, tmp_path, monkeypatch):
    exact = run(replayed(GRPOTrainer), models("qwen2_5_vl"), tmp_path)[1][0]
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    stock = run(replayed(GRPOTrainer), models("qwen2_5_vl"), tmp_path)[1][0]
    _, (ours,), grpo = run(replayed(trainer.CriticGRPOTrainer), models("qwen2_5_vl"), tmp_path)
    assert grpo.accelerator.mixed_precision == "bf16" and bool(grpo.sharing) and "training" in grpo.sharing.compared
    assert relative(stock, exact) > 1e-4  # bf16 was on
    assert relative(ours, stock) < 2 * relative(stock, exact)


def test_gradient_checkpointing_leaves_the_training_pass_to_trl(models, tmp_path, capsys):
    changes = {"gradient_checkpointing": True}
    ours = run(replayed(trainer.CriticGRPOTrainer), models("qwen2_5_vl"), tmp_path, **changes)
    assert "the training pass is TRL's own" in capsys.readouterr().out
    stock = run(replayed(GRPOTrainer), models("qwen2_5_vl"), tmp_path, **changes)
    assert relative(ours[1][0], stock[1][0]) < 1e-4 and set(ours[2].sharing.compared) == {"scoring"}


# ------------------------------------------------------------------------------------------------- off, refused, given up


REFUSED = [
    ({"model": "qwen3_5"}, "keep no keys and values to share"),
    ({"dropout": 0.1}, "dropout would be drawn once a prompt.*disable_dropout"),
    ({"virtual": True}, "virtual tokens"),
    ({"aux_loss_enabled": True}, "auxiliary loss"),
    ({"tools": [print]}, "tools"),
    ({"compile": True}, "torch_compile"),
]


@pytest.mark.parametrize("change, message", REFUSED)
def test_what_prompts_are_not_shared_with(change, message):
    text = Qwen3Config(num_hidden_layers=2, hidden_size=8, num_attention_heads=2)
    if change.get("model"):
        text = Qwen3_5TextConfig(num_hidden_layers=4, hidden_size=8, num_attention_heads=2)
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(change.get("dropout", 0.0)))
    module.config, module.peft_config = text, {"default": SimpleNamespace(is_prompt_learning=change.get("virtual", False))}
    grpo = SimpleNamespace(model=module, tools=change.get("tools"), aux_loss_enabled=change.get("aux_loss_enabled", False))
    grpo.args = SimpleNamespace(torch_compile=change.get("compile", False))
    assert re.search(message, shared_prefix.refusal(grpo))
    grpo.model, grpo.tools, grpo.aux_loss_enabled, grpo.args.torch_compile = torch.nn.Linear(2, 2), None, False, False
    grpo.model.config = Qwen3Config(num_hidden_layers=2, hidden_size=8, num_attention_heads=2)
    assert shared_prefix.refusal(grpo) is None


def test_on_insists_and_auto_says_why_not(models, tmp_path, capsys):
    adapter = LoraConfig(target_modules=["q_proj"], lora_dropout=0.1)
    with pytest.raises(ValueError, match="shared_prefix cannot be on: dropout"):
        build(trainer.CriticGRPOTrainer, models("qwen2_5_vl"), tmp_path, peft=adapter)
    grpo, _ = build(trainer.CriticGRPOTrainer, models("qwen2_5_vl"), tmp_path, peft=adapter, shared_prefix="auto")
    assert not grpo.sharing and "shared_prefix off: dropout" in capsys.readouterr().out


def forgets_the_pictures(cache, shift):
    return cache, torch.zeros_like(shift)


def gives_no_gradients(cache, shift):
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys.detach(), layer.values.detach()
    return cache, shift


def fails(cache, shift):
    raise TypeError("forward() got an unexpected keyword argument 'cache'")


def spoil(monkeypatch, harm):
    """Let harm(cache, shift) have its way with every prompt pass."""
    sound = shared_prefix.prompt_pass

    def prompt_pass(*args):
        cache, shift, output = sound(*args)
        return *harm(cache, shift), output

    monkeypatch.setattr(shared_prefix, "prompt_pass", prompt_pass)


@pytest.mark.parametrize("harm, passes", [(forgets_the_pictures, 1), (gives_no_gradients, 1), (fails, 1)])
def test_a_model_on_which_shared_prompts_differ_is_trained_as_stock(models, tmp_path, capsys, monkeypatch, harm, passes):
    """Wrong positions and lost gradients show in the first scoring pass, though it needs none; both fall back, once."""
    spoil(monkeypatch, harm)
    ours = run(replayed(trainer.CriticGRPOTrainer), models("qwen2_5_vl"), tmp_path, shared_prefix="auto")
    assert capsys.readouterr().out.count("shared_prefix: off from here on") == 1
    assert not ours[2].sharing and len(ours[2].sharing.compared) == passes - 1
    stock = run(replayed(GRPOTrainer), models("qwen2_5_vl"), tmp_path)
    agree(ours, stock, shared=False)


def test_sampling_from_a_wrong_cache_is_noticed(models, tmp_path, capsys, monkeypatch):
    spoil(monkeypatch, forgets_the_pictures)
    grpo, _ = build(trainer.CriticGRPOTrainer, models("qwen2_5_vl"), tmp_path)
    rows_of_prompts = [grpo.train_dataset[i // 4] for i in range(8)]
    grpo._generate_and_score_completions(rows_of_prompts)
    assert "generation would differ" in capsys.readouterr().out and not grpo.sharing


class OneProcess:
    device = "cpu"

    def reduce(self, flag, reduction):
        return flag


def test_lengths_are_compared_once_and_again_when_they_grow():
    sharing, asked = Sharing(OneProcess(), None, torch.float32, True, False), []
    for lengths in [(100, 20), (100, 64), (128, 20), (129, 20), (90, 65), (190, 100), (192, 128), (193, 1)]:
        assert sharing.agrees("training", lengths, lambda: asked.append(lengths) or {"log_prob": 1e-7})
    assert asked == [(100, 20), (129, 20), (90, 65), (193, 1)]
    assert sharing.agrees("scoring", (10, 10), lambda: asked.append("scoring") or {"log_prob": 1e-7})
    assert asked[-1] == "scoring"
    assert not sharing.agrees("training", (900, 1), lambda: {"log_prob": 1e-7, "gradient": 0.01})
    assert not sharing.agrees("training", (9, 1), fails) and not sharing


# --------------------------------------------------------------------------------------------------- images, rows, draws


@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3"])
def test_images_are_processed_once_a_prompt_and_the_batch_is_that_of_trl(models, tmp_path, monkeypatch, family):
    processor, seen = type(AutoProcessor.from_pretrained(models(family)).image_processor), []
    whole, outputs = processor.__call__, []

    def counted(self, images, *args, **kwargs):
        seen.append(sum(len(row) if isinstance(row, list) else 1 for row in images))
        return whole(self, images, *args, **kwargs)

    monkeypatch.setattr(processor, "__call__", counted)
    for base in (trainer.CriticGRPOTrainer, GRPOTrainer):
        grpo, _ = build(replayed(base), models(family), tmp_path, beta=0.0)
        outputs.append(grpo._generate_and_score_completions([grpo.train_dataset[i // 4] for i in range(16)]))
        assert sum(seen) == (6 if base is trainer.CriticGRPOTrainer else 2 * 4 * 6)  # prompts of 1, 1, 2 and 2 pictures
        seen.clear()
    assert outputs[0].keys() == outputs[1].keys()
    for name, value in outputs[1].items():
        assert torch.equal(outputs[0][name], value) if isinstance(value, torch.Tensor) else outputs[0][name] == value, name


def batch_of(sizes, width, length):
    """A batch as TRL buffers it: prompts of so many tokens, each with as many pictures of one value as its number says."""
    rows_B = len(sizes)
    batch = {name: torch.zeros(rows_B, width, dtype=torch.long) for name in ("prompt_ids", "prompt_mask")}
    for i, size in enumerate(sizes):
        batch["prompt_ids"][i, width - size :], batch["prompt_mask"][i, width - size :] = size, 1
    batch["completion_ids"] = torch.arange(rows_B)[:, None].expand(-1, length) + 1
    batch["completion_mask"] = torch.ones(rows_B, length, dtype=torch.long)
    batch["mm_token_type_ids"] = torch.cat([batch["prompt_ids"], batch["completion_mask"] * 0], dim=1)
    batch |= {
        "advantages": torch.arange(rows_B) * 1.0,
        "num_items_in_batch": torch.tensor(7),
        "num_images": [size % 3 for size in sizes],
    }
    grids = [[1, 2, size] for size in sizes for _ in range(size % 3)]
    if grids:
        batch["image_grid_thw"] = torch.tensor(grids)
        batch["pixel_values"] = torch.cat([torch.full((2 * size, 3), float(size)) for _, _, size in grids])
    return batch


def facts(batch):
    """Each row's prompt, completion, advantage, token types and pixels, with padding gone."""
    split, found = by_row(batch), []
    for i in range(len(batch["advantages"])):
        prompt, completion = (batch[f"{n}_ids"][i][batch[f"{n}_mask"][i].bool()].tolist() for n in ("prompt", "completion"))
        pixels = split["pixel_values"][i].tolist() if "pixel_values" in split else []
        types = batch["mm_token_type_ids"][i][torch.cat([batch["prompt_mask"][i], batch["completion_mask"][i]]).bool()].tolist()
        found.append((prompt, completion, batch["advantages"][i].item(), types, pixels, batch["num_images"][i]))
    return found


SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=6)


@settings(max_examples=40, deadline=None)
@given(SIZES, SIZES, st.randoms(use_true_random=False))
def test_rows_keep_their_fields_when_batches_are_joined_and_reordered(first, second, chance):
    batches = [batch_of(first, 5, 2), batch_of(second, 7, 3)]
    order = list(range(len(first) + len(second)))
    chance.shuffle(order)
    whole = facts(batches[0]) + facts(batches[1])
    assert facts(join(batches)) == whole
    assert facts(take(join(batches), order)) == [whole[i] for i in order]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=12, max_size=12), st.sampled_from([1, 2, 3, 6]))
def test_regrouping_moves_rows_within_an_optimizer_step_only(sizes, window):
    micro = [take(batch_of(sizes, 5, 2), range(2 * i, 2 * i + 2)) for i in range(6)]
    done = regroup(micro, window)
    assert len(done) == 6 and all(len(batch["advantages"]) == 2 for batch in done)
    for start in range(0, 6, window):
        before, after = ([row for batch in part[start : start + window] for row in facts(batch)] for part in (micro, done))
        assert sorted(before) == sorted(after)
        prompts = [row[0] for row in after]
        assert len([1 for a, b in zip([None, *prompts], prompts) if a != b]) == len({str(p) for p in prompts})


def dull(completion_ids, id, **kwargs):
    """No reward differs for the prompts q0 to q3."""
    return [float(sum(ids) % 7) if name > "q3" else 1.0 for ids, name in zip(completion_ids, id)]


def test_dynamic_sampling_fills_the_batch_with_informative_groups(models, tmp_path):
    found = []
    for draws in (0, 6, 6):
        grpo, _ = build(replayed(trainer.CriticGRPOTrainer), models("qwen2_5_vl"), tmp_path, reward=dull, dynamic_sampling=draws)
        grpo.model.train()
        found.append((grpo, grpo._generate_and_score_completions([grpo.train_dataset[i // 4] for i in range(16)])))
    (_, plain), (grpo, output), (_, again) = found
    assert not plain["advantages"].any() and output["advantages"].view(4, 4).any(dim=1).all()
    assert all(torch.equal(output[name], again[name]) for name in ("prompt_ids", "completion_ids", "advantages", "pixel_values"))
    assert (
        output["num_items_in_batch"] == output["completion_mask"].sum()
        and output["ref_per_token_logps"].shape == output["completion_ids"].shape
    )
    for group in range(4):  # rows, completions and advantages still belong together
        here = slice(4 * group, 4 * group + 4)
        texts = [ids[mask.bool()].tolist() for ids, mask in zip(output["completion_ids"][here], output["completion_mask"][here])]
        scores = torch.tensor([float(sum(ids) % 7) for ids in texts])
        want = (scores - scores.mean()) / (scores.std() + 1e-4)
        torch.testing.assert_close(output["advantages"][here], want)
    metrics = {name.split("/")[1]: values[-1] for name, values in grpo._metrics["train"].items() if name.startswith("dynamic")}
    assert metrics["informative"] == 1.0 and 1 <= metrics["extra_draws"] <= 6 and 0 < metrics["accepted"] < 1


def test_dynamic_sampling_stops_at_its_bound(models, tmp_path):
    grpo, _ = build(
        replayed(trainer.CriticGRPOTrainer),
        models("qwen2_5_vl"),
        tmp_path,
        reward=lambda completions, **kwargs: [0.0] * len(completions),
        dynamic_sampling=2,
    )
    grpo.train()
    entry = grpo.state.log_history[0]
    assert (
        entry["dynamic_sampling/extra_draws"] == 2
        and entry["dynamic_sampling/accepted"] == 0 == entry["dynamic_sampling/informative"]
    )


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"skip_zero_variance": True, "loss_type": "bnpo"}, "another loss_type than bnpo"),
        ({"dynamic_sampling": 1, "scale_rewards": "batch"}, "scale_rewards group or none"),
        ({"dynamic_sampling": -1}, "0 or more"),
    ],
)
def test_settings_that_would_change_more_than_they_say(models, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        build(trainer.CriticGRPOTrainer, models("qwen2_5_vl"), tmp_path, **changes)


# ---------------------------------------------------------------------------------------------------------- the pinned TRL


IMAGES = ["pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles", "image_sizes"]
PRIVATE = {
    "_get_per_token_logps_and_entropies": [
        "self",
        "model",
        "input_ids",
        "attention_mask",
        "logits_to_keep",
        "batch_size",
        "compute_entropy",
        "compute_aux_loss",
        *IMAGES,
        "token_type_ids",
        "mm_token_type_ids",
        "image_position_ids",
    ],
    "_prepare_inputs": ["self", "generation_batch"],
    "_tokenize_prompts": ["self", "prompts"],
}


def test_private_methods_are_those_of_the_pinned_version():
    for name, parameters in PRIVATE.items():
        assert list(inspect.signature(getattr(GRPOTrainer, name)).parameters) == parameters, name
    own = list(inspect.signature(trainer.CriticGRPOTrainer._get_per_token_logps_and_entropies).parameters)
    assert own == [*PRIVATE["_get_per_token_logps_and_entropies"][:8], "fields"]
    helpers = (trl.trainer.utils.split_pixel_values_by_grid, trl.trainer.utils.unsplit_pixel_values_by_grid)
    assert [list(inspect.signature(helper).parameters) for helper in helpers] == [["batch"], ["batch"]]
    assert list(inspect.signature(trl.trainer.utils.add_fused_lm_head).parameters) == [
        "model",
        "temperature",
        "cast_lm_head_to_fp32",
        "outputs",
    ]
