"""What a demo shows: before/after table, learning curves, three judged examples. And the record of demos of several seeds.

    python -m analysis.demo_report runs/demo
    SEED=1 OUT=runs/demo_seed1 bash experiments/demo.sh        and so on, then
    python -m analysis.demo_report --record experiments/2026-11-30_three_seeds runs/demo runs/demo_seed1 runs/demo_seed2

Reads     eval/{base,taught,stage1,stage2}_{question,judge}_{test,ood}.json and .jsonl (taught only where it is there),
          stage1/ and stage2/ (the newest trainer_state.json), steps.tsv (seconds of each step)
Writes    report.md, learning_curves.png, frames/*.png; with --record a folder with README.md, summary.json, and of each demo
          the results, rows (gzip), the trainers' config and log history, of the first one the report
A file that is missing, or an evaluation that is not finished, is an error. A record's rates pool the seeds and resample
questions, so their intervals speak of other questions, not of other seeds; each seed stands in summary.json by itself.
"""

import argparse
import gzip
import itertools
import json
import shlex
import shutil
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

import data
from analysis.pages import cell, gain, markdown, times100
from data.files import read_rows
from stats import estimate, first_shown, is_right, paired_difference, pairs, prefers_longer

MODELS = {"base": "base", "taught": "taught, not spoiled", "stage1": "after stage 1", "stage2": "after stage 2"}
SPLITS = {"test": "Test split", "ood": "Out of distribution (other gravity, friction, sizes, colours, shapes)"}
CURVES = {  # stage -> logged reward -> (label, colour)
    "stage1": {"rewards/accuracy_reward/mean": ("answer", "tab:blue")},
    "stage2": {
        "rewards/self_prediction_reward/mean": ("self-prediction", "tab:blue"),
        "rewards/judgement_reward/mean": ("judgement", "tab:orange"),
        "rewards/format_reward/mean": ("format", "tab:green"),
    },
}
RATES = ["Question accuracy", "Judge accuracy", "Consistency", "First shown", "Longer"]
ZOOM = 4
ABOUT = """Percent with 95% intervals, resampled by question. Judges see each pair in both orders; what cannot be read
counts as wrong. Consistency: the same response preferred in both orders. Chi-square: do self-prediction and
judgement stand and fall together (one degree of freedom, over both orders)."""


def existing(path):
    """The path, where there is such a file; raises FileNotFoundError with a remedy."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: run `make demo`, which makes what is not there")
    return path


def load_results(folder):
    """(model, mode, split) -> finished result of evaluate.py; "taught" may be absent as a whole."""
    models, results = [model for model in MODELS if model != "taught" or any(folder.glob("eval/taught_*.json"))], {}
    for key in itertools.product(models, ("question", "judge"), SPLITS):
        path = existing(folder / "eval" / f"{'_'.join(key)}.json")
        results[key] = json.loads(path.read_text(encoding="utf-8"))
        if not results[key]["finished"]:
            raise ValueError(f"{path} is of an evaluation that did not finish: run `make demo` again")
    return results


def rows_of(folders, model, mode, split):
    """Rows of each demo, one list a seed."""
    return [read_rows(existing(folder / "eval" / f"{model}_{mode}_{split}.jsonl")) for folder in folders]


def rates(folders, model, split):
    """Estimates of the columns RATES, all seeds pooled; a question's rows share their cluster over the seeds."""
    asked, judged = (rows_of(folders, model, mode, split) for mode in ("question", "judge"))
    consistent = estimate([pair for rows in judged for pair in pairs(rows)], lambda pair: pair["consistent"])
    judgements = sum(judged, [])
    shares = [estimate(judgements, value) for value in (is_right, first_shown, prefers_longer)]
    return [estimate(sum(asked, []), is_right), shares[0], consistent, *shares[1:]]


def chi_square(entry):
    """Chi-square, its p and phi of a coupling table as text."""
    return "-" if entry["chi2"] is None else f"{entry['chi2']:.1f} (p {entry['p']:.1e}, phi {entry['phi']:+.2f})"


def rate_table(rows, *more):
    """Markdown lines of rows of RATES and more columns; the first cell of the head is as narrow as in earlier records."""
    head, *rest = markdown([["", *RATES, *more], *rows])
    return [head.replace("|  |", "| |"), *rest]


