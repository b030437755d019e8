"""analysis/paper_tables.py dpo on runs written here: no model, no training."""

import itertools
import json
import shutil

import pytest

from analysis import paper_tables


@pytest.fixture
def dpo_runs(tmp_path):
    """Two seeds, ten questions a split: the base has every second one right, its successors all but the last one."""

    def rows(path, right):
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [{"id": f"q{i}", "cluster": f"q{i}", "suite": "causal", "correct": right(i)} for i in range(10)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        path.with_suffix(".json").write_text('{"finished": true}')

    for split in paper_tables.SPLITS:
        rows(tmp_path / "runs" / f"base_{split}.jsonl", lambda i: i % 2 == 0)
        for seed, kind in itertools.product("01", paper_tables.KINDS):
            rows(tmp_path / "runs" / seed / kind / f"{split}.jsonl", lambda i: i < 9)
            counts = {"questions": 8, "pairs": 5, "kinds": {"right over wrong": 5}, "refused": {"one text": 2, "undecided": 1}}
            (tmp_path / "runs" / seed / kind / "pairs.json").write_text(json.dumps(counts))
    return tmp_path


def test_the_table_pairs_questions_leaves_out_the_looked_at_and_sums_the_pairs(dpo_runs):
    paper_tables.main(["dpo", str(dpo_runs / "out"), str(dpo_runs / "runs"), "--skip", "4"])
    found = json.loads((dpo_runs / "out" / "results.json").read_text())
    assert found["base"]["test"]["accuracy"]["n"] == 6 and found["base"]["ood"]["accuracy"]["n"] == 10
    gain = found["critic"]["test"]["gain"]
    assert (gain["n"], gain["value"]) == (12, pytest.approx(100 * (5 - 3) / 6))
    assert found["pivot"]["test"]["over_verifier"]["value"] == 0 and "over_verifier" not in found["verifier"]["test"]
    assert gain["value"] == pytest.approx(found["critic"]["test"]["gain_seeds"][1]), "both seeds are alike here"
    page = (dpo_runs / "out" / "README.md").read_text()
    assert "| critic's pairs | 16 | 10 | 10 | 0 | 0 | 0 | 4 one text, 2 undecided |" in page and "first 4 test questions" in page
    summary = json.loads((dpo_runs / "out" / "summary.json").read_text())["headline"]
    assert summary["dpo_gain_critic_pairs"]["value"] == gain["value"] and "--skip 4" in summary["dpo_gain_critic_pairs"]["command"]


@pytest.mark.parametrize("spoil, skip, message", [
    (lambda runs: (runs / "1" / "pivot" / "ood.json").unlink(), "0", "ood.json is missing or not finished"),
    (lambda runs: (runs / "base_test.json").write_text('{"finished": false}'), "0", "base_test.json is missing or not finished"),
    (lambda runs: None, "10", "--skip 10 leaves no row"),
    (lambda runs: [shutil.rmtree(runs / seed) for seed in "01"], "0", "has no folder of a seed"),
    (lambda runs: (runs / "1" / "critic" / "pairs.json").unlink(), "0", "critic/pairs.json"),
    (lambda runs: (runs / "0" / "critic" / "test.jsonl").open("a").write('{"id": "z", "cluster": "z", "correct": true}\n'), "0",
     "critic, test: other questions than the base's"),
])  # fmt: skip
def test_a_table_that_cannot_be_made_says_why(dpo_runs, spoil, skip, message):
    spoil(dpo_runs / "runs")
    with pytest.raises(SystemExit, match=message):
        paper_tables.main(["dpo", str(dpo_runs / "out"), str(dpo_runs / "runs"), "--skip", skip])
