"""What a demo shows: before/after table, learning curves, three judged examples. Made from its folder alone.

    python -m analysis.demo_report runs/demo

Reads     eval/{base,taught,stage1,stage2}_{question,judge}_{test,ood}.json and .jsonl (taught only where it is there),
          stage1/ and stage2/ (the newest trainer_state.json), steps.tsv (seconds of each step)
Writes    report.md, learning_curves.png, frames/*.png
A file that is missing, or an evaluation that is not finished, is an error.
"""

import argparse
import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

import data
from data.files import read_rows
from stats import paired_difference

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
ZOOM = 4


def existing(path):
    """The path, where there is such a file; raises FileNotFoundError with a remedy."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: run `make demo`, which makes what is not there")
    return path


def load_results(folder):
    """(model, mode, split) -> finished result of evaluate.py; "taught" may be absent as a whole."""
    results = {}
    for model in MODELS:
        if model == "taught" and not list(folder.glob("eval/taught_*.json")):
            continue
        for mode in ("question", "judge"):
            for split in SPLITS:
                path = existing(folder / "eval" / f"{model}_{mode}_{split}.json")
                results[model, mode, split] = json.loads(path.read_text(encoding="utf-8"))
                if not results[model, mode, split]["finished"]:
                    raise ValueError(f"{path} is of an evaluation that did not finish: run `make demo` again")
    return results


def percent(entry):
    """An estimate in percent, with its interval; a dash where there is none.

    >>> percent({"value": 0.5, "low": 0.4, "high": 0.6, "n": 96})
    '50.0 [40.0, 60.0]'
    """
    if entry["value"] is None:
        return "-"
    return f"{100 * entry['value']:.1f} [{100 * entry['low']:.1f}, {100 * entry['high']:.1f}]"


def chi_square(entry):
    """Chi-square, its p and phi of a coupling table as text."""
    return "-" if entry["chi2"] is None else f"{entry['chi2']:.1f} (p {entry['p']:.1e}, phi {entry['phi']:+.2f})"


def split_table(results, split):
    """Markdown lines: a row per model."""
    names = ["Question accuracy", "Judge accuracy", "Consistency", "First shown", "Longer", "Unreadable", "Chi-square"]
    lines = ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for model, label in MODELS.items():
        if (model, "judge", split) not in results:
            continue
        judge = results[model, "judge", split]
        rates = [results[model, "question", split]["accuracy"], judge["accuracy"]]
        rates += [judge[name] for name in ("consistency", "first_share", "longer_share", "unreadable")]
        lines.append(f"| {label} | " + " | ".join([*map(percent, rates), chi_square(judge["coupling"])]) + " |")
    question, judge = results["base", "question", split]["accuracy"]["n"], results["base", "judge", split]["accuracy"]
    return [*lines, "", f"{question} questions; {judge['n']} judgements of {judge['clusters']} questions' pairs."]


def gains(folder):
    """Markdown lines: what each stage gained on the same questions of the test split."""
    lines = []
    for after, before, mode in (("stage1", "base", "question"), ("stage2", "stage1", "judge"), ("stage2", "base", "judge")):
        d = paired_difference(*(read_rows(existing(folder / "eval" / f"{m}_{mode}_test.jsonl")) for m in (after, before)))
        lines.append(
            f"- {mode} accuracy, {MODELS[after]} against {MODELS[before]}: "
            f"{d['points']:+.1f} points [{d['low']:+.1f}, {d['high']:+.1f}], McNemar p {d['p']:.1e}, n {d['n']}"
        )
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
        free = (key for key in after if key not in chosen.values() and fits(before[key], after[key]))
        chosen[title] = next(free, None)
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
    models = ("base", "stage2")
    paths = {model: existing(folder / "eval" / f"{model}_judge_test.jsonl") for model in models}
    rows = {m: {row["id"]: row for row in read_rows(path) if row["order"] == "12"} for m, path in paths.items()}
    dataset = Path(results["stage2", "judge", "test"]["config"]["dataset"])
    records = {record["id"]: record for record in data.load_records(existing(dataset), pair=True)}
    lines = []
    for title, key in choose_examples(rows["base"], rows["stage2"]).items():
        if key is None:
            lines += [f"### {title}", "", f"None among the {len(rows['stage2'])} pairs.", ""]
        else:
            lines += example(title, records[key], {model: rows[model][key] for model in models}, folder)
    return lines


def step_seconds(folder):
    """(name, seconds) of each finished step of a demo."""
    lines = existing(folder / "steps.tsv").read_text().splitlines()
    return [(name, int(seconds)) for name, seconds in (line.split("\t") for line in lines)]


def times(folder):
    """Markdown line: minutes of each step and in all."""
    steps = step_seconds(folder)
    parts = ", ".join(f"{name} {seconds / 60:.1f}" for name, seconds in steps)
    return f"Total: **{sum(seconds for _, seconds in steps) / 60:.1f} minutes** ({parts})."


def report(folder):
    """Write report.md, learning_curves.png and frames/ into a demo's folder."""
    results = load_results(folder)
    draw_curves(folder)
    final = results["stage2", "judge", "test"]
    lines = ["# Demo: the critic trains", "", f"{times(folder)} Machine: {final['machine']}; commit {final['commit']}.", ""]
    lines += ["Percent with 95% intervals, resampled by question. Judges see each pair in both orders; what cannot be read",
              "counts as wrong. Consistency: the same response preferred in both orders. Chi-square: do self-prediction and",
              "judgement stand and fall together (one degree of freedom, over both orders).", ""]  # fmt: skip
    for split, title in SPLITS.items():
        lines += [f"## {title}", "", *split_table(results, split), ""]
    lines += ["## Gains on the same questions (test split)", "", *gains(folder), ""]
    lines += ["## Learning curves", "", "![Rewards per step](learning_curves.png)", ""]
    lines += ["## Three judgements", "", *examples(folder, results)]
    (folder / "report.md").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/demo"), help="a demo's folder (default runs/demo)")
    try:
        report(parser.parse_args().folder)
    except (FileNotFoundError, ValueError) as error:
        sys.exit(f"demo_report: {error}")
