"""A GRPO step of this repository's trainer (shared prompts) against stock TRL's: time, memory, and the same gradients.

    python -m analysis.bench_train_step --point 64 8 2 1 --repeats 1          one point, printed: a look, seconds
    python -m analysis.bench_train_step --grid claims                         the 2 points that the claims are about
    python -m analysis.bench_train_step --grid small                          9 points
    python -m analysis.bench_train_step --grid full                           54 points; hours on two cores
    python -m analysis.bench_train_step --gpu --out runs/bench_gpu            one GPU of 80 GB, eight minutes; NOT RUN ON ONE YET
    python -m analysis.bench_train_step --tiny --out /tmp/bench               a small cut of that on the CPU, to see that it runs

A point is measured by analysis/bench_step.py, which says how, in processes of their own; one that does not fit into memory is
recorded as such.

Writes rows.jsonl (a point that is there and whose code has not changed is not measured again), results.json, table.md; of the
CPU's grids summary.json too, and bench.png (not of --grid claims).
"""

import argparse
import hashlib
import json
import platform
import resource
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from tqdm import tqdm

from analysis import headline
from data import files

AXES = {"prompt": (256, 1024, 2048), "completion": (64, 256), "group": (4, 8, 16), "frames": (4, 8, 16)}
MAIN, SMALL, BASE = (2048, 256, 8, 8), (256, 64, 4, 4), (1024, 64, 8, 8)
GPU_POINT, TINY_POINT = (2048, 512, 8, 8), (64, 8, 4, 2)
PARTS = ("generation", "reference", "forward", "backward", "step")
CODE = ("analysis/bench_step.py", "training/shared_prefix.py", "training/batches.py", "trainer.py")
COMPARED = ("difference", "ours", "stock, checkpoints", "stock")  # bench_step.CONTENDERS, whose import takes long
PROCESSES = {"cpu": ("time", "stock", "ours"), "gpu": COMPARED, "tiny": COMPARED}


def grid(name):
    """Points (prompt, completion, group, frames) of a grid, the ones that the claims are about first.

    >>> len(grid("full")), len(grid("small")), grid("small")[0]
    (54, 9, (2048, 256, 8, 8))
    """
    lines = [BASE[:i] + (value,) + BASE[i + 1 :] for i, values in enumerate(AXES.values()) for value in values if i != 1]
    whole = [(p, c, g, f) for p in AXES["prompt"] for c in AXES["completion"] for g in AXES["group"] for f in AXES["frames"]]
    return list(dict.fromkeys([MAIN, SMALL, *(lines if name != "claims" else []), *(whole if name == "full" else [])]))


# --- The grid -----------------------------------------------------------------------------------------------------


def code():
    """Sixteen hex digits of the code that is measured."""
    return hashlib.sha256(b"".join((headline.ROOT / name).read_bytes() for name in CODE)).hexdigest()[:16]


def run_grid(points, out, repeats, kind="cpu", limit=None):
    """Measure what rows.jsonl lacks, each part of a point in a process of its own; returns {(point, part): row}.

    What has not ended `limit` seconds from now is left to the next call.
    """
    import torch

    file, now, begun = out / "rows.jsonl", code(), time.monotonic()
    done = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    found = {(tuple(row["point"]), row["part"]): row for row in done if row["code"] == now}
    todo = [(point, part) for point in points for part in PROCESSES[kind] if (point, part) not in found]
    for point, part in tqdm(todo, desc="points"):
        words = ["--point", *map(str, point), "--part", part, "--repeats", str(repeats)]
        words = [sys.executable, "-m", "analysis.bench_train_step", *words, *([] if kind == "cpu" else [f"--{kind}"])]
        left = None if limit is None else max(limit + begun - time.monotonic(), 0)
        try:
            child = subprocess.run(words, cwd=headline.ROOT, stdout=subprocess.PIPE, text=True, timeout=left)
        except subprocess.TimeoutExpired:
            break
        failed = {"failed": f"exit status {child.returncode}"}
        row = {"point": list(point), "part": part, "code": now, "threads": torch.get_num_threads()}
        row |= failed if child.returncode else json.loads(child.stdout.splitlines()[-1])
        found[point, part] = row
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(row) + "\n")
    return found


