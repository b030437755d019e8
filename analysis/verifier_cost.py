"""What best of N costs with our verifier and with llm-verifier 0.3.0: the same tasks, server and cap, in one run.

    python -m analysis.verifier_cost --tasks 1 --analysis_tokens 8 --out runs/verifier_cost          a look
    python -m analysis.verifier_cost --out experiments/2026-11-30_verifier/cost                      9 minutes of one core

Three written tasks of four candidates (verifier_tasks.jsonl), three criteria, two repeats, pivot tournament with two
pivots, one call at a time. Every request of both goes through one proxy to a llama.cpp server, which is started anew for
each task and side, so that neither finds what the other left in its cache. The proxy reads the replies' own counts:
prompt tokens that the server computed (not served from its cache) and generated tokens; seconds are of the whole task,
CPU seconds those of this process, server included, which a busy machine does not stretch.

Three things make the two comparable. The peer asks for up to 4,096 tokens of analysis; the proxy lowers that to our
`--analysis_tokens`. llama.cpp repeats the prefilled text in front of its reply, other servers do not; the peer would take
all of it for the letter and pay for its analysis twice; the proxy removes it. The peer runs with one worker, its best
setting on a server with one slot. Neither side's pick is judged here: the model is too small to.

Writes runs.jsonl (one row a task and side; a run that was killed carries on), README.md and summary.json.
"""

import argparse
import json
import time
import urllib.request
from importlib.metadata import version
from pathlib import Path

import openai
import pandas as pd
from tqdm import tqdm

import data
import ppt
from analysis.headline import command_of, write_summary
from analysis.small_server import served
from judging.server import ServerBackend
from tests.fault_proxy import FaultProxy
from verifier import Verifier, load_criteria

TASKS = Path(__file__).with_name("verifier_tasks.jsonl")
CRITERIA = [f"physical/{name}.md" for name in ("groundedness", "truthfulness", "validity")]
REPEATS, PIVOTS, MODEL = 2, 2, "smollm2-135m"
LABELS = {
    "computed": "prompt tokens computed", "generated": "tokens generated", "seconds": "seconds", "cpu_seconds": "CPU seconds",
    "prompt": "prompt tokens asked", "requests": "requests", "comparisons": "comparisons",
}  # fmt: skip
TARGETS = {"computed": 0.8, "generated": 1.0, "seconds": 1.0}


class Meter:
    """A proxy's upstream: caps the analysis, forwards, removes a repeated prefill, adds up what the replies say."""

    def __init__(self, url, cap):
        self.url, self.cap, self.totals = url, cap, {"requests": 0, "prompt": 0, "computed": 0, "generated": 0}

    def __call__(self, request):
        request = request | {"max_tokens": min(self.cap, request["max_tokens"])}
        asked = urllib.request.Request(
            f"{self.url}/chat/completions", json.dumps(request).encode(), {"Content-Type": "application/json"}
        )
        body = json.load(urllib.request.urlopen(asked, timeout=600))
        usage, (choice,), last = body["usage"], body["choices"], request["messages"][-1]
        computed = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        counts = {"requests": 1, "prompt": usage["prompt_tokens"], "computed": computed, "generated": usage["completion_tokens"]}
        self.totals = {name: total + counts[name] for name, total in self.totals.items()}
        if last["role"] == "assistant" and (choice["message"]["content"] or "").startswith(last["content"]):
            choice["message"]["content"] = choice["message"]["content"][len(last["content"]) :]
        return body


def ours(url, task, texts, seed, cap):
    """(pick, comparisons) of our verifier."""
    backend = ServerBackend(url, MODEL, analysis_tokens=cap, concurrency=1, timeout=600.0, retries=0)
    with Verifier(backend, CRITERIA, repeats=REPEATS, seed=seed, min_mass=0, abstain=True, progress=False) as judge:

        def compare_many(pairs):
            return [result.p for result in judge.compare_many([(task, texts[a], texts[b]) for a, b in pairs])]

        ranking = ppt.pivot_tournament(len(texts), None, pivots=PIVOTS, seed=seed, compare_many=compare_many)
    return ranking.best, len(ranking.comparisons)


def peer(url, task, texts, seed, cap):
    """(pick, comparisons) of llm-verifier; the proxy caps its analysis."""
    import llm_verifier

    result = llm_verifier.select(
        task, texts, criteria={criterion.name: criterion.text for file in CRITERIA for criterion in load_criteria(file)},
        n_evaluations=REPEATS, pivots=PIVOTS, seed=seed, max_workers=1, model=MODEL, progress=False, on_error="raise",
        client=openai.OpenAI(base_url=url, api_key="none", timeout=600.0, max_retries=0),
    )  # fmt: skip
    return result.index, result.n_comparisons


SIDES = {"ours": ours, "peer": peer}


