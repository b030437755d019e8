"""The ablation tables: PhyCritic's numbers, and ours beside them, from what experiments/run.py left in a folder.

    python -m analysis.ablation_tables experiments/tables [--claim]

Reads     results.jsonl and items_*.jsonl.gz of the folder, experiments/paper_numbers.json. A row of a table that is not in
          the results, or lacks a seed, is an error that names it.
Writes    README.md and tables.tex (the tables), tables.json (every number), summary.json (the claims)

Accuracy in percent pools the seeds; its 95% interval resamples questions. A row is compared with the full method (two
stages) on the same items of the same seed; p is of a sign-flip test over questions, Holm-corrected over all rows. Interval
and p speak of other questions, not of other seeds: so an ordering counts as decided only where every seed agrees with it.
"""

import argparse
import gzip
import json
import math
import shlex
import statistics
import sys
from pathlib import Path

import numpy as np
from scipy import stats

from analysis.coupling import estimate, is_right, mean_gain, read_rows
from analysis.demo_report import percent
from analysis.verifier_common import write_summary

PAPER = Path(__file__).resolve().parents[1] / "experiments" / "paper_numbers.json"
EVALUATIONS = {"judge_test": "Judge", "question_test": "Question", "judge_ood": "Judge, OOD", "question_ood": "Question, OOD"}
FULL, FLIPS, POWER, ALPHA = "two_stages", 10000, 0.8, 0.05
TABLES = {  # title -> {run: label}; the paper's numbers are looked up by run
    "Training strategy (Table 4)": {
        "base": "base", "stage1": "stage 1", "stage1_extended": "stage 1, as many steps as both", "stage2_only": "stage 2 only",
        "mixed": "mixed, one stage", FULL: "two stages", "reverse": "stage 2, then stage 1",
    },
    "Self-reference (Table 5)": {FULL: "full", "no_self_reference": "no self-reference", "no_r_sp": "no r_sp"},
    "Weight of the self-prediction reward (Table 6)": {
        "alpha_sp_0.1": "alpha_sp 0.1", FULL: "alpha_sp 0.2", "alpha_sp_0.3": "alpha_sp 0.3", "alpha_sp_0.4": "alpha_sp 0.4",
    },
    "Criteria in the prompt (Table 7)": {FULL: "four criteria", "no_criteria": "no criteria"},
    "What the paper lacks": {
        FULL: "full", "taught": "taught base, not spoiled", "judgement_only": "reward for the judgement only",
        "format_presence": "format: presence", "scale_none": "scale_rewards none", "scale_batch": "scale_rewards batch",
        "supervised_all": "supervised judge, every pair of the file",
    },
    "Data: GRPO and the supervised judge, by share of the pairs read": {
        "grpo_10": "GRPO, 10%", "grpo_25": "GRPO, 25%", "grpo_50": "GRPO, 50%", "grpo_75": "GRPO, 75%", FULL: "GRPO, 100%",
        "supervised_10": "supervised, 10%", "supervised_25": "supervised, 25%", "supervised_50": "supervised, 50%",
        "supervised_75": "supervised, 75%", "supervised_100": "supervised, 100%",
    },
}  # fmt: skip
OPTIONAL = {"taught"}  # its weights are only where physworld/make_base.py has run
PAPER_ROWS = {  # run -> the paper's row of "ablations" in paper_numbers.json
    "base": "base", "stage1": "stage 1, 80 steps", "stage1_extended": "stage 1, 380 steps", "stage2_only": "stage 2 only",
    "mixed": "mixed, one stage", FULL: "two stages", "no_self_reference": "no self-reference", "no_r_sp": "no r_sp",
    "no_criteria": "no criteria in the prompt",
}  # fmt: skip
CLAIMS = {
    "two_stage_minus_mixed": "mixed", "two_stage_minus_stage2_only": "stage2_only",
    "full_minus_no_self_reference": "no_self_reference", "full_minus_no_r_sp": "no_r_sp", "full_minus_no_criteria": "no_criteria",
}  # fmt: skip


def wanted():
    """Every run that the tables need, once."""
    return list(dict.fromkeys(run for rows in TABLES.values() for run in rows))


