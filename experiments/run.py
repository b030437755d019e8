"""Run a matrix of named runs for several seeds: training stages, then evaluations; one JSON line a finished run.

    python experiments/run.py experiments/tables.yaml --dry_run
    python experiments/run.py experiments/tables.yaml                          resumes; prints the tables when all is there
    python experiments/run.py experiments/tables.yaml --seeds 0 --only two_stages no_r_sp
    python experiments/run.py experiments/tables.yaml --scale experiments/matrix/phycritic_7b.yaml --out experiments/tables_7b \\
        --work runs/tables_7b --dry_run

How a matrix and a scale are written: experiments/tables.yaml, experiments/matrix/physworld.yaml. Runs go one after another;
a stage that several runs of a seed begin with is trained once. Kill it at any time: the same command takes finished runs
from <out>/results.jsonl, finished stages from <work>, and resumes the one that it was in. A folder's name holds a hash of
everything that made it (YAMLs, flags, seed, first weights; not the code: each row names its commit), so another setting is
another folder. A run that fails is reported at the end, with its log; the others go on.

Writes   <out>/results.jsonl          a row a run: config, commit, versions, metrics, paths of rows, outcomes row by row
         <out>/items_<evaluation>.jsonl.gz   which item each outcome is of, in order
         <work>/...                   models, logs, evaluate.py's results and rows (not committed)
"""

import ctypes
import gzip
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__" and not __package__:  # typed as a script: the same process again as a module, which finds the project
    os.chdir(ROOT)
    os.execv(sys.executable, [sys.executable, "-m", "experiments.run", *sys.argv[1:]])

from data import command, open_lines, write_whole
from data.files import open_rows, provenance, read_rows
from experiments.plan import plan, read_matrix, start_weights
from stats import is_right, row_key

KEPT = ("accuracy", "macro", "suites", "unreadable", "cut_off", "consistency", "first_share", "longer_share")
KEPT += ("prediction_accuracy", "coupling", "coupling_one_order", "prompt_tokens", "completion_tokens", "seconds")


class Failed(Exception):
    """A command that ended with an error; the message names its log."""


