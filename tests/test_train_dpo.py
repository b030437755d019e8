"""train_dpo.py and train_dpo.py: pairs made and refused, what DPOTrainer is given, guards, resuming, commands as typed."""

import inspect
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor
from trl import DPOTrainer

import data
import ppt
import prompts
import train_dpo
from judging import candidates
from judging.models import load_model
from tests import tiny_critic
from tests.test_best_of_n import Stub, chance, write_candidates

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_critic.make_model(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def processor(base):
    return AutoProcessor.from_pretrained(base, padding_side="left")


def rows_of(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def arguments(folder, *more):
    """What parse makes of the embedded YAML and these flags, everything below `folder`."""
    typed = ["--output_dir", str(folder), "--report_to", "none", "--use_cpu", "true", "--disable_tqdm", "true"]
    return train_dpo.parse([*typed, *map(str, more)])


def pair(chosen, rejected, preference=1, frames=()):
    texts = (chosen, rejected) if preference == 1 else (rejected, chosen)
    return {"id": "x", "question": "Which colour?", "options": None, "frames": list(frames), "preference": preference} | {
        f"response_{n}": text for n, text in enumerate(texts, 1)
    }


# ----------------------------------------------------------------------------------------------------------- the choice

CELLS = st.integers(2, 6).flatmap(
    lambda n: st.lists(st.lists(st.none() | st.floats(0, 1), min_size=n, max_size=n), min_size=n, max_size=n)
)


@given(CELLS)
def test_total_preference_is_what_ppt_counts(cells):
    """Two implementations: a round over all ordered pairs kept by ppt's own table."""
    n = len(cells)
    table = ppt._Table(n, lambda a, b: cells[a][b])
    table.play([(a, b) for a in range(n) for b in range(n) if a != b])
    scores, counts = train_dpo.total_preference(cells)
    assert counts == table.counts and scores == pytest.approx(table.rates(), abs=1e-9)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8), st.floats(-0.5, 0.5))
def test_a_favoured_place_changes_neither_best_nor_worst(strengths, bias):
    """p = 1/2 + (s_a - s_b) / 4 + bias: whatever the judge gives to the first place, each response gets and pays it as often."""
    n = len(strengths)
    cells = [[0.5 + (strengths[a] - strengths[b]) / 4 + bias / 2 if a != b else None for b in range(n)] for a in range(n)]
    ends = train_dpo.best_and_worst(*train_dpo.total_preference(cells))
    if max(strengths) - min(strengths) > 1e-6:
        assert strengths[ends[0]] >= max(strengths) - 1e-6 and strengths[ends[1]] <= min(strengths) + 1e-6
    if max(strengths) == min(strengths):
        assert ends is None


@pytest.mark.parametrize(
    "scores, counts, want, reason",
    [
        ([0.2, 0.8], [2, 2], (1, 0), "plain"),
        ([0.8, 0.8, 0.2, 0.2], [3] * 4, (0, 2), "ties go to the lower index at both ends"),
        ([0.5, 0.5, 0.5], [4] * 3, None, "nobody is ahead"),
        ([0.5, 0.5 + 1e-12], [2, 2], None, "rounding is no lead"),
        ([0.0, 0.6, 0.4], [0, 2, 2], (1, 2), "one that was never compared is not the worst"),
        ([0.0, 0.0], [0, 0], None, "the judge abstained throughout"),
        ([0.0, 1.0, 0.0], [0, 1, 0], None, "one alone is not compared with anyone"),
    ],
)
def test_best_and_worst(scores, counts, want, reason):
    assert train_dpo.best_and_worst(scores, counts) == want, reason


def candidate(text, correct=False):
    return {"text": text, "correct": correct, "source": "test"}


