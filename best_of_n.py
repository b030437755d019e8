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

import sys
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from tqdm import tqdm
from transformers import HfArgumentParser

import data
import prompts
import rewards
from analysis.coupling import estimate, read_rows
from candidates import SampleConfig, baselines, jsonl, load_candidates, sample
from evaluate import provenance, share, write_result
from lockstep import ALONE, COSTS, TOURNAMENTS, Calls, settle


@dataclass
class JudgeConfig:
    """The judge of pick and table, and its candidates."""

    candidates: str = field(metadata={"help": "candidates JSONL (sample, or your own in the same form)"})
    out: str = field(metadata={"help": "result JSONL; its summary goes to the .json beside it"})
    critic: str | None = field(default=None, metadata={"help": "critic: folder, hub id, or the server's model name"})
    verifier: str | None = field(default=None, metadata={"help": "verifier: folder, hub id, or the server's model name"})
    base_url: str | None = field(default=None, metadata={"help": "OpenAI-compatible server that holds the judge"})
    solve: Literal["each", "first", "alone"] = field(
        default="each", metadata={"help": "critic: solves anew each time, once while judging first, or once without responses"}
    )
    same_text: Literal["tie", "ask"] = field(
        default="tie", metadata={"help": "two candidates with one text: a tie, or asked too"}
    )
    criteria: str = field(default="physical", metadata={"help": "verifier: what it judges by"})
    repeats: int = field(default=2, metadata={"help": "verifier: calls a criterion"})
    max_new_tokens: int = field(default=512, metadata={"help": "tokens a judgement may have"})
    max_frames: int = field(default=8, metadata={"help": "frames taken of a video"})
    batch_size: int = field(default=64, metadata={"help": "judgements made at once, and questions played at once"})
    limit: int | None = field(default=None, metadata={"help": "this many questions, drawn by a hash of their ids"})
    calls: str | None = field(default=None, metadata={"help": "JSONL of judgements; share it between pick and table"})
    seed: int = field(default=0, metadata={"help": "of tournaments and of what is random in them"})


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
    """judge(items) -> one dict each: p (None: it abstains), what it said, and COSTS without seconds.

    An item is (record, first, second), the numbers of two candidates in the order shown. `missing` in the answer is why
    there is none (a server that failed): such a call is asked again by the next run. known[id] are the judgements of a
    question so far, from which a critic takes its solution again after a restart.
    """
    return verifier_judge(config) if config.verifier else critic_judge(config, known)


def critic_judge(config, known):
    """load_judge for critic.py; p is its p_first. A row that `solves` made the solution of its question."""
    from critic import Critic, own_part

    where = {"base_url": config.base_url, "model": config.critic} if config.base_url else {"path": config.critic}
    settings = {name: getattr(config, name) for name in ("solve", "max_new_tokens", "batch_size", "seed")}
    critic = Critic(**where, **settings)

    def judge(asked):
        frames = {record["id"]: data.open_frames(record, config.max_frames) for record, _, _ in asked}
        items = [critic_item(record, a, b, frames[record["id"]]) for record, a, b in asked]
        groups = [critic._call(item).group for item in items]
        for group, (record, _, _) in zip(groups, asked):
            for row in known[record["id"]].values():
                if row.get("solves"):
                    critic.predictions.setdefault(group, row["solution"])
        alone = [i for i, (_, *pair) in enumerate(asked) if tuple(pair) == ALONE]
        rest = [i for i in range(len(asked)) if i not in set(alone)]
        rows = dict(zip(alone, solutions(critic, [items[i] for i in alone])))
        unsolved = set(groups) - set(critic.predictions)
        for i, judgement in zip(rest, critic.judge_many([items[i] for i in rest])):
            rows[i] = {"p": judgement.p_first, "verdict": judgement.verdict, "prediction": judgement.prediction}
            rows[i] |= {name: getattr(judgement, name) for name in ("missing", *COSTS[:3])}
            part = own_part(judgement.text)
            if groups[i] in unsolved and part and critic.predictions.get(groups[i]) == part:
                rows[i] |= {"solves": True, "solution": part}
                unsolved.discard(groups[i])
        critic.made.clear()  # the calls file keeps what counts, and --same_text ask asks again
        return [rows[i] for i in range(len(asked))]

    return judge


def critic_item(record, a, b, frames):
    """critic.py's item of candidates a and b; without responses where the question is solved alone."""
    first, second = ("", "") if (a, b) == ALONE else texts_of(record, a, b)
    shared = {"id": record["id"], "question": record["question"], "options": record.get("options"), "frames": frames}
    return shared | {"response_1": first, "response_2": second}


def solutions(critic, items):
    """Rows of questions solved alone, in one batch; its tokens are charged to them in equal parts."""
    if not items:
        return []
    calls, before = [critic._call(item) for item in items], critic.spent
    critic._solve(items, calls)
    spent = [getattr(critic.spent, name) - getattr(before, name) for name in ("input", "cached", "output")]
    tokens = [spent[0] / len(items), (spent[0] - spent[1]) / len(items), spent[2] / len(items)]
    rows = [{"p": None, "solves": True, "solution": critic.predictions.get(call.group)} for call in calls]
    for row, call in zip(rows, calls):
        row |= {"missing": None if call.group in critic.predictions else "no reply to the question", **dict(zip(COSTS, tokens))}
    return rows


