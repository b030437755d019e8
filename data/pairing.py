"""The last step of build_pairs.py: choose one right and one wrong response a question, and say what was refused and why."""

import difflib
import functools
import math
import os
import random
import re
from collections import Counter, defaultdict
from pathlib import Path

import rewards
from data import files
from data.files import read_rows
from data.records import check_record, load_records, with_paths
from stats import estimate

MEDIA = ("frames", "video", "videos")
NEAR = 0.95  # share of common words from which two responses are near-duplicates
MAX_CHARS = 8000  # of a response that a critic will see
OPTIONS = 64  # pairs of a question that are weighed against each other; where there are more, its id draws them


# --- what may not be shared -------------------------------------------------------------------------------------------


def media_of(record):
    """The paths of all frames and videos of a record."""
    values = [record.get(field) or [] for field in MEDIA]
    return [path for value in values for path in ([value] if isinstance(value, str) else value)]


@functools.lru_cache(maxsize=None)
def content(path):
    """What stands for a file's bytes."""
    return files.content_sha(path)


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
    chosen, dropped = choose(open_questions, args.seed)
    reasons["given up to keep its suite level"] += len(dropped)
    random_choice = {name: options[0] for name, _, options in open_questions}  # options stand in an order drawn by the id
    before, after = (build(open_records, some, args) for some in (random_choice, chosen))
    if not after:
        raise SystemExit(f"no question of {args.questions} gives a pair: {dict(reasons)}")
    name = "benchmark" if args.benchmark else "pairs"
    files.write_lines(args.out / f"{name}.jsonl", after)
    write_report(args, name, records, before, after, reasons, refusals)


def build(records, chosen, args):
    """Pair records with paths from the output's folder; which response stands first is drawn by the id."""
    pairs = []
    for name, (better, worse, *_) in chosen.items():
        record, preference = dict(records[name]), random.Random(f"{args.seed}/order/{name}").choice((1, 2))
        for field in MEDIA:
            if record.get(field):
                single = isinstance(record[field], str)
                paths = [os.path.relpath(path, args.out) for path in ([record[field]] if single else record[field])]
                record[field] = paths[0] if single else paths
        pairs.append(record | ordered_pair(record, better, worse, preference))
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


SWEEPS = 3  # times that choices are gone over again
TILT = 0.06  # |better - worse| / (better + worse) of a feature that is still level: a judge by it alone is within 50 +- 3%
FOLDS = 5
JUDGES = ("length", "source", "style", "words", "position", "all")


def features(text, source):
    """Counter of what a blind judge could go by: words, answer, source, length in words (also in coarse steps)."""
    words = re.findall(r"\w+", text.lower())
    bag = Counter(f"word {word}" for word in words)
    answer = rewards.extract_answer(text)
    bag.update({f"answer {answer}": 2, f"source {source}": 2, f"length {len(words) // 4}": 2, "words": len(words) / 4})
    return bag


def style(text):
    """Counter of how a text is written, not what it says: first words of its sentences, punctuation, lists, lines."""
    opening = re.findall(r"(?:^|[.!?] |\n)(\w+)", text)
    marks = Counter(f"mark {mark}" for mark in re.findall(r"[.,;:!?(){}*#]", text))
    return Counter(f"begins {word.lower()}" for word in opening) + marks + Counter({"lines": text.count("\n")})


def difference(better, worse):
    """Counter of the features of the better response minus those of the worse one."""
    result = Counter(better)
    result.subtract(worse)
    return result


def drift(ledger, change):
    """How far a difference moves the ledger from level: |L + d|^2 - |L|^2."""
    return sum(2 * ledger[name] * d + d * d for name, d in change.items())


def herd(ledger, options, rng):
    """The option (better, worse, difference) that keeps the ledger most level; its difference is added to the ledger.

    Options that are equally good fall to the first in an order that `rng` (a random.Random) sets.
    """
    rng.shuffle(options)
    chosen = min(options, key=lambda option: drift(ledger, option[2]))
    ledger.update(chosen[2])
    return chosen


def coarse(change):
    """The part of a difference for which pairs are given up: not single words, nor answers."""
    return {name: d for name, d in change.items() if d and not name.startswith(("word ", "answer "))}


def choose(questions, seed=0):
    """(chosen, given up): one option for each question whose preferences no feature gives away.

    `questions` is a list of (id, suite, options), an option (better, worse, difference); `chosen` maps an id to its
    option, `given up` lists the ids of pairs without which their suite is level.
    """
    ledgers, chosen = defaultdict(Counter), {}
    for sweep in range(1 + SWEEPS):
        for name, suite, options in questions:
            if name in chosen:
                ledgers[suite].subtract(chosen[name][2])
            chosen[name] = herd(ledgers[suite], list(options), random.Random(f"{seed}/pair/{name}"))
    dropped = []
    for suite in ledgers:
        ids = [name for name, its_suite, _ in questions if its_suite == suite]
        dropped += give_up({name: coarse(chosen[name][2]) for name in ids})
    return {name: option for name, option in chosen.items() if name not in set(dropped)}, dropped


