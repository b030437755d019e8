"""Which two candidates of a question make a preference pair for DPO (train_dpo.py), and why others make none.

    critic      the responses of largest and smallest total preference over all ordered pairs (PhyCritic, Table 8); no
                answer is looked at
    pivot       the same from the comparisons of a pivot tournament (ppt.py): fewer judgements
    verifier    the baseline: one that matches the answer (rewards.py) against one that does not

A choice is (best, worst, margin), or a text that says why there is none.
"""

import os
import random

import best_of_n
import data


def total_preference(cells):
    """(scores, counts) of n responses from cells[i][j], p that i, shown first, beats j (None: the judge abstained).

    A score is the mean of p(i, j) and 1 - p(j, i) over all ordered pairs that counted, in [0, 1]: the total preference
    over their number, so that a judge who favours a place favours nobody. 0.0 where none counted.

    >>> total_preference([[None, 0.9, 0.8], [0.4, None, None], [0.4, None, None]])
    ([0.725, 0.25, 0.3], [4, 2, 2])
    """
    n, scores, counts = len(cells), [], []
    for i in range(n):
        won = [cells[i][j] for j in range(n) if cells[i][j] is not None and j != i]
        won += [1 - cells[j][i] for j in range(n) if cells[j][i] is not None and j != i]
        scores.append(round(sum(won) / len(won), 12) if won else 0.0)
        counts.append(len(won))
    return scores, counts


def best_and_worst(scores, counts):
    """(best, worst) of those that were compared at all, ties to the lower index; None where the best is not ahead.

    >>> best_and_worst([0.2, 0.9, 0.9, 0.0], [3, 3, 3, 0]), best_and_worst([0.5, 0.5], [2, 2])
    ((1, 0), None)
    """
    ranked = sorted((i for i, count in enumerate(counts) if count), key=lambda i: -scores[i])
    if not ranked or scores[ranked[0]] - scores[ranked[-1]] < 1e-9:
        return None
    return ranked[0], next(i for i in ranked if scores[i] == scores[ranked[-1]])


def right_and_wrong(record, seed):
    """(right, wrong): one candidate that is right and one that is not, drawn by (seed, id); or why there is no such pair."""
    correct = [bool(candidate["correct"]) for candidate in record["candidates"]]
    if len(set(correct)) == 1:
        return "all right" if correct[0] else "all wrong"
    draw = random.Random(f"{seed} {record['id']}")
    return tuple(draw.choice([i for i, right in enumerate(correct) if right == wanted]) for wanted in (True, False))


def verifiers_choices(records, seed):
    """{id: choice} by the answers."""
    drawn = {record["id"]: right_and_wrong(record, seed) for record in records}
    return {key: pair if isinstance(pair, str) else (*pair, None) for key, pair in drawn.items()}


def critics_choices(judge, records, by, n):
    """{id: choice} by a critic, `judge` being a best_of_n.JudgeConfig; each judgement stands in a file before it counts."""
    rankings, calls = best_of_n.played(judge, records, [("table" if by == "critic" else "pivot", n)])
    choices = {}
    for record in records:
        if by == "critic":
            scores, counts = total_preference(best_of_n.table_row(record, calls.by_question[record["id"]])["p"])
        else:
            ranking = rankings[record["id"], "pivot", n]
            scores, counts = ranking.scores, ranking.counts
        ends = best_and_worst(scores, counts)
        choices[record["id"]] = (*ends, round(scores[ends[0]] - scores[ends[1]], 6)) if ends else "undecided"
    return choices


def pair_record(record, best, worst, margin, folder):
    """The pair record of candidates best and worst, the lower number as response_1, files relative to `folder`.

    margin: by how much the best's score leads, None of a verifier. right: which of the two are, known from the answer.
    """
    dropped = ("candidates", "same", "cluster", "prompt_tokens", "completion_tokens", "seconds")
    row = {key: value for key, value in record.items() if key not in dropped}
    for name in filter(row.get, data.MEDIA):
        single = isinstance(row[name], str)
        paths = [os.path.relpath(path, folder) for path in ([row[name]] if single else row[name])]
        row[name] = paths[0] if single else paths
    for place, number in enumerate(sorted((best, worst)), 1):
        shown = record["candidates"][number]
        row |= {f"response_{place}": shown["text"], f"source_{place}": shown.get("source") or "unknown"}
    right = {name: record["candidates"][i]["correct"] for name, i in (("chosen", best), ("rejected", worst))}
    return row | {"preference": 1 if best < worst else 2, "margin": margin, "right": right}


def refusal(record, choice):
    """Why this choice makes no pair, or None where it does; what all rows of the table refuse comes first."""
    texts = [candidate["text"].strip() for candidate in record["candidates"]]
    if len(set(texts)) == 1:
        return "one text"
    if isinstance(choice, str):
        return choice
    ends = {texts[i] for i in choice[:2]}
    return "identical" if len(ends) == 1 else "empty response" if "" in ends else None