def measure(side, task, seed, cap):
    """One row: what `side` pays for one task on a fresh server."""
    texts = [candidate["text"] for candidate in task["candidates"]]
    with served() as url, FaultProxy(meter := Meter(url, cap)) as proxy:
        begun, cpu = time.perf_counter(), time.process_time()
        pick, comparisons = SIDES[side](proxy.url, task["question"], texts, seed, cap)
        spent = {"seconds": time.perf_counter() - begun, "cpu_seconds": time.process_time() - cpu}
    if meter.totals["requests"] != len(proxy.log):
        raise RuntimeError(f"{side}, {task['id']}: {len(proxy.log) - meter.totals['requests']} requests failed at the server")
    return {"side": side, "task": task["id"], "seed": seed, "cap": cap, "pick": pick, "comparisons": comparisons,
            **meter.totals, **spent}  # fmt: skip


def measured(tasks, cap, path):
    """Rows of all tasks and sides, those that the JSONL file has (with this cap) from there."""
    wanted = [(side, task, seed) for seed, task in enumerate(tasks) for side in SIDES]
    with data.open_lines(path) as file:
        file.seek(0)
        done = {(row["side"], row["task"]): row for row in map(json.loads, file) if row["cap"] == cap}
        for side, task, seed in tqdm(wanted, desc="tasks"):
            if (side, task["id"]) not in done:
                done[side, task["id"]] = row = measure(side, task, seed, cap)
                file.write(json.dumps(row).encode() + b"\n")
                file.flush()
    return [done[side, task["id"]] for side, task, _ in wanted]


def compared(rows):
    """A table with a row for each name of LABELS: what both paid, the ratio over all tasks, least and largest of one task.

    >>> row = dict.fromkeys(LABELS, 1.0) | {"task": "t"}
    >>> compared([row | {"side": "ours"}, row | {"side": "peer", "computed": 2.0}]).loc["computed"].tolist()
    [1.0, 2.0, 0.5, 0.5, 0.5]
    """
    paid = {side: pd.DataFrame([row for row in rows if row["side"] == side]).set_index("task")[list(LABELS)] for side in SIDES}
    each, total = paid["ours"] / paid["peer"], pd.DataFrame({side: paid[side].sum() for side in SIDES})
    return total.assign(ratio=total["ours"] / total["peer"], least=each.min(), largest=each.max())


def readme(found, tasks, command, cap):
    """The record's README: claim, command, table and what falls short."""
    missed = [(name, most) for name, most in TARGETS.items() if found.ratio[name] > most]
    short = "; ".join(f"{LABELS[name]} {found.ratio[name]:.2f} (target {most})" for name, most in missed)
    return "\n".join([
        "# What the verifier costs against llm-verifier", "",
        f"Best of 4, 3 criteria, 2 repeats, pivot tournament with 2 pivots, {tasks} tasks, analyses of at most {cap} tokens, one "
        f"call at a time; llm-verifier {version('llm-verifier')}; SmolLM2-135M-Instruct (Q4_1) on xllamacpp "
        f"{version('xllamacpp')}, one slot, one thread, its prompt cache as it comes. Command: `{command}`.", "",
        "| | ours | llm-verifier | ratio | range of the tasks |", "|---|---|---|---|---|",
        *(f"| {LABELS[name]} | {ours:,.0f} | {theirs:,.0f} | {ratio:.3f} | {least:.3f} to {largest:.3f} |"
          for name, ours, theirs, ratio, least, largest in found.itertuples()), "",
        f"Targets (computed at most 0.8, generated and seconds no more): {f'missed by {short}' if short else 'met'}.", "",
        "Where the difference comes from: a pair that comes back in the other direction shows the model the same prompts, and is "
        "not asked again; calls of one prefix follow each other, prefixes that share a trajectory too; the reply's form stands "
        "before the criterion, in the shared part. What the proxy does to both sides stands in analysis/verifier_cost.py.", "",
        "A call of ours without a letter at the first tag is missing and is not asked for its second (some ten prompt tokens "
        "less); the peer goes on and may take 0.5. This model is too small for either pick to mean anything.", "",
        "runs.jsonl: one row a task and side. Seconds are wall time on a machine that also did other work; CPU seconds are not "
        "stretched by that.", "",
    ])  # fmt: skip


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--tasks", type=int, default=3, help="how many of the three tasks")
    parser.add_argument("--analysis_tokens", type=int, default=24, help="cap on each analysis, for both")
    parser.add_argument("--out", type=Path, required=True, help="folder of the record")
    args, command = parser.parse_args(argv), command_of("analysis.verifier_cost", argv)
    tasks = [json.loads(line) for line in TASKS.read_text(encoding="utf-8").splitlines()][: args.tasks]
    found = compared(measured(tasks, args.analysis_tokens, args.out / "runs.jsonl"))
    text = readme(found, len(tasks), command, args.analysis_tokens)
    (args.out / "README.md").write_text(text, encoding="utf-8")
    unit = f"of llm-verifier's computed prompt tokens (range of {len(tasks)} tasks)"
    entry = dict(zip(("value", "low", "high"), map(float, found.loc["computed"][2:]))) | {"n": len(tasks), "unit": unit}
    write_summary(args.out, {"peer_cost_ratio": entry}, command)
    print(text)


if __name__ == "__main__":
    main()