def give_up(changes):
    """Ids whose pairs have to go, fewest first found, until every feature of the others is level; `changes`: id -> difference."""
    changes, gone = dict(changes), []
    total, size, largest = Counter(), Counter(), Counter()
    for change in changes.values():
        for name, d in change.items():
            total[name] += d
            size[name] += abs(d)
            largest[name] = max(largest[name], abs(d))
    while tilted := [name for name in total if abs(total[name]) > max(TILT * size[name], largest[name])]:

        def gain(change):
            parts = [(total[name], change[name] / largest[name], largest[name]) for name in tilted if name in change]
            return sum(2 * level / scale * d - d * d for level, d, scale in parts)

        worst = max(changes, key=lambda name: gain(changes[name]))
        if gain(changes[worst]) <= 0:
            break
        for name, d in changes[worst].items():
            total[name] -= d
            size[name] -= abs(d)
        gone.append(worst)
        del changes[worst]
    return gone


def ordered_pair(question, better, worse, preference):
    """The pair record's own fields: id, answer, responses, sources, preference. A response is (text, source, ...)."""
    first, second = (better, worse) if preference == 1 else (worse, better)
    return {
        "id": question["id"], "answer": question["answer"], "response_1": first[0], "response_2": second[0],
        "preference": preference, "source_1": first[1], "source_2": second[1],
    }


# --- judges that do not look ----------------------------------------------------------------------------------------


def seen(pair, judge):
    """Features of a pair that a blind judge goes by, signed: what favours response 1 is positive."""
    if judge == "position":
        return {"always": 1.0}
    if judge == "all":
        return {name: d for one in JUDGES[:-1] for name, d in seen(pair, one).items()}
    texts = [pair["response_1"], pair["response_2"]]
    if judge == "source":
        return {name: d for name, d in difference(*({f"source {pair[f'source_{i}']}": 1} for i in "12")).items() if d}
    if judge == "style":
        return {name: d for name, d in difference(*map(style, texts)).items() if d}
    words = [re.findall(r"\w+", text.lower()) for text in texts]
    if judge == "words":
        return {f"word {word}": d for word, d in difference(*map(Counter, words)).items() if d}
    more = {"words": [len(w) for w in words], "characters": [len(t) for t in texts]}
    ratios = {name: math.log((1 + a) / (1 + b)) for name, (a, b) in more.items() if a != b}
    return ratios | {f"more {name}": math.copysign(1, ratio) for name, ratio in ratios.items()}


def score(train, test, judge):
    """Rows {id, suite, right} of `test`: is the judge, fitted on `train`, right about the pair?"""
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MaxAbsScaler

    labels = [pair["preference"] for pair in train]
    cues = [seen(pair, judge) for pair in train]
    if len(set(labels)) < 2 or not any(cues):
        votes = [0.0 if not any(cues) else 1.5 - labels[0]] * len(test)
    else:
        model = make_pipeline(DictVectorizer(), MaxAbsScaler(), LogisticRegression(C=0.1, max_iter=2000, fit_intercept=False))
        model.fit(cues, labels)
        votes = -model.decision_function([seen(pair, judge) for pair in test])  # above 0: response 1
    rows = []
    for pair, vote in zip(test, votes):
        side = random.Random(f"coin/{judge}/{pair['id']}").choice((1, 2)) if abs(vote) < 1e-9 else 1 if vote > 0 else 2
        rows.append({"suite": pair.get("suite", ""), "cluster": pair["id"], "right": side == pair["preference"]})
    return rows


def crossfit(pairs, judge):
    """Rows as of score(), every pair scored by a judge fitted on the other folds; folds have equal shares of preference 1.

    Pairs that were balanced as a whole make a fold lean against the others, so that a judge tends to score a little
    below 50%. Fewer than 2 * FOLDS pairs of a preference give no rows.
    """
    import numpy as np
    from sklearn.model_selection import StratifiedKFold

    labels = [pair["preference"] for pair in pairs]
    if min(labels.count(1), labels.count(2)) < 2 * FOLDS:
        return []
    rows = []
    for train, test in StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(np.zeros(len(pairs)), labels):
        rows += score([pairs[i] for i in train], [pairs[i] for i in test], judge)
    return rows


def blind_judges(pairs, train=None):
    """judge -> estimate {"value", "low", "high", "n", "clusters"} of its accuracy; fitted on `train`, else cross-fitted."""
    scored = {judge: score(train, pairs, judge) if train else crossfit(pairs, judge) for judge in JUDGES}
    return {judge: estimate(rows, lambda row: row["right"]) for judge, rows in scored.items()}


def cell(entry):
    """An estimate in percent as text."""
    if entry["value"] is None:
        return "too few pairs"
    return f"{100 * entry['value']:.1f} [{100 * entry['low']:.1f}, {100 * entry['high']:.1f}]"


def table(columns):
    """Markdown lines: a row a judge, a column for each name of `columns` (name -> blind_judges)."""
    lines = ["| Blind judge | " + " | ".join(columns) + " |", "|---" * (1 + len(columns)) + "|"]
    return lines + [f"| {judge} only | " + " | ".join(cell(c[judge]) for c in columns.values()) + " |" for judge in JUDGES]
