"""analysis/ablation_tables.py on results that are made up here, with differences that are known."""

import gzip
import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import permutation_test
from statsmodels.stats.power import TTestPower

import stats
from analysis import ablation_page
from analysis import ablation_tables as tables

N = 60  # pairs, and questions


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Results of two seeds: every run is right in all but 12 pairs of `full`, `mixed` in 15 fewer, in both orders."""
    monkeypatch.setattr(stats, "RESAMPLES", 100)
    monkeypatch.setattr(tables, "FLIPS", 1000)
    write_results(tmp_path, tables.wanted())
    return tmp_path


def write_results(folder, runs):
    """What experiments/run.py would leave of these runs and two seeds."""
    for name in ablation_page.EVALUATIONS:
        orders = ("12", "21") if name.startswith("judge") else (None,)
        items = [{"id": f"i{i:02}", "order": o, "suite": "ab"[i % 2], "cluster": f"c{i}"} for i in range(N) for o in orders]
        text = "".join(json.dumps(item) + "\n" for item in items)
        (folder / f"items_{name}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    with (folder / "results.jsonl").open("w") as lines:
        for run in runs:
            for seed in (0, 1) if run not in ("base", "taught") else (0,):
                lines.write(json.dumps(result(run, seed)) + "\n")


def result(run, seed, weights="w"):
    wrong = {"mixed": 27}.get(run, 12)
    row = {"id": f"{run}/seed{seed}/{weights}", "run": run, "seed": seed, "start": "base", "weights": weights, "machine": "m"}
    row |= {"stages": [] if run in ("base", "taught") else [{}], "commit": "c", "versions": {}, "evaluations": {}}
    for name in ablation_page.EVALUATIONS:
        each = 2 if name.startswith("judge") else 1
        right = "0" * wrong * each + "1" * (N - wrong) * each
        row["evaluations"][name] = {"right": right, "own": "-" * len(right)}
    return row


def rewrite(folder, change):
    """Pass every result through `change`, which drops it by returning None."""
    path = folder / "results.jsonl"
    rows = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows if row))


def test_tables_hold_the_papers_numbers_and_ours(folder, capsys):
    tables.main([str(folder)])
    text = (folder / "README.md").read_text()
    assert text == capsys.readouterr().out
    row = next(line for line in text.splitlines() if line.startswith("| mixed, one stage |"))
    assert "66.7 / 60.2 / 55.5" in row and "| 55.0 [" in row and "| +25.0 [" in row
    assert "| alpha_sp 0.2 | 68.0 / 69.0 | 80.0 [" in text, "Table 6's full row has the sweep's numbers"
    assert "| mixed, one stage | Judge | +1.3 | +25.0 [" in text and "| holds | 60 | - | - | - |" in text
    assert "Hold at this scale: 2 of 19." in text and "- two stages over mixed, one stage (judge): +25.0 [" in text
    assert "Cannot be decided: 17 of 19." in text and "Not run" not in text
    assert "**Not all of the matrix is here.** Seeds not run: 2." in text, "the matrix plans three seeds"
    made = json.loads((folder / "tables.json").read_text())
    assert (
        made["numbers"]["two_stages"]["judge_test"]["seeds"] == [0.8, 0.8] and made["numbers"]["base"]["judge_test"]["n"] == 2 * N
    )
    lead = made["full_minus"]["judge_test"]["mixed"]
    assert lead["points"] == pytest.approx(25) and lead["n"] == 4 * N and lead["clusters"] == N and lead["seeds"] == [25, 25]
    assert made["full_minus"]["judge_test"]["base"]["n"] == 4 * N, "one row of the base meets both seeds"
    shares = made["grpo_minus_supervised"]
    assert list(shares) == ["10%", "25%", "50%", "75%", "100%"] and {entry["points"] for entry in shares.values()} == {0}
    tex = (folder / "tables.tex").read_text()
    assert tex.count(r"\begin{table}") == len(ablation_page.TABLES) + 2 and r"GRPO, 10\%" in tex and r"no r\_sp" in tex
    claims = json.loads((folder / "summary.json").read_text())["headline"]
    assert set(claims) == set(tables.CLAIMS) and claims["two_stage_minus_mixed"]["value"] == pytest.approx(25)
    assert set(claims["full_minus_no_r_sp"]) == {"value", "low", "high", "n", "unit", "command", "record", "commit"}


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda row: row if row["run"] != "no_criteria" else None, "lacks no_criteria"),
        (lambda row: row if (row["run"], row["seed"]) != ("mixed", 1) else None, "lacks mixed/seed1"),
        (lambda row: row if (row["run"], row["seed"]) != ("two_stages", 1) else None, "lacks two_stages/seed1"),
        (lambda row: row if row["run"] != "two_stages" else None, "lacks two_stages, which every row"),
        (lambda row: row if row["run"] in ("base", "taught") else None, "lacks two_stages, which every row"),
        (lambda row: row | {"weights": "old"} if row["run"] == "mixed" else row, "different weights"),
        (
            lambda row: row | {"evaluations": row["evaluations"] | {"judge_ood": {"right": "1", "own": "1"}}},
            "1 outcomes of 120 items",
        ),
    ],
)
def test_what_is_missing_or_mixed_up_is_an_error(folder, change, message):
    rewrite(folder, change)
    with pytest.raises(SystemExit, match=message):
        tables.main([str(folder)])


def test_the_taught_base_may_be_absent_and_the_later_of_two_rows_counts(folder):
    rewrite(folder, lambda row: row if row["run"] != "taught" else None)
    with (folder / "results.jsonl").open("a") as lines:
        newer = result("mixed", 0)
        newer["evaluations"]["judge_test"] = result("two_stages", 0)["evaluations"]["judge_test"]
        lines.write(json.dumps(newer | {"id": "mixed/seed0/later"}) + "\n")
    tables.main([str(folder)])
    assert "| taught base, not spoiled | - | not run |" in (folder / "README.md").read_text()
    lead = json.loads((folder / "tables.json").read_text())["full_minus"]["judge_test"]["mixed"]
    assert lead["seeds"] == [0, 25] and not tables.decided(lead), "a seed that disagrees leaves it undecided"


def test_the_error_names_flags_that_make_what_is_there(folder):
    rewrite(folder, lambda row: row if row["run"] not in ("mixed", "grpo_10") and "supervised" not in row["run"] else None)
    with pytest.raises(SystemExit, match="lacks mixed, supervised_all, supervised_tuned, grpo_10") as error:
        tables.main([str(folder)])
    missing, whole = str(error.value).split(": --without ")[1].removesuffix(" (those are whole)").split(", or --tables ")
    assert whole == "self_reference alpha_sp criteria"
    tables.main([str(folder), "--tables", *whole.split()])
    by_tables = (folder / "README.md").read_text()
    tables.main([str(folder), "--without", *missing.split()])
    by_rows = (folder / "README.md").read_text()
    assert "Tables left out: Training strategy (Table 4); What the paper lacks; Data: GRPO" in by_tables
    assert "Training strategy" not in by_tables.split("## Self-reference")[1] and "| no criteria |" in by_tables
    assert "--tables self_reference alpha_sp criteria" in by_tables, "the command that made the page is on it"
    assert "Not run: mixed, supervised_all, supervised_tuned" in by_rows
    assert "| mixed, one stage | 66.7 / 60.2 / 55.5 | not run |" in by_rows
    assert "| mixed, one stage | Judge | +1.3 | - | not run |" in by_rows
    assert "Not run: two stages over mixed, one stage (judge); two stages over mixed, one stage (question)." in by_rows
    claims = json.loads((folder / "summary.json").read_text())["headline"]
    assert set(claims) == set(tables.CLAIMS) - {"two_stage_minus_mixed"}
    assert (folder / "tables.tex").read_text().count(r"\begin{table}") == len(ablation_page.TABLES) + 1, "no share has both judges"


def test_a_record_is_written_anew_only_where_its_tables_change(folder, capsys):
    tables.main([str(folder), "--tables", "criteria"])
    (folder / "README.md").write_text("as it was")
    tables.main([str(folder), "--tables", "criteria"])
    assert (folder / "README.md").read_text() == "as it was" and "| no criteria |" in capsys.readouterr().out
    tables.main([str(folder)])
    assert "| mixed, one stage |" in (folder / "README.md").read_text(), "a record of a part of the matrix is not left as it is"


def test_grpo_and_the_supervised_judge_are_compared_at_the_same_share(folder):
    def spoil(row):
        changed = {"supervised_25": 18, "two_stages": 15}.get(row["run"])
        if changed:
            row["evaluations"]["judge_test"]["right"] = "0" * 2 * changed + "1" * 2 * (N - changed)
        return None if (row["run"], row["seed"]) == ("grpo_75", 1) or row["run"] == "supervised_50" else row

    rewrite(folder, spoil)
    tables.main([str(folder), "--without", "grpo_75/seed1", "supervised_50"])
    made = json.loads((folder / "tables.json").read_text())["grpo_minus_supervised"]
    assert {part: entry["points"] for part, entry in made.items()} == pytest.approx({"10%": 0, "25%": 10, "75%": 0, "100%": -5})
    assert [len(made[part]["seeds"]) for part in made] == [2, 2, 1, 2], "of 75% only the seed that both have"
    assert "| 25% | +10.0 [" in (folder / "README.md").read_text()
    smallest = min(entry["p"] for entry in made.values())
    assert made["25%"]["p"] == smallest and made["25%"]["p_holm"] == pytest.approx(4 * smallest), "corrected over these four"


@pytest.mark.parametrize("words, message", [
    (["--without", "mixed"], "mixed: that is not among what is missing: no_criteria"),
    (["--without", "no_criteria", "mixd"], "mixd: that is not among"),
    (["--tables", "strategy", "--without", "no_criteria"], "that is not among what is missing: nothing"),
])  # fmt: skip
def test_what_is_there_cannot_be_left_out_by_name(folder, words, message):
    rewrite(folder, lambda row: row if row["run"] != "no_criteria" else None)
    with pytest.raises(SystemExit, match=message):
        tables.main([str(folder), *words])


def test_a_run_of_one_seed_is_compared_on_that_seed_and_decides_nothing(folder):
    rewrite(folder, lambda row: row if (row["run"], row["seed"]) != ("mixed", 1) else None)
    tables.main([str(folder), "--without", "mixed/seed1"])
    made = json.loads((folder / "tables.json").read_text())
    lead = made["full_minus"]["judge_test"]["mixed"]
    assert lead["n"] == 2 * N and lead["seeds"] == [25] and lead["seeds_to_decide"] is None and lead["p_holm"] < 0.05
    [line] = [one for one in made["orderings"] if (one["run"], one["evaluation"]) == ("mixed", "judge_test")]
    assert line["verdict"] == "cannot be decided"
    assert "two stages over mixed, one stage (judge): +25.0" in (folder / "README.md").read_text()
    assert "a single seed decides nothing" in (folder / "README.md").read_text()


def test_seeds_without_a_common_one_are_an_error(folder):
    rewrite(folder, lambda row: row if (row["run"], row["seed"]) not in (("mixed", 1), ("two_stages", 0)) else None)
    with pytest.raises(SystemExit, match="has mixed and two_stages on no common seed"):
        tables.main([str(folder), "--without", "mixed/seed1", "two_stages/seed0"])


def test_the_summary_claims_what_the_tables_hold(folder):
    tables.main([str(folder), "--tables", "self_reference"])
    claims = json.loads((folder / "summary.json").read_text())["headline"]
    assert set(claims) == {"full_minus_no_self_reference", "full_minus_no_r_sp"}


OPEN = {"seeds": [2.0, 1.0], "p_holm": 0.2, "clusters": 100, "questions_to_decide": 5000, "questions_for_the_papers": 400}


@pytest.mark.parametrize("change, parts", [
    ({}, ["may be noise; ours would take 5,000 questions, the paper's 400 (here 100)"]),
    ({"seeds": [1.0]}, ["a single seed decides nothing"]),
    ({"p_holm": 0.01, "seeds": [1.0, -1.0]}, ["the seeds do not all agree"]),
    ({"questions_to_decide": None}, ["no n decides a difference of 0, the paper's 400"]),
    ({"questions_for_the_papers": 90}, ["the paper's 90 (here 100); so one as large as the paper's should have shown"]),
    ({"seeds_to_decide": 12}, ["by their spread, 12 seeds (here 2)"]),
])  # fmt: skip
def test_why_an_ordering_stays_open(change, parts):
    said = ablation_page.why_open({"seeds_to_decide": None} | OPEN | change)
    assert all(part in said for part in parts), said


@pytest.mark.parametrize("ps, holm, reason", [
    ([0.03], [0.03], "alone"), ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06], "the largest so far carries over"),
    ([0.02, 0.02, 0.02], [0.06, 0.06, 0.06], "ties"), ([0.9, 0.8, 1e-4], [1, 1, 3e-4], "capped at 1"),
])  # fmt: skip
def test_p_is_corrected_by_holm(ps, holm, reason):
    entries = {str(i): {"p": p, "sd": 1, "sd_seeds": None, "points": 1} for i, p in enumerate(ps)}
    assert [entry["p_holm"] for entry in tables.corrected(entries).values()] == pytest.approx(holm), reason


def test_sign_flips_agree_with_scipy():
    rng = random.Random(0)
    gains = {str(i): [rng.choice((-1, 0, 1, 1)) for _ in range(4)] for i in range(80)}
    sums = np.array([sum(g) for g in gains.values()], float)
    theirs = permutation_test((sums,), np.sum, permutation_type="samples", n_resamples=5000, rng=np.random.default_rng(1))
    assert tables.sign_flip_p(gains, 5000) == pytest.approx(theirs.pvalue, abs=0.02)
    assert tables.sign_flip_p({"a": [1, -1]}, 100) == 1.0, "nothing moved"


@pytest.mark.parametrize("sd, points, comparisons", [(40, 3, 1), (40, 1.3, 20), (10, 0.5, 5)])
def test_n_to_decide_agrees_with_statsmodels(sd, points, comparisons):
    theirs = TTestPower().solve_power(points / sd, alpha=0.05 / comparisons, power=0.8)
    assert tables.n_to_decide(sd, points, comparisons) == pytest.approx(theirs, rel=0.02), "normal against t"


@settings(max_examples=50)
@given(st.lists(st.lists(st.sampled_from([-1, 0, 1]), min_size=2, max_size=2), min_size=1, max_size=20))
def test_a_lead_turns_round_with_the_two(steps):
    def rows(values):
        return {0: {"e": [{"cluster": str(i // 2), "verdict_correct": v} for i, v in enumerate(values)]}}

    flat = [step for pair in steps for step in pair]
    a, b = rows([step > 0 for step in flat]), rows([step < 0 for step in flat])
    there, back = tables.gains(a, b, "e"), tables.gains(b, a, "e")
    assert there[1] == [-m for m in back[1]] and there[0] == {c: [-x for x in g] for c, g in back[0].items()}
    assert [x for g in there[0].values() for x in g] == flat


@pytest.mark.parametrize("entry, side, reason", [
    ({"p_holm": 0.01, "seeds": [1.0, 2.0]}, 1, "both seeds on its side"),
    ({"p_holm": 0.01, "seeds": [-1.0, -2.0]}, -1, "both against"),
    ({"p_holm": 0.06, "seeds": [1.0, 2.0]}, 0, "p"),
    ({"p_holm": 0.01, "seeds": [1.0, -0.1]}, 0, "a seed disagrees"),
    ({"p_holm": 0.01, "seeds": [1.0]}, 0, "one seed cannot disagree"),
    ({"p_holm": 0.01, "seeds": [1.0, 0.0]}, 0, "a seed shows nothing"),
    ({"p_holm": 0.01, "seeds": [0.0, 0.0]}, 0, "no difference"),
])  # fmt: skip
def test_decided(entry, side, reason):
    assert tables.decided(entry) == side, reason
