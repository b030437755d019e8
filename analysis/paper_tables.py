"""The paper's tables of benchmarks (2: judges, 3: questions) and of DPO (8), with ours beside its numbers.

    python -m analysis.paper_tables judges runs/eval/*.json
    bash experiments/dpo.sh; python -m analysis.paper_tables dpo experiments/2026-11-30_dpo runs/dpo --skip 500

judges prints a row for each model and prompt (or the verifier), from results of evaluate.py with --source. A cell is accuracy
in percent, its 95% interval clustered by question, and n; where a benchmark's own rule is another one, its score follows after
a slash. RoboRewardBench's mean absolute error is in points of its five.

dpo compares policies trained on three kinds of pairs with the policy that they started from. It reads <runs>/base_<split>.jsonl
and <runs>/<seed>/<pairs by>/<split>.jsonl, rows of evaluate.py --mode question, and the counts that train_dpo.py pairs leaves.
--skip leaves out the first test questions (evaluate.py's order), those that settings were chosen on. Seeds are pooled, every
row is paired with the policy's own on the same question, and intervals resample questions. Writes README.md, results.json and
summary.json; a missing or unfinished file is an error.
"""

import argparse
import json
from collections import Counter
from pathlib import Path

from analysis.headline import command_of
from analysis.pages import cell, gain, markdown, times100, write_record
from data.files import read_rows
from stats import estimate, is_right, row_key

# --------------------------------------------------------------------------------------------- judges: Tables 2 and 3

NUMBERS = Path(__file__).resolve().parents[1] / "experiments" / "paper_numbers.json"
SUITES = {
    "agibot": "AgiBot",
    "holoassist": "HoloAssist",
    "robovqa": "RoboVQA",
    "bridgev2": "Bridge",
    "robofail": "RoboFail",
    "lingoqa": "LingoQA",
}
TABLES = {  # name -> (title, mode of evaluate.py, {column: its head})
    "table_2": ("Table 2: judge benchmarks", "judge", SUITES | {
        "phycritic_bench": "PhyCritic-Bench", "phycritic_bench_macro": "macro", "vl_rewardbench": "VL-RewardBench",
        "multimodal_rewardbench": "Multimodal RewardBench", "roboreward": "RoboRewardBench pairs", "judgebench": "JudgeBench",
    }),
    "table_3": ("Table 3: question benchmarks", "question", {
        "cosmos_reason1": "CosmosReason1-Bench", "cv_bench": "CV-Bench", "egoplan_bench2": "EgoPlan-Bench2", "lingoqa": "LingoQA",
        "roboreward": "RoboRewardBench MAE",
    }),
}  # fmt: skip


def counted(entry, times=100, style=".1f"):
    """An estimate as a cell, with its n."""
    return "-" if entry["value"] is None else f"{cell(entry, style, times)} n={entry['n']}"


def columns_of(result):
    """{column: cell} of one result of evaluate.py; a mean absolute error counts unreadable scores at their worst, then not."""
    source, score = result["config"]["source"], result.get("official") or {}
    if score.get("unit") == "points":
        if score["value"] is None:
            return {source: f"{score['ours']['value']:.2f} / -"}
        return {source: f"{counted(score['ours'], 1, '.2f')} / {score['value']:.2f}"}
    own = counted(result["accuracy"])
    if score:
        own += f" / {100 * score['value']:.1f}" if score["value"] is not None else " / -"
    if source != "phycritic_bench":
        return {source: own}
    suites = {suite: counted(entry) for suite, entry in result["suites"].items() if suite in SUITES}
    return suites | {source: own, "phycritic_bench_macro": counted(result["macro"])}


def label(config):
    """The name of a row: the model, and how it judged."""
    how = "own prompt" if config.get("prompt_file") else config["prompt"]
    how = f"verifier, {config['verifier']}" if config.get("verifier") else how
    return f"{config['model']} ({how})" if config["mode"] == "judge" else config["model"]