def load(folder):
    """{run: {seed: {evaluation: [row]}}} of a results folder, the rows rebuilt from items and outcomes.

    Of a run and seed that stands twice (settings have changed) the later row counts. Raises ValueError on a missing run or
    seed, and where runs start from different weights.
    """
    found, results = {}, list({(row["run"], row["seed"]): row for row in read_rows(folder / "results.jsonl")}.values())
    starts = {(row["start"], row["weights"]) for row in results}
    if len(starts) > len({start for start, _ in starts}):
        raise ValueError(
            f"{folder}/results.jsonl holds runs of different weights {sorted(map(str, starts))}: run the matrix to its end"
        )
    items = {}
    for name in EVALUATIONS:
        text = gzip.decompress((folder / f"items_{name}.jsonl.gz").read_bytes()).decode()
        items[name] = [json.loads(line) for line in text.splitlines()]
    for row in results:
        rebuilt = {name: rebuild(items[name], row["evaluations"][name], f"{row['id']}, {name}") for name in EVALUATIONS}
        found.setdefault(row["run"], {})[row["seed"]] = rebuilt
    seeds = sorted(found.get(FULL, {}))
    short = [run for run in wanted() if run not in OPTIONAL and run not in found]
    trained = {row["run"] for row in results if row["stages"]}
    short += [f"{run}/seed{seed}" for run in sorted(trained) for seed in seeds if seed not in found[run]]
    if short:
        raise ValueError(f"{folder}/results.jsonl lacks {', '.join(short)}: python experiments/run.py experiments/tables.yaml")
    return found, results


def rebuild(items, entry, where):
    """The rows (id, order, suite, cluster, verdict_correct, prediction_correct) of an evaluation's outcomes."""
    if not len(items) == len(entry["right"]) == len(entry["own"]):
        raise ValueError(f"{where}: {len(entry['right'])} outcomes of {len(items)} items; run it again")
    marks = zip(items, entry["right"], entry["own"])
    return [item | {"verdict_correct": r == "1", "prediction_correct": None if o == "-" else o == "1"} for item, r, o in marks]


def accuracy(by_seed, evaluation):
    """Pooled accuracy with interval, and each seed's; on the judge's test split also the mean over suites."""
    rows = [row for seed in by_seed.values() for row in seed[evaluation]]
    rates = [statistics.mean(map(is_right, seed[evaluation])) for seed in by_seed.values()]
    macro = {"macro": estimate(rows, is_right, macro=True)} if evaluation == "judge_test" else {}
    return estimate(rows, is_right) | {"seeds": rates} | macro


def gains(full, other, evaluation):
    """{cluster: [full right - other right, ...]} and the mean of each seed; a run of one seed meets every seed of the other."""
    found, means = {}, []
    for seed in sorted(set(full) | set(other)):
        a, b = (by_seed.get(seed) or next(iter(by_seed.values())) for by_seed in (full, other))
        steps = [is_right(x) - is_right(y) for x, y in zip(a[evaluation], b[evaluation], strict=True)]
        means.append(100 * statistics.mean(steps))
        for row, step in zip(a[evaluation], steps):
            found.setdefault(row["cluster"], []).append(step)
    return found, means


def sign_flip_p(gains, flips=FLIPS):
    """Two-sided p of a mean paired gain of 0: signs of whole questions are flipped at random, seeded.

    >>> sign_flip_p({"a": [1], "b": [-1], "c": [0, 0]}), sign_flip_p({str(i): [1, 1] for i in range(40)}, 999)
    (1.0, 0.001)
    """
    sums = np.array([total for total in map(sum, gains.values()) if total], dtype=float)  # (C,)
    rng, extreme = np.random.default_rng(0), 0
    for start in range(0, flips, 1000):
        signs = rng.integers(0, 2, (min(1000, flips - start), len(sums))) * 2 - 1  # (1000, C)
        extreme += int((np.abs(signs @ sums) >= abs(sums.sum())).sum())
    return (1 + extreme) / (1 + flips)


def holm(ps):
    """Holm-corrected p-values of {name: p}.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'c': 0.06, 'b': 0.06}
    """
    corrected, largest = {}, 0.0
    for place, name in enumerate(sorted(ps, key=ps.get)):
        largest = max(largest, min(1.0, (len(ps) - place) * ps[name]))
        corrected[name] = largest
    return corrected


def n_to_decide(sd, points, comparisons):
    """Questions (or seeds) that show a mean difference of `points` with 80% power at 5%, Bonferroni over `comparisons`.

    `sd` is the standard deviation of one question's difference, in points. None where the difference is 0.

    >>> n_to_decide(30, 3, 1), n_to_decide(30, 0, 1)
    (785, None)
    """
    if not points:
        return None
    z = stats.norm.isf(ALPHA / comparisons / 2) + stats.norm.isf(1 - POWER)
    return max(2, math.ceil((z * sd / points) ** 2))


