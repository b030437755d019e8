"""Record finished demos of several seeds as one folder under experiments/, and their headline numbers.

    make demo
    SEED=1 OUT=runs/demo_seed1 bash experiments/demo.sh
    SEED=2 OUT=runs/demo_seed2 bash experiments/demo.sh
    python -m analysis.record_demo experiments/2026-11-30_three_seeds runs/demo runs/demo_seed1 runs/demo_seed2

Copies of each demo: results, rows (gzip), the trainers' config and log history, the report of the first. Rates pool the
seeds and resample questions, so their intervals speak of other questions, not of other seeds; each seed stands in
summary.json by itself (demo: seed 0). Fails where a file is missing or an evaluation is not finished.
"""

import argparse
import gzip
import json
import shlex
import shutil
from pathlib import Path

from analysis import headline
from analysis.demo_report import MODELS, SPLITS, load_results, log_history, step_seconds
from analysis.demo_report import percent as percent_text
from data.files import read_rows
from stats import estimate, first_shown, is_right, mean_gain, pairs, prefers_longer, row_key


def rows_of(folders, model, mode, split):
    """Rows of each demo, one list a seed."""
    return [read_rows(folder / "eval" / f"{model}_{mode}_{split}.jsonl") for folder in folders]


def flat(rows_by_seed):
    """All seeds' rows in one list; a question's rows share their cluster over the seeds."""
    return [row for rows in rows_by_seed for row in rows]


def gain(after, before):
    """{"value", "low", "high", "n"} in points: pooled over seeds, paired by row, resampled by question."""
    gains = {}
    for rows_after, rows_before in zip(after, before, strict=True):
        earlier = {row_key(row): row for row in rows_before}
        for row in rows_after:
            gains.setdefault(row["cluster"], []).append(is_right(row) - is_right(earlier[row_key(row)]))
    return percent(dict(zip(("value", "low", "high", "n"), mean_gain(gains))))


def percent(entry):
    """An estimate in percent."""
    return {key: 100 * entry[key] for key in ("value", "low", "high")} | {"n": entry["n"]}


def spread(values, n):
    """Mean, and the range over the seeds."""
    return {"value": sum(values) / len(values), "low": min(values), "high": max(values), "n": n}


def minutes(folder):
    """Duration of a demo, from its steps.tsv."""
    return sum(seconds for _, seconds in step_seconds(folder)) / 60


def summarise(folders, results):
    """The headline entries, without their provenance."""
    stage2 = flat(rows_of(folders, "stage2", "judge", "test"))
    chi2 = {
        model: [r[model, "judge", "test"]["coupling_one_order"] for r in results] for model in ("stage1", "stage2")
    }
    n = len(folders)
    return {
        "stage1_question_gain": gain(*(rows_of(folders, m, "question", "test") for m in ("stage1", "base"))) | {"unit": "points"},
        "stage2_judge_accuracy_base": percent(estimate(flat(rows_of(folders, "base", "judge", "test")), is_right)) | {"unit": "%"},
        "stage2_judge_accuracy": percent(estimate(stage2, is_right)) | {"unit": "%"},
        "stage2_order_consistency": percent(
            estimate([p for rows in rows_of(folders, "stage2", "judge", "test") for p in pairs(rows)], lambda p: p["consistent"])
        ) | {"unit": "%"},
        **{
            f"coupling_chi2_{model}": spread([c["chi2"] or 0.0 for c in tables], tables[0]["n"])
            | {"unit": f"chi-square (mean and range of {n} seeds)"}
            for model, tables in chi2.items()
        },
        "ood_judge_accuracy": percent(estimate(flat(rows_of(folders, "stage2", "judge", "ood")), is_right)) | {"unit": "%"},
        "demo_minutes": spread([minutes(folder) for folder in folders], n) | {"value": minutes(folders[0])}
        | {"unit": f"minutes (range of {n} runs)"},
    }  # fmt: skip


