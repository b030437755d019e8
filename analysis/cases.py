"""Judged pairs for the report's case browser, spread over suites and kinds of failure: a record to be committed.

    python -m analysis.cases runs/demo/eval/stage2_judge_test.json experiments/2026-11-30_cases

Reads     an evaluation of evaluate.py --mode judge (its result, and the rows beside it) and the pairs that it names
Writes    cases.json (the cases, how they were chosen, and what they were chosen from), frames/<number>.webp (a strip a case)

The choice: each kind of failure (analysis/mechanism.py), the rarest first, gets up to a fifth of the cases, right judgements
the rest. Within a kind the suites take turns, and within a suite the order is drawn by (seed, id, order). A pair is there
once. So failures are over-represented, and cases.json says by how much.
"""

import argparse
import itertools
import json
import random
import shutil
import sys
from collections import Counter
from pathlib import Path

from PIL import Image

import data
import rewards
from analysis.counterfactual import side_of
from analysis.headline import command_of
from analysis.mechanism import FAILURES, failure
from data.files import commit, content_sha, read_rows, write_result

ROW_FIELDS = ("order", "prediction", "verdict", "prediction_correct", "verdict_correct", "text", "cut_off")
RECORD_FIELDS = ("id", "suite", "question", "options", "answer", "response_1", "response_2", "source_1", "source_2", "preference")
GAP = 2  # transparent pixels between two frames


def load(result_path):
    """(result, rows, {id: record}) of a finished evaluation of judgements; raises ValueError on another file."""
    result = json.loads(Path(result_path).read_text(encoding="utf-8"))
    config = result.get("config", {})
    if config.get("mode") != "judge" or not result.get("finished"):
        raise ValueError(f"{result_path} is no finished evaluation of judgements: run evaluate.py --mode judge to its end")
    records = {record["id"]: record for record in data.load_records(config["dataset"], pair=True)}
    if content_sha(config["dataset"]) != config["records"]:
        raise ValueError(f"{config['dataset']} has changed since {result_path} was made: evaluate again")
    return result, read_rows(Path(result_path).with_suffix(".jsonl")), records


def spread(rows, seed):
    """The rows, suites in turn, within a suite in an order drawn by (seed, id, order); one row a pair."""
    by_suite = {}
    for row in sorted(rows, key=lambda row: random.Random(f"cases/{seed}/{row['id']}/{row['order']}").random()):
        by_suite.setdefault(row["suite"], {}).setdefault(row["id"], row)
    turns = itertools.zip_longest(*(by_suite[suite].values() for suite in sorted(by_suite)))
    return [row for turn in turns for row in turn if row]


def choose(rows, n, seed):
    """`n` rows (fewer where there are not so many pairs): failures first, the rarest of them first, up to a fifth of `n` each."""
    chosen, count = {}, Counter(row["kind"] for row in rows)
    for kind in sorted(FAILURES, key=lambda kind: (kind == "right", count[kind])):
        room = n - len(chosen) if kind == "right" else min(max(1, n // 5), n - len(chosen))
        free = [row for row in rows if row["kind"] == kind and row["id"] not in chosen]
        chosen |= {row["id"]: row for row in spread(free, seed)[:room]}
    return list(chosen.values())


def save_strip(record, path, max_frames):
    """Write the record's frames side by side, lossless; returns their number. ValueError where it has none."""
    images = data.open_frames(record, max_frames)
    if not images:
        raise ValueError(f"record {record['id']} has no frames: the browser shows judgements of clips and pictures only")
    lefts = list(itertools.accumulate((image.width + GAP for image in images), initial=0))
    strip = Image.new("RGBA", (lefts[-1] - GAP, max(image.height for image in images)))
    for image, left in zip(images, lefts):
        strip.paste(image, (left, 0))
    strip.save(path, lossless=True, quality=100, method=6)
    return len(images)


def case(row, record, folder, number, max_frames):
    """What the report shows of a judgement; its frames are written to the folder."""
    file = f"{number:03d}.webp"
    said = rewards.parse_critique(row["text"])
    made = {"kind": row["kind"], **{name: record.get(name) for name in RECORD_FIELDS}, "facts": record.get("facts")}
    made |= {name: row[name] for name in ROW_FIELDS} | {"pred_think": said.pred_think, "think": said.think}
    return made | {"frames": f"frames/{file}", "n_frames": save_strip(record, folder / file, max_frames)}


def write(result, rows, records, out, args, command):
    """Write the record whole: frames first, cases.json last; returns it."""
    rows = [row | {"kind": failure(row | {"own_side": side_of(row["prediction"], records[row["id"]])})} for row in rows]
    part, most, count = out / "frames.part", result["config"]["max_frames"], Counter((row["kind"], row["suite"]) for row in rows)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    chosen = [case(row, records[row["id"]], part, i, most) for i, row in enumerate(choose(rows, args.n, args.seed))]
    made = {"command": command, "commit": commit()}
    made["evaluation"] = {name: result[name] for name in ("command", "commit", "machine", "versions")}
    made["how"] = (
        f"Drawn with seed {args.seed}: each kind of failure up to {max(1, args.n // 5)} cases, suites in turn, each pair once; "
        "right judgements fill the rest. Failures are over-represented; `judged` counts all that they were drawn from."
    )
    made["judged"] = {kind: {suite: count[kind, suite] for suite in sorted({row["suite"] for row in rows})} for kind in FAILURES}
    made["cases"] = sorted(chosen, key=lambda case: (FAILURES.index(case["kind"]), case["suite"], case["id"]))
    shutil.rmtree(out / "frames", ignore_errors=True)
    part.replace(out / "frames")
    write_result(out / "cases.json", made)
    return made


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("result", type=Path, help="result of evaluate.py --mode judge, its rows beside it")
    parser.add_argument("out", type=Path, help="the record's folder")
    parser.add_argument("--n", type=int, default=120, help="number of cases")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    args = parser.parse_args(argv)
    try:
        made = write(*load(args.result), args.out, args, command_of("analysis.cases", argv))
    except (ValueError, OSError) as error:
        raise SystemExit(f"cases: {error}") from error
    for kind in FAILURES:
        print(f"{sum(c['kind'] == kind for c in made['cases']):4} of {sum(made['judged'][kind].values()):5} {kind}")


if __name__ == "__main__":
    sys.exit(main())
