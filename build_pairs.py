"""Training pairs and a benchmark from questions: sample responses, verify them, pair a right with a wrong one.

    python build_pairs.py sample --questions train.jsonl --out runs/pairs --models physworld/tiny_vlm big=/models/Qwen2.5-VL-7B
    python build_pairs.py verify --questions train.jsonl --out runs/pairs [--verifier MODEL] [--human labels.csv]
    python build_pairs.py pair   --questions train.jsonl --out runs/pairs --apart_from benchmark_questions.jsonl
    python build_pairs.py pair   --questions test.jsonl --out runs/bench --benchmark --apart_from train.jsonl

A model is a folder, a hub id, or URL#MODEL of an OpenAI-compatible server (http://localhost:8000/v1#Qwen2.5-VL-72B, frames
go along as data URLs); `name=` before it sets the source's name. Every step may be killed and started again.

sample   N = 8 chain-of-thought responses a question and model, temperature 0.6 (PhyCritic, section 4); with --one_model
         each question goes to one of the models, as in the paper's benchmark -> responses/<source>.jsonl
verify   the project's own answer matching; where --verifier is given, a model's opinion on free text; where --human is
         given, a CSV with columns id and correct (yes or no). People overrule both; where only the first two differ the
         response is disputed and in no pair. The paper lets one model decide. -> verified.jsonl, verify.json (kappas),
         disputed.csv (fill in its column and hand it back as --human)
pair     one right and one wrong response of a question (--pairs_per_question: several such pairs), so chosen that length,
         source, style and position do not tell them apart (data/pairing.py, data/balance.py). Near-duplicates are refused.
         -> pairs.jsonl, pairs.json, pairs.md; with --benchmark (JudgeBench's protocol: both responses by one model, one
         pair a question) -> benchmark.jsonl, card.md

--apart_from names files of questions or pairs with which nothing may be shared: neither a clip or frame (by content) nor
a question (by text and options). A text that goes with several clips ("Did it succeed?") is a template: there clips decide.
"""

import csv
import functools
import io
import itertools
import json
import re
from collections import Counter, namedtuple
from pathlib import Path

from tqdm import tqdm

import data
import prompts
import rewards
from data import command, pairing
from data.files import append, content_sha, open_rows, provenance, read_rows, short_sha, write_result

Source = namedtuple("Source", "name model base_url")


def read_source(spec):
    """A model of the command line.

    >>> read_source("big=http://localhost:8000/v1#Qwen/Qwen2.5-VL-72B")
    Source(name='big', model='Qwen/Qwen2.5-VL-72B', base_url='http://localhost:8000/v1')
    >>> read_source("physworld/tiny_vlm")
    Source(name='tiny_vlm', model='physworld/tiny_vlm', base_url=None)
    """
    name, where = re.fullmatch(r"(?:([\w.-]+)=)?(.+)", spec).groups()
    url, _, model = where.rpartition("#") if where.startswith(("http://", "https://")) else (None, None, where)
    if not model or url == "":
        raise SystemExit(f"{spec}: write a server as URL#MODEL, e.g. http://localhost:8000/v1#Qwen2.5-VL-72B")
    return Source(name or Path(model).name, model, url)


def there(source):
    """`source`; ValueError where it is a folder that is absent."""
    if not source.base_url:
        command.local_model(source.model)
    return source


def open_model(source, args, temperature):
    """answer(tasks, prompts, images, seed) of judging.judges: a Completion each, or a Missing with its reason."""
    from judging import judges  # torch: after --help

    return judges.open_judge(source.model, source.base_url, args.max_new_tokens, temperature)


