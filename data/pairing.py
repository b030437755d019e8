"""The last step of build_pairs.py: choose pairs of a right and a wrong response, and say what was refused and why."""

import difflib
import functools
import random
from collections import Counter, defaultdict
from pathlib import Path

from data import files
from data.balance import blind_judges, choose, difference, features, style, table
from data.files import read_rows
from data.records import MEDIA, check_record, load_records, with_paths, with_relative_paths

NEAR = 0.95  # share of common words from which two responses are near-duplicates
MAX_CHARS = 8000  # of a response that a critic will see
OPTIONS = 64  # pairs of a question that are weighed against each other; where there are more, its id draws them


# --- what may not be shared -------------------------------------------------------------------------------------------


def media_of(record):
    """The paths of all frames and videos of a record."""
    values = [record.get(field) or [] for field in MEDIA]
    return [path for value in values for path in ([value] if isinstance(value, str) else value)]


content = functools.cache(files.content_sha)  # what stands for a file's bytes


def words_of(record):
    """Question and options, as they are compared: without case, spaces and the options' order."""
    options = sorted(" ".join(text.lower().split()) for text in (record.get("options") or {}).values())
    return (" ".join(record["question"].lower().split()), *options)


def read_apart(paths):
    """(contents of all frames and videos, words -> set of the media they go with) of files of questions or pairs.

    Words are those of words_of, and beside them the question's text alone.
    """
    contents, words = set(), defaultdict(set)
    for path in paths:
        for number, record in files.read_jsonl(path):
            check_record(record, f"{path}:{number}", record.get("preference") is not None, answered=False)
            media = media_of(with_paths(record, Path(path).parent, f"{path}:{number}"))
            shown = tuple(content(file) for file in media)
            contents |= set(shown)
            add_words(words, record, shown)
    return contents, words


def add_words(words, record, shown):
    """Note what a record's words, and its question's text alone, go with."""
    for key in (words_of(record), words_of(record)[0]):
        words[key].add(shown)


def shares(record, contents, words, own_words):
    """Why a question may not be used beside the others, or None. `own_words`: words -> media, of its own file.

    A text that goes with several clips, there or here, is a template: it may recur, its clips may not.
    """
    shown = tuple(content(file) for file in media_of(record))
    if contents & set(shown):
        return "a clip or frame of it occurs in --apart_from"
    template = any(len(file.get(words_of(record)[0], set()) - {()}) > 1 for file in (words, own_words))
    return "its text occurs in --apart_from" if words_of(record) in words and not template else None


# --- near-duplicates ----------------------------------------------------------------------------------------------------


def refused(better, worse, near=NEAR, max_chars=MAX_CHARS):
    """Why two responses make no pair, or None: the same as far as a critic sees them, or nearly the same in words.

    >>> refused("It rolls off the edge. \\\\boxed{A}", "It rolls off the edge. \\\\boxed{B}", 0.95, 10)
    'identical after truncation'
    """
    one, other = (text[:max_chars].split() for text in (better, worse))
    if one == other:
        return "identical after truncation" if better.split() != worse.split() else "identical"
    same = difflib.SequenceMatcher(None, one, other, autojunk=False)
    return "near-duplicate" if same.quick_ratio() >= near and same.ratio() >= near else None


def options_of(record, rows, args, counts):
    """(better, worse, difference) of a question's responses that may be paired; `counts` gets the refused ones' reasons."""
    bags = {}
    for row in rows:
        if row["correct"] is not None:
            bag = features(row["text"], row["source"])
            bag.update(style(row["text"]))
            bags.setdefault((row["text"], row["source"]), (row["text"], row["source"], bag, row["correct"]))
    both = [(a, b) for a in bags.values() if a[3] for b in bags.values() if not b[3]]
    if args.benchmark:
        both = [(a, b) for a, b in both if a[1] == b[1]]
    random.Random(f"{args.seed}/options/{record['id']}").shuffle(both)
    found = []
    for better, worse in both[:OPTIONS]:
        why = refused(better[0], worse[0])
        if why:
            counts[why] += 1
        else:
            found.append((better, worse, difference(better[2], worse[2])))
    return found


def reason_without(rows, args):
    """Why a question has no two responses that could be a pair at all, or None."""
    if not rows:
        return "no responses"
    verdicts = {row["correct"] for row in rows}
    if not {True, False} <= verdicts:
        return "no right response" if False in verdicts else "no wrong response" if True in verdicts else "none was readable"
    by_model = [{row["correct"] for row in rows if row["source"] == source} for source in {row["source"] for row in rows}]
    one_model = any({True, False} <= verdicts for verdicts in by_model)
    return "no model has both a right and a wrong one" if args.benchmark and not one_model else None


# --- the step -----------------------------------------------------------------------------------------------------------


