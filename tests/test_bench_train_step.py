"""The benchmark of training steps: its prompts, one point on a tiny model, resuming, and what is made of the rows."""

import json
import subprocess
from types import SimpleNamespace

import pytest
import torch

import analysis
import prompts
from analysis import bench_step
from analysis import bench_train_step as bench
from physworld import tiny


@pytest.fixture
def tiny_benchmark(monkeypatch):
    """The benchmark on a model of some 100,000 parameters."""

    def write_model(folder):
        processor = tiny.build_processor([prompts.CRITIC_TASK], vocab_size=1024)
        tiny.build_model(processor, hidden=64, layers=1, vision_hidden=32, vision_layers=1).save_pretrained(folder)
        processor.save_pretrained(folder)
        return processor

    monkeypatch.setattr(bench_step, "write_model", write_model)


@pytest.mark.parametrize("tokens, frames, visual", [(256, 16, 8), (64, 1, 2)])
def test_prompts_have_exactly_the_tokens_asked_for(tokens, frames, visual):
    processor = tiny.build_processor([prompts.CRITIC_TASK], vocab_size=1024)
    for row in bench_step.make_prompts(processor, tokens, frames, count=2):
        content = [
            *({"type": "image", "image": image} for image in row["images"]),
            {"type": "text", "text": row["prompt"][0]["content"]},
        ]
        message = [{"role": "user", "content": content}]
        [ids] = processor.apply_chat_template(message, tokenize=True, add_generation_prompt=True, return_dict=True)["input_ids"]
        assert len(ids) == tokens and ids.count(processor.image_token_id) == frames * visual
    with pytest.raises(ValueError, match="leave no room in a prompt of 64 tokens"):
        bench_step.make_prompts(processor, 64, 40, count=1)


def test_both_trainers_make_the_same_step(tiny_benchmark):
    row = bench_step.measure((64, 4, 2, 1), "time", 1)
    assert row["difference"]["loss"] < 1e-5 and row["difference"]["gradient"] < 1e-4 and row["difference"]["same_tokens"] == 1.0
    assert row["tokens"]["stock"] > row["tokens"]["ours"] > 64  # sampling, reference and policy
    for who in ("stock", "ours"):
        [seconds] = row["seconds"][who]
        assert set(seconds) == set(bench.PARTS) and sum(seconds[part] for part in bench.PARTS[:-1]) < seconds["step"]


def fake_run(calls):
    """In place of subprocess.run: stock takes 3 times as long and twice the memory; the fourth process fails."""

    def run(command, **kwargs):
        calls.append(command)
        part = command[command.index("--part") + 1]
        seconds = {"stock": [dict.fromkeys(bench.PARTS, 3.0)] * 2, "ours": [dict.fromkeys(bench.PARTS, 1.0)] * 2}
        row = {"seconds": seconds, "tokens": {}, "difference": {"loss": 0.0, "gradient": 2e-7, "same_tokens": 1.0}}
        memory = {"stock": {"peak_mib": 200.0}, "ours": {"peak_mib": 100.0}}
        if len(calls) == 4:
            return SimpleNamespace(returncode=-9, stdout="")
        return SimpleNamespace(returncode=0, stdout="noise\n" + json.dumps(row if part == "time" else memory[part]) + "\n")

    return run


def test_a_grid_is_resumed_and_a_point_that_does_not_fit_is_recorded(tmp_path, monkeypatch):
    calls, points = [], [bench.MAIN, bench.SMALL]
    monkeypatch.setattr(subprocess, "run", fake_run(calls))
    first = bench.run_grid(points[:1], tmp_path, 2)
    both = bench.run_grid(points, tmp_path, 2)
    assert len(calls) == 6 and len((tmp_path / "rows.jsonl").read_text().splitlines()) == 6
    assert all(both[key] == row for key, row in first.items()) and bench.run_grid(points, tmp_path, 2) == both and len(calls) == 6
    main, small = (bench.summarise(point, both) for point in points)
    assert main["step_speedup"] == {"value": 3.0, "low": 3.0, "high": 3.0, "n": 2} and main["memory_ratio"] == 0.5
    assert small["failed"] == {"time": "exit status -9"} and "step_speedup" not in small and small["memory_ratio"] == 0.5
    monkeypatch.setattr(bench, "code", lambda: "another")
    bench.run_grid(points[:1], tmp_path, 2)
    assert len(calls) == 9


