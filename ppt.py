"""Tournaments: which of n candidates is best, asked of a judge that compares two at a time.

A candidate is a number 0..n-1. The judge is a function `compare(a, b)`: the probability that a, shown first, beats b, or
None where the judge abstains. A verifier gives preference(R_a, R_b), a critic its p_first as it is. Where
`compare_many([(a, b), ...])` is given it is asked instead, once for every set of comparisons that do not depend on each
other, so that they can run concurrently. Everything random comes from `seed`: the same judge and seed give the same
Ranking. Standard library only.

    tournament          comparisons                   what it is
    pivot_tournament    n + k(n - k) + k(k - 1)/2     LLM-as-a-Verifier's: a ring, then everyone against the k leaders
    adaptive            at most 2n - 1                asks what can still change the pick, stops when that is unlikely
    knockout            n - 1                         PhyCritic's: the winner meets the next
    swiss               its budget, 2n                V1's: neighbours in the present ranking meet
    round_robin         n(n - 1)/2                    every pair once

Rules of all: n = 1 needs no comparison, n < 1 is an error, as is a probability outside [0, 1] or NaN. An abstention is
recorded with p None and counts nothing. Ties go to the lower index; in a knockout match the holder keeps the place.

>>> rewards = [0.2, 0.9, 0.5, 0.4]
>>> ranking = pivot_tournament(4, lambda a, b: preference(rewards[a], rewards[b]), pivots=1)
>>> ranking.best, len(ranking.comparisons)
(1, 7)
"""

import math
import random
from itertools import combinations
from typing import NamedTuple

MIN_DEGREE, WINDOW, FLOOR = 2, 8, 0.1  # V1's settings, appendix C.1
NOISE = 2.0  # adaptive: variance of one comparison's error, in units of the variance of strengths
BIAS = 1.0  # adaptive: prior variance of the position bias, in the same units


class Comparison(NamedTuple):
    """Candidate `a` was shown first and beat `b` with probability `p`; None: the judge abstained."""

    a: int
    b: int
    p: float | None


class Ranking(NamedTuple):
    """What a tournament returns; lists are indexed by candidate.

    best is the argmax of scores, ties to the lower index. wins are sums of probabilities, counts the comparisons that
    counted (no abstentions), so 0 <= wins <= counts. What a score is stands at each tournament. comparisons: a list, in
    the order in which they were asked.
    """

    best: int
    scores: list
    wins: list
    counts: list
    comparisons: list


def preference(reward_a, reward_b):
    """Bradley-Terry probability that a response of reward_a beats one of reward_b, without a temperature.

    Source: LLM-as-a-Verifier (arXiv 2607.05391). Formula: sigmoid(R_a - R_b). Rewards lie in [0, 1], so the result lies
    in [0.269, 0.731]; a reward outside (another scale, say 1 to 20) or NaN raises ValueError.

    >>> round(preference(1.0, 0.0), 3), preference(0.3, 0.3)
    (0.731, 0.5)
    """
    for reward in (reward_a, reward_b):
        if not -1e-9 <= reward <= 1 + 1e-9:
            raise ValueError(f"a reward must lie in [0, 1], got {reward!r}")
    return 1.0 / (1.0 + math.exp(-(reward_a - reward_b)))


class _Table:
    """The comparisons of one tournament so far: asks the judge, checks its answer, keeps the sums."""

    def __init__(self, n, compare, compare_many=None):
        if not isinstance(n, int) or n < 1:
            raise ValueError(f"a tournament needs a whole number of candidates, at least 1, got {n!r}")
        if compare is None and compare_many is None:
            raise ValueError("a tournament needs a judge: compare or compare_many")
        self.n, self.compare, self.compare_many = n, compare, compare_many
        self.wins, self.counts, self.firsts, self.comparisons = [0.0] * n, [0] * n, [0] * n, []

    def play(self, pairs):
        """The judge's probabilities for the pairs (first, second), which do not depend on each other."""
        if self.compare_many is None:
            for a, b in pairs:
                self._add(a, b, self.compare(a, b))
        elif pairs:
            answers = list(self.compare_many(list(pairs)))
            if len(answers) != len(pairs):
                raise ValueError(f"compare_many gave {len(answers)} probabilities for {len(pairs)} pairs")
            for (a, b), p in zip(pairs, answers):
                self._add(a, b, p)
        return [comparison.p for comparison in self.comparisons[len(self.comparisons) - len(pairs) :]]

    def _add(self, a, b, p):
        if p is not None and not 0 <= p <= 1:  # NaN fails both
            raise ValueError(f"the judge's probability that {a} beats {b} must lie in [0, 1], got {p!r}")
        self.comparisons.append(Comparison(a, b, p))
        self.firsts[a] += 1
        if p is not None:
            self.wins[a] += p
            self.wins[b] += 1.0 - p
            self.counts[a] += 1
            self.counts[b] += 1

    def slots(self, a, b):
        """The pair with the one in front who has been shown first less often; a where equal."""
        return (b, a) if self.firsts[b] < self.firsts[a] else (a, b)

    def rates(self):
        """wins / counts of each candidate, 0.0 where no comparison counted."""
        return [w / c if c else 0.0 for w, c in zip(self.wins, self.counts)]

    def ranking(self, scores):
        return Ranking(_leader(scores), scores, self.wins, self.counts, self.comparisons)


