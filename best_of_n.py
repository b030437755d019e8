"""The best of N candidate answers, picked with any judge and any tournament; what each pick cost.

    python best_of_n.py sample --model runs/stage1 --split test --n 32 --limit 1000 --out runs/bon/candidates.jsonl
    python best_of_n.py pick --candidates runs/bon/candidates.jsonl --critic runs/stage2 --solve first \\
        --tournament knockout pivot --out runs/bon/stage2.jsonl
    python best_of_n.py table --candidates runs/bon/candidates.jsonl --critic runs/stage2 --n 20 --limit 300 \\
        --out runs/bon/tables.jsonl                                          for analysis/tournaments.py --tables

The judge is a critic (--critic) or a continuous verifier (--verifier), in this process or on a server (--base_url). N is
always the first N candidates of a question, so curves over N are paired. Candidates with the same text are one: a pair
of them is a tie without a call, and a pair of texts is asked once a question, whoever asks again (--same_text ask: every
pair of candidates is asked, as a judge does that does not look).

Many questions are played in lockstep: a tournament runs on the judgements that are there and stops at the first that is
missing; what all of them miss is judged in one batch, and they start again. Every judgement is appended to the calls
file (--calls, default beside --out) before it is used, so a killed run pays nothing twice and picks the same; picks and
tables are made from that file and written whole at the end.
"""

from collections import defaultdict
from dataclasses import asdict, dataclass, field

import data
import rewards
from data import command
from data.files import provenance, read_rows, write_result
from judging.candidates import SampleConfig, baselines, jsonl, load_candidates, sample
from judging.play import COSTS, TOURNAMENTS, JudgeConfig, played, table_row
from stats import estimate, share


@dataclass
class PickConfig:
    """python best_of_n.py pick: one row a question, N and method."""

    tournament: list[str] = field(default_factory=lambda: ["knockout"], metadata={"help": " | ".join(TOURNAMENTS)})
    sizes: list[int] = field(default_factory=lambda: [1, 2, 4, 8, 16, 32], metadata={"help": "values of N"})
    own: str | None = field(
        default=None, metadata={"help": "rows (.jsonl) of evaluate.py --mode question of the judge: its own answers compete"}
    )


@dataclass
class TableConfig:
    """python best_of_n.py table: every ordered pair of the first n candidates."""

    n: int = field(default=20, metadata={"help": "candidates a question"})


# --- Judgements ---------------------------------------------------------------------------------------------------


def load_judge(config, known):
    """The judge that the command line names, as judging.play.played takes it."""
    if config.verifier:
        from verifier import verifier_judge  # torch: after --help

        return verifier_judge(config)
    from critic import critic_judge

    return critic_judge(config, known)


# --- Picks --------------------------------------------------------------------------------------------------------


def cost(record, ranking, known):
    """What a pick cost by itself: comparisons, those that were ties of one text, judgements and their COSTS.

    A judgement counts once, however often it is compared. The solution that another judgement of the question (or the
    question alone) gave is charged to each pick that used it.
    """
    pairs = [(record["same"][c.a], record["same"][c.b]) for c in ranking.comparisons]
    asked = {pair for pair in pairs if pair[0] != pair[1]}
    paid = [known[pair] for pair in asked | {pair for pair, row in known.items() if row.get("solves") and asked}]
    counts = {"comparisons": len(pairs), "same_text": sum(a == b for a, b in pairs), "judge_calls": len(asked)}
    counts["abstained"] = sum(known[pair]["p"] is None for pair in asked)
    return counts | {name: round(sum(row[name] for row in paid), 4) for name in COSTS}


def free():
    """The cost of a pick without a judge."""
    return dict.fromkeys(("comparisons", "same_text", "judge_calls", "abstained", *COSTS), 0)


def pick_rows(record, sizes, methods, rankings, known, own, seed):
    """One row for each size and baseline, tournament, and way to use the judge's own answer."""
    rows = []
    for n in sizes:
        picks = {method: (pick, free()) for method, pick in baselines(record, n, seed).items()}
        for method in methods:
            ranking = rankings[record["id"], method, n]
            picks[method] = ranking.best, cost(record, ranking, known)
        rows += [
            {"n": n, "method": method, "pick": pick, "correct": record["candidates"][pick]["correct"], **spent}
            for method, (pick, spent) in picks.items()
        ]
        rows += own_rows(record, n, own[record["id"]]) if own else []
    return [{key: record[key] for key in ("id", "suite", "cluster")} | row for row in rows]