def test_what_is_written_and_claimed(tmp_path, monkeypatch):
    run = fake_run([None] * 9)
    monkeypatch.setattr(
        subprocess, "run", lambda command, **kwargs: run(command) if "--part" in command else SimpleNamespace(stdout="abc\n")
    )
    bench.main(["--grid", "small", "--out", str(tmp_path)])
    results = json.loads((tmp_path / "results.json").read_text())
    assert len(results["points"]) == 9 and (tmp_path / "bench.png").stat().st_size > 1000
    assert (tmp_path / "table.md").read_text().count("\n| 2048 |") == 2
    claims = json.loads((tmp_path / "summary.json").read_text())["headline"]
    values = {name: entry["value"] for name, entry in claims.items()}
    assert values == pytest.approx(
        {
            "step_fwd_bwd_speedup": 3,
            "step_speedup": 3,
            "small_prompt_speedup": 3,
            "step_memory_ratio": 0.5,
            "gradient_difference": 2e-7,
        }
    )
    assert all(set(entry) == set(analysis.headline.FIELDS) for entry in claims.values())


# --- On a GPU, as far as a small cut on the CPU can show it -------------------------------------------------------


def here(command, **kwargs):
    """In place of subprocess.run: the part is measured in this process."""
    words = command[command.index("analysis.bench_train_step") + 1 :]
    args = bench.parse(words)
    row = bench_step.measure_gpu(args.kind, tuple(args.point), args.part, args.repeats)
    return SimpleNamespace(returncode=0, stdout=json.dumps(row) + "\n")


def test_the_gpu_benchmark_runs_small_on_a_cpu(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(subprocess, "run", here)
    monkeypatch.setattr(analysis.headline, "commit", lambda: "abc")
    bench.main(["--tiny", "--repeats", "1", "--out", str(tmp_path)])
    rows = {row["part"]: row for row in map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())}
    difference = rows.pop("difference")["difference"]
    assert difference["gradient"] < 1e-4 and difference["loss"] < 1e-5 and set(rows) == set(bench_step.CONTENDERS)
    for name, row in rows.items():
        assert len(row["seconds"][name]) == 1 and set(row["seconds"][name][0]) == set(bench.PARTS)
    points = json.loads((tmp_path / "results.json").read_text())["points"]
    assert [point.get("against") for point in points] == ["stock, checkpoints", None]
    assert all(point["step_speedup"]["n"] == 1 and point["difference"] == difference for point in points)
    out = capsys.readouterr().out
    assert out.count("shared_prefix on") == 2 and "| 64 (stock, checkpoints) | 8 | 4 | 2 |" in out
    assert not (tmp_path / "summary.json").exists()


def test_the_gpu_benchmark_stops_when_its_time_is_over(tmp_path):
    bench.main(["--tiny", "--minutes", "0", "--out", str(tmp_path)])
    points = json.loads((tmp_path / "results.json").read_text())["points"]
    assert len(points) == 2 and all("seconds" not in point for point in points) and not (tmp_path / "rows.jsonl").exists()


def test_the_gpu_benchmark_without_a_gpu_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        bench.main(["--gpu", "--out", str(tmp_path)])
    assert "no GPU is at hand" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_what_does_not_fit_on_a_gpu_is_recorded(monkeypatch):
    def full(*args):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(bench_step, "build_model", full)
    failed = bench_step.measure_gpu("tiny", bench.TINY_POINT, "stock", 1)
    assert failed == {"failed": "out of memory"}
    ours = {"seconds": {"ours": [{**dict.fromkeys(bench.PARTS, 1.0)}]}, "peak_mib": 20.0}
    slow = {**dict.fromkeys(bench.PARTS, 3.0), "forward": 2.0, "backward": 4.0}
    checkpoints = {"seconds": {"stock, checkpoints": [slow]}, "peak_mib": 60.0}
    found = {(bench.TINY_POINT, "ours"): ours, (bench.TINY_POINT, "stock, checkpoints"): checkpoints}
    found[bench.TINY_POINT, "stock"] = failed
    one, other = (bench.summarise(bench.TINY_POINT, found, name) for name in ("stock, checkpoints", "stock"))
    assert one["memory_ratio"] == pytest.approx(1 / 3) and one["fwd_bwd_speedup"]["value"] == pytest.approx(3)
    assert "memory_ratio" not in other and "seconds" not in other and other["failed"] == {"stock": "out of memory"}
