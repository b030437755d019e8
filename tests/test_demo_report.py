"""analysis/demo_report.py on a demo's folder that is written here: no model, no training."""

import gzip
import json

import pytest
from PIL import Image

import evaluate
import stats as coupling
from analysis import demo_report
from evaluate import EvaluateConfig
from judging import judges
from judging.models import Completion

GOOD = "<pred_think> r </pred_think> <pred> red </pred> <think> t </think> \\boxed{{Response {}}}"


def answer_as(model):
    """A stand-in for `complete`: stage 2 sees which response is right, but for one question; others say Response 1."""

    def complete(_, processor, asked, *rest):
        texts = []
        for prompt in asked:
            shown = prompt[-1]["content"][-1]["text"]
            sees = model == "stage2" and "Which of 3" not in shown
            right = 1 if "<response_1>\nIt is red" in shown else 2
            texts.append(GOOD.format(right if sees else 1 if model != "stage2" else 3 - right))
        return [Completion(text, 30, 20) for text in texts]

    return complete


@pytest.fixture
def demo(tmp_path, monkeypatch):
    """A finished demo's folder: 12 evaluations of 10 records, two logs, step times. Every other pair prefers 2."""
    Image.new("RGB", (56, 56), (9, 9, 200)).save(tmp_path / "f.png")
    record = {"suite": "causal", "options": None, "answer": "red", "frames": ["f.png"]}
    texts = ["It is red. ~~~ \\boxed{red}", "\\boxed{blue}"]
    for i in range(10):
        pair = {"response_1": texts[i % 2], "response_2": texts[1 - i % 2], "preference": 1 + i % 2, "source_1": "a", "source_2": "b"}
        with (tmp_path / "pairs.jsonl").open("a") as lines:
            lines.write(json.dumps({"id": f"test-{i}", **record, **pair, "question": f"Which of {i} falls?"}) + "\n")
    monkeypatch.setattr(judges, "load_model", lambda path: (None, None))
    for model in ("base", "stage1", "stage2"):
        monkeypatch.setattr(judges, "complete", answer_as(model))
        for mode in ("question", "judge"):
            for split in ("test", "ood"):
                out = tmp_path / "eval" / f"{model}_{mode}_{split}.json"
                evaluate.evaluate(EvaluateConfig(model, mode, str(out), dataset=str(tmp_path / "pairs.jsonl")))
    for stage, curves in demo_report.CURVES.items():
        state = {"log_history": [{"step": s, **dict.fromkeys(curves, s / 40)} for s in range(1, 40)] + [{"step": 40}]}
        for step in (5, 40):  # the newest counts, and 40 is newer than 5
            (tmp_path / stage / f"checkpoint-{step}").mkdir(parents=True)
            (tmp_path / stage / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps(state if step == 40 else {}))
    (tmp_path / "steps.tsv").write_text("clips\t60\nstage1\t90\n")
    return tmp_path


def test_report_holds_tables_curves_and_examples(demo):
    demo_report.report(demo)
    text = (demo / "report.md").read_text()
    assert "**2.5 minutes** (clips 1.0, stage1 1.5)" in text
    assert text.count("| after stage 2 |") == 2 and "taught" not in text
    assert "10 questions; 20 judgements of 10 questions' pairs." in text
    assert all(f"### {title}: test-" in text for title in ("Right", "Failed", "Base and stage 2 differ"))
    assert "~~~~~~\nIt is red. ~~~ \\boxed{red}\n~~~~~~" in text, "a fence in a response must not end the block"
    assert (demo / "learning_curves.png").stat().st_size > 5000
    frames = sorted((demo / "frames").iterdir())
    assert len(frames) == 3 and all(Image.open(f).size == (224, 224) and f"frames/{f.name}" in text for f in frames)


def test_an_example_that_does_not_exist_is_said_so(demo):
    lines = (demo / "eval" / "base_judge_test.jsonl").read_text()
    (demo / "eval" / "stage2_judge_test.jsonl").write_text(lines)
    demo_report.report(demo)
    assert "### Base and stage 2 differ\n\nNone among the 10 pairs." in (demo / "report.md").read_text()


@pytest.mark.parametrize(
    "name",
    ["eval/stage1_question_ood.json", "eval/base_judge_test.jsonl", "steps.tsv", "stage2/checkpoint-40", "pairs.jsonl"],
)
def test_a_missing_file_is_an_error_that_names_it(demo, name):
    (demo / name).rename(demo / "gone")
    if name.startswith("stage2"):
        (demo / "stage2" / "checkpoint-5").rename(demo / "gone-too")
    with pytest.raises(FileNotFoundError, match=name.split("/")[0]):
        demo_report.report(demo)


def test_an_unfinished_evaluation_is_an_error(demo):
    path = demo / "eval" / "base_judge_ood.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"finished": False}))
    with pytest.raises(ValueError, match="did not finish"):
        demo_report.report(demo)


def test_a_log_of_another_script_is_an_error(demo):
    for state in demo.glob("stage1/*/trainer_state.json"):
        state.write_text(json.dumps({"log_history": [{"step": 1, "loss": 0.5}]}))
    with pytest.raises(ValueError, match="logged no rewards/accuracy_reward/mean"):
        demo_report.report(demo)


def test_a_record_holds_its_demos_and_what_it_claims(demo, tmp_path, monkeypatch):
    monkeypatch.setattr(coupling, "RESAMPLES", 50)
    demo_report.main([str(demo)])
    for stage in demo_report.CURVES:
        (demo / stage / "config.yaml").write_text("seed: 0\n")
    out = tmp_path / "record"
    demo_report.main(["--record", str(out), str(demo)])
    summary = json.loads((out / "summary.json").read_text())
    claims = summary["headline"]
    assert claims["demo_minutes"]["value"] == 2.5 and claims["stage2_judge_accuracy_base"]["value"] == 50
    assert claims["stage2_judge_accuracy"]["value"] == 90 and claims["stage2_judge_accuracy"]["n"] == 20
    assert f"--record {out} {demo}" in claims["stage2_judge_accuracy"]["command"]
    assert summary["seeds"][demo.name]["stage2_judge_ood"]["accuracy"]["value"] == 0.9
    page = (out / "README.md").read_text()
    assert "| stage2_judge_accuracy | 90.00 [" in page and "| taught, not spoiled | - | - | - | - | - | 0 |" in page
    rows = gzip.decompress((out / demo.name / "stage2_judge_test.jsonl.gz").read_bytes())
    assert rows == (demo / "eval" / "stage2_judge_test.jsonl").read_bytes()
    assert len((out / demo.name / "stage1_log.jsonl").read_text().splitlines()) == 40