def split_table(folder, results, split):
    """Markdown lines: a row per model, and the counts."""
    rows = []
    for model in [model for model in MODELS if (model, "judge", split) in results]:
        judge = results[model, "judge", split]
        mine = [*rates([folder], model, split), judge["unreadable"]]
        rows.append([MODELS[model], *map(cell, mine), chi_square(judge["coupling"])])
    question, judge = results["base", "question", split]["accuracy"]["n"], results["base", "judge", split]["accuracy"]
    counts = f"{question} questions; {judge['n']} judgements of {judge['clusters']} questions' pairs."
    return [*rate_table(rows, "Unreadable", "Chi-square"), "", counts]


def gains(folder):
    """Markdown lines: what each stage gained on the same questions of the test split."""
    lines = []
    for after, before, mode in (("stage1", "base", "question"), ("stage2", "stage1", "judge"), ("stage2", "base", "judge")):
        d = paired_difference(*(read_rows(existing(folder / "eval" / f"{m}_{mode}_test.jsonl")) for m in (after, before)))
        points = f"{d['points']:+.1f} points [{d['low']:+.1f}, {d['high']:+.1f}], McNemar p {d['p']:.1e}, n {d['n']}"
        lines.append(f"- {mode} accuracy, {MODELS[after]} against {MODELS[before]}: {points}")
    return lines


def log_history(stage):
    """The rows that the trainer logged, from the newest trainer_state.json of a stage's folder."""
    states = sorted(stage.glob("checkpoint-*/trainer_state.json"), key=lambda path: int(path.parent.name.split("-")[1]))
    path = states[-1] if states else existing(stage / "trainer_state.json")
    return json.loads(path.read_text(encoding="utf-8"))["log_history"]


def smooth(values, width):
    """Centred running mean over `width` values, over fewer at both ends; shape (N,) in and out.

    >>> smooth([0, 3, 6], 3).tolist()
    [1.5, 3.0, 4.5]
    """
    window = np.ones(width)
    return np.convolve(values, window, "same") / np.convolve(np.ones(len(values)), window, "same")


