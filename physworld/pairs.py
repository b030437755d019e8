"""Pairs of physworld: of each question's right and wrong responses, the two that keep the ledger of its kind level.

How and why: analysis/pair_balance.py. The committed pairs were chosen by one walk through the questions.
"""

import random
from collections import Counter, defaultdict

import rewards
from data.balance import difference, features, herd
from data.pairing import ordered_pair


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
        rng = random.Random(f"{seed}/pair/{question['id']}")
        options = [(better, worse, difference(better[2], worse[2])) for better in sorted_out[True] for worse in sorted_out[False]]
        better, worse, _ = herd(ledgers[question["kind"]], options, rng)
        pairs.append(ordered_pair(question, better, worse, rng.choice((1, 2))))
    return pairs