def die_with_parent():
    """Linux: kill this process when the one that started it dies, or a resumed matrix would meet the old training."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def execute(command, log, environment, threads):
    """Run a command in the repository, its output appended to `log`; raises Failed where it ends with an error."""
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable if word == "python" else word for word in command]
    how = {"cwd": ROOT, "env": os.environ | environment | {"OMP_NUM_THREADS": str(threads)}, "preexec_fn": die_with_parent}
    with log.open("ab") as stream:
        code = subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, **how).returncode
    if code:
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-3:]
        raise Failed(f"{shlex.join(command[:3])} ... ended with {code}; see {log}: {' | '.join(tail)}")


def train(stage, environment, threads):
    """Train a stage unless it is finished; returns what its finished.json holds. Raises Failed where another call is at it."""
    done = stage.folder / "finished.json"
    try:
        lock = open_lines(stage.folder.with_name(stage.folder.name + ".lock"))
    except BlockingIOError:
        raise Failed(f"{stage.folder} is being trained by another call of this script: wait for it, then start again") from None
    with lock:
        if not done.exists():
            started, resumed = time.time(), any(stage.folder.glob("checkpoint-*"))
            execute(stage.command, stage.folder.with_name(stage.folder.name + ".log"), environment, threads)
            tidy(stage.folder)
            note = {"seconds": round(time.time() - started, 1), "resumed": resumed, "command": shlex.join(stage.command)}
            write_whole(done, json.dumps(note) + "\n")
    return json.loads(done.read_text())


def tidy(folder):
    """Keep the newest trainer_state.json (the learning curves) and drop the checkpoints of a finished stage."""
    states = sorted(folder.glob("checkpoint-*/trainer_state.json"), key=lambda path: int(path.parent.name.split("-")[1]))
    if states:
        shutil.copy(states[-1], folder)
    for checkpoint in folder.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)


def outcomes(rows):
    """What the tables need of each row, a character a row, in the order of ids: right (1, 0), own answer right (1, 0, -).

    >>> outcomes([{"id": "a", "order": "12", "verdict_correct": True, "prediction_correct": None}])
    {'right': '1', 'own': '-'}
    """
    rows = sorted(rows, key=row_key)
    own = [row.get("prediction_correct") for row in rows]
    right = "".join(str(int(is_right(row))) for row in rows)
    return {"right": right, "own": "".join("-" if mark is None else str(int(mark)) for mark in own)}


def keep_items(rows, path):
    """Write which item stands at each place of the outcomes; raises ValueError where the file is of other items."""
    items = [{name: row.get(name) for name in ("id", "order", "suite", "cluster")} for row in sorted(rows, key=row_key)]
    text = "".join(json.dumps(item) + "\n" for item in items)
    if not path.exists():
        write_whole(path, gzip.compress(text.encode(), mtime=0))
    elif gzip.decompress(path.read_bytes()).decode() != text:
        raise ValueError(f"{path} is about other items than this run: the data has changed; give another --out and run all again")


def finish(run, trained, out):
    """The row of a run whose stages and evaluations are there."""
    row = {"id": run.id, "run": run.name, "seed": run.seed, "start": run.start, "weights": run.weights, "prompt": run.prompt}
    row["stages"], row["evaluations"], versions, commits = [], {}, {}, set()
    for stage, note in zip(run.stages, trained):
        made = yaml.safe_load((stage.folder / "config.yaml").read_text(encoding="utf-8"))
        row["stages"].append({"stage": stage.name, "folder": str(stage.folder), "config": stage.config} | note)
        versions |= made["versions"]
        commits.add(made.get("commit"))
    for name, (path, *_) in run.evaluations.items():
        result = json.loads(path.read_text(encoding="utf-8"))
        if not result["finished"]:
            raise Failed(f"{path} did not finish: {result['failed']}")
        rows = read_rows(path.with_suffix(".jsonl"), without="text")
        keep_items(rows, out / f"items_{name}.jsonl.gz")
        commits.add(result["commit"])
        metrics = {field: result[field] for field in KEPT if field in result}
        where = {"config": result["config"], "rows": str(path.with_suffix(".jsonl"))}
        row["evaluations"][name] = where | {"metrics": metrics} | outcomes(rows)
    made = provenance()
    row["commit"] = ", ".join(sorted(filter(None, commits))) or None  # of all that made the run
    return row | {"versions": versions | made["versions"], "machine": made["machine"]}


def do(run, scale, threads, broken):
    """Train and evaluate a run; returns the notes of its stages. `broken` are folders of stages that failed before."""
    environment, trained, at_once = scale["environment"], [], scale["evaluate_at_once"]
    for stage in run.stages:
        if stage.folder in broken:
            raise Failed(f"stage {stage.folder} failed before")
        try:
            trained.append(train(stage, environment, threads))
        except Failed:
            broken.add(stage.folder)
            raise
    with ThreadPoolExecutor(at_once) as pool:
        each = max(threads // at_once, 1)
        evaluations = run.evaluations.values()
        jobs = [pool.submit(execute, command, path.with_suffix(".log"), environment, each) for path, command, *_ in evaluations]
    for job in jobs:
        job.result()
    return trained


# ---------------------------------------------------------------------------------------------------------- printing


def dry_run(runs, scale, finished):
    """Print every command with its steps and token budget; what is finished, or trained by a run above, is marked."""
    seen, steps, tokens, seconds = set(), 0, 0, 0.0
    rates, each, start = scale.get("seconds_a_step", {}), scale.get("seconds_a_completion", {}), scale.get("seconds_to_start", 0)
    if scale["prepare"]:
        print(shlex.join(scale["prepare"]))
    for run in runs:
        print(f"\n# {run.name}, seed {run.seed}" + (": finished" if run.id in finished else ""))
        for stage in run.stages:
            shared = stage.folder in seen or (stage.folder / "finished.json").exists()
            mark, own = " (is there, or trained above)" if shared else "", stage.config["max_steps"]
            print(f"{shlex.join(stage.command)}\n    # {own} steps, at most {stage.tokens / 1e6:,.1f} M tokens{mark}")
            if not shared:
                steps, tokens, seconds = steps + own, tokens + stage.tokens, seconds + own * rates.get(stage.name, 0) + start
            seen.add(stage.folder)
        for name, (_, command, most, completions) in run.evaluations.items():
            print(f"{shlex.join(command)}\n    # {completions} completions, at most {most / 1e6:,.1f} M tokens")
            if run.id not in finished:
                tokens += most
                seconds += (completions * each.get(scale["evaluations"][name]["mode"], 0) + start) / scale["evaluate_at_once"]
    hours = f"about {seconds / 3600:.1f} hours" if rates else "no times known for this scale"
    print(f"\n{len(runs)} runs, {steps} training steps, at most {tokens / 1e6:,.1f} M tokens, {hours}")


def summary(runs, rows):
    """A table as text: a row per run, mean over its seeds of each evaluation's accuracy in percent, and the range over them."""
    import pandas as pd  # after --help

    found = [(run.name, rows[run.id]["evaluations"]) for run in runs if run.id in rows]
    if not any(made for _, made in found):
        return f"{len(found)} runs are there, none with an evaluation"
    rates = pd.DataFrame({"run": name} | {e: 100 * made[e]["metrics"]["accuracy"]["value"] for e in made} for name, made in found)
    by_run = rates.groupby("run", sort=False)
    cells = by_run.agg(lambda values: f"{values.mean():.1f} ({values.min():.1f} - {values.max():.1f})")
    return cells.assign(seeds=by_run.size()).to_string()