def _leader(scores):
    """Index of the largest score, the lowest where several are.

    >>> _leader([0.1, 0.7, 0.7])
    1
    """
    return max(range(len(scores)), key=lambda i: (scores[i], -i))


def _shuffled(n, seed):
    """The candidates in the order that the seed decides."""
    order = list(range(n))
    random.Random(seed).shuffle(order)
    return order


# --- Fixed schedules ----------------------------------------------------------------------------------------------


def pivot_tournament(n, compare=None, pivots=2, seed=0, compare_many=None):
    """Probabilistic pivot tournament: a ring of all, then everyone against the leaders of the ring.

    Source: LLM-as-a-Verifier (arXiv 2607.05391); equal to the package llm-verifier 0.3.0 in pick, scores and order of
    comparisons. Score: wins / counts, in [0, 1], 0.0 where none counted. The ring shows each candidate once in each
    slot. The `pivots` candidates with the best score become pivots (all of them where there are fewer); then each other
    candidate, shown first, meets each pivot, and the pivots meet each other, lower index first. A pair that both rounds
    ask counts twice. n + k(n - k) + k(k - 1)/2 comparisons. pivots < 1 raises ValueError.

    >>> [len(pivot_tournament(20, lambda a, b: 0.5, pivots=k).comparisons) for k in (1, 2, 3, 4)]
    [39, 57, 74, 90]
    """
    if pivots < 1:
        raise ValueError(f"pivots must be at least 1, got {pivots!r}")
    table = _Table(n, compare, compare_many)
    if n > 1:
        order = _shuffled(n, seed)
        table.play([(order[i], order[(i + 1) % n]) for i in range(n)])
        rates = table.rates()
        leaders = sorted(range(n), key=lambda i: (-rates[i], i))[:pivots]
        table.play(
            [(i, leader) for i in range(n) if i not in leaders for leader in leaders]
            + list(combinations(sorted(leaders), 2))
        )
    return table.ranking(table.rates())


def round_robin(n, compare=None, seed=0, compare_many=None):
    """Every pair once; each candidate stands in the first slot in half of its comparisons (within one).

    Score: wins / counts (Borda's), in [0, 1], 0.0 where none counted. n(n - 1)/2 comparisons. The seed decides which
    order of a pair is asked.

    >>> len(round_robin(20, lambda a, b: 0.5).comparisons)
    190
    """
    table = _Table(n, compare, compare_many)
    order = _shuffled(n, seed)
    table.play([(order[i], order[j]) if (j - i) % 2 else (order[j], order[i]) for i, j in combinations(range(n), 2)])
    return table.ranking(table.rates())


def knockout(n, compare=None, seed=0, compare_many=None):
    """The winner meets the next, in the order that the seed decides; the holder and the next take turns in front.

    Source: PhyCritic's best of 32 (arXiv 2602.11124); slots and order are not stated there. n - 1 comparisons, each
    depending on the one before. p = 0.5 or an abstention leaves the place to its holder. Score: the share of the
    matches after which a candidate was not yet out, 1.0 for the last holder; only that one says who is good.

    >>> rewards = [0.2, 0.9, 0.5]
    >>> knockout(3, lambda a, b: preference(rewards[a], rewards[b])).best
    1
    """
    table = _Table(n, compare, compare_many)
    holder, *others = _shuffled(n, seed)
    scores = [1.0] * n
    for match, other in enumerate(others):
        first = match % 2 == 1  # whether the next is shown first
        [p] = table.play([(other, holder) if first else (holder, other)])
        if p is not None and (p > 0.5 if first else p < 0.5):
            holder, other = other, holder
        scores[other] = match / (n - 1)
    return table.ranking(scores)