def verifier_judge(config):
    """load_judge for verifier.py; p is the Bradley-Terry preference of its rewards. An empty candidate is no trajectory that
    could be shown: it loses against any text without a call."""
    from verifier import LocalBackend, ServerBackend, Verifier

    settings = {"analysis_tokens": config.max_new_tokens}
    if config.base_url:
        backend = ServerBackend(config.base_url, config.verifier, **settings)
    else:
        backend = LocalBackend.load(config.verifier, batch_size=config.batch_size, **settings)
    verifier = Verifier(backend, config.criteria, repeats=config.repeats, seed=config.seed, abstain=True, progress=False)

    def judge(items):
        empty = [[not text.strip() for text in texts_of(*item)] for item in items]
        shown = [item for item, flags in zip(items, empty) if not any(flags)]
        frames = {record["id"]: data.open_frames(record, config.max_frames) for record, _, _ in shown}
        asked = (
            (prompts.question_text(r["question"], r.get("options")), *texts_of(r, a, b), frames[r["id"]]) for r, a, b in shown
        )
        results = iter(verifier.compare_many(asked))
        verifier.records.clear()  # the calls file keeps what counts
        verifier.cache.replies.clear()
        return [verifier_row(unshown(*flags) if any(flags) else next(results)) for flags in empty]

    return judge


def unshown(first_empty, second_empty):
    """The verifier.Comparison of two texts one of which (or both: a tie) is empty, without rewards or calls."""
    from verifier import Comparison

    return Comparison(None, None, (1 + second_empty - first_empty) / 2, [])


def verifier_row(result):
    """What the calls file keeps of a verifier.Comparison."""
    spent = Counter()
    for record in result.records:
        spent.update(record["tokens"])
    why = "; ".join(sorted({record["missing"] for record in result.missing})) or None
    said = {name: getattr(result, name) for name in ("p", "reward_a", "reward_b")}
    said["missing"] = why if result.p is None else None
    tokens = {"prompt_tokens": spent["input"], "computed_prompt_tokens": spent["input"] - spent["cached"]}
    return said | tokens | {"completion_tokens": spent["output"]}


def texts_of(record, a, b):
    """The texts of candidates a and b."""
    return record["candidates"][a]["text"], record["candidates"][b]["text"]


def played(config, records, plans):
    """(rankings of all records, Calls), a chunk of questions at a time; says what was asked, found and missing."""
    if config.batch_size < 1 or (config.critic is None) == (config.verifier is None):
        raise SystemExit(f"give one judge, --critic or --verifier MODEL, and --batch_size of at least 1, not {config.batch_size}")
    calls, rankings = Calls(config), {}
    judge = load_judge(config, calls.by_question)
    if config.same_text == "ask":
        for record in records:
            record["same"] = list(range(len(record["same"])))
    with calls.stream:
        for start in tqdm(range(0, len(records), config.batch_size), desc=Path(config.out).stem, unit="chunk"):
            rankings |= settle(records[start : start + config.batch_size], plans, calls, judge, config)
    print(f"{calls.path}: {calls.paid} judgements asked, {calls.found} found there, {sum(calls.reasons.values())} missing")
    for reason, count in calls.reasons.most_common():
        print(f"  missing {count} x {reason}")
    return rankings, calls


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
    rankings, calls = played(config, records, [(method, n) for n in sizes for method in methods])
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
    _, calls = played(config, records, [("table", choice.n)])
    data.write_lines(out, [table_row(record, calls.by_question[record["id"]]) for record in records])
    write_result(
        out.with_suffix(".json"), {"config": asdict(config) | asdict(choice), **provenance(), "missing": dict(calls.reasons)}
    )


def table_row(record, known):
    """task, correct, p (n, n) with 0.5 for two candidates of one text, and `same`, by which those can be told."""
    same = record["same"]
    cells = [[None if i == j else 0.5 if a == b else known[a, b]["p"] for j, b in enumerate(same)] for i, a in enumerate(same)]
    correct = [candidate["correct"] for candidate in record["candidates"]]
    return {"task": record["id"], "correct": correct, "p": cells, "same": same}


COMMANDS = {
    "sample": (sample, [SampleConfig]), "pick": (pick, [JudgeConfig, PickConfig]), "table": (table, [JudgeConfig, TableConfig]),
}  # fmt: skip

if __name__ == "__main__":
    name, *arguments = sys.argv[1:] or ["--help"]
    if name not in COMMANDS:
        raise SystemExit(f"{__doc__}\npython best_of_n.py {' | '.join(COMMANDS)} --help lists the settings of each")
    command, configs = COMMANDS[name]
    result = command(*HfArgumentParser(configs).parse_args_into_dataclasses(arguments))
    if command is pick:
        print("\n".join(lines_of(result)))
