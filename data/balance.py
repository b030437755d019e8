"""Pairs that no habit of a response gives away: features, the choice that keeps them level, judges that do not look.

What it is for, and why: analysis/pair_balance.py.
"""

import itertools
import math
import random
import re
from collections import Counter, defaultdict

import rewards
from stats import cell, estimate

SWEEPS = 3  # times that choices are gone over again
TILT = 0.06  # |better - worse| / (better + worse) of a feature that is still level: a judge by it alone is within 50 +- 3%
SHARED = 30  # drift that a response costs which another pair of its question has already; a difference's own is some hundreds
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


def herd(ledger, options, rng, taken=()):
    """The option (better, worse, difference) that keeps the ledger most level; its difference is added to the ledger.

    A response whose text is `taken` counts as SHARED of drift, so that a fresh one is chosen unless it tilts the ledger more.
    Options that are equally good fall to the first in an order that `rng` (a random.Random) sets.
    """
    rng.shuffle(options)
    chosen = min(options, key=lambda option: drift(ledger, option[2]) + SHARED * sum(r[0] in taken for r in option[:2]))
    ledger.update(chosen[2])
    return chosen


def coarse(change):
    """The part of a difference for which pairs are given up: not single words, nor answers."""
    return {name: d for name, d in change.items() if d and not name.startswith(("word ", "answer "))}


def choose(questions, seed=0, most=1):
    """(chosen, given up): up to `most` options for each question, so that over all of them no feature tells the preference.

    `questions` is a list of (id, suite, options), an option (better, worse, difference); `chosen` maps (id, place from 0) to
    an option, `given up` lists the keys of pairs without which their suite is level. No two pairs of a question have the same
    two texts.
    """
    ledgers, suites, chosen = defaultdict(Counter), {}, {}
    for sweep in range(1 + SWEEPS):
        for name, suite, options in questions:
            for place in range(most):
                key = (name, place)
                if key in chosen:
                    ledgers[suite].subtract(chosen[key][2])
                others = [chosen[name, other] for other in range(most) if other != place and (name, other) in chosen]
                met = {(better[0], worse[0]) for better, worse, _ in others}
                left = [option for option in options if (option[0][0], option[1][0]) not in met]
                if left:
                    rng = random.Random(f"{seed}/pair/{name}" + f"#{place + 1}" * (place > 0))
                    chosen[key], suites[key] = herd(ledgers[suite], left, rng, set(itertools.chain(*met))), suite
    dropped = []
    for suite in ledgers:
        dropped += give_up({key: coarse(chosen[key][2]) for key in chosen if suites[key] == suite})
    return {key: option for key, option in chosen.items() if key not in set(dropped)}, dropped


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
        right, question = side == pair["preference"], pair.get("cluster", pair["id"])
        rows.append({"suite": pair.get("suite", ""), "cluster": question, "right": right})
    return rows


def crossfit(pairs, judge):
    """Rows as of score(), every pair scored by a judge fitted on the other folds; folds have equal shares of preference 1.

    Pairs that were balanced as a whole make a fold lean against the others, so that a judge tends to score a little
    below 50%. Fewer than 2 * FOLDS pairs of a preference give no rows.
    """
    import numpy as np
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    labels = [pair["preference"] for pair in pairs]
    if min(labels.count(1), labels.count(2)) < 2 * FOLDS:
        return []
    rows, questions = [], [pair.get("cluster", pair["id"]) for pair in pairs]
    apart = len(set(questions)) == len(pairs)
    folds, groups = (StratifiedKFold, None) if apart else (StratifiedGroupKFold, questions)  # a question's pairs stay together
    for train, test in folds(FOLDS, shuffle=True, random_state=0).split(np.zeros(len(pairs)), labels, groups):
        rows += score([pairs[i] for i in train], [pairs[i] for i in test], judge)
    return rows


def blind_judges(pairs, train=None):
    """judge -> estimate {"value", "low", "high", "n", "clusters"} of its accuracy; fitted on `train`, else cross-fitted."""
    scored = {judge: score(train, pairs, judge) if train else crossfit(pairs, judge) for judge in JUDGES}
    return {judge: estimate(rows, lambda row: row["right"]) for judge, rows in scored.items()}


def table(columns):
    """Markdown lines: a row a judge, a column for each name of `columns` (name -> blind_judges)."""
    lines = ["| Blind judge | " + " | ".join(columns) + " |", "|---" * (1 + len(columns)) + "|"]
    return lines + [f"| {judge} only | " + " | ".join(cell(c[judge]) for c in columns.values()) + " |" for judge in JUDGES]