def own_rows(record, n, row):
    """The judge's own answer as a competitor. "own answer" is right where it is, whatever the candidates say; "agrees" picks
    the first of n candidates that says the same, the first of all where none does. One call each."""
    shown, options = record["candidates"][:n], record.get("options")
    agree = [i for i in range(n) if rewards.answers_match(shown[i]["prediction"], row["prediction"], options)]
    spent = free() | {"judge_calls": 1, "computed_prompt_tokens": row["prompt_tokens"], "seconds": None}
    spent |= {name: row[name] for name in ("prompt_tokens", "completion_tokens")}
    pick = agree[0] if agree else 0
    return [
        {"n": n, "method": "own answer", "pick": agree[0] if agree else None, "correct": row["correct"], **spent},
        {"n": n, "method": "agrees", "pick": pick, "correct": shown[pick]["correct"], **spent},
    ]


def read_own(path, records):
    """{id: row} of evaluate.py's rows; raises ValueError where a question has none."""
    own = {row["id"]: row for row in read_rows(path)}
    lacking = [record["id"] for record in records if record["id"] not in own]
    if lacking:
        raise ValueError(
            f"{path}: no row of {len(lacking)} questions, e.g. {lacking[:3]}; evaluate the same data set and --limit"
        )
    return own


def pick(config, choice):
    """Write the rows of all methods and sizes; returns the summary that lies beside --out."""
    out = jsonl(config.out)
    unknown = sorted(set(choice.tournament) - set(TOURNAMENTS))
    if unknown or not choice.tournament or not choice.sizes or min(choice.sizes) < 1:
        raise SystemExit(f"--tournament takes {' '.join(TOURNAMENTS)}, --sizes numbers from 1; got {unknown} and {choice.sizes}")
    sizes, methods = sorted(set(choice.sizes)), list(dict.fromkeys(choice.tournament))
    records = load_candidates(config.candidates, sizes[-1], config.limit)
    own = read_own(choice.own, records) if choice.own else None
    rankings, calls = played(config, records, [(method, n) for n in sizes for method in methods], load_judge)
    rows = []
    for record in records:
        rows += pick_rows(record, sizes, methods, rankings, calls.by_question[record["id"]], own, config.seed)
    data.write_lines(out, rows)
    groups = defaultdict(list)
    for row in rows:
        groups[row["method"], row["n"]].append(row)
    points = [{"method": method, "n": n, **summary(group)} for (method, n), group in groups.items()]
    result = {"config": asdict(config) | asdict(choice), **provenance(), "missing": dict(calls.reasons), "points": points}
    write_result(out.with_suffix(".json"), result)
    return result


def summary(rows):
    """Accuracy with its interval, and the mean cost of a pick (None where it was not measured)."""
    means = {name: sum(row[name] for row in rows) / len(rows) for name in free() if rows[0][name] is not None}
    return {"accuracy": estimate(rows, lambda row: row["correct"]), **{name: means.get(name) for name in free()}}


def lines_of(result):
    """The result for the screen, a line a method and N: accuracy in percent, judge calls and tokens a question."""
    lines = [f"{'N':>3} {'method':<12} accuracy, 95% interval          calls   prompt computed generated"]
    for point in sorted(result["points"], key=lambda point: point["n"]):
        tokens = [point[name] for name in ("judge_calls", *COSTS[:3])]
        lines.append(f"{point['n']:>3} {point['method']:<12} {share(point['accuracy'])} " + "".join(f"{t:9.1f}" for t in tokens))
    return lines


def table(config, choice):
    """Write the full table of judgements of each question, the rows that analysis/tournaments.py replays."""
    out = jsonl(config.out)
    if choice.n < 2:
        raise SystemExit(f"--n must be at least 2, got {choice.n}")
    records = load_candidates(config.candidates, choice.n, config.limit)
    _, calls = played(config, records, [("table", choice.n)], load_judge)
    data.write_lines(out, [table_row(record, calls.by_question[record["id"]]) for record in records])
    write_result(
        out.with_suffix(".json"), {"config": asdict(config) | asdict(choice), **provenance(), "missing": dict(calls.reasons)}
    )


STEPS = {
    "sample": ("N candidate answers of a model to each question", [SampleConfig]),
    "pick": ("the best of N by a judge, any tournament, and what it cost", [JudgeConfig, PickConfig]),
    "table": ("every ordered pair judged, for replays of tournaments", [JudgeConfig, TableConfig]),
}


def main():
    step, (config, *choice) = command.parse_step(__doc__, STEPS)
    models = [config.model] if step == "sample" else [] if config.base_url else [config.critic, config.verifier]
    for model in filter(None, models):
        command.local_model(model)
    result = {"sample": sample, "pick": pick, "table": table}[step](config, *choice)
    if step == "pick":
        print("\n".join(lines_of(result)))


if __name__ == "__main__":
    command.run(main)
