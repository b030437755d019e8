"""The ablation tables: PhyCritic's numbers, and ours beside them, from what experiments/run.py left in a folder.

    python -m analysis.ablation_tables experiments/tables
    python -m analysis.ablation_tables experiments/tables --tables strategy self_reference --without reverse mixed/seed2

Reads     results.jsonl and items_*.jsonl.gz of the folder, experiments/paper_numbers.json. A row of a table that is not in
          the results, or lacks a seed that another has, is an error that names it, unless --tables leaves out its table or
          --without names it: the page then says so, and the row reads "not run". What is there cannot be left out by --without.
Writes    README.md and tables.tex (the tables), tables.json (every number), summary.json (the claims), only where the tables
          differ from those that are there

Accuracy in percent pools the seeds; its 95% interval resamples questions. A row is compared with the full method (two
stages) on the same items of the same seed; p is of a sign-flip test over questions, Holm-corrected over all rows. Interval
and p speak of other questions, not of other seeds: so an ordering counts as decided only where two seeds or more all agree.
"""

import argparse
import gzip
import json
import math
import statistics
import sys
from pathlib import Path

import numpy as np
from scipy import stats
from statsmodels.stats.multitest import multipletests

from analysis.ablation_page import (
    ABSENT,
    EVALUATIONS,
    FULL,
    HOLDS,
    OPEN,
    OPTIONAL,
    PAPER,
    PAPER_ROWS,
    PLAN,
    REVERSED,
    SHARES,
    TABLES,
    findings,
    latex,
    ordering_table,
    readme,
    share_table,
    table,
)
from analysis.headline import command_of
from analysis.pages import write_record
from data.files import read_rows
from stats import estimate, is_right, mean_gain

FLIPS, POWER, ALPHA = 10000, 0.8, 0.05
CLAIMS = {  # name of the number -> the run that the full method is compared with
    "two_stage_minus_mixed": "mixed",
    "two_stage_minus_stage2_only": "stage2_only",
    "full_minus_no_self_reference": "no_self_reference",
    "full_minus_no_r_sp": "no_r_sp",
    "full_minus_no_criteria": "no_criteria",
}


def wanted(names=tuple(TABLES)):
    """Every run that these tables need, once."""
    return list(dict.fromkeys(run for name in names for run in TABLES[name][1]))