# --- Swiss ---------------------------------------------------------------------------------------------------------


def swiss(n, compare=None, budget=None, seed=0, compare_many=None):
    """V1's uncertainty-guided ranking: cover everyone, then let neighbours in the present ranking meet.

    Source: V1-Infer (arXiv 2603.04304), algorithms 1 to 4. Score: mu, the weighted win rate, in [0, 1], 0.5 where none
    counted: a win is 1, p = 0.5 a tie of 0.5, and a comparison weighs max(|2p - 1|, 0.1), the judge's confidence. First
    whoever has met fewer than 2 meets the one of nearest mu not met yet; then rounds go down the ranking and take from
    the next 8 the minimum of (gap, already met, place). The last round is cut at the budget: `budget` comparisons in all,
    2n unless given; two candidates meet once. Places are the order that the seed decides. Departure: V1 does not say who
    is shown first; here it is who was so less often. An abstention counts as met. budget < 0 raises ValueError.

    >>> len(swiss(20, lambda a, b: 0.5, budget=30).comparisons)
    30
    """
    table = _Table(n, compare, compare_many)
    budget = 2 * n if budget is None else budget
    if budget < 0:
        raise ValueError(f"budget must be at least 0, got {budget!r}")
    order, met = _shuffled(n, seed), set()
    weighted, weights = [0.0] * n, [0.0] * n  # sums of weight * outcome, and of weight
    while len(table.comparisons) < budget:
        mu = _win_rates(weighted, weights)
        pairs = _coverage_pairs(order, mu, met) or (_swiss_pairs(order, mu, met) if n > 2 else [])
        pairs = [table.slots(a, b) for a, b in pairs[: budget - len(table.comparisons)]]
        if not pairs:
            break
        for (a, b), p in zip(pairs, table.play(pairs)):
            met |= {(a, b), (b, a)}
            if p is not None:
                weight, outcome = max(abs(2 * p - 1), FLOOR), (p > 0.5) + 0.5 * (p == 0.5)
                for i, won in ((a, outcome), (b, 1 - outcome)):
                    weighted[i] += weight * won
                    weights[i] += weight
    return table.ranking(_win_rates(weighted, weights))


def _win_rates(weighted, weights):
    """V1's equation 1: mu of each candidate, 0.5 where no comparison counted."""
    return [s / w if w else 0.5 for s, w in zip(weighted, weights)]


def _coverage_pairs(order, mu, met):
    """V1's algorithm 2: disjoint pairs of low-degree candidates with the nearest one not met yet."""
    degree = [sum((i, j) in met for j in order) for i in range(len(order))]
    pairs, used = [], set()
    for i in sorted((i for i in order if degree[i] < MIN_DEGREE), key=lambda i: degree[i]):
        unseen = [j for j in order if j != i and j not in used and (i, j) not in met]
        if i not in used and unseen:
            j = min(unseen, key=lambda j: abs(mu[i] - mu[j]))  # the first in order where several are as near
            pairs.append((i, j))
            used |= {i, j}
    return pairs


def _swiss_pairs(order, mu, met):
    """V1's algorithm 4: disjoint pairs down the ranking, each with the nearest, if possible unseen, of the next WINDOW."""
    ranked, pairs, used = sorted(order, key=lambda i: -mu[i]), [], set()
    place = {i: k for k, i in enumerate(order)}
    for k, i in enumerate(ranked):
        near = [j for j in ranked[k + 1 : k + 1 + WINDOW] if j not in used]
        if i not in used and near:
            j = min(near, key=lambda j: (abs(mu[i] - mu[j]), (i, j) in met, place[j]))
            pairs.append((i, j))
            used |= {i, j}
    return pairs


# --- Adaptive ------------------------------------------------------------------------------------------------------