def ratios(seconds, parts):
    """Stock's seconds over ours, step by step: {"value": mean, "low", "high": range, "n"}."""
    each = [sum(s[p] for p in parts) / sum(o[p] for p in parts) for s, o in zip(seconds["stock"], seconds["ours"])]
    return {"value": sum(each) / len(each), "low": min(each), "high": max(each), "n": len(each)}


def summarise(point, found, against="stock"):
    """What is known of one point: mean seconds of the parts, speedups, memory, differences, what failed."""
    rows, summary = {part: row for (where, part), row in found.items() if where == point}, dict(zip(AXES, point))
    steps = {who: each for row in rows.values() for who, each in row.get("seconds", {}).items()}
    if steps.get(against) and steps.get("ours"):
        seconds = {"stock": steps[against], "ours": steps["ours"]}
        summary["seconds"] = {who: {p: sum(s[p] for s in each) / len(each) for p in PARTS} for who, each in seconds.items()}
        summary |= {"step_speedup": ratios(seconds, ["step"]), "fwd_bwd_speedup": ratios(seconds, ["forward", "backward"])}
    summary |= {name: row[name] for name in ("tokens", "difference") for row in rows.values() if name in row}
    stock, ours = (rows.get(part, {}).get("peak_mib") for part in (against, "ours"))
    if stock and ours:
        summary |= {"peak_mib": {"stock": stock, "ours": ours}, "memory_ratio": ours / stock}
    failed = {part: row["failed"] for part, row in rows.items() if "failed" in row}
    return summary | ({"failed": failed} if failed else {}) | ({} if against == "stock" else {"against": against})


def claims(summaries):
    """Entries of experiments/headline.json."""
    by = {tuple(s[axis] for axis in AXES): s for s in summaries}
    main, small, measured = by[MAIN], by[SMALL], [s for s in summaries if "difference" in s]
    worst, ratio = max(s["difference"]["gradient"] for s in measured), main["memory_ratio"]
    times = "times (range over repeats)"
    return {
        "step_fwd_bwd_speedup": main["fwd_bwd_speedup"] | {"unit": times},
        "step_speedup": main["step_speedup"] | {"unit": times},
        "small_prompt_speedup": small["step_speedup"] | {"unit": times},
        "step_memory_ratio": {"value": ratio, "low": ratio, "high": ratio, "n": 1, "unit": "of stock TRL's peak (one run)"},
        "gradient_difference": {
            "value": worst, "low": min(s["difference"]["gradient"] for s in measured), "high": worst,
            "n": len(measured), "unit": "of the gradient's norm (range over points)",
        },
    }  # fmt: skip


# --- Output -------------------------------------------------------------------------------------------------------