def pair(args):
    """Step 3: pairs.jsonl or benchmark.jsonl, the counts and blind judges as JSON, and the same as Markdown."""
    records = load_records(args.questions)
    if not (args.out / "verified.jsonl").is_file():
        raise SystemExit(f"{args.out}/verified.jsonl is not there; run the step verify first")
    verified = defaultdict(list)
    for row in read_rows(args.out / "verified.jsonl"):
        verified[row["question"]].append(row)
    contents, words = read_apart(args.apart_from or [])
    own_words = defaultdict(set)
    for record in records:
        add_words(own_words, record, tuple(content(file) for file in media_of(record)))
    reasons, refusals, twice, open_questions, open_records = Counter(), Counter(), set(), [], {}
    for record in records:
        key = (words_of(record), tuple(content(file) for file in media_of(record)))
        why = "stands twice in the file" if key in twice else shares(record, contents, words, own_words)
        why = why or reason_without(verified[record["id"]], args)
        options = [] if why else options_of(record, verified[record["id"]], args, refusals)
        twice.add(key)
        if why or not options:
            reasons[why or "all its pairs were refused"] += 1
            continue
        open_questions.append((record["id"], record["suite"], options))
        open_records[record["id"]] = record
    chosen, dropped = choose(open_questions, args.seed, args.pairs_per_question)
    reasons["given up to keep its suite level"] += len({name for name, _ in dropped} - {name for name, _ in chosen})
    random_choice = {  # options stand in an order drawn by the id
        (name, place): option
        for name, _, options in open_questions
        for place, option in enumerate(options[: args.pairs_per_question])
    }
    before, after = (build(open_records, some, args) for some in (random_choice, chosen))
    if not after:
        raise SystemExit(f"no question of {args.questions} gives a pair: {dict(reasons)}")
    name = "benchmark" if args.benchmark else "pairs"
    files.write_lines(args.out / f"{name}.jsonl", after)
    write_report(args, name, records, before, after, reasons, refusals)


def build(records, chosen, args):
    """Pair records with paths from the output's folder; which response stands first is drawn by the id.

    A question's first pair has its id, the others have "#2", "#3" behind it, and `cluster` says which belong together.
    """
    pairs = []
    for (name, place), (better, worse, *_) in chosen.items():
        record = records[name] | {"id": f"{name}#{place + 1}" if place else name}
        record |= {"cluster": name} if args.pairs_per_question > 1 else {}
        preference = random.Random(f"{args.seed}/order/{record['id']}").choice((1, 2))
        pairs.append(with_relative_paths(record, args.out) | ordered_pair(record, better, worse, preference))
    return pairs


def write_report(args, name, records, before, after, reasons, refusals):
    """Counts and blind judges to <name>.json, the same to read in <name>.md (a benchmark's: card.md), and on the screen."""
    judges = {"before balancing": blind_judges(before), "after": blind_judges(after)}
    counts = {
        "questions": len(records), "pairs": len(after), "questions without a pair": dict(+reasons),
        "pairs of responses refused": dict(refusals), "suites": dict(Counter(pair["suite"] for pair in after)),
        "sources": dict(Counter(pair[f"source_{i}"] for pair in after for i in "12")),
        "preference": dict(Counter(str(pair["preference"]) for pair in after)),
    }  # fmt: skip
    made = files.provenance()
    files.write_result(args.out / f"{name}.json", {"counts": counts, "blind judges": judges, **made})
    lines = [f"# {name}.jsonl", "", f"- Command: `{made['command']}`; commit {made['commit']}."]
    if args.benchmark:
        lines += [
            "- Protocol: JudgeBench's. One pair a question, both responses by one model, one is right; judged in both orders.",
            f"- Questions: {args.questions}, with the licence of their source. Nothing is shared with: "
            f"{', '.join(args.apart_from) or 'nothing given'} (clips and frames by content; questions by text and options, "
            "except texts that go with several clips).",
            "- Labels: verify.json beside this file says which judges decided, and how far they agreed.",
            f"- SHA-256 of benchmark.jsonl begins {files.content_sha(args.out / 'benchmark.jsonl')}.",
        ]  # fmt: skip
    for what, count in counts.items():
        parts = count.items() if isinstance(count, dict) else [("", count)]
        lines.append(f"- {what}: {', '.join(f'{key} {n}'.strip() for key, n in parts) or 'none'}.")
    lines += ["", "Judges that do not look, percent right (95% interval), cross-fitted (analysis/pair_balance.py):", ""]
    lines += [*table(judges), ""]
    (args.out / ("card.md" if args.benchmark else "pairs.md")).write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


def ordered_pair(question, better, worse, preference):
    """The pair record's own fields: id, answer, responses, sources, preference. A response is (text, source, ...)."""
    first, second = (better, worse) if preference == 1 else (worse, better)
    return {
        "id": question["id"], "answer": question["answer"], "response_1": first[0], "response_2": second[0],
        "preference": preference, "source_1": first[1], "source_2": second[1],
    }