@pytest.mark.parametrize(
    "texts, choice, want",
    [
        (["a", "b"], (0, 1, 0.3), None),
        (["a", "a"], "undecided", "one text"),
        (["a", "a\n"], (0, 1, 0.3), "one text"),  # the template may strip it
        (["a", "b"], "undecided", "undecided"),
        (["a", "b", "a"], (0, 2, 0.1), "identical"),  # twice the same text with two scores, in a tournament
        (["a", "a ", "b"], (0, 1, 0.1), "identical"),
        (["a", ""], (0, 1, 0.3), "empty response"),
        (["a", "b"], "all wrong", "all wrong"),
    ],
)
def test_refusals(texts, choice, want):
    assert train_dpo.refusal({"candidates": [candidate(text) for text in texts]}, choice) == want


@given(st.lists(st.booleans(), min_size=2, max_size=8), st.integers(0, 3))
def test_the_verifiers_pair_is_right_over_wrong(correct, seed):
    record = {"id": "q1", "candidates": [candidate(str(i), right) for i, right in enumerate(correct)]}
    got = train_dpo.right_and_wrong(record, seed)
    if len(set(correct)) == 1:
        assert got == ("all right" if correct[0] else "all wrong")
    else:
        assert correct[got[0]] and not correct[got[1]] and got == train_dpo.right_and_wrong(record, seed)


def test_the_verifiers_draw_follows_seed_and_id():
    correct = [True, False] * 4
    records = [{"id": f"q{i}", "candidates": [candidate("", right) for right in correct]} for i in range(20)]
    drawn = [[train_dpo.right_and_wrong(record, seed) for record in records] for seed in (0, 1)]
    assert drawn[0] != drawn[1] and len(set(drawn[0])) > 5


# -------------------------------------------------------------------------------------------------------- making pairs


@pytest.fixture
def judge(monkeypatch):
    stub = Stub()
    monkeypatch.setattr(train_dpo, "critic_judge", lambda config, known: stub)
    return stub


def expected(record, by):
    """(best, worst) texts by the plain way: every ordered pair of candidates, or ppt's tournament."""
    texts, n = [c["text"] for c in record["candidates"]], len(record["candidates"])
    p = {(a, b): 0.5 if texts[a] == texts[b] else chance(record, texts.index(texts[a]), texts.index(texts[b]))
         for a in range(n) for b in range(n) if a != b}  # fmt: skip
    if by == "critic":
        totals = [sum(p[i, j] + 1 - p[j, i] for j in range(n) if j != i) for i in range(n)]
    else:
        totals = ppt.pivot_tournament(n, lambda a, b: p[a, b], seed=f"0 {record['id']}").scores
    totals = [round(total, 9) for total in totals]
    return texts[totals.index(max(totals))], texts[totals.index(min(totals))]


@pytest.mark.parametrize("by", ["critic", "pivot"])
def test_pairs_of_a_critic_are_those_of_the_plain_way(tmp_path, judge, by):
    write_candidates(tmp_path / "c.jsonl", questions=12, texts=5)
    flags = ["--pairs_by", by, "--candidates", tmp_path / "c.jsonl", "--critic", "stub"]
    made = train_dpo.make_pairs(*arguments(tmp_path, *flags))
    rows = {row["id"]: row for row in data.load_records(tmp_path / "pairs.jsonl", pair=True)}
    assert len(judge.asked) == len(set(judge.asked)) and made["questions"] == 12
    assert made["pairs"] == len(rows) == 12 - sum(made["refused"].values()) > 6
    for record in candidates.load_candidates(tmp_path / "c.jsonl", 8):
        best, worst = expected(record, by)
        row = rows.get(record["id"])
        assert (row is None and best == worst) or train_dpo.chosen_and_rejected(row) == (best, worst)
        assert row is None or row["margin"] > 0 and set(row["right"]) == {"chosen", "rejected"}
    places = {row["preference"] for row in rows.values()}
    assert places == {1, 2}, "the preferred one stands in both places"
    summary = json.loads((tmp_path / "pairs.json").read_text())
    assert summary["refused"] == made["refused"] and summary["config"]["pairs_by"] == by