def compare(found, evaluation):
    """{run: difference of the full method to it}: points, interval, p, Holm's p, seeds, and the n that would decide."""
    compared = {}
    for run in found:
        if run != FULL:
            by_cluster, means = gains(found[FULL], found[run], evaluation)
            value, low, high, n = mean_gain(by_cluster)
            each = [100 * statistics.mean(g) for g in by_cluster.values()]
            compared[run] = {
                "points": 100 * value, "low": 100 * low, "high": 100 * high, "n": n, "clusters": len(each), "seeds": means,
                "p": sign_flip_p(by_cluster), "sd": statistics.pstdev(each),
                "sd_seeds": statistics.stdev(means) if len(means) > 1 else None,
            }  # fmt: skip
    corrected = holm({run: entry["p"] for run, entry in compared.items()})
    for run, entry in compared.items():
        entry["p_holm"] = corrected[run]
        entry["questions_to_decide"] = n_to_decide(entry["sd"], entry["points"], len(compared))
        entry["seeds_to_decide"] = entry["sd_seeds"] and n_to_decide(entry["sd_seeds"], entry["points"], len(compared))
    return compared


def decided(entry):
    """1 where the full method is shown better, -1 worse, 0 undecided: Holm's p below 5%, and every seed on that side."""
    sides = {math.copysign(1, points) if points else 0 for points in entry["seeds"]}
    return int(sides.pop()) if entry["p_holm"] < ALPHA and len(sides) == 1 else 0


def orderings(compared, paper):
    """The paper's orderings against its full method: what it prints, what we find, and the n that would decide."""
    lines = []
    for evaluation, column in (("judge_test", 0), ("question_test", 1)):
        for run, name in PAPER_ROWS.items():
            if run != FULL:
                lines.append(
                    ordering(
                        run,
                        evaluation,
                        paper["ablations"][PAPER_ROWS[FULL]][column] - paper["ablations"][name][column],
                        compared,
                    )
                )
    for run in ("alpha_sp_0.1", "alpha_sp_0.3", "alpha_sp_0.4"):
        theirs = paper["alpha_sp"]["0.2"][0] - paper["alpha_sp"][run.removeprefix("alpha_sp_")][0]
        lines.append(ordering(run, "judge_test", theirs, compared))
    return lines


def ordering(run, evaluation, theirs, compared):
    """One line of `orderings`; `theirs` are the paper's points of the full method above this run."""
    entry = compared[evaluation][run]
    side = decided(entry)
    verdict = "cannot be decided" if not side else "holds" if side == math.copysign(1, theirs) else "does not hold"
    needed = n_to_decide(entry["sd"], theirs, len(compared[evaluation]))
    return {
        "run": run,
        "evaluation": evaluation,
        "paper": round(theirs, 1),
        "verdict": verdict,
        "questions_for_the_papers": needed,
    } | entry


# ------------------------------------------------------------------------------------------------------------ the page


def points(entry):
    """A difference as a cell, with Holm's p and the range over seeds."""
    p = f"p {entry['p_holm']:.3f}" if entry["p_holm"] >= 0.001 else "p <.001"
    lead = f"{entry['points']:+.1f} [{entry['low']:+.1f}, {entry['high']:+.1f}]"
    return f"{lead}, {p}, seeds {min(entry['seeds']):+.1f} to {max(entry['seeds']):+.1f}"


def paper_cell(run, label, paper):
    """The paper's numbers of a run: PhyCritic-Bench / CosmosReason1-Bench / VL-RewardBench; of alpha_sp overall / macro."""
    if label.startswith("alpha_sp "):
        numbers = paper["alpha_sp"][label.removeprefix("alpha_sp ")]
    else:
        numbers = paper["ablations"].get(PAPER_ROWS.get(run), [])
    return " / ".join(f"{number:.1f}" for number in numbers) or "-"


def table(rows, numbers, compared, paper):
    """Cells of a table, its header first: ours in percent, the full method's lead over each row in points."""
    cells = [["", "Paper", *EVALUATIONS.values(), "Judge, macro", "Full minus this, judge"]]
    for run, label in rows.items():
        if run in numbers:
            mine = [percent(numbers[run][name]) for name in EVALUATIONS] + [percent(numbers[run]["judge_test"]["macro"])]
            lead = points(compared["judge_test"][run]) if run != FULL else "-"
            cells.append([label, paper_cell(run, label, paper), *mine, lead])
        elif run in OPTIONAL:
            cells.append([label, "-", *["not there"] * (len(EVALUATIONS) + 2)])
    return cells


