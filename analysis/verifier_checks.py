"""Two checks of the verifier that the README states: the peer's tournament, and faulty replies among good ones.

    python -m analysis.verifier_checks --tables 50 --replies 400 --out runs/verifier_checks            seconds
    python -m analysis.verifier_checks --out experiments/2026-11-30_verifier/checks --claim            a minute, one core

peer_tables_identical   share of random tables of rewards on which ppt.pivot_tournament and llm-verifier 0.3.0 agree to
                        the last bit: pick, scores, number and order of comparisons
faulty_replies_scored   faulty replies that became a score, with as many good ones among them; none may, and no good one may be
                        lost

The tests run the same functions. Writes counts.json and summary.json.
"""

import argparse
import importlib.util
import json
import random
import re
import sys
from pathlib import Path

from tqdm import tqdm

import ppt
from analysis.verifier_common import command_of, write_summary
from stats import exact_interval
from tests.fault_proxy import FAULTS, FaultProxy
from tests.stub_judge import GOOD, quiet, server

# --- Tables -------------------------------------------------------------------------------------------------------


def load_peer():
    """llm-verifier's tournament alone: the package as a whole imports the clients of two services."""
    package = importlib.util.find_spec("llm_verifier")
    assert package, "`make test` installs llm-verifier, a requirement of the tests (pip install --no-deps llm-verifier==0.3.0)"
    file = Path(package.submodule_search_locations[0]) / "pivot_tournament.py"
    spec = importlib.util.spec_from_file_location("peer_pivot_tournament", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def peer_select(peer, n, score, pivots, seed):
    """What its `select` does between the ring and the result, with the pairs in the order in which it asks them."""
    ring = peer.ring_cycle(n, random.Random(seed))
    wins, counts = [0.0] * n, [0] * n
    peer.accumulate(ring, score, wins, counts)
    pairs = peer.pivot_round_pairs(n, peer.select_pivots(wins, counts, pivots))
    peer.accumulate(pairs, score, wins, counts)
    best, count = peer.select_best(n, ring, pivots, score)
    return best, [w / c if c else 0.0 for w, c in zip(wins, counts)], count, ring + pairs


def both_tournaments(peer, seed):
    """(theirs, ours) on table `seed`, each (pick, scores, number of comparisons, pairs asked).

    Rewards depend on slot and opponent; a third of the tables come from five levels, so that ties are common.
    """
    rng = random.Random(f"peer {seed}")
    n, pivots = rng.randrange(1, 33), rng.randrange(1, 7)
    levels = [0, 0.25, 0.5, 0.75, 1] if seed % 3 == 0 else None
    rewards = [
        [(rng.choice(levels), rng.choice(levels)) if levels else (rng.random(), rng.random()) for _ in range(n)] for _ in range(n)
    ]
    ranking = ppt.pivot_tournament(n, lambda a, b: ppt.preference(*rewards[a][b]), pivots=pivots, seed=seed)
    asked = [(a, b) for a, b, _ in ranking.comparisons]
    return peer_select(peer, n, lambda a, b: rewards[a][b], pivots, seed), (ranking.best, ranking.scores, len(asked), asked)


def different_tables(count, progress=False):
    """Numbers of the tables, of the first `count`, on which the two differ in anything."""
    peer = load_peer()
    both = ((seed, both_tournaments(peer, seed)) for seed in tqdm(range(count), desc="tables", disable=not progress))
    return [seed for seed, (theirs, ours) in both if theirs != ours]


# --- Replies ------------------------------------------------------------------------------------------------------


def fault_of(i):
    """The fault of reply `i`: every even one has one, all kinds in turn; a time-out takes its time, so there are fewer."""
    names = sorted(FAULTS)
    turn, name = divmod(i // 2, len(names))
    return None if i % 2 else "500" if names[name] == "time-out" and turn % 60 else names[name]


def ask_half_faulty(total):
    """(comparisons, verifier, proxy) after one call for each of `total` questions, every other reply faulty."""
    kinds = sorted(GOOD)

    def number(request):
        return int(re.search(r"question (\d+)", request["messages"][1]["content"])[1])

    def upstream(request):
        i = number(request)
        return GOOD[kinds[i // 2 % len(kinds)] if i % 2 else "plain"]

    with FaultProxy(upstream, lambda request: fault_of(number(request))) as proxy:
        judge = quiet(server(proxy, route="sampled", timeout=10.0), repeats=1, abstain=True)
        return judge.compare_many([(f"question {i}", "a", "b") for i in range(total)]), judge, proxy


# --- The record ---------------------------------------------------------------------------------------------------


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--tables", type=int, default=1000, help="random tables")
    parser.add_argument("--replies", type=int, default=10_000, help="replies, half of them faulty")
    parser.add_argument("--claim", action="store_true", help="update experiments/headline.json")
    parser.add_argument("--out", type=Path, required=True, help="folder of the record")
    args = parser.parse_args(argv)
    command = command_of("analysis.verifier_checks", argv)
    args.out.mkdir(parents=True, exist_ok=True)
    different = different_tables(args.tables, progress=True)
    results, judge, proxy = ask_half_faulty(args.replies)
    scored = [i for i, result in enumerate(results) if result.p is not None]
    faulty = [i for i in range(args.replies) if fault_of(i)]
    counts = {
        "tables": args.tables, "tables_different": different, "replies": args.replies, "requests": len(proxy.log),
        "faulty": len(faulty), "faulty_scored": [i for i in scored if fault_of(i)],
        "good_lost": sorted({i for i in range(args.replies) if not fault_of(i)} - {*scored}),
        "faults": {name: sum(fault == name for _, fault in proxy.log) for name in sorted(FAULTS)}, "reasons": judge.reasons,
    }  # fmt: skip
    share = 1 - len(different) / args.tables
    low, high = exact_interval(share, args.tables)
    number = len(counts["faulty_scored"])
    entries = {
        "peer_tables_identical": {"value": 100 * share, "low": 100 * low, "high": 100 * high, "n": args.tables, "unit": "%"},
        "faulty_replies_scored": {"value": number, "low": number, "high": number, "n": len(faulty), "unit": "replies (a count)"},
    }  # fmt: skip
    (args.out / "counts.json").write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")
    write_summary(args.out, entries, command, args.claim)
    print(json.dumps(entries, indent=1))
    if different or number or counts["good_lost"]:
        sys.exit(f"a check failed; see {args.out / 'counts.json'}")


if __name__ == "__main__":
    main()