def load(folder, names=tuple(TABLES), without=()):
    """{run: {seed: {evaluation: [row]}}} of the tables' runs, the rows rebuilt from items and outcomes; and the results.

    A run that trains nothing has one entry, under None in place of a seed. Of a run and seed that stands twice (settings have
    changed) the later row counts. Raises ValueError on a run or seed that is missing and not named by `without`, on one that is
    named and there, and where runs start from different weights.
    """
    results = list({(row["run"], row["seed"]): row for row in read_rows(folder / "results.jsonl")}.values())
    starts = {(row["start"], row["weights"]) for row in results}
    if len(starts) > len({start for start, _ in starts}):
        odd = sorted(map(str, starts))
        raise ValueError(f"{folder}/results.jsonl holds runs of different weights {odd}: run the matrix to its end")
    check_complete(folder, results, names, without)
    items, found = {}, {}
    for name in EVALUATIONS:
        with gzip.open(folder / f"items_{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            items[name] = [json.loads(line) for line in lines]
    results = [row for row in results if row["run"] in wanted(names)]
    for row in results:
        rebuilt = {name: rebuild(items[name], row["evaluations"][name], f"{row['id']}, {name}") for name in EVALUATIONS}
        found.setdefault(row["run"], {})[row["seed"] if row["stages"] else None] = rebuilt
    return found, results


def check_complete(folder, results, names, without):
    """Raise ValueError unless every row of the tables is there or named by `without`, as "run" or "run/seed1"."""
    there = {run: {row["seed"] if row["stages"] else None for row in results if row["run"] == run} for run in wanted(names)}
    seeds = sorted({row["seed"] for row in results if row["stages"]})
    short = {}  # run -> what is missing of it; None is the seed of one that trains nothing
    for run, mine in there.items():
        lacking = [] if None in mine else [f"{run}/seed{seed}" for seed in seeds if seed not in mine]
        short[run] = lacking if mine else [run]
    absent = [run for run in OPTIONAL & there.keys() if not there[run]]
    short |= dict.fromkeys(absent, ())
    missing = [one for run in short for one in short[run]]
    odd = [one for one in without if one not in missing + absent]
    if odd:
        raise ValueError(f"--without {' '.join(odd)}: that is not among what is missing: {' '.join(missing) or 'nothing'}")
    if not there[FULL] or not seeds:
        raise ValueError(f"{folder}/results.jsonl lacks {FULL}, which every row is compared with")
    lacking = [one for one in missing if one not in without]
    if lacking:
        whole = [name for name in names if not any(short[run] for run in TABLES[name][1])]
        raise ValueError(
            f"{folder}/results.jsonl lacks {', '.join(lacking)}: run python experiments/run.py experiments/tables.yaml to its "
            f"end, or say what is left out: --without {' '.join(missing)}, or --tables {' '.join(whole or ['...'])}"
            + (" (those are whole)" if whole else "")
        )
    for run, mine in there.items():
        if mine and None not in mine and not mine & there[FULL]:
            raise ValueError(f"{folder}/results.jsonl has {run} and {FULL} on no common seed: {sorted(mine)}")


def rebuild(items, entry, where):
    """The rows (id, order, suite, cluster, verdict_correct) of an evaluation's outcomes."""
    if not len(items) == len(entry["right"]) == len(entry["own"]):
        raise ValueError(f"{where}: {len(entry['right'])} outcomes of {len(items)} items; run it again")
    return [item | {"verdict_correct": mark == "1"} for item, mark in zip(items, entry["right"])]


def accuracy(by_seed, evaluation):
    """Pooled accuracy with interval, and each seed's; on the judge's test split also the mean over suites."""
    rows = [row for seed in by_seed.values() for row in seed[evaluation]]
    rates = [statistics.mean(map(is_right, seed[evaluation])) for seed in by_seed.values()]
    macro = {"macro": estimate(rows, is_right, macro=True)} if evaluation == "judge_test" else {}
    return estimate(rows, is_right) | {"seeds": rates} | macro


def gains(full, other, evaluation):
    """{cluster: [full right - other right, ...]} and the mean of each seed of both; a run without seeds meets every seed."""
    found, means = {}, []
    for seed in sorted(full if None in other else full.keys() & other.keys()):
        a, b = full[seed], other[None if None in other else seed]
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


def difference(full, other, evaluation):
    """How far `full` ({seed: rows}) is above `other` on the same items: points, interval, p, each seed's, and their spread."""
    by_cluster, means = gains(full, other, evaluation)
    value, low, high, n = mean_gain(by_cluster)
    each = [100 * statistics.mean(g) for g in by_cluster.values()]
    made = {"points": 100 * value, "low": 100 * low, "high": 100 * high, "n": n, "clusters": len(each), "seeds": means}
    made |= {"p": sign_flip_p(by_cluster), "sd": statistics.pstdev(each)}
    return made | {"sd_seeds": statistics.stdev(means) if len(means) > 1 else None}


def corrected(entries):
    """The differences of one family, {name: difference}, with Holm's p and the n that would decide each of them."""
    holms = multipletests([entry["p"] for entry in entries.values()], method="holm")[1].tolist() if entries else []
    for entry, p_holm in zip(entries.values(), holms):
        entry["p_holm"] = p_holm
        entry["questions_to_decide"] = n_to_decide(entry["sd"], entry["points"], len(entries))
        known = entry["sd_seeds"] is not None
        entry["seeds_to_decide"] = n_to_decide(entry["sd_seeds"], entry["points"], len(entries)) if known else None
    return entries


def by_share(found):
    """{share of the pairs: difference of GRPO to the supervised judge, as judges}, where both ran on a common seed."""
    runs = {part: (FULL if part == 100 else f"grpo_{part}", f"supervised_{part}") for part in (10, 25, 50, 75, 100)}
    both = {part: (found.get(grpo, {}), found.get(supervised, {})) for part, (grpo, supervised) in runs.items()}
    return corrected({f"{part}%": difference(a, b, "judge_test") for part, (a, b) in both.items() if a.keys() & b.keys()})


def decided(entry):
    """1 where the full method is shown better, -1 worse, 0 undecided: Holm's p below 5%, and two seeds or more on that side."""
    sides = {math.copysign(1, points) if points else 0 for points in entry["seeds"]}
    return int(sides.pop()) if entry["p_holm"] < ALPHA and len(entry["seeds"]) > 1 and len(sides) == 1 else 0


def orderings(compared, paper):
    """The paper's orderings against its full method: what it prints, what we find, and the n that would decide."""
    rows = {run: paper["ablations"][name] for run, name in PAPER_ROWS.items()}
    sweep = {run: paper["alpha_sp"][label.removeprefix("alpha_sp ")] for run, label in TABLES["alpha_sp"][1].items()}
    columns = [(rows, "judge_test", 0), (rows, "question_test", 1), (sweep, "judge_test", 0)]
    return [
        ordering(run, evaluation, table[FULL][column] - theirs[column], compared)
        for table, evaluation, column in columns
        for run, theirs in table.items()
        if run != FULL
    ]


def ordering(run, evaluation, theirs, compared):
    """One line of `orderings`; `theirs` are the paper's points of the full method above this run."""
    line = {"run": run, "evaluation": evaluation, "paper": round(theirs, 1)}
    entry = compared[evaluation].get(run)
    if entry is None:
        return line | {"verdict": ABSENT}
    side = decided(entry)
    verdict = OPEN if not side else HOLDS if side == math.copysign(1, theirs) else REVERSED
    needed = n_to_decide(entry["sd"], theirs, len(compared[evaluation]))
    return line | {"verdict": verdict, "questions_for_the_papers": needed} | entry


def numbers_of(found, names, paper):
    """Everything that tables.json holds but how it was made: numbers, comparisons, orderings, tables, findings."""
    numbers = {run: {name: accuracy(by_seed, name) for name in EVALUATIONS} for run, by_seed in found.items()}
    others = {run: by_seed for run, by_seed in found.items() if run != FULL}
    compared = {
        name: corrected({run: difference(found[FULL], rows, name) for run, rows in others.items()}) for name in EVALUATIONS
    }
    lines = orderings(compared, paper)
    pages = {title: table(rows, numbers, compared, paper) for title, rows in map(TABLES.get, names)}
    if shares := by_share(found):
        pages[SHARES] = share_table(shares)
    pages["The paper's orderings"] = ordering_table(lines)
    made = {"seeds": sorted(found[FULL]), "n": len(next(iter(found[FULL].values()))["judge_test"]), "numbers": numbers}
    made |= {"full_minus": compared, "grpo_minus_supervised": shares}
    return made | {"orderings": lines, "findings": findings(lines), "tables": pages}


def left_out(names, without, seeds):
    """What the page says is not there; empty where all is, the seeds of experiments/tables.yaml included."""
    tables = [TABLES[name][0] for name in TABLES if name not in names]
    lacking = [str(seed) for seed in PLAN["seeds"] if seed not in seeds]
    parts = [f"Tables left out: {'; '.join(tables)}."] if tables else []
    parts += [f"Not run: {', '.join(without)}."] if without else []
    return " ".join(parts + ([f"Seeds not run: {', '.join(lacking)}."] if lacking else []))


def write(folder, everything, page):
    """README.md (the page), tables.tex, tables.json and summary.json of the folder."""
    text = "\n".join(line for title, cells in everything["tables"].items() for line in latex(title, cells))
    (folder / "tables.tex").write_text("% made by " + everything["command"] + text + "\n", encoding="utf-8")
    leads = {name: everything["full_minus"]["judge_test"].get(run) for name, run in CLAIMS.items()}
    entries = {
        name: {k: e[k] for k in ("low", "high", "n")} | {"value": e["points"], "unit": "points"} for name, e in leads.items() if e
    }
    write_record(folder, page, "tables.json", everything, entries, everything["command"])


def written(folder, everything):
    """Does the folder's record say all this already? Its command and commit, or a last digit, are no reason to write it anew."""
    path, said = folder / "tables.json", ("left_out", "findings", "tables")
    made = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return all(made.get(name) == everything[name] for name in said)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("folder", type=Path, help="what experiments/run.py wrote, e.g. experiments/tables")
    parser.add_argument("--tables", nargs="+", choices=list(TABLES), default=list(TABLES), help="only these tables")
    parser.add_argument("--without", nargs="+", default=[], help="missing, and may be: run, or run/seed1; shown as not run")
    args = parser.parse_args(argv)
    paper, names = json.loads(PAPER.read_text(encoding="utf-8")), [name for name in TABLES if name in args.tables]
    try:
        found, results = load(args.folder, names, args.without)
    except (ValueError, OSError) as error:
        raise SystemExit(f"ablation_tables: {error}") from error
    made = {"command": command_of("analysis.ablation_tables", argv), "left_out": left_out(names, args.without, found[FULL])}
    everything = made | numbers_of(found, names, paper)
    page = readme(everything, results, paper)
    print("\n".join(page))
    if not written(args.folder, everything):
        write(args.folder, everything, page)


if __name__ == "__main__":
    sys.exit(main())
