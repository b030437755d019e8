"""Pairs without giveaways: choose them so that no habit of a response predicts the preference, and measure that it does not.

    python -m analysis.pair_balance physworld/pairs/pairs.jsonl physworld/pairs/test.jsonl \\
        --record experiments/2026-11-30_pair_balance          # judges fitted on the first file, scored on the second

A response is a bag of features: its words, its length, its source, its style, its answer. Over all pairs of a suite a
feature must occur as often in the better response as in the worse one, or a judge could score by it without looking.
`choose` takes for each question the pair whose difference brings the running sum of differences closest to zero
(herding; Welling 2009), goes over its choices again, and at last gives up pairs of a suite that stays tilted.

A blind judge sees a pair through one habit only: length, source, style, words, position, or all of them. It is a logistic
regression that is never scored on pairs that it was fitted on. Where it sees no difference it tosses a coin, seeded by id.
"""

import argparse
import math
import random
import re
from collections import Counter, defaultdict
from pathlib import Path

import rewards
from analysis.coupling import estimate, read_rows

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


def main(args):
    """Score the judges and write the record: summary.json with the headline's entries, and README.md."""
    from evaluate import provenance, write_result

    train, test = (read_rows(path) for path in (args.train, args.test))
    results = {"fitted on the other file": blind_judges(test, train), "cross-fitted": blind_judges(test)}
    lines = table(results)
    command = f"python -m analysis.pair_balance {args.train} {args.test} --record {args.record}"
    where = {"command": command, "record": str(args.record), "commit": provenance()["commit"]}
    entries = {}
    for judge in ("length", "position", "source"):
        entry = results["fitted on the other file"][judge]
        percent = {name: 100 * entry[name] for name in ("value", "low", "high")}
        entries[f"{judge}_only_judge"] = percent | {"n": entry["n"], "unit": "%"} | where
    args.record.mkdir(parents=True, exist_ok=True)
    write_result(args.record / "summary.json", {"headline": entries, "judges": results})
    readme = [
        "# Judges that do not look", "",
        f"Claim: length, source and position do not tell the better response of a physworld pair: 50 +- 3%. {len(test)} pairs of "
        f"{args.test}, percent with 95% intervals; judges fitted on {len(train)} pairs of {args.train}, or on four fifths of the "
        "same file and scored on the rest.", "", f"Command: `{command}`; commit {where['commit']}.", "", *lines, "",
    ]  # fmt: skip
    (args.record / "README.md").write_text("\n".join(readme), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path, help="pairs that the judges are fitted on")
    parser.add_argument("test", type=Path, help="pairs that they are scored on")
    parser.add_argument("--record", type=Path, required=True, help="the record's folder, experiments/<date>_pair_balance")
    main(parser.parse_args())