def table_lines(results):
    """The results as Markdown, one row a point."""
    names = ", ".join(f"{name} {value}" for name, value in results["versions"].items())
    lines = [f"{results['machine']}, {results['threads']} threads; {names}. Seconds are stock TRL / ours.", ""]
    lines += ["| prompt | completion | G | frames | generation | reference | forward | backward | step | fwd and bwd, times | "
              "step, times | peak memory, GiB | gradient difference |", "|" + "---|" * 13]  # fmt: skip
    for s in results["points"]:
        cells = [str(s[axis]) for axis in AXES]
        cells[0] += f" ({s['against']})" if "against" in s else ""
        if "seconds" in s:
            cells += [f"{s['seconds']['stock'][p]:.2f} / {s['seconds']['ours'][p]:.2f}" for p in PARTS]
            cells += [f"{r['value']:.2f} [{r['low']:.2f}, {r['high']:.2f}]" for r in (s["fwd_bwd_speedup"], s["step_speedup"])]
        else:
            cells += [s.get("failed", {}).get("time", "not measured")] + [""] * 6
        memory = f"{s['peak_mib']['stock'] / 1024:.2f} / {s['peak_mib']['ours'] / 1024:.2f}" if "peak_mib" in s else "-"
        cells += [memory, f"{s['difference']['gradient']:.1e}" if "difference" in s else "-"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def draw(summaries, path):
    """How the step's seconds grow with the group, the frames and the prompt around one point; both axes logarithmic."""
    figure, panels = plt.subplots(1, 3, figsize=(10.5, 3.3), sharey=True, layout="constrained")
    for panel, axis in zip(panels, ("group", "frames", "prompt")):
        others = {name: value for name, value in zip(AXES, BASE) if name != axis}
        line = [s for s in summaries if "seconds" in s and all(s[name] == value for name, value in others.items())]
        line.sort(key=lambda s: s[axis])
        at = [s[axis] for s in line]
        for who, colour, marker in (("stock", "tab:gray", "s"), ("ours", "tab:blue", "o")):
            panel.plot(at, [s["seconds"][who]["step"] for s in line], color=colour, marker=marker, label=who)
        panel.set(xscale="log", yscale="log", xlabel=axis)
        panel.set_title(", ".join(f"{n} {v}" for n, v in others.items()), fontsize=8)
        panel.set_xticks(at, at)
        panel.minorticks_off()
    panels[0].set_ylabel("seconds a step")
    panels[0].legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--grid", choices=["claims", "small", "full"], default="small", help="points to measure")
    parser.add_argument("--repeats", type=int, default=3, help="timed steps of each trainer, after one that warms up")
    parser.add_argument("--out", type=Path, default=Path("experiments/bench_train_step"), help="folder of the results")
    parser.add_argument("--point", type=int, nargs=4, metavar=tuple(AXES), help="measure this point alone and print it")
    parser.add_argument("--part", default="time", help="of --point: what a process of its own measures")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--gpu", dest="kind", action="store_const", const="gpu", default="cpu", help="7B with LoRA on one GPU")
    kind.add_argument("--tiny", dest="kind", action="store_const", const="tiny", help="a small cut of --gpu on the CPU")
    parser.add_argument("--minutes", type=float, default=8.0, help="of --gpu and --tiny: what has not ended then is stopped")
    args = parser.parse_args(argv)
    if args.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {args.repeats}")
    if args.point and args.part not in PROCESSES[args.kind]:
        parser.error(f"--part must be one of {PROCESSES[args.kind]}, got {args.part!r}")
    import torch  # after --help

    if args.kind == "gpu" and not torch.cuda.is_available():
        parser.error("no GPU is at hand: this measures a 7B model on one. --tiny runs a small cut of it on the CPU")
    return args


def main(argv=None):
    args = parse(argv)
    import torch

    from analysis.bench_step import measure, measure_gpu

    on_cpu = args.kind == "cpu"
    if args.point and not on_cpu:
        print(json.dumps(measure_gpu(args.kind, tuple(args.point), args.part, args.repeats)))
        return
    if args.point:
        [line] = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable")]
        free = int(line.split()[1]) * 2**10 * 95 // 100
        resource.setrlimit(resource.RLIMIT_DATA, (free, free))  # an error of this process, not the end of another one
        print(json.dumps(measure(tuple(args.point), args.part, args.repeats)))
        return
    command = f"python -m analysis.bench_train_step --grid {args.grid}"
    files.commit()  # before hours of work
    args.out.mkdir(parents=True, exist_ok=True)
    points = grid(args.grid) if on_cpu else [GPU_POINT if args.kind == "gpu" else TINY_POINT]
    found = run_grid(points, args.out, args.repeats, args.kind, limit=None if on_cpu else 60 * args.minutes)
    versions = {name: version(name) for name in ("torch", "transformers", "trl")}
    against = ("stock",) if on_cpu else ("stock, checkpoints", "stock")
    results = {
        "machine": torch.cuda.get_device_name() if args.kind == "gpu" else platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(), "repeats": args.repeats, "versions": versions,
        "points": [summarise(point, found, stock) for point in points for stock in against],
    }  # fmt: skip
    (args.out / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (args.out / "table.md").write_text("\n".join(table_lines(results)) + "\n", encoding="utf-8")
    if on_cpu and args.grid != "claims":  # two points give no curves
        draw(results["points"], args.out / "bench.png")
    if on_cpu:
        headline.write_summary(args.out, claims(results["points"]), command)
    print("\n".join(table_lines(results)))


if __name__ == "__main__":
    sys.exit(main())