class _Strengths:
    """Gaussian posterior of n strengths and the position bias: Bayesian linear regression, one comparison at a time.

    Model: y = 2p - 1 = s_a - s_b + bias + error, with s ~ N(0, 1), bias ~ N(0, BIAS), error ~ N(0, NOISE), all in units
    of the judge's own scale, which is the root mean square of y over its expectation: a verifier whose p stays near 0.5
    and a critic whose p is near 0 or 1 are read alike.
    """

    def __init__(self, n):
        self.n, self.squares = n, []
        self.mean = [0.0] * (n + 1)  # strengths, then the bias, in units of y
        self.cov = [[float(i == j) for j in range(n + 1)] for i in range(n + 1)]  # (n + 1, n + 1), in units of scale^2
        self.cov[n][n] = BIAS

    def observe(self, a, b, p):
        """Condition on one comparison (a rank-one update)."""
        y, n, cov = 2 * p - 1, self.n, self.cov
        gain = [u - v + w for u, v, w in zip(cov[a], cov[b], cov[n])]  # (n + 1,)
        variance = gain[a] - gain[b] + gain[n] + NOISE
        surprise = (y - (self.mean[a] - self.mean[b] + self.mean[n])) / variance
        self.mean = [m + g * surprise for m, g in zip(self.mean, gain)]
        for row, g in zip(cov, gain):
            step = g / variance
            row[:] = [c - step * h for c, h in zip(row, gain)]
        self.squares.append(y * y)

    def chance(self, leader, other):
        """Probability that `other` is stronger than `leader`; 0.5 where nothing but ties was seen."""
        cov, scale = self.cov, math.sqrt(sum(self.squares) / (len(self.squares) or 1) / (2 + NOISE + BIAS))
        deviation = scale * math.sqrt(cov[leader][leader] + cov[other][other] - 2 * cov[leader][other])
        gap = self.mean[leader] - self.mean[other]
        return 0.5 * math.erfc(gap / deviation / math.sqrt(2)) if deviation else 0.5


def adaptive(n, compare=None, budget=None, delta=0.02, seed=0, compare_many=None):
    """Spends the next comparison on the candidate most likely to overtake the leader, stops when none is likely to.

    Half a round of disjoint pairs opens (n // 2, the seed decides which), then the leader (largest posterior mean) meets
    the candidate with the largest chance of being stronger, until that chance is below `delta`, or no order of the two
    is left to ask (a judge gives the same answer to the same question), or `budget` comparisons are spent (2n - 1 unless
    given). Who was shown first less often is shown first; the position bias is estimated together with the strengths.
    Score: posterior mean of the strength, in units of 2p - 1 (0.0 where nothing counted), in (-2n, 2n).

    Ground: best-arm identification with duelling feedback: leader against challenger, and a stopping rule on the chance
    of error (Garivier and Kaufmann, Track-and-Stop, arXiv 1602.04589; Russo, top-two sampling, arXiv 1602.08448); judge
    calls where the uncertainty matters (arXiv 2602.15481). delta is a threshold, not a guarantee: the model is Gaussian,
    the judge is not. budget < 0 or delta outside [0, 1] raises ValueError.

    >>> rewards = [i / 19 for i in range(20)]
    >>> ranking = adaptive(20, lambda a, b: preference(rewards[a], rewards[b]))
    >>> ranking.best, len(ranking.comparisons) < 40
    (19, True)
    """
    table, strengths = _Table(n, compare, compare_many), _Strengths(n)
    budget = 2 * n - 1 if budget is None else budget
    if budget < 0 or not 0 <= delta <= 1:
        raise ValueError(f"budget must be at least 0 and delta in [0, 1], got {budget!r} and {delta!r}")
    order, asked = _shuffled(n, seed), set()
    pairs = list(zip(order[::2], order[1::2]))[:budget]
    while pairs:
        for (a, b), p in zip(pairs, table.play(pairs)):
            asked.add((a, b))
            if p is not None:
                strengths.observe(a, b, p)
        pairs = _challenge(table, strengths, asked, delta) if len(table.comparisons) < budget else []
    return table.ranking(strengths.mean[:n])


def _challenge(table, strengths, asked, delta):
    """The next comparison of the leader, as a list of one pair, or [] where none can be expected to change the pick."""
    leader = _leader(strengths.mean[: table.n])
    others = [i for i in range(table.n) if i != leader and not {(leader, i), (i, leader)} <= asked]
    chances = [strengths.chance(leader, i) for i in others]
    if not others or max(chances) < delta:
        return []
    a, b = table.slots(leader, others[_leader(chances)])
    return [(b, a) if (a, b) in asked else (a, b)]
