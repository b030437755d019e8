"""Pairs without giveaways: of each question's right and wrong responses, choose the two that keep the ledger level.

A response is a bag of features: its words, its length, its source, its answer. Over all pairs, a feature must occur as
often in the better response as in the worse one, or a judge could score by it without looking. `choose_pairs` walks
through the questions and takes, each time, the pair whose difference brings the running sum of differences closest
to zero (herding; Welling 2009), kind by kind.
"""

import random
import re
from collections import Counter, defaultdict

import rewards


def features(text, source):
    """Counter of what a blind judge could go by: words, answer, source, length in words (also in coarse steps)."""
    words = re.findall(r"\w+", text.lower())
    bag = Counter(f"word {word}" for word in words)
    answer = rewards.extract_answer(text)
    bag.update({f"answer {answer}": 2, f"source {source}": 2, f"length {len(words) // 4}": 2, "words": len(words) / 4})
    return bag


def choose_pairs(questions, candidates, seed=0):
    """One pair a question where it has a right and a wrong candidate; the order of the two is seeded by the id.

    `candidates` maps a question's id to a list of (text, source). Returns the pair records, `preference` 1 or 2.
    """
    ledgers, pairs = defaultdict(Counter), []
    for question in questions:
        sorted_out = {True: [], False: []}
        for text, source in candidates[question["id"]]:
            found = rewards.extract_answer(text, question["options"])
            if found is not None:
                right = rewards.answers_match(found, question["answer"], question["options"])
                sorted_out[right].append((text, source, features(text, source)))
        if not (sorted_out[True] and sorted_out[False]):
            continue
        rng, ledger = random.Random(f"{seed}/pair/{question['id']}"), ledgers[question["kind"]]
        options = [(better, worse) for better in sorted_out[True] for worse in sorted_out[False]]
        rng.shuffle(options)
        better, worse = min(options, key=lambda pair: drift(ledger, pair[0][2], pair[1][2]))
        ledger.update(better[2])
        ledger.subtract(worse[2])
        pairs.append(ordered_pair(question, better, worse, rng.choice((1, 2))))
    return pairs


def drift(ledger, better, worse):
    """How far this pair moves the ledger from level: |L + d|^2 - |L|^2 over the features of d = better - worse."""
    difference = Counter(better)
    difference.subtract(worse)
    return sum(2 * ledger[name] * d + d * d for name, d in difference.items())


def ordered_pair(question, better, worse, preference):
    """The pair record's own fields: id, answer (a check on the clip), responses, sources, preference."""
    first, second = (better, worse) if preference == 1 else (worse, better)
    return {
        "id": question["id"], "answer": question["answer"], "response_1": first[0], "response_2": second[0],
        "preference": preference, "source_1": first[1], "source_2": second[1],
    }