def pooled_table(folders, split):
    """Markdown lines: a row per model, all seeds pooled; a model that some demos did not evaluate counts where it was."""
    lines = ["| | Question accuracy | Judge accuracy | Consistency | First shown | Longer | Seeds |", "|---" * 7 + "|"]
    for model, label in MODELS.items():
        having = [folder for folder in folders if (folder / "eval" / f"{model}_judge_{split}.jsonl").exists()]
        judged = rows_of(having, model, "judge", split)
        consistent = [pair for rows in judged for pair in pairs(rows)]
        cells = [
            estimate(flat(rows_of(having, model, "question", split)), is_right),
            estimate(flat(judged), is_right),
            estimate(consistent, lambda pair: pair["consistent"]),
            estimate(flat(judged), first_shown),
            estimate(flat(judged), prefers_longer),
        ]
        lines.append(f"| {label} | " + " | ".join(map(percent_text, cells)) + f" | {len(having)} |")
    return lines


def readme(target, folders, results, entries, command):
    """The record's README: what is claimed, by which commands, on which machine, and all rates."""
    final = results[0]["stage2", "judge", "test"]
    lines = [
        "# The embedded default through both stages", "",
        "Claim: GRPO teaches the spoiled base to answer (stage 1), then to judge by its own answer (stage 2).", "",
        f"{len(folders)} seeds; greedy decoding; percent with 95% intervals that resample questions, seeds pooled. Machine: "
        f"{final['machine']}; versions: {final['versions']}; commit {final['commit']}.", "",
        f"Commands: `make demo` (runs/demo, seed 0); other seeds `SEED=n OUT=runs/demo_seedn bash experiments/demo.sh`; `{command}`.", "",
        "| Headline | Value |", "|---|---|",
        *(f"| {name} | {e['value']:.2f} [{e['low']:.2f}, {e['high']:.2f}] {e['unit']}, n {e['n']} |" for name, e in entries.items()),
    ]  # fmt: skip
    for split, title in SPLITS.items():
        lines += ["", f"## {title}", "", *pooled_table(folders, split)]
    lines += ["", "demo*/: results and rows of evaluate.py, the trainers' configurations and logs. report.md: the first seed's demo.", ""]
    (target / "README.md").write_text("\n".join(lines), encoding="utf-8")


def copy_demo(folder, target):
    """Results, rows, trainer configs and logs of one demo."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted((folder / "eval").glob("*.json*")):
        if path.suffix == ".jsonl":
            with gzip.GzipFile(target / f"{path.name}.gz", "wb", mtime=0) as out:
                out.write(path.read_bytes())
        else:
            shutil.copy(path, target)
    for stage in ("stage1", "stage2"):
        shutil.copy(folder / stage / "config.yaml", target / f"{stage}_config.yaml")
        lines = [json.dumps(row) for row in log_history(folder / stage)]
        (target / f"{stage}_log.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    shutil.copy(folder / "steps.tsv", target)


def record(target, folders):
    """Write the record and its headline entries."""
    results = [load_results(folder) for folder in folders]
    entries = summarise(folders, results)
    for folder in folders:
        copy_demo(folder, target / folder.name)
    shutil.copy(folders[0] / "report.md", target)
    shutil.copy(folders[0] / "learning_curves.png", target)
    shutil.copytree(folders[0] / "frames", target / "frames", dirs_exist_ok=True)
    by_seed = {
        folder.name: {
            f"{model}_{mode}_{split}": {k: r[model, mode, split][k] for k in ("accuracy", "consistency", "coupling_one_order") if k in r[model, mode, split]}
            for model, mode, split in r
        }
        for folder, r in zip(folders, results)
    }
    commit = results[0]["stage2", "judge", "test"]["commit"]
    command = shlex.join(["python", "-m", "analysis.record_demo", str(target), *map(str, folders)])
    where = {"command": f"make demo (and seeds as the record says); {command}", "record": str(target), "commit": commit}
    entries = {name: entry | where for name, entry in entries.items()}
    (target / "summary.json").write_text(json.dumps({"headline": entries, "seeds": by_seed}, indent=1) + "\n", encoding="utf-8")
    readme(target, folders, results, entries, command)
    headline.update(entries)
    print("\n".join(headline.table(headline.read())))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, help="the record's folder, experiments/<date>_demo")
    parser.add_argument("folders", type=Path, nargs="+", help="finished demos, seed 0 first")
    args = parser.parse_args()
    record(args.target, args.folders)