def ordering_table(lines):
    """Cells of the table of the paper's orderings."""
    cells = [
        [
            "Full method against",
            "on",
            "Paper, points",
            "Ours, points",
            "Ordering",
            "n for our difference",
            "n for the paper's",
            "seeds for ours",
        ]
    ]
    for line in lines:
        needed = [line["questions_to_decide"], line["questions_for_the_papers"], line["seeds_to_decide"]]
        shown = [("any" if n is None else f"{n:,}") if line["verdict"] == "cannot be decided" else "" for n in needed]
        cells.append(
            [line["run"], EVALUATIONS[line["evaluation"]], f"{line['paper']:+.1f}", points(line), line["verdict"], *shown]
        )
    return cells


def markdown(cells):
    """Cells as lines of Markdown."""
    head, *rows = ["| " + " | ".join(row) + " |" for row in cells]
    return [head, "|---" * len(cells[0]) + "|", *rows]


def latex(title, cells):
    r"""Cells as lines of LaTeX (package booktabs).

    >>> latex("A_b", [["x", "y"], ["5%", "1"]])[1]
    '\\begin{table}\\caption{A\\_b}\\begin{tabular}{ll}\\toprule'
    """
    safe = [
        [cell.translate({ord(c): f"\\{c}" for c in "%&_#"}).replace("<", "$<$") for cell in row] for row in [[title], *cells]
    ]
    head, *rows = [" & ".join(row) + r" \\" for row in safe[1:]]
    opening = rf"\begin{{table}}\caption{{{safe[0][0]}}}\begin{{tabular}}{{{'l' * len(cells[0])}}}\toprule"
    return ["", opening, head, r"\midrule", *rows, r"\bottomrule\end{tabular}\end{table}"]


def readme(found, results, pages, command, paper):
    """The record's page: how it was made, then every table."""
    seeds, n = sorted(found[FULL]), len(next(iter(found[FULL].values()))["judge_test"])
    commits = sorted({str(row["commit"]) for row in results})
    lines = [
        "# Ablation tables", "",
        f"Seeds {seeds}; {n} judgements a seed on the test split (both orders of each pair); greedy decoding. Percent with 95% "
        "intervals that resample questions, seeds pooled; differences in points, paired by item and seed; p by flipping the "
        "signs of whole questions, Holm-corrected over all rows. OOD: other gravity, friction, sizes, colours, shapes.", "",
        "The paper's numbers (7B): PhyCritic-Bench / CosmosReason1-Bench / VL-RewardBench, of alpha_sp PhyCritic-Bench "
        f"overall / macro; {paper['source']}. An ordering is decided where Holm's p is below 5% and every seed is on the same "
        "side; else the n that would decide it is given (questions, at 80% power and 5% over all rows; the n of seeds rests on "
        "the spread of only a few).", "",
        f"Commands: `python experiments/run.py experiments/tables.yaml`; `{command}`. Machine: {results[-1]['machine']}; "
        f"versions: {results[-1]['versions']}; {'commit' if len(commits) == 1 else 'SEVERAL commits'}: {', '.join(commits)}.",
    ]  # fmt: skip
    for title, cells in pages.items():
        lines += ["", f"## {title}", "", *markdown(cells)]
    return lines


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("folder", type=Path, help="what experiments/run.py wrote, e.g. experiments/tables")
    parser.add_argument("--claim", action="store_true", help="update experiments/headline.json")
    args = parser.parse_args(argv)
    paper = json.loads(PAPER.read_text(encoding="utf-8"))
    try:
        found, results = load(args.folder)
    except (ValueError, OSError) as error:
        raise SystemExit(f"ablation_tables: {error}") from error
    command = shlex.join(["python", "-m", "analysis.ablation_tables", str(args.folder)])
    numbers = {run: {name: accuracy(by_seed, name) for name in EVALUATIONS} for run, by_seed in found.items()}
    compared = {name: compare(found, name) for name in EVALUATIONS}
    lines = orderings(compared, paper)
    pages = {title: table(rows, numbers, compared, paper) for title, rows in TABLES.items()}
    pages["The paper's orderings"] = ordering_table(lines)
    page = readme(found, results, pages, command, paper)
    (args.folder / "README.md").write_text("\n".join(page) + "\n", encoding="utf-8")
    text = "\n".join(line for title, cells in pages.items() for line in latex(title, cells))
    (args.folder / "tables.tex").write_text("% made by " + command + text + "\n", encoding="utf-8")
    everything = {"command": command, "numbers": numbers, "full_minus": compared, "orderings": lines, "tables": pages}
    (args.folder / "tables.json").write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
    leads = {name: compared["judge_test"][run] for name, run in CLAIMS.items()}
    entries = {
        name: {k: e[k] for k in ("low", "high", "n")} | {"value": e["points"], "unit": "points"} for name, e in leads.items()
    }
    write_summary(args.folder, entries, command, args.claim)
    print("\n".join(page))


if __name__ == "__main__":
    sys.exit(main())