def test_the_verifiers_pairs_need_no_judge_and_count_what_they_refuse(tmp_path, capsys):
    write_candidates(tmp_path / "c.jsonl", questions=30, n=3)
    flags = ["--pairs_by", "verifier", "--responses", 3, "--candidates", tmp_path / "c.jsonl"]
    made = train_dpo.make_pairs(*arguments(tmp_path, *flags))
    assert set(made["kinds"]) == {"right over wrong"} and made["pairs"] + sum(made["refused"].values()) == 30
    assert {"all wrong"} <= set(made["refused"]) <= {"one text", "all right", "all wrong"}
    assert f"30 questions, {made['pairs']} pairs" in capsys.readouterr().out


def test_frames_are_found_from_where_the_pairs_lie(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    Image.new("RGB", (30, 30), "red").save(tmp_path / "f.png")
    record = {"id": "q", "suite": "s", "question": "Which?", "options": None, "frames": ["f.png"], "answer": "red"}
    record["candidates"] = [{"text": f"\\boxed{{{text}}}"} for text in ("red", "blue")]  # one's own: no source, no label
    (tmp_path / "c.jsonl").write_text(json.dumps(record) + "\n")
    flags = ["--pairs_by", "verifier", "--responses", 2, "--candidates", tmp_path / "c.jsonl"]
    flags += ["--pairs", tmp_path / "deep/er/p.jsonl"]
    assert train_dpo.make_pairs(*arguments(tmp_path, *flags))["pairs"] == 1
    [row] = data.load_records(tmp_path / "deep/er/p.jsonl", pair=True)
    assert train_dpo.chosen_and_rejected(row) == ("\\boxed{red}", "\\boxed{blue}") and len(data.open_frames(row)) == 1


@pytest.mark.parametrize("last", [1, 3])
def test_kill_9_loses_and_doubles_no_judgement(tmp_path, monkeypatch, last):
    (tmp_path / "whole").mkdir()
    for folder in (tmp_path, tmp_path / "whole"):
        write_candidates(folder / "c.jsonl")

    def make(folder):
        flags = ["--candidates", folder / "c.jsonl", "--critic", "stub", "--judge_batch_size", 4]
        return train_dpo.make_pairs(*arguments(folder, *flags))

    child = os.fork()
    if child == 0:
        stub = Stub(last, lambda: os.kill(os.getpid(), signal.SIGKILL))
        train_dpo.critic_judge = lambda config, known: stub
        make(tmp_path)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL and not (tmp_path / "pairs.jsonl").exists()
    with (tmp_path / "pairs.calls.jsonl").open("a") as lines:
        lines.write('{"id": "q1", "ord')  # the line that the kill cut
    stub = Stub()
    monkeypatch.setattr(train_dpo, "critic_judge", lambda config, known: stub)
    assert make(tmp_path) == make(tmp_path / "whole")
    assert (tmp_path / "pairs.jsonl").read_bytes() == (tmp_path / "whole/pairs.jsonl").read_bytes()
    keys = [(row["id"], row["order"]) for row in rows_of(tmp_path / "pairs.calls.jsonl")]
    assert len(keys) == len(set(keys)) == len(rows_of(tmp_path / "whole/pairs.calls.jsonl"))


# ------------------------------------------------------------------------------------------------- what the trainer reads


@pytest.mark.parametrize(
    "chosen, rejected, room, want",
    [
        ("It is red.", "It is blue.", None, None),
        ("It is red.", "It is red.", None, "identical"),
        ("It is red. So it is.", "It is red. So it was.", 3, "identical after truncation"),
        ("It is red. So it is.", "It is red. So it was.", 60, None),
        ("blue", "red", 1, None),  # they differ in their first token already
    ],
)
def test_pairs_that_are_one_for_the_trainer(processor, tmp_path, chosen, rejected, room, want):
    Image.new("RGB", (56, 56), "red").save(tmp_path / "f.png")
    record = pair(chosen, rejected, preference=2, frames=[str(tmp_path / "f.png")])
    most = None
    if room:
        asked = prompts.question_prompt(record["question"], None, 1)
        text = processor.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
        prompt = processor(text=[text], images=[data.open_frames(record)])["input_ids"][0]
        assert prompt.count(processor.tokenizer.convert_tokens_to_ids("<|image_pad|>")) == 4, "the image tokens count"
        most = len(prompt) + room
        with pytest.raises(ValueError, match=f"pair x: its prompt alone has {len(prompt)} tokens, max_length 9"):
            train_dpo.same_for_the_trainer(record, processor, 9)
    assert train_dpo.same_for_the_trainer(record, processor, most) == want


@pytest.mark.parametrize("max_length", [None, 90])
def test_the_refusal_cuts_as_trls_collator_does(processor, tmp_path, max_length):
    """Two implementations: the tokens that the collator marks as response are equal just where a pair is refused."""
    Image.new("RGB", (56, 56), "red").save(tmp_path / "f.png")
    for more in range(0, 30, 3):
        record = pair("It is red. " * more + "a", "It is red. " * more + "b", frames=[str(tmp_path / "f.png")])
        rows = train_dpo.preference_dataset([record])
        batch = train_dpo.EndedCollator(processor, max_length=max_length)([rows[0]])
        ids = [row[mask.bool()].tolist() for row, mask in zip(batch["input_ids"], batch["completion_mask"])]
        assert (ids[0] == ids[1]) == (train_dpo.same_for_the_trainer(record, processor, max_length) is not None)
    assert (ids[0] == ids[1]) == (max_length is not None), "the last one is cut before its end"


def test_dpo_trains_on_the_prompt_that_candidates_answer(base, processor, tmp_path):
    """Prompt, image tokens included, and response are what candidates.sample_candidates and evaluate.py give the model."""
    record = data.load_records(tiny_critic.make_records(tmp_path / "q.jsonl", 1))[0]
    images = data.open_frames(record)
    asked = prompts.question_prompt(record["question"], None, len(images))
    [text] = processor.apply_chat_template([asked], add_generation_prompt=True, tokenize=False)
    sampled = processor(text=[text], images=[images], return_tensors="pt")["input_ids"][0].tolist()
    rows = train_dpo.preference_dataset([pair("It is red.", "It is blue.", 2) | record])
    batch = train_dpo.EndedCollator(processor, max_length=None)([rows[0]])
    for ids, mask, said in zip(batch["input_ids"], batch["completion_mask"], ("It is red.", "It is blue.")):
        start = int(mask.argmax())
        assert ids[:start].tolist() == sampled
        assert processor.decode(ids[mask.bool()]) == f"{said}<|im_end|>", "no newline, which the template puts behind"


def test_pairs_with_and_without_frames_share_a_batch(processor, tmp_path):
    Image.new("RGB", (56, 56), "red").save(tmp_path / "f.png")
    rows = train_dpo.preference_dataset([pair("a", "b"), pair("a", "b", frames=[str(tmp_path / "f.png")])])
    batch = train_dpo.EndedCollator(processor)([rows[0], rows[1]])
    assert batch["input_ids"].shape[0] == 4 and batch["image_grid_thw"].shape[0] == 2


# -------------------------------------------------------------------------------------------------------------- training


def write_pairs(path, count=4):
    return tiny_critic.make_records(path, count, pair=True)


def margin(model, processor, records):
    """Mean of log p(chosen) - log p(rejected), computed the plain way, one text at a time."""
    total = 0.0
    for record in records:
        images, values = data.open_frames(record), []
        for text in train_dpo.chosen_and_rejected(record):
            asked = prompts.question_prompt(record["question"], None, len(images))
            front = processor.apply_chat_template([asked], add_generation_prompt=True, tokenize=False)[0]
            inputs = processor(text=[front + text + "<|im_end|>"], images=[images], return_tensors="pt")
            n = len(processor(text=[front], images=[images])["input_ids"][0])
            with torch.no_grad():
                logs = model(**inputs).logits[0].log_softmax(-1)
            ids = inputs["input_ids"][0]
            values.append(logs[range(n - 1, len(ids) - 1), ids[n:]].sum().item())
        total += (values[0] - values[1]) / len(records)
    return total


@pytest.mark.parametrize("lora, rate", [("true", "1e-2"), ("false", "1e-3")])
def test_training_moves_towards_the_chosen_and_resumes(base, processor, tmp_path, lora, rate):
    """Every batch holds all pairs, so TRL's margin at a step is that of the weights before it, against the start."""
    records = data.load_records(write_pairs(tmp_path / "p.jsonl"), pair=True)
    flags = ["--pairs", tmp_path / "p.jsonl", "--model_name_or_path", base, "--use_peft", lora, "--learning_rate", rate]
    flags += ["--per_device_train_batch_size", 4, "--save_steps", 1, "--logging_steps", 1, "--lora_r", 4]
    train_dpo.train(*arguments(tmp_path / "out", *flags, "--max_steps", 2))
    assert (tmp_path / "out" / ("adapter_config.json" if lora == "true" else "model.safetensors")).is_file()
    before = margin(load_model(base)[0], processor, records)
    middle = margin(load_model(tmp_path / "out")[0], processor, records)
    train_dpo.train(*arguments(tmp_path / "out", *flags, "--max_steps", 6, "--resume_from_checkpoint", "true"))
    after = margin(load_model(tmp_path / "out")[0], processor, records)
    assert before + 0.1 < middle < after - 0.1
    state = json.loads((tmp_path / "out" / "checkpoint-6" / "trainer_state.json").read_text())
    margins = [entry["rewards/margins"] for entry in state["log_history"] if "rewards/margins" in entry]
    assert len(margins) == 6 and margins[0] == pytest.approx(0, abs=1e-4), "at first the policy is the reference"
    assert margins[2] == pytest.approx(0.1 * (middle - before), rel=0.02), "resumed: checkpoint's policy, start's reference"


def test_errors_where_trl_goes_on_in_silence(base, tmp_path, monkeypatch):
    write_pairs(tmp_path / "p.jsonl", 2)
    flags = ["--pairs", tmp_path / "p.jsonl", "--model_name_or_path", base, "--max_steps", 1]
    model = AutoModelForImageTextToText.from_pretrained(base).requires_grad_(False)
    frozen = {"model": model, "processing_class": AutoProcessor.from_pretrained(base), "peft_config": None}
    with monkeypatch.context() as patch:
        patch.setattr(train_dpo.launch, "start_model", lambda *_: frozen)
        with pytest.raises(ValueError, match="none of the model's .* parameters is trainable"):
            train_dpo.train(*arguments(tmp_path / "a", *flags))
    monkeypatch.setattr(train_dpo.PolicyDPOTrainer, "create_optimizer", stuck)
    with pytest.raises(RuntimeError, match="none of .* trainable parameters moved"):
        train_dpo.train(*arguments(tmp_path / "b", *flags))
    same = rows_of(tmp_path / "p.jsonl")[0] | {"response_1": "a", "response_2": "a"}
    (tmp_path / "same.jsonl").write_text(json.dumps(same) + "\n")
    with pytest.raises(ValueError, match="no pair is left to train on"):
        train_dpo.train(*arguments(tmp_path / "c", "--pairs", tmp_path / "same.jsonl", *flags[2:]))
    with pytest.raises(ValueError, match="none.jsonl: no such file; make it with `python train_dpo.py pairs`"):
        train_dpo.train(*arguments(tmp_path / "d", "--pairs", tmp_path / "none.jsonl", *flags[2:]))


def stuck(trainer, model=None):
    """An optimizer that holds none of the model's parameters."""
    trainer.optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=trainer.args.learning_rate)
    return trainer.optimizer