def complete_rows(path, settings, tasks, source, args, temperature, ask):
    """Append a row for every task that has none yet to the JSONL `path`, a batch at a time; returns the failures' counts.

    A task is (id, record, extra); `ask(task)` gives (row so far, prompt, images). Batches are cut from all tasks and
    seeded by the first one's id, so that a resumed run draws what an uninterrupted one would.
    """
    settings |= {"model": source.model, "base_url": source.base_url, "weights": content_sha(source.model)}
    settings |= {"temperature": temperature, "seed": args.seed}
    settings |= {"max_new_tokens": args.max_new_tokens, "batch_size": args.batch_size}
    stream, rows = open_rows(path, path.with_suffix(".json"), settings)
    done, failed, answer = {row["id"] for row in rows}, Counter(), None
    with stream:
        if not rows:
            write_result(path.with_suffix(".json"), {"config": settings, **provenance()})
        for start in tqdm(range(0, len(tasks), args.batch_size), desc=f"{path.parent.name}/{source.name}", unit="batch"):
            batch = tasks[start : start + args.batch_size]
            if all(task[0] in done for task in batch):
                continue
            answer = answer or open_model(source, args, temperature)
            asked = [ask(task) for task in batch]
            seed = int(short_sha(args.seed, source.name, batch[0][0]), 16)
            replies = answer([task[1:] for task in batch], [a[1] for a in asked], [a[2] for a in asked], seed)
            lines = []
            for task, (row, prompt, _), reply in zip(batch, asked, replies, strict=True):
                if not hasattr(reply, "text"):
                    failed[reply.reason] += 1
                elif task[0] not in done:
                    cost = {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.completion_tokens}
                    cut_off = reply.completion_tokens >= args.max_new_tokens
                    row |= {"text": reply.text, "cut_off": cut_off, "prompt_sha": short_sha(prompt), "seed": seed, **cost}
                    lines.append(json.dumps({"id": task[0], **row}) + "\n")
            append(stream, "".join(lines).encode())
    return failed


def fail_if(failed):
    """End with the reasons where calls to a server failed; what succeeded is on file."""
    if failed:
        reasons = "; ".join(f"{count} calls: {reason}" for reason, count in failed.most_common())
        raise SystemExit(f"not finished, run the same command again to ask once more ({reasons})")


# --- sample -----------------------------------------------------------------------------------------------------------


def sample(args):
    """Step 1."""
    sources = [there(read_source(spec)) for spec in args.models]
    records = data.load_records(args.questions)
    if len({source.name for source in sources}) < len(sources):
        raise SystemExit(f"two of {args.models} have one name; put name= before them")

    by_id = {record["id"]: record for record in records}

    @functools.lru_cache(maxsize=1)  # the samples of a question stand one after the other
    def images(name):
        return data.open_frames(by_id[name], args.max_frames)

    def ask(task):
        _, record, number = task
        shown = images(record["id"])
        prompt = prompts.question_prompt(record["question"], record.get("options"), len(shown))
        return {"question": record["id"], "source": source.name, "sample": number}, prompt, shown

    settings = {"questions": content_sha(args.questions), "n": args.n, "max_frames": args.max_frames}
    names = sorted(source.name for source in sources)
    settings |= {"one_model": names} if args.one_model else {}
    by = {r["id"]: names[int(short_sha(args.seed, r["id"]), 16) % len(names)] for r in records if args.one_model}
    failed = Counter()
    for source in sources:
        tasks = [(f"{record['id']}/{source.name}/{k}", record, k) for record in records for k in range(args.n)]
        tasks = [task for task in tasks if by.get(task[1]["id"], source.name) == source.name]
        path = args.out / "responses" / f"{source.name}.jsonl"
        failed += complete_rows(path, dict(settings), tasks, source, args, args.temperature, ask)
        print(f"{path}: {len(read_rows(path))} of {len(tasks)} responses")
    fail_if(failed)


# --- verify -----------------------------------------------------------------------------------------------------------


def responses(folder):
    """Rows of all sources; raises SystemExit where there are none."""
    files = sorted((folder / "responses").glob("*.jsonl"))
    if not files:
        raise SystemExit(f"{folder}/responses holds no .jsonl; run the step sample first")
    return [row for file in files for row in read_rows(file)]


def matched(record, row):
    """The project's own judge: {prediction, match}; match is None where a response has no readable answer or was cut off."""
    prediction = None if row["cut_off"] else rewards.extract_answer(row["text"], record.get("options"))
    right = None if prediction is None else rewards.answers_match(prediction, record["answer"], record.get("options"))
    return {"prediction": prediction, "match": right}