def judge_tables(results, paper):
    """Both tables as lines of Markdown. Raises ValueError on an unfinished result, one without --source, or twice one cell."""
    ours = {"judge": {}, "question": {}}
    for file, result in results.items():
        config = result["config"]
        if not result.get("finished"):
            raise ValueError(f"{file}: not finished; run its command again: {result.get('command')}")
        if not config.get("source"):
            raise ValueError(f"{file}: is not of a benchmark (evaluate.py --source)")
        row, made = ours[config["mode"]].setdefault(label(config), {}), columns_of(result)
        if doubled := sorted(row.keys() & made.keys()):
            raise ValueError(f"{file}: a second result of {label(config)} for {doubled}; give one")
        row.update(made)
    lines = []
    for name, (title, mode, columns) in TABLES.items():
        theirs = {model: {column: f"{value:.1f}" for column, value in row.items()} for model, row in paper[name].items()}
        rows = {f"{model} (paper)": row for model, row in theirs.items()}
        rows |= {f"{model} (ours)": row for model, row in ours[mode].items()}
        cells = [[model, *(row.get(column, "-") for column in columns)] for model, row in rows.items()]
        lines += [f"## {title}", "", *markdown([["Model", *columns.values()], *cells]), ""]
    return [*lines, f"Paper: {paper['source']}."]


# ------------------------------------------------------------------------------------------------------- dpo: Table 8

KINDS = {"verifier": "answer verifier's pairs", "critic": "critic's pairs", "pivot": "critic's pairs, pivot tournament"}
PAPER = {"base": 54.3, "verifier": 57.5, "critic": 60.0}  # CosmosReason1-Bench, Qwen2.5-VL-7B (arXiv 2602.11124, Table 8)
SPLITS = ("test", "ood")
KEPT = ("right over wrong", "right over right", "wrong over right", "wrong over wrong")


def counted_rows(path, skip):
    """Rows of a finished evaluation, without the first `skip` of the test split; raises ValueError with the remedy."""
    result = path.with_suffix(".json")
    if not result.is_file() or not json.loads(result.read_text(encoding="utf-8")).get("finished"):
        raise ValueError(f"{result} is missing or not finished: run bash experiments/dpo.sh again")
    rows = read_rows(path)[skip if path.stem.endswith("test") else 0 :]
    if not rows:
        raise ValueError(f"{path}: --skip {skip} leaves no row; evaluate more questions, or skip fewer")
    return rows


def pair_counts(files):
    """Sums over seeds of what train_dpo.py pairs counted: {"questions", "pairs", "kinds", "refused"}."""
    counts = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    total = {name: sum(one[name] for one in counts) for name in ("questions", "pairs")}
    return total | {name: dict(sum((Counter(one[name]) for one in counts), Counter())) for name in ("kinds", "refused")}


def measure(runs, seeds, skip):
    """{kind: {split: {"accuracy", "gain", "over_verifier"}, "pairs"}} in percent and points; the base has the first only."""
    base = {split: counted_rows(runs / f"base_{split}.jsonl", skip) for split in SPLITS}
    found = {"base": {split: {"accuracy": times100(estimate(rows, is_right))} for split, rows in base.items()}}
    for split in SPLITS:
        rows = {kind: [counted_rows(runs / seed / kind / f"{split}.jsonl", skip) for seed in seeds] for kind in KINDS}
        for kind, by_seed in rows.items():
            if any(set(map(row_key, some)) != set(map(row_key, base[split])) for some in by_seed):
                raise ValueError(f"{runs}: {kind}, {split}: other questions than the base's; evaluate all with one --limit")
            entry = {"accuracy": times100(estimate(sum(by_seed, []), is_right))}
            against = {"gain": [base[split]] * len(seeds)} | ({"over_verifier": rows["verifier"]} if kind != "verifier" else {})
            for name, before in against.items():
                entry[name] = gain(by_seed, before)
                entry[f"{name}_seeds"] = [gain([a], [b])["value"] for a, b in zip(by_seed, before)]
            found.setdefault(kind, {})[split] = entry
    for kind in KINDS:
        found[kind]["pairs"] = pair_counts([runs / seed / kind / "pairs.json" for seed in seeds])
    return found