def main(argv=None):
    parser = command.Parser(description=__doc__)
    parser.add_argument("matrix", help="YAML of runs, e.g. experiments/tables.yaml")
    parser.add_argument("--scale", help="YAML of the scale, instead of the matrix's own")
    parser.add_argument("--seeds", type=int, nargs="+", help="instead of the matrix's")
    parser.add_argument("--only", nargs="+", help="names of runs")
    parser.add_argument("--out", type=Path, default=Path("experiments/tables"), help="what is committed: rows, tables")
    parser.add_argument("--work", type=Path, default=Path("runs/tables"), help="models, logs, evaluations")
    parser.add_argument("--threads", type=int, default=2, help="OMP_NUM_THREADS of a training; evaluations at once share them")
    parser.add_argument("--dry_run", action="store_true", help="print commands, steps, token budget and hours, run nothing")
    args = parser.parse_args(argv)
    matrix, scale, configs = read_matrix(args.matrix, args.scale)
    out, work = (ROOT / args.out).resolve(), args.work
    runs, notes = plan(matrix, scale, configs, work, args.seeds or matrix["seeds"], args.only, start_weights(scale))
    if not runs:
        return print("\n".join(["nothing to run", *notes]))
    if args.dry_run:
        path = out / "results.jsonl"
        dry_run(runs, scale, {row["id"] for row in read_rows(path)} if path.exists() else set())
        return print("\n".join(notes))
    stream, found = open_rows(out / "results.jsonl", out / "-", {})  # locks the file, and drops a line that a kill cut off
    rows, failures, broken = {row["id"]: row for row in found}, [], set()
    missing = [run for run in runs if run.id not in rows]
    os.chdir(ROOT)  # the folders of the plan are relative to it
    with stream:
        if missing and scale["prepare"]:
            execute(scale["prepare"], work / "prepare.log", scale["environment"], args.threads)
        for number, run in enumerate(missing, 1):
            print(f"[{number}/{len(missing)}] {run.name}, seed {run.seed}", flush=True)
            try:
                row = finish(run, do(run, scale, args.threads, broken), out)
            except Failed as error:
                failures.append(f"{run.name}, seed {run.seed}: {error}")
                print(failures[-1], flush=True)
                continue
            stream.write(json.dumps(row).encode() + b"\n")
            stream.flush()
            rows[row["id"]] = row
    print("\n".join([summary(runs, rows), *notes, *failures]))
    if failures:
        return 1
    if not args.only and "tables" in matrix:
        return subprocess.run([sys.executable, "-m", "analysis.ablation_tables", str(args.out)], cwd=ROOT).returncode


if __name__ == "__main__":
    command.run(main)
