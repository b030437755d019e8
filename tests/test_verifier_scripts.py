"""The scripts that measure the verifier: their numbers against slow ones, their runs on a stubbed server, resuming."""

import gzip
import json
import math
import re
import subprocess
import sys
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from analysis import headline, verifier_cost, verifier_scaling
from tests import make_replies
from tests.fault_proxy import FaultProxy, reply
from tests.stub_judge import LOG, open_server, sampled_reply

ROOT = Path(__file__).parents[1]

# ---------------------------------------------------------------------------------------------------------------------
# The numbers of a cell


def slow_cell(margins, n_criteria, repeats):
    """(tie rate, accuracy, signal to noise, pairs) by loops; margins: (P, C, K) as lists, None where missing."""
    subsets = list(combinations(range(len(margins[0])), n_criteria))
    ties, right, ratios = [], [], []
    for chosen in subsets:
        of_subset = []
        for i, pair in enumerate(margins):
            calls = [x for c in chosen for x in pair[c][:repeats] if x is not None]
            if calls:
                of_subset.append((i, sum(calls) / len(calls)))
        ties += [(i, abs(m) < 1e-9) for i, m in of_subset]
        right += [(i, 0.5 if abs(m) < 1e-9 else float(m > 0)) for i, m in of_subset]
        values = [m for _, m in of_subset]
        mean = sum(values) / len(values)
        ratios.append(mean / math.sqrt(sum((v - mean) ** 2 for v in values) / len(values)))
    pairs = sorted({i for i, _ in ties})
    by_pair = [[np.mean([x for j, x in rows if j == i]) for i in pairs] for rows in (ties, right)]
    return np.mean(by_pair[0]), np.mean(by_pair[1]), np.mean(ratios), len(pairs)


@pytest.mark.parametrize("seed", range(6))
def test_a_cell_is_what_loops_make_of_it(seed):
    """A fifth of the calls missing, one pair without any, margins of few values so that ties occur."""
    rng = np.random.default_rng(seed)
    margins = rng.choice([-0.5, 0.0, 0.25, 1.0], (12, 3, 4))
    margins[rng.random(margins.shape) < 0.2] = np.nan
    margins[5] = np.nan
    listed = [[[None if np.isnan(x) else float(x) for x in calls] for calls in pair] for pair in margins]
    clusters = [f"q{i // 2}" for i in range(12)]
    for n_criteria in (1, 2, 3):
        for repeats in (1, 2, 4):
            entry, right = verifier_scaling.cell(margins, n_criteria, repeats, clusters, verifier_scaling.resamples(clusters))
            expected = slow_cell(listed, n_criteria, repeats)
            assert [entry[name]["value"] for name in ("ties", "accuracy", "snr")] == pytest.approx(expected[:3])
            assert {entry[name]["n"] for name in entry} == {expected[3]} and np.isnan(right[5])
            for estimate in entry.values():
                assert estimate["low"] <= estimate["value"] <= estimate["high"]


def test_what_cannot_be_said_is_none():
    """No pair with a call; margins that are all alike, which have no noise to divide by."""
    clusters = ["a", "b"]
    weights = verifier_scaling.resamples(clusters)
    empty, _ = verifier_scaling.cell(np.full((2, 1, 1), np.nan), 1, 1, clusters, weights)
    assert {entry["value"] for entry in empty.values()} == {None} and empty["accuracy"]["n"] == 0
    alike, _ = verifier_scaling.cell(np.ones((2, 1, 1)), 1, 1, clusters, weights)
    assert alike["snr"]["value"] is None and alike["accuracy"]["value"] == 1.0


def test_resamples_draw_whole_questions():
    weights = verifier_scaling.resamples(["a", "b", "a", "c"])
    assert (weights[0] == 1).all() and (weights[:, 0] == weights[:, 2]).all()
    assert (weights[1:, [0, 1, 3]].sum(1) == 3).all()


# ---------------------------------------------------------------------------------------------------------------------
# The scripts, on stubbed servers


def prefers(request):
    """At both tags A or B by whether the slot says "right", spread over two letters so that only the expectation sees more."""
    text, last = request["messages"][1]["content"], request["messages"][-1]["content"]
    slots = re.findall(r"<trajectory_[AB]>\n(.*?)\n</trajectory_[AB]>", text, re.S)
    share = 0.6 if "right" in slots[last.endswith("<score_B>")] else 0.55
    return reply([(" A", [(" A", LOG(share)), (" B", LOG(1 - share))])], usage=(100, 60, 1), finish="length")