def lead(entry, name):
    """A gain in points with those of its seeds, whose spread the interval (over questions) leaves out; "-" without one.

    >>> lead({"gain": {"value": 4.2, "low": 1.6, "high": 7.8}, "gain_seeds": [9.9, -0.3]}, "gain")
    '+4.2 [+1.6, +7.8], seeds -0.3 to +9.9'
    """
    if name not in entry:
        return "-"
    seeds = entry[name + "_seeds"]
    return f"{cell(entry[name], '+.1f', 1)}, seeds {min(seeds):+.1f} to {max(seeds):+.1f}"


def dpo_table(found):
    """Markdown lines: a row a kind of pairs."""
    cells = [["Trained on", "Test, %", "points over the policy", "over the verifier's", "Out of distribution, %"]]
    cells[0] += ["over the policy", "Paper (7B)"]
    for kind, splits in found.items():
        test, ood = (splits[split] for split in SPLITS)
        name, rates = KINDS.get(kind, "nothing: the policy"), [cell(one["accuracy"], times=1) for one in (test, ood)]
        mine = [rates[0], lead(test, "gain"), lead(test, "over_verifier"), rates[1], lead(ood, "gain")]
        cells.append([name, *mine, str(PAPER.get(kind, "-"))])
    return markdown(cells)


def pairs_table(found):
    """Markdown lines: the pairs of each kind, and the questions that gave none, by reason."""
    cells = [["Pairs by", "Questions", "Pairs", *KEPT, "Refused"]]
    for kind, name in KINDS.items():
        counts = found[kind]["pairs"]
        refused = ", ".join(f"{n} {reason}" for reason, n in sorted(counts["refused"].items(), key=lambda item: -item[1]))
        numbers = [counts["questions"], counts["pairs"], *(counts["kinds"].get(kept, 0) for kept in KEPT)]
        cells.append([name, *map(str, numbers), refused])
    return markdown(cells)


def record_dpo(out, runs, skip, command):
    """Write the record of the runs; raises ValueError or OSError on a file that is missing or does not fit."""
    seeds = sorted(path.name for path in runs.iterdir() if path.is_dir() and path.name.isdigit())
    if not seeds:
        raise ValueError(f"{runs} has no folder of a seed (0, 1, ...): run bash experiments/dpo.sh")
    found = measure(runs, seeds, skip)
    about = f"Seeds {', '.join(seeds)} pooled, intervals over questions; n in results.json. Command: `{command}`."
    about += f" The first {skip} test questions chose settings and are not counted." if skip else ""
    lines = ["# DPO with the critic's pairs", "", about, "", *dpo_table(found), ""]
    lines += ["## Pairs, summed over the seeds", "", *pairs_table(found)]
    entries = {f"dpo_gain_{kind}_pairs": found[kind]["test"]["gain"] | {"unit": "points"} for kind in ("critic", "verifier")}
    write_record(out, lines, "results.json", found, entries, command)
    print("\n".join(dpo_table(found)))


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    commands = parser.add_subparsers(dest="table", required=True)
    judges = commands.add_parser("judges", help="Tables 2 and 3, printed", allow_abbrev=False)
    judges.add_argument("results", type=Path, nargs="+", help="results of evaluate.py --source")
    dpo = commands.add_parser("dpo", help="Table 8, as a record", allow_abbrev=False)
    dpo.add_argument("out", type=Path, help="the record's folder")
    dpo.add_argument("runs", type=Path, help="folder of the runs")
    dpo.add_argument("--skip", type=int, default=0, help="test questions left out, the first ones")
    args, command = parser.parse_args(argv), command_of("analysis.paper_tables", argv)
    try:
        if args.table == "dpo":
            return record_dpo(args.out, args.runs, args.skip, f"bash experiments/dpo.sh; {command}")
        found = {file: json.loads(file.read_text(encoding="utf-8")) for file in args.results}
        print("\n".join(judge_tables(found, json.loads(NUMBERS.read_text(encoding="utf-8")))))
    except (ValueError, OSError) as error:
        raise SystemExit(f"paper_tables: {error}") from error


if __name__ == "__main__":
    main()