def draw_curves(folder):
    """Write learning_curves.png: each reward part per step, smoothed, the raw values faint behind it."""
    figure, axes = plt.subplots(1, len(CURVES), figsize=(10, 4), sharey=True)
    for axis, (stage, curves) in zip(axes, CURVES.items()):
        history = log_history(folder / stage)
        for name, (label, colour) in curves.items():
            points = [(row["step"], row[name]) for row in history if name in row]
            if not points:
                raise ValueError(f"{folder / stage}: the trainer logged no {name}; is it a run of train_{stage}.py?")
            steps, values = zip(*points)
            width = min(2 * (len(values) // 20) + 1, len(values))
            axis.plot(steps, values, color=colour, alpha=0.25, linewidth=1)
            axis.plot(steps, smooth(values, width), color=colour, label=label)
        axis.set(title=f"Stage {stage[-1]}", xlabel="step", ylim=(0, 1.02))
        axis.legend(loc="lower right")
    axes[0].set_ylabel("mean reward of sampled completions")
    figure.tight_layout()
    figure.savefig(folder / "learning_curves.png", dpi=120)
    plt.close(figure)


def choose_examples(before, after):
    """Title -> id (None where there is none): three different pairs, each the first of its kind in the order of evaluation."""
    kinds = {
        "Right": lambda b, a: a["verdict_correct"] and a["prediction_correct"],
        "Failed": lambda b, a: not a["verdict_correct"],
        "Base and stage 2 differ": lambda b, a: b["verdict"] != a["verdict"] and a["verdict_correct"],
    }
    chosen = {}
    for title, fits in kinds.items():
        chosen[title] = next((k for k in after if k not in chosen.values() and fits(before[k], after[k])), None)
    return chosen


def save_frames(record, folder):
    """Write the record's frames, enlarged, to frames/; returns their markdown."""
    (folder / "frames").mkdir(exist_ok=True)
    names = []
    for i, image in enumerate(data.open_frames(record), 1):
        names.append(f"frames/{record['id']}_{i}.png")
        image.resize((ZOOM * image.width, ZOOM * image.height), Image.Resampling.NEAREST).save(folder / names[-1])
    return " ".join(f"![frame {i}]({name})" for i, name in enumerate(names, 1))


def quote(text):
    """Markdown block that shows foreign text as it is."""
    fence = "~" * (3 + text.count("~"))  # longer than any row of tildes within
    return [fence, text, fence]


def example(title, record, rows, folder):
    """Markdown lines of a judged pair: frames, question, responses, and what base and stage 2 wrote."""
    options = "".join(f" {letter}. {text}" for letter, text in (record.get("options") or {}).items())
    lines = [f"### {title}: {record['id']} ({record['suite']})", "", save_frames(record, folder), ""]
    lines += [f"{record['question']}{options} Answer: **{record['answer']}**. Better: Response {record['preference']}.", ""]
    for number in "12":
        lines += [f"Response {number}:", *quote(record[f"response_{number}"])]
    for model, row in rows.items():
        verdict = f"Response {row['verdict']}" if row["verdict"] else "unreadable"
        marks = ["right" if row[name] else "wrong" for name in ("prediction_correct", "verdict_correct")]
        lines.append(f"{MODELS[model]}: self-prediction **{row['prediction']}** ({marks[0]}), verdict **{verdict}** ({marks[1]})")
        lines += quote(row["text"])
    return [*lines, ""]


def examples(folder, results):
    """Markdown lines of the three examples, judged in order 12 on the test split."""
    judged = {model: rows_of([folder], model, "judge", "test")[0] for model in ("base", "stage2")}
    rows = {model: {row["id"]: row for row in some if row["order"] == "12"} for model, some in judged.items()}
    dataset = Path(results["stage2", "judge", "test"]["config"]["dataset"])
    records = {record["id"]: record for record in data.load_records(existing(dataset), pair=True)}
    lines = []
    for title, key in choose_examples(rows["base"], rows["stage2"]).items():
        if key is None:
            lines += [f"### {title}", "", f"None among the {len(rows['stage2'])} pairs.", ""]
        else:
            lines += example(title, records[key], {model: some[key] for model, some in rows.items()}, folder)
    return lines


def step_seconds(folder):
    """(name, seconds) of each finished step of a demo."""
    lines = existing(folder / "steps.tsv").read_text().splitlines()
    return [(name, int(seconds)) for name, seconds in (line.split("\t") for line in lines)]


def minutes(folder):
    """Duration of a demo."""
    return sum(seconds for _, seconds in step_seconds(folder)) / 60


def times(folder):
    """Markdown line: minutes of each step and in all."""
    parts = ", ".join(f"{name} {seconds / 60:.1f}" for name, seconds in step_seconds(folder))
    return f"Total: **{minutes(folder):.1f} minutes** ({parts})."


def report(folder):
    """Write report.md, learning_curves.png and frames/ into a demo's folder."""
    results = load_results(folder)
    draw_curves(folder)
    final = results["stage2", "judge", "test"]
    lines = ["# Demo: the critic trains", "", f"{times(folder)} Machine: {final['machine']}; commit {final['commit']}.", ""]
    lines += [ABOUT, ""]
    for split, title in SPLITS.items():
        lines += [f"## {title}", "", *split_table(folder, results, split), ""]
    lines += ["## Gains on the same questions (test split)", "", *gains(folder), ""]
    lines += ["## Learning curves", "", "![Rewards per step](learning_curves.png)", ""]
    lines += ["## Three judgements", "", *examples(folder, results)]
    (folder / "report.md").write_text("\n".join(lines), encoding="utf-8")


# ----------------------------------------------------------------------------------------------- the record of several seeds


def spread(values, n, unit):
    """Mean, and the range over the seeds."""
    return {"value": sum(values) / len(values), "low": min(values), "high": max(values), "n": n, "unit": unit}


def summarise(folders, results):
    """The headline entries, without their provenance."""
    (_, base, *_), (_, judge, consistent, *_) = (rates(folders, model, "test") for model in ("base", "stage2"))
    gained = gain(*(rows_of(folders, model, "question", "test") for model in ("stage1", "base")))
    entries = {
        "stage1_question_gain": gained | {"unit": "points"},
        "stage2_judge_accuracy_base": times100(base, "%"),
        "stage2_judge_accuracy": times100(judge, "%"),
        "stage2_order_consistency": times100(consistent, "%"),
    }
    for model in ("stage1", "stage2"):
        tables = [result[model, "judge", "test"]["coupling_one_order"] for result in results]
        unit = f"chi-square (mean and range of {len(folders)} seeds)"
        entries[f"coupling_chi2_{model}"] = spread([table["chi2"] or 0.0 for table in tables], tables[0]["n"], unit)
    entries["ood_judge_accuracy"] = times100(rates(folders, "stage2", "ood")[1], "%")
    taken = [minutes(folder) for folder in folders]
    return entries | {"demo_minutes": spread(taken, len(taken), f"minutes (range of {len(taken)} runs)") | {"value": taken[0]}}


def pooled_table(folders, split):
    """Markdown lines: a row per model, all seeds pooled; a model that some demos did not evaluate counts where it was."""
    rows = []
    for model, label in MODELS.items():
        having = [folder for folder in folders if (folder / "eval" / f"{model}_judge_{split}.jsonl").exists()]
        rows.append([label, *map(cell, rates(having, model, split)), str(len(having))])
    return rate_table(rows, "Seeds")


def readme(folders, final, entries, command):
    """Lines of the record's README: what is claimed, by which commands, on which machine, and all rates."""
    lines = [
        "# The embedded default through both stages", "",
        "Claim: GRPO teaches the spoiled base to answer (stage 1), then to judge by its own answer (stage 2).", "",
        f"{len(folders)} seeds; greedy decoding; percent with 95% intervals that resample questions, seeds pooled. Machine: "
        f"{final['machine']}; versions: {final['versions']}; commit {final['commit']}.", "",
        "Commands: `make demo` (runs/demo, seed 0); other seeds `SEED=n OUT=runs/demo_seedn bash experiments/demo.sh`; "
        f"`{command}`.", "",
    ]  # fmt: skip
    values = [[name, f"{cell(e, '.2f', 1)} {e['unit']}, n {e['n']}"] for name, e in entries.items()]
    lines += markdown([["Headline", "Value"], *values])
    for split, title in SPLITS.items():
        lines += ["", f"## {title}", "", *pooled_table(folders, split)]
    files = "demo*/: results and rows of evaluate.py, the trainers' configurations and logs. report.md: the first seed's demo."
    return [*lines, "", files, ""]


def copy_demo(folder, target):
    """Results, rows, trainer configs and logs of one demo."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted((folder / "eval").glob("*.json")):
        shutil.copy(path, target)
    for path in sorted((folder / "eval").glob("*.jsonl")):
        with gzip.GzipFile(target / f"{path.name}.gz", "wb", mtime=0) as out:
            out.write(path.read_bytes())
    for stage in CURVES:
        shutil.copy(folder / stage / "config.yaml", target / f"{stage}_config.yaml")
        data.write_lines(target / f"{stage}_log.jsonl", log_history(folder / stage))
    shutil.copy(folder / "steps.tsv", target)


def kept(result):
    """What summary.json says of one evaluation of one seed."""
    return {name: result[name] for name in ("accuracy", "consistency", "coupling_one_order") if name in result}


def record(target, folders):
    """Write the record of finished demos, and the numbers that it claims."""
    results = [load_results(folder) for folder in folders]
    entries, final = summarise(folders, results), results[0]["stage2", "judge", "test"]
    for folder in folders:
        copy_demo(folder, target / folder.name)
    for name in ("report.md", "learning_curves.png"):
        shutil.copy(folders[0] / name, target)
    shutil.copytree(folders[0] / "frames", target / "frames", dirs_exist_ok=True)
    command = shlex.join(["python", "-m", "analysis.demo_report", "--record", str(target), *map(str, folders)])
    where = {"command": f"make demo (and seeds as the record says); {command}", "record": str(target), "commit": final["commit"]}
    seeds = {f.name: {"_".join(key): kept(one) for key, one in result.items()} for f, result in zip(folders, results)}
    summary = {"headline": {name: entry | where for name, entry in entries.items()}, "seeds": seeds}
    (target / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    (target / "README.md").write_text("\n".join(readme(folders, final, entries, command)), encoding="utf-8")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("folders", type=Path, nargs="*", default=[Path("runs/demo")], help="demos, seed 0 first")
    parser.add_argument("--record", type=Path, help="the record's folder, experiments/<date>_<name>")
    args = parser.parse_args(argv)
    try:
        record(args.record, args.folders) if args.record else [report(folder) for folder in args.folders]
    except (FileNotFoundError, ValueError) as error:
        raise SystemExit(f"demo_report: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