def write_pairs(path):
    """Four pairs of three questions, the right one second in half of them."""
    lines = []
    for i in range(4):
        texts = [f"right {i}", f"wrong {i}"][:: 1 if i % 2 else -1]
        lines.append({
            "id": f"p{i}", "suite": "s", "question": f"Q{i // 2 + (i == 3)}?", "options": None, "frames": [], "answer": "yes",
            "response_1": texts[0], "response_2": texts[1], "preference": 1 if i % 2 else 2, "source_1": "w", "source_2": "w",
            "facts": {"ball": "fast"},
        })  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_scaling_end_to_end_and_again(tmp_path):
    """A judge whose letter ties on every pair and whose expectation is always right; the second run pays nothing."""
    write_pairs(tmp_path / "pairs.jsonl")
    with FaultProxy(prefers) as proxy:
        words = ["--server", proxy.url, "--pairs", str(tmp_path / "pairs.jsonl"), "--out", str(tmp_path / "out")]
        words += ["--granularities", "2", "20", "--repeats", "1", "2", "--criteria", "agent"]
        for _ in range(2):
            said = subprocess.run(
                [sys.executable, "-m", "analysis.verifier_scaling", *words], cwd=ROOT, capture_output=True, text=True
            )
            assert said.returncode == 0, said.stderr
            assert len(proxy.log) == 4 * 2 * 3 * 2 * 2  # pairs, granularities, criteria, orders, letters
        assert "What the clip shows: ball fast." in proxy.log[0][0]["messages"][1]["content"]
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (results["pairs"], results["questions"], len(results["cells"])) == (4, 3, 2 * 2 * 3)
    for cell in results["cells"]:
        assert (cell["discrete"]["ties"]["value"], cell["discrete"]["accuracy"]["value"]) == (1.0, 0.5)
        assert (cell["expected"]["ties"]["value"], cell["expected"]["accuracy"]["value"]) == (0.0, 1.0)
        assert cell["gain"]["value"] == 0.5
    assert [f["missing"] for f in results["fitness"]] == [0, 0] and results["fitness"][0]["commonest_letter"] == 1.0
    rows = gzip.decompress((tmp_path / "out" / "rows.jsonl.gz").read_bytes()).splitlines()
    assert len(rows) == 4 * 2 * 3 * 2
    assert (tmp_path / "out" / "verifier_scaling.png").stat().st_size > 10_000
    assert "| 20 | 24 | 0 | 100.0% | 50.0% | 100.0% |" in (tmp_path / "out" / "README.md").read_text()


@contextmanager
def stub():
    """In place of the small model's server: C at the first tag, E at the second."""
    with FaultProxy(open_server) as proxy:
        yield proxy.url


def test_cost_end_to_end_and_again(tmp_path, monkeypatch):
    """Both sides on the stub: we ask each prompt once; a run that was cut off carries on and says the same."""
    monkeypatch.setattr(verifier_cost, "served", stub)
    monkeypatch.setattr(headline, "commit", lambda: "abc")
    words = ["--tasks", "2", "--analysis_tokens", "9", "--out", str(tmp_path)]
    verifier_cost.main(words)
    rows = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    done = [(row["side"], row["task"]) for row in rows]
    assert done == [(side, task) for task in ("tray", "drawer") for side in ("ours", "peer")]
    for row in rows:
        calls = row["requests"] / 3  # an analysis and two letters
        assert row["computed"] == calls * (100 + 10 + 10) and row["generated"] == calls * 11 and row["comparisons"] == 9
        pairs = calls / 6  # criteria and orders
        assert pairs in ((5, 6) if row["side"] == "ours" else (5, 6, 7, 8, 9))
    summary = json.loads((tmp_path / "summary.json").read_text())["headline"]["peer_cost_ratio"]
    ours, theirs = (sum(row["computed"] for row in rows if row["side"] == side) for side in ("ours", "peer"))
    assert summary["value"] == ours / theirs and {*summary} == {*headline.FIELDS} and summary["n"] == 2
    before = {name: (tmp_path / name).read_text() for name in ("runs.jsonl", "README.md", "summary.json")}
    monkeypatch.setattr(verifier_cost, "measure", None)
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write('{"side": "ours", "ta')  # cut by a kill
    verifier_cost.main(words)
    assert {name: (tmp_path / name).read_text() for name in before} == before


def test_the_meter_caps_strips_and_counts():
    seen = []

    def upstream(request):
        seen.append(request["max_tokens"])
        return reply([("", [])], content="so far <score_A> B", usage=(50, 20, 3))

    with FaultProxy(upstream) as proxy:
        meter = verifier_cost.Meter(proxy.url, 16)
        said = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "so far <score_A>"}]
        assert meter({"messages": said, "max_tokens": 1})["choices"][0]["message"]["content"] == " B"
        assert meter({"messages": said[:1], "max_tokens": 4096})["choices"][0]["message"]["content"] == "so far <score_A> B"
    assert seen == [1, 16] and meter.totals == {"requests": 2, "prompt": 100, "computed": 60, "generated": 6}


def test_replies_are_recorded_in_the_form_that_is_committed(tmp_path, monkeypatch):
    def either(request):
        last = request["messages"][-1]
        return open_server(request) if last["role"] == "assistant" or "logprobs" not in request else sampled_reply("B", "H")

    @contextmanager
    def either_server():
        with FaultProxy(either) as proxy:
            yield proxy.url

    monkeypatch.setattr(make_replies, "served", either_server)
    make_replies.main(["--out", str(tmp_path / "replies.jsonl")])
    made, kept = (
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in (tmp_path / "replies.jsonl", ROOT / "tests" / "data" / "replies.jsonl")
    )
    assert [row["kind"] for row in made] == [row["kind"] for row in kept]
    assert {tuple(body) for row in made for body in row["bodies"]} == {tuple(body) for row in kept for body in row["bodies"]}