def read_labels(path, known):
    """id -> bool of a CSV with columns id and correct (yes/no, true/false, 1/0; empty is no label); errors name the line."""
    words, labels = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}, {}
    with Path(path).open(encoding="utf-8-sig", newline="") as lines:  # spreadsheets put a byte order mark first
        table = csv.DictReader(lines)
        if not {"id", "correct"} <= set(table.fieldnames or ()):
            raise SystemExit(f"{path}:1: needs the columns id and correct, has {table.fieldnames}")
        for row in table:
            where, said = f"{path}:{table.line_num}", (row["correct"] or "").strip().lower()
            if row["id"] not in known:
                raise SystemExit(f"{where}: field 'id': no response has the id {row['id']!r}; ids stand in verified.jsonl")
            if said and said not in words:
                raise SystemExit(f"{where}: field 'correct' must be yes or no, got {row['correct']!r}")
            if said and labels.setdefault(row["id"], words[said]) != words[said]:
                raise SystemExit(f"{where}: field 'correct': {row['id']!r} was labelled otherwise above; keep one of both lines")
    return labels


def opinion_id(row):
    """What an opinion is kept under: the response and its text, so that none outlives a text that was sampled anew."""
    return f"{row['id']}#{short_sha(row['text'])}"


def model_opinions(args, records, rows):
    """opinion_id -> bool or None of the model verifier, on whole responses to questions without options."""
    source = there(read_source(args.verifier))
    tasks = [(opinion_id(row), records[row["question"]], row["text"]) for row in rows]
    tasks = [task for task, row in zip(tasks, rows) if not task[1].get("options") and not row["cut_off"]]

    def ask(task):
        _, record, said = task
        return {}, prompts.answer_check_prompt(record["question"], record["answer"], said), []

    path = args.out / "verifier" / f"{source.name}.jsonl"
    fail_if(complete_rows(path, {"prompt": short_sha(prompts.ANSWER_CHECK)}, tasks, source, args, 0.0, ask))
    said = {row["id"]: str(rewards.extract_answer(row["text"])).strip().lower().rstrip(".") for row in read_rows(path)}
    return {name: {"yes": True, "no": False}.get(word) for name, word in said.items()}


def label(match, model, human):
    """Is a response right? People overrule; else the two judges, or the one that has an opinion; None: nobody, or they differ.

    >>> label(True, None, None), label(True, False, None), label(True, False, False)
    (True, None, False)
    """
    opinions = {match, model} - {None} if human is None else {human}
    return opinions.pop() if len(opinions) == 1 else None


def agreement(rows, one, other):
    """{n, agree, kappa, table} of two judges on the rows that both have judged; table: right/wrong of one by the other.

    Cohen's kappa is None where both gave every response the same label (no chance to disagree).

    >>> agreement([{"a": True, "b": True}] * 3 + [{"a": True, "b": False}] + [{"a": False, "b": False}] * 4, "a", "b")["kappa"]
    0.75
    """
    both = [(row[one], row[other]) for row in rows if None not in (row[one], row[other])]
    counts, n = Counter(both), len(both)
    table = [[counts[a, b] for b in (True, False)] for a in (True, False)]
    if not n:
        return {"n": 0, "agree": None, "kappa": None, "table": table}
    agree = (table[0][0] + table[1][1]) / n
    chance = sum(sum(table[k]) * sum(row[k] for row in table) for k in (0, 1)) / n**2
    return {"n": n, "agree": agree, "kappa": (agree - chance) / (1 - chance) if chance < 1 else None, "table": table}


def write_disputed(path, human, records, verified):
    """The CSV for people, whole or not at all; where it is itself `human`, the labels that they wrote into it stay."""
    handed_back, stream = human and Path(human).resolve() == path.resolve(), io.StringIO(newline="")
    table = csv.writer(stream)
    table.writerow(["id", "correct", "question", "answer", "response"])
    for row in verified:
        disputed = row["correct"] is None and row["match"] is not None
        if disputed or (handed_back and row["human"] is not None):
            record, said = records[row["question"]], {True: "yes", False: "no", None: ""}[row["human"]]
            table.writerow([row["id"], said, record["question"], record["answer"], row["text"]])
    data.write_whole(path, stream.getvalue())