@pytest.mark.parametrize(
    "method, want",
    [("_compute_loss", "self model inputs return_outputs"), ("_load_from_checkpoint", "self resume_from_checkpoint model")],
)
def test_private_methods_have_the_signatures_that_are_overridden(method, want):
    assert list(inspect.signature(getattr(DPOTrainer, method)).parameters) == want.split()


# ------------------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--responses", "1"], "responses must be at least 2"),
        (["--limit", "0"], "limit must be at least 1"),
    ],
)
def test_arguments_that_are_errors(flags, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        arguments(tmp_path, *flags)


@pytest.mark.parametrize("flag, meant", [("--learning_rte", "--learning_rate"), ("--pairs_b", "--pairs_by")])  # no abbreviations
def test_unknown_options(flag, meant, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        arguments(tmp_path, flag, "1")
    assert f"unknown option {flag}; did you mean {meant}?" in capsys.readouterr().err


def test_the_papers_values_stand_in_its_yaml():
    path = ROOT / "experiments/phycritic_7b_dpo.yaml"
    script_args, args, model_args = train_dpo.parse(["--config", str(path)])
    assert (script_args.responses, script_args.temperature) == (8, 0.6)
    assert (script_args.pairs_by, script_args.solve) == ("critic", "first")
    assert (args.learning_rate, args.num_train_epochs, args.max_length, model_args.use_peft) == (1e-6, 5, None, True)
    assert model_args.model_name_or_path == "Qwen/Qwen2.5-VL-7B-Instruct"
    for name in ("beta", "lora_r", "max_new_tokens", "lr_scheduler_type"):
        assert re.search(rf"^{name}: \S+ +# not stated", path.read_text(), re.M), name


# -------------------------------------------------------------------------------------------------------------- as typed


def test_both_commands_as_typed_from_another_folder(base, tmp_path):
    """Sampling, a critic's judgements, pairs, two steps; a policy of random weights, so only the verifier finds no pair."""
    tiny_critic.make_records(tmp_path / "questions.jsonl", 3)
    shared = ["--model_name_or_path", base, "--output_dir", "out", "--responses", "2", "--critic", base, "--report_to", "none"]
    shared += ["--temperature", "1", "--max_new_tokens", "6", "--judgement_tokens", "6", "--solve", "each"]

    def run(command, *more):
        typed = [sys.executable, str(ROOT / "train_dpo.py"), command, *shared, *more]
        return subprocess.run(typed, env=ENVIRONMENT, capture_output=True, text=True, cwd=tmp_path)

    made = run("pairs", "--dataset", "questions.jsonl")
    assert made.returncode == 0, made.stderr[-3000:]
    assert "out/pairs.jsonl: 3 questions, 0 pairs {}, refused {'undecided': 3}" in made.stdout, "no verdict can be read"
    assert "6 judgements asked, 0 found there, 0 missing" in made.stdout
    write_pairs(tmp_path / "pairs.jsonl")
    trained = run("train", "--pairs", "pairs.jsonl", "--max_steps", "2", "--per_device_train_batch_size", "2")
    assert trained.returncode == 0, trained.stderr[-3000:]
    assert "4 pairs, refused {}" in trained.stdout and "rewards/margins" in trained.stdout
    assert json.loads((tmp_path / "out" / "trained_pairs.json").read_text()) == {"pairs": 4, "refused": {}}
    assert yaml.safe_load((tmp_path / "out/config.yaml").read_text())["training"]["max_length"] is None
    weights = safetensors.torch.load_file(tmp_path / "out/adapter_model.safetensors")
    assert any(tensor.any() for name, tensor in weights.items() if "lora_B" in name)
