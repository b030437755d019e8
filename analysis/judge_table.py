"""PhyCritic's Table 2 (judge benchmarks) and Table 3 (question benchmarks): the paper's numbers, and ours below them.

    python -m analysis.judge_table runs/eval/*.json

Each result is one of evaluate.py with --source. A row is a model with a prompt (or the verifier); a cell is accuracy in
percent, its 95% interval clustered by question, and n; where a benchmark's own rule is another one, its score follows
after a slash. RoboRewardBench's mean absolute error is in points of its five. The paper's numbers are
experiments/paper_numbers.json.
"""

import json
import sys
from pathlib import Path

PAPER = Path(__file__).resolve().parents[1] / "experiments" / "paper_numbers.json"
SUITES = {
    "agibot": "AgiBot",
    "holoassist": "HoloAssist",
    "robovqa": "RoboVQA",
    "bridgev2": "Bridge",
    "robofail": "RoboFail",
    "lingoqa": "LingoQA",
}
TABLES = {
    "table_2": ("Table 2: judge benchmarks", "judge", SUITES | {
        "phycritic_bench": "PhyCritic-Bench", "phycritic_bench_macro": "macro", "vl_rewardbench": "VL-RewardBench",
        "multimodal_rewardbench": "Multimodal RewardBench", "roboreward": "RoboRewardBench pairs", "judgebench": "JudgeBench",
    }),
    "table_3": ("Table 3: question benchmarks", "question", {
        "cosmos_reason1": "CosmosReason1-Bench", "cv_bench": "CV-Bench", "egoplan_bench2": "EgoPlan-Bench2", "lingoqa": "LingoQA",
        "roboreward": "RoboRewardBench MAE",
    }),
}  # fmt: skip


def percent(entry):
    """An estimate as a cell."""
    if entry["value"] is None:
        return "-"
    value, low, high = (100 * entry[key] for key in ("value", "low", "high"))
    return f"{value:.1f} [{low:.1f}, {high:.1f}] n={entry['n']}"


def error_cell(score):
    """RoboRewardBench's mean absolute error as a cell: ours, with unreadable scores at their worst, then the readable ones'."""
    if score["value"] is None:
        return f"{score['ours']['value']:.2f} / -"
    ours = score["ours"]
    return f"{ours['value']:.2f} [{ours['low']:.2f}, {ours['high']:.2f}] n={ours['n']} / {score['value']:.2f}"


def cells(result):
    """{column: cell} of one result of evaluate.py."""
    source, score = result["config"]["source"], result.get("official") or {}
    if score.get("unit") == "points":
        return {source: error_cell(score)}
    own = percent(result["accuracy"])
    if score:
        own += f" / {100 * score['value']:.1f}" if score["value"] is not None else " / -"
    if source != "phycritic_bench":
        return {source: own}
    suites = {suite: percent(entry) for suite, entry in result["suites"].items() if suite in SUITES}
    return suites | {source: own, "phycritic_bench_macro": percent(result["macro"])}


def label(config):
    """The name of a row: the model, and how it judged."""
    how = "own prompt" if config.get("prompt_file") else config["prompt"]
    how = f"verifier, {config['verifier']}" if config.get("verifier") else how
    return f"{config['model']} ({how})" if config["mode"] == "judge" else config["model"]


def paper_rows(paper, name):
    """{model: {column: cell}} of the paper's numbers."""
    return {model: {column: f"{value:.1f}" for column, value in values.items()} for model, values in paper[name].items()}


def tables(results, paper):
    """Both tables as lines of Markdown. Raises ValueError on an unfinished result, one without --source, or twice one cell."""
    ours = {"judge": {}, "question": {}}
    for file, result in results.items():
        config = result["config"]
        if not result.get("finished"):
            raise ValueError(f"{file}: not finished; run its command again: {result.get('command')}")
        if not config.get("source"):
            raise ValueError(f"{file}: is not of a benchmark (evaluate.py --source)")
        row = ours[config["mode"]].setdefault(label(config), {})
        doubled = sorted(row.keys() & cells(result).keys())
        if doubled:
            raise ValueError(f"{file}: a second result of {label(config)} for {doubled}; give one")
        row.update(cells(result))
    lines = []
    for name, (title, mode, columns) in TABLES.items():
        lines += [f"## {title}", "", "| Model | " + " | ".join(columns.values()) + " |", "|---" * (len(columns) + 1) + "|"]
        for kind, rows in (("paper", paper_rows(paper, name)), ("ours", ours[mode])):
            lines += [
                f"| {model} ({kind}) | " + " | ".join(row.get(c, "-") for c in columns) + " |" for model, row in rows.items()
            ]
        lines.append("")
    return [*lines, f"Paper: {paper['source']}."]


if __name__ == "__main__":
    if any(word.startswith("-") for word in sys.argv[1:]):
        raise SystemExit(__doc__)
    found = {file: json.loads(Path(file).read_text(encoding="utf-8")) for file in sys.argv[1:]}
    print("\n".join(tables(found, json.loads(PAPER.read_text(encoding="utf-8")))))