def verify(args):
    """Step 2."""
    records = {record["id"]: record for record in data.load_records(args.questions)}
    rows = responses(args.out)
    strange = [row["id"] for row in rows if row["question"] not in records]
    if strange:
        raise SystemExit(f"{len(strange)} responses are to no question of {args.questions}, e.g. {strange[0]}; give their file")
    opinions = model_opinions(args, records, rows) if args.verifier else {}
    labels = read_labels(args.human, {row["id"] for row in rows}) if args.human else {}
    verified, status = [], Counter()
    for row in rows:
        judged = matched(records[row["question"]], row)
        judged |= {"model": opinions.get(opinion_id(row)), "human": labels.get(row["id"])}
        correct = label(judged["match"], judged["model"], judged["human"])
        differ = correct is None and judged["match"] is not None
        why = "disputed" if differ else "cut off" if row["cut_off"] else "no readable answer"
        status[why if correct is None else "right" if correct else "wrong"] += 1
        kept = {name: row[name] for name in ("id", "question", "source", "sample", "text")}
        verified.append(kept | judged | {"correct": correct})
    kappas = {f"{a} and {b}": agreement(verified, a, b) for a, b in itertools.combinations(("match", "model", "human"), 2)}
    data.write_lines(args.out / "verified.jsonl", verified)
    write_disputed(args.out / "disputed.csv", args.human, records, verified)
    result = {"responses": len(rows), **status, "agreement": kappas, **provenance()}
    write_result(args.out / "verify.json", result)
    print(f"{args.out}/verified.jsonl: {len(rows)} responses, " + ", ".join(f"{count} {why}" for why, count in status.items()))
    for two, found in kappas.items():
        if found["n"]:
            kappa = "not defined" if found["kappa"] is None else f"{found['kappa']:.3f}"
            print(f"  {two}: n {found['n']}, agree {100 * found['agree']:.1f}%, Cohen's kappa {kappa}")


# --- command line -----------------------------------------------------------------------------------------------------


def read_arguments(words=None):
    """The command line."""
    parser = command.Parser(description=__doc__)
    steps = parser.add_subparsers(dest="step", metavar="STEP", required=True)
    asking, shared = command.Parser(add_help=False), command.Parser(add_help=False)
    shared.add_argument("--questions", required=True, help="JSONL of question records (data/records.py)")
    shared.add_argument("--out", type=Path, required=True, help="folder of all three steps")
    shared.add_argument("--seed", type=int, default=0, help="of the sampling and of every draw")
    asking.add_argument("--max_new_tokens", type=int, default=1024, help="tokens a reply may have; longer ones are cut off")
    asking.add_argument("--batch_size", type=int, default=16, help="replies made at once")
    step = steps.add_parser("sample", parents=[shared, asking], help="responses of several models")
    step.add_argument("--models", nargs="+", required=True, help="[name=]folder, hub id, or URL#MODEL")
    step.add_argument("--n", type=int, default=8, help="responses a question and model")
    step.add_argument("--temperature", type=float, default=0.6, help="of the sampling")
    step.add_argument("--max_frames", type=int, default=8, help="frames taken of a video")
    step.add_argument("--one_model", action="store_true", help="ask one of the models each question, drawn by the question's id")
    step = steps.add_parser("verify", parents=[shared, asking], help="which responses are right")
    step.add_argument("--verifier", help="a model, written as in --models, that judges answers in free text")
    step.add_argument("--human", help="CSV with columns id and correct")
    step = steps.add_parser("pair", parents=[shared], help="one right and one wrong response a question")
    step.add_argument("--apart_from", nargs="*", help="JSONL files of questions or pairs to share nothing with")
    step.add_argument("--benchmark", action="store_true", help="both responses by one model; writes benchmark.jsonl and a card")
    step.add_argument("--pairs_per_question", type=int, default=1, help="at most so many pairs of different responses")
    args = parser.parse_args(words)
    for name in ("n", "batch_size", "max_new_tokens", "max_frames", "pairs_per_question"):
        if getattr(args, name, 1) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(args, name)}")
    if args.step == "pair" and args.benchmark and args.apart_from is None:
        parser.error("--benchmark needs --apart_from with the files of the training questions (or nothing after it)")
    if args.step == "pair" and args.benchmark and args.pairs_per_question > 1:
        parser.error("--benchmark has one pair a question; leave --pairs_per_question out")
    return args


def main():
    args = read_arguments()
    {"sample": sample, "verify": verify, "pair": pairing.pair}[args.step](args)


if __name__ == "__main__":
    command.run(main)
