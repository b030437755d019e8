"""Tournaments: counts, rules, two implementations that agree, the public package, and what adaptive promises."""

import importlib.util
import json
import math
import random
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

import ppt
from analysis import tournaments

PLACEHOLDERS = {  # judges, simulated: pairs of right and wrong are judged 78% and 77% right
    "critic": {
        "source": "a guess", "accuracy_a": 1.0, "accuracy_b": 1.5, "separation": 2.0,
        "candidate_noise": 1.5, "pair_noise": 1.5, "position_bias": 0.5, "limit": None,
    },
    "verifier": {
        "source": "a guess", "accuracy_a": 1.0, "accuracy_b": 1.5, "separation": 0.3,
        "candidate_noise": 0.25, "pair_noise": 0.2, "position_bias": 0.05, "limit": 1.0,
    },
}  # fmt: skip
ALL = [ppt.pivot_tournament, ppt.round_robin, ppt.knockout, ppt.swiss, ppt.adaptive]
each_tournament = pytest.mark.parametrize("tournament", ALL, ids=lambda f: f.__name__)


def table_of(n, seed, abstain=0.0, levels=None):
    """A judge without any order: n x n probabilities, some None, drawn from `levels` where given."""
    rng = random.Random(f"table {seed}")

    def draw():
        return None if rng.random() < abstain else rng.choice(levels) if levels else rng.random()

    return [[draw() for _ in range(n)] for _ in range(n)]


def judge(table):
    return lambda a, b: table[a][b]


def fair(rewards, sharpness=1.0):
    """A judge without position bias: compare(a, b) = 1 - compare(b, a)."""
    return lambda a, b: 1 / (1 + math.exp(-sharpness * (rewards[a] - rewards[b])))


# --- Cases ---------------------------------------------------------------------------------------------------------

COUNTS = [  # tournament, n, arguments, comparisons, reason
    (ppt.pivot_tournament, 1, {}, 0, "one candidate needs none"),
    (ppt.pivot_tournament, 2, {"pivots": 1}, 3, "a ring of two is both orders, then the other meets the pivot"),
    (ppt.pivot_tournament, 2, {}, 3, "both are pivots and meet once more"),
    (ppt.pivot_tournament, 3, {"pivots": 5}, 6, "more pivots than candidates: all are"),
    (ppt.pivot_tournament, 20, {"pivots": 1}, 39, "facts.md"),
    (ppt.pivot_tournament, 20, {"pivots": 2}, 57, "facts.md"),
    (ppt.pivot_tournament, 20, {"pivots": 3}, 74, "facts.md"),
    (ppt.pivot_tournament, 20, {"pivots": 4}, 90, "facts.md"),
    (ppt.round_robin, 1, {}, 0, "one candidate needs none"),
    (ppt.round_robin, 20, {}, 190, "facts.md"),
    (ppt.knockout, 1, {}, 0, "one candidate needs none"),
    (ppt.knockout, 32, {}, 31, "the winner meets the next"),
    (ppt.swiss, 1, {}, 0, "one candidate needs none"),
    (ppt.swiss, 2, {"budget": 6}, 1, "two candidates can meet one opponent each; V1 refines only more than two"),
    (ppt.swiss, 20, {"budget": 20}, 20, "1 N"),
    (ppt.swiss, 20, {}, 40, "2 N unless given"),
    (ppt.swiss, 20, {"budget": 60}, 60, "3 N"),
    (ppt.swiss, 20, {"budget": 33}, 33, "the last round is cut"),
    (ppt.swiss, 20, {"budget": 0}, 0, "nothing to spend"),
    (ppt.adaptive, 1, {}, 0, "one candidate needs none"),
    (ppt.adaptive, 20, {"budget": 0}, 0, "nothing to spend"),
    (ppt.adaptive, 20, {"budget": 7}, 7, "the opening is cut"),
    (ppt.adaptive, 20, {"delta": 0.0}, 39, "never certain: 2n - 1"),
    (ppt.adaptive, 20, {"delta": 1.0}, 10, "content with the opening"),
    (ppt.adaptive, 2, {"delta": 0.0}, 2, "both orders asked, then nothing is left to ask"),
]


@pytest.mark.parametrize("tournament, n, arguments, expected, reason", COUNTS)
def test_number_of_comparisons(tournament, n, arguments, expected, reason):
    assert len(tournament(n, fair(list(range(n)), 0.1), **arguments).comparisons) == expected, reason


@pytest.mark.parametrize("n", range(1, 14))
@pytest.mark.parametrize("k", range(1, 14))
def test_pivot_count_formula(n, k):
    expected = 0 if n == 1 else n + min(k, n) * (n - min(k, n)) + min(k, n) * (min(k, n) - 1) // 2
    assert len(ppt.pivot_tournament(n, judge(table_of(n, k)), pivots=k).comparisons) == expected


@each_tournament
@pytest.mark.parametrize("n", [0, -1, 2.0, "3", None])
def test_number_of_candidates_that_makes_no_tournament(tournament, n):
    with pytest.raises(ValueError, match="at least 1"):
        tournament(n, lambda a, b: 0.5)


@each_tournament
@pytest.mark.parametrize("p", [-0.01, 1.01, math.nan, math.inf, 20])
def test_probability_that_is_none(tournament, p):
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
        tournament(4, lambda a, b: p)


@pytest.mark.parametrize(
    "tournament, arguments",
    [(ppt.pivot_tournament, {"pivots": 0}), (ppt.swiss, {"budget": -1}), (ppt.adaptive, {"budget": -1})]
    + [(ppt.adaptive, {"delta": delta}) for delta in (-0.1, 1.1, math.nan)],
)
def test_arguments_out_of_range(tournament, arguments):
    with pytest.raises(ValueError):
        tournament(4, lambda a, b: 0.5, **arguments)


@pytest.mark.parametrize("answers", [lambda pairs: [0.5], lambda pairs: [0.5] * (len(pairs) + 1)])
def test_compare_many_that_loses_or_adds_an_answer(answers):
    with pytest.raises(ValueError, match="compare_many gave"):
        ppt.pivot_tournament(5, None, compare_many=answers)


@pytest.mark.parametrize(
    "rewards, expected, reason",
    [
        ((0.5, 0.5), 0.5, "equal"),
        ((1, 0), 0.7310585786300049, "the largest there is: no temperature"),
        ((0, 1), 0.2689414213699951, "the smallest"),
        ((1 + 1e-12, 0), 0.7310585786302, "rounding of an expected score"),
    ],
)
def test_preference(rewards, expected, reason):
    assert ppt.preference(*rewards) == pytest.approx(expected, abs=1e-12), reason


@pytest.mark.parametrize("rewards", [(20, 1), (0.5, -0.1), (math.nan, 0.5), (0.5, math.inf)])
def test_preference_of_another_scale(rewards):
    with pytest.raises(ValueError, match="reward must lie"):
        ppt.preference(*rewards)


# --- Ties and abstentions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tournament", [ppt.pivot_tournament, ppt.round_robin, ppt.swiss, ppt.adaptive])
@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_a_judge_that_always_ties_leaves_the_lowest_index(tournament, n):
    ranking = tournament(n, lambda a, b: 0.5)
    assert ranking.best == 0 and len(set(ranking.scores)) == 1
    assert ranking.wins == [count / 2 for count in ranking.counts]


@pytest.mark.parametrize("p", [0.5, None])
def test_knockout_leaves_the_place_to_its_holder(p):
    for seed in range(10):
        ranking = ppt.knockout(6, lambda a, b: p, seed=seed)
        assert ranking.best == ranking.comparisons[0].a, "who came first was never beaten"


@each_tournament
def test_a_judge_that_always_abstains(tournament):
    ranking = tournament(6, lambda a, b: None)
    assert ranking.counts == [0] * 6 and ranking.wins == [0.0] * 6
    assert ranking.comparisons and all(comparison.p is None for comparison in ranking.comparisons)
    unknown = {ppt.swiss: [0.5], ppt.knockout: sorted(ranking.scores)}.get(tournament, [0.0])
    assert sorted(set(ranking.scores)) == unknown


@each_tournament
@given(n=st.integers(1, 9), seed=st.integers(0, 10**6), abstain=st.sampled_from([0.0, 0.2, 0.8]))
@settings(max_examples=60, deadline=None)
def test_sums_are_those_of_the_comparisons(tournament, n, seed, abstain):
    """Also with ties, abstentions and a judge that contradicts itself."""
    table = table_of(n, seed, abstain, levels=[0.0, 0.3, 0.5, 1.0])
    ranking = tournament(n, judge(table), seed=seed)
    wins, counts = [0.0] * n, [0] * n
    for a, b, p in ranking.comparisons:
        assert a != b and p == table[a][b]
        for i, won in ((a, p), (b, None if p is None else 1.0 - p)):
            wins[i] += won or 0.0
            counts[i] += p is not None
    assert ranking.wins == wins and ranking.counts == counts
    assert all(0 <= w <= c for w, c in zip(wins, counts))
    assert all(math.isfinite(score) for score in ranking.scores)
    assert ranking.best == ranking.scores.index(max(ranking.scores)), "argmax, ties to the lower index"
    assert ranking == tournament(n, judge(table), seed=seed), "same judge and seed, same ranking"


@each_tournament
@given(n=st.integers(1, 12), seed=st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_compare_many_changes_nothing(tournament, n, seed):
    table = table_of(n, seed, 0.1)
    batches = []

    def compare_many(pairs):
        batches.append(list(pairs))
        return [table[a][b] for a, b in pairs]

    ranking = tournament(n, None, seed=seed, compare_many=compare_many)
    assert ranking == tournament(n, judge(table), seed=seed)
    assert [pair for batch in batches for pair in batch] == [(a, b) for a, b, _ in ranking.comparisons]
    assert all(batches), "never asked for nothing"
    if tournament in (ppt.pivot_tournament, ppt.round_robin):
        assert len(batches) <= 2, "rounds are asked at once"
    if tournament in (ppt.swiss, ppt.adaptive):
        assert all(len({i for pair in batch for i in pair}) == 2 * len(batch) for batch in batches), "disjoint pairs"


@each_tournament
def test_labels_do_not_matter(tournament, monkeypatch):
    """With the candidates renamed, in the same order of play, the same one wins with the same score."""
    for seed in range(40):
        rng = random.Random(seed)
        n = rng.randrange(2, 12)
        rewards, names = [rng.random() for _ in range(n)], rng.sample(range(n), n)
        renamed = [0.0] * n
        for i, name in enumerate(names):
            renamed[name] = rewards[i]
        plain = tournament(n, fair(rewards), seed=seed)
        order = ppt._shuffled(n, seed)
        with monkeypatch.context() as patch:
            patch.setattr(ppt, "_shuffled", lambda n, seed: [names[i] for i in order])
            other = tournament(n, fair(renamed), seed=seed)
        assert other.best == names[plain.best]
        assert [other.scores[name] for name in names] == pytest.approx(plain.scores)
        assert [other.counts[name] for name in names] == plain.counts


@each_tournament
def test_seed_decides_the_order(tournament):
    orders = {tuple(tournament(8, fair([i / 7 for i in range(8)]), seed=seed).comparisons) for seed in range(20)}
    assert len(orders) > 10


@pytest.mark.parametrize("tournament", [ppt.round_robin, ppt.knockout, ppt.adaptive])
@given(rewards=st.lists(st.integers(0, 1000), min_size=1, max_size=10, unique=True), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_a_perfect_judge_finds_the_best(tournament, rewards, seed):
    """A judge that is certain and right: p is 0 or 1."""
    ranking = tournament(len(rewards), lambda a, b: float(rewards[a] > rewards[b]), seed=seed)
    assert rewards[ranking.best] == max(rewards)


@pytest.mark.parametrize("n", range(2, 9))
def test_round_robin_shows_each_pair_once_and_slots_in_balance(n):
    for seed in range(10):
        comparisons = ppt.round_robin(n, lambda a, b: 0.5, seed=seed).comparisons
        assert sorted(tuple(sorted((a, b))) for a, b, _ in comparisons) == list(combinations(range(n), 2))
        firsts = [sum(a == i for a, _, _ in comparisons) for i in range(n)]
        assert all(abs(2 * first - (n - 1)) <= 1 for first in firsts)


# --- A second implementation, slow and obvious ---------------------------------------------------------------------


def slow_round_robin(n, table, seed):
    """Borda over the pairs that the fast one asked; which order of a pair is asked is tested above."""
    asked = {(a, b) for a, b, _ in ppt.round_robin(n, judge(table), seed=seed).comparisons}
    rates = [[table[i][j] if (i, j) in asked else 1.0 - table[j][i] for j in range(n) if j != i] for i in range(n)]
    scores = [math.fsum(row) / len(row) if row else 0.0 for row in rates]
    return scores.index(max(scores)), scores, len(asked)


def slow_knockout(n, table, seed):
    queue = list(range(n))
    random.Random(seed).shuffle(queue)
    out = []
    while len(queue) > 1:
        holder, other = queue[0], queue[1]
        chance = table[holder][other] if len(out) % 2 == 0 else 1.0 - table[other][holder]
        out.append(other if chance >= 0.5 else holder)
        queue.remove(out[-1])
    places = {i: place for place, i in enumerate(out + queue)}
    return queue[0], [places[i] / (n - 1) if n > 1 else 1.0 for i in range(n)], n - 1


def slow_swiss(n, table, seed, budget):
    """V1's algorithms 1 to 4 over a list of meetings, everything counted anew each time."""
    order = list(range(n))
    random.Random(seed).shuffle(order)
    meetings = []  # (first, second)

    def mu(i):
        terms = []
        for a, b in meetings:
            if i in (a, b):
                p = table[a][b]
                won = 0.5 if p == 0.5 else float((p > 0.5) == (i == a))
                terms.append((max(abs(2 * p - 1), 0.1), won))
        return sum(w * won for w, won in terms) / sum(w for w, _ in terms) if terms else 0.5

    def met(i, j):
        return (i, j) in meetings or (j, i) in meetings

    def degree(i):
        return sum(met(i, j) for j in range(n))

    while len(meetings) < budget:
        mus, pairs, used = [mu(i) for i in range(n)], [], []
        low = [i for d in (0, 1) for i in order if degree(i) == d]
        for i in low:
            free = [j for j in order if j not in used + [i] and not met(i, j)]
            if i not in used and free:
                nearest = min(abs(mus[i] - mus[j]) for j in free)
                j = next(j for j in free if abs(mus[i] - mus[j]) == nearest)
                pairs, used = pairs + [(i, j)], used + [i, j]
        if not pairs and n > 2:
            ranked = sorted(order, key=lambda i: (-mus[i], order.index(i)))
            for k, i in enumerate(ranked):
                window = [j for t, j in enumerate(ranked) if k < t <= k + 8 and j not in used]
                if i not in used and window:
                    j = sorted(window, key=lambda j: (abs(mus[i] - mus[j]), met(i, j), order.index(j)))[0]
                    pairs, used = pairs + [(i, j)], used + [i, j]
        if not pairs:
            break
        for i, j in pairs[: budget - len(meetings)]:
            in_front = [sum(a == x for a, _ in meetings) for x in (i, j)]
            meetings.append((j, i) if in_front[1] < in_front[0] else (i, j))
    scores = [mu(i) for i in range(n)]
    return scores.index(max(scores)), scores, len(meetings)


def slow_adaptive(n, table, seed, budget, delta):
    """The posterior solved from scratch, in one piece, before each comparison."""
    order = list(range(n))
    random.Random(seed).shuffle(order)
    asked, opening = [], [(order[i], order[i + 1]) for i in range(0, n - 1, 2)]
    while True:
        design, y = np.zeros((len(asked), n + 1)), np.array([2 * table[a][b] - 1 for a, b in asked])
        for row, (a, b) in zip(design, asked):
            row[a], row[b], row[n] = 1, -1, 1
        precision = np.diag([1.0] * n + [1 / ppt.BIAS]) + design.T @ design / ppt.NOISE
        cov = np.linalg.inv(precision)
        mean = cov @ design.T @ y / ppt.NOISE
        leader = int(np.argmax(mean[:n]))
        if len(asked) >= budget or n == 1:
            break
        if opening:
            asked.append(opening.pop(0))
            continue
        unit = np.mean(y**2) / (2 + ppt.NOISE + ppt.BIAS)
        chances = {}
        for i in set(range(n)) - {leader}:
            if (i, leader) not in asked or (leader, i) not in asked:
                variance = unit * (cov[i, i] + cov[leader, leader] - 2 * cov[i, leader])
                chances[i] = norm.sf(mean[leader] - mean[i], scale=variance**0.5)
        if not chances or max(chances.values()) < delta:
            break
        other = max(chances, key=chances.get)
        in_front = [sum(a == x for a, _ in asked) for x in (leader, other)]
        pair = (other, leader) if in_front[1] < in_front[0] else (leader, other)
        asked.append(pair[::-1] if pair in asked else pair)
    return leader, list(mean[:n]), len(asked)


@pytest.mark.parametrize("name", ["round_robin", "knockout", "swiss", "adaptive"])
def test_two_implementations_agree(name):
    for seed in range(150):
        rng = random.Random(seed)
        n = rng.randrange(1, 14)
        arguments = {"budget": rng.randrange(3 * n)} if name in ("swiss", "adaptive") else {}
        if name == "adaptive":
            arguments["delta"] = rng.choice([0.0, 0.02, 0.1, 0.3])
        table = table_of(n, seed)
        best, scores, count = globals()["slow_" + name](n, table, seed, **arguments)
        ranking = getattr(ppt, name)(n, judge(table), seed=seed, **arguments)
        assert (ranking.best, len(ranking.comparisons)) == (best, count), (seed, n, arguments)
        assert ranking.scores == pytest.approx(scores, abs=1e-9)


# --- The public package --------------------------------------------------------------------------------------------


def load_peer():
    """llm-verifier's tournament alone: the package as a whole imports the clients of two services."""
    package = importlib.util.find_spec("llm_verifier")
    assert package, "`make test` installs llm-verifier, a requirement of the tests (pip install --no-deps llm-verifier==0.3.0)"
    file = Path(package.submodule_search_locations[0]) / "pivot_tournament.py"
    spec = importlib.util.spec_from_file_location("peer_pivot_tournament", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def peer_select(peer, n, score, pivots, seed):
    """What its `select` does between the ring and the result, with the pairs in the order in which it asks them."""
    ring = peer.ring_cycle(n, random.Random(seed))
    wins, counts = [0.0] * n, [0] * n
    peer.accumulate(ring, score, wins, counts)
    pairs = peer.pivot_round_pairs(n, peer.select_pivots(wins, counts, pivots))
    peer.accumulate(pairs, score, wins, counts)
    best, count = peer.select_best(n, ring, pivots, score)
    return best, [w / c if c else 0.0 for w, c in zip(wins, counts)], count, ring + pairs


def both_tournaments(peer, seed):
    """(theirs, ours) on table `seed`, each (pick, scores, number of comparisons, pairs asked).

    Rewards depend on slot and opponent; a third of the tables come from five levels, so that ties are common.
    """
    rng = random.Random(f"peer {seed}")
    n, pivots = rng.randrange(1, 33), rng.randrange(1, 7)
    levels = [0, 0.25, 0.5, 0.75, 1] if seed % 3 == 0 else None
    rewards = [
        [(rng.choice(levels), rng.choice(levels)) if levels else (rng.random(), rng.random()) for _ in range(n)] for _ in range(n)
    ]
    ranking = ppt.pivot_tournament(n, lambda a, b: ppt.preference(*rewards[a][b]), pivots=pivots, seed=seed)
    asked = [(a, b) for a, b, _ in ranking.comparisons]
    return peer_select(peer, n, lambda a, b: rewards[a][b], pivots, seed), (ranking.best, ranking.scores, len(asked), asked)


def test_equals_llm_verifier_on_a_thousand_tables():
    """Pick, scores to the last bit, number and order of the comparisons."""
    peer = load_peer()
    both = [both_tournaments(peer, seed) for seed in range(1000)]
    assert [seed for seed, (theirs, ours) in enumerate(both) if theirs != ours] == []


# --- Adaptive ------------------------------------------------------------------------------------------------------


@given(n=st.integers(1, 10), seed=st.integers(0, 10**6), budget=st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_adaptive_keeps_its_budget_and_never_asks_twice(n, seed, budget):
    delta = (0.0, 0.05, 0.5)[seed % 3]
    ranking = ppt.adaptive(n, judge(table_of(n, seed, 0.3)), budget=budget, delta=delta, seed=seed)
    pairs = [(a, b) for a, b, _ in ranking.comparisons]
    assert len(pairs) <= budget and len(set(pairs)) == len(pairs)


def test_adaptive_stops_sooner_when_the_judge_is_clear():
    right = [i == 7 for i in range(20)]
    clear = ppt.adaptive(20, lambda a, b: 0.5 + 0.45 * (right[a] - right[b]))
    vague = ppt.adaptive(20, judge(table_of(20, 0)))
    assert clear.best == 7 and len(clear.comparisons) < 30 < len(vague.comparisons) + 10


def test_adaptive_reads_a_verifier_and_a_critic_alike():
    """Probabilities drawn towards 0.5 by any factor give the same comparisons: only ratios matter."""
    for seed in range(20):
        table = table_of(12, seed)
        near = [[0.5 + 0.1 * (p - 0.5) for p in row] for row in table]
        wide, narrow = (ppt.adaptive(12, judge(t), seed=seed) for t in (table, near))
        assert [c[:2] for c in wide.comparisons] == [c[:2] for c in narrow.comparisons] and wide.best == narrow.best


@pytest.mark.parametrize("bias", [-2.0, 2.0])
def test_adaptive_withstands_position_bias_better_than_pivots(bias):
    """The better of two neighbours gains 0.5 in log-odds, being in front is worth four times as much."""
    hits = {ppt.adaptive: 0, ppt.pivot_tournament: 0}
    for seed in range(60):
        quality = random.Random(seed).sample(range(8), 8)
        table = [[1 / (1 + math.exp(-bias - 0.5 * (a - b))) for b in quality] for a in quality]
        for tournament in hits:
            hits[tournament] += quality[tournament(8, judge(table), seed=seed).best] == 7
    assert hits[ppt.adaptive] > hits[ppt.pivot_tournament] + 5


@pytest.mark.parametrize("name", sorted(PLACEHOLDERS))
def test_adaptive_equals_pivots_with_fewer_comparisons(name):
    """A quick look at what analysis/tournaments.py measures: N = 20, k = 2; at most 0.7 of 57 comparisons."""
    right, spent, tasks = {"adaptive": 0, "pivot 2": 0}, {"adaptive": 0, "pivot 2": 0}, 400
    for task in range(tasks):
        correct, table = tournaments.simulate(PLACEHOLDERS[name], seed=1, task=task, size=20)
        for method in right:
            pick, count = tournaments.played(method, 20, table, correct, f"1 {task}")
            right[method] += correct[pick]
            spent[method] += count
    assert spent["adaptive"] <= 0.7 * spent["pivot 2"]
    assert right["adaptive"] >= right["pivot 2"] - 0.03 * tasks, "three standard errors of the difference, about"


# --- analysis/tournaments.py ---------------------------------------------------------------------------------------


def recorded(tasks, size, judge="critic"):
    rows = [(task, *tournaments.simulate(PLACEHOLDERS[judge], 3, task, size)) for task in range(tasks)]
    return [{"task": task, "correct": correct, "p": table} for task, correct, table in rows]


def test_simulated_tasks_depend_on_seed_and_task_alone():
    judge_ = PLACEHOLDERS["critic"]
    correct, table = tournaments.simulate(judge_, 0, 5, 8)
    assert tournaments.simulate(judge_, 0, 5, 8) == (correct, table)
    assert tournaments.simulate(judge_, 0, 6, 8)[1] != table != tournaments.simulate(judge_, 1, 5, 8)[1]
    larger = tournaments.simulate(judge_, 0, 5, 20)
    assert larger[0][:8] == correct and [row[:8] for row in larger[1][:8]] == table, "fewer are the first ones"


@pytest.mark.parametrize("name", sorted(PLACEHOLDERS))
def test_fit_finds_the_judge_that_made_the_tables(name):
    found, made_by = tournaments.fit(recorded(300, 16, name)), PLACEHOLDERS[name]
    for field in set(made_by) - {"source", "limit"}:
        assert found[field] == pytest.approx(made_by[field], rel=0.15, abs=0.02), field


@pytest.fixture
def small_test(monkeypatch):
    monkeypatch.setattr(tournaments, "TESTED_SIZE", 5)


def run_tournaments(out, *more):
    tournaments.main(["--out", str(out), "--sizes", "2", "5", "--tasks", "6", "--tested", "9", *more])
    return (out / "rows.jsonl").read_text(), (out / "results.json").read_text()


def test_a_killed_simulation_carries_on(tmp_path, monkeypatch, small_test):
    rows, results = run_tournaments(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {
        "rows.jsonl", "results.json", "table.md", "tournaments.png", "summary.json"
    }  # fmt: skip
    monkeypatch.setattr(tournaments, "draw", lambda results, path: None)
    lines = rows.splitlines(keepends=True)
    (tmp_path / "rows.jsonl").write_text("".join(lines[:7]) + lines[7][:20])  # cut in the middle of a line
    assert run_tournaments(tmp_path) == (rows, results)
    monkeypatch.setattr(tournaments, "played", None)  # cannot be called
    assert run_tournaments(tmp_path) == (rows, results), "nothing is computed twice"
    monkeypatch.undo()
    monkeypatch.setattr(tournaments, "TESTED_SIZE", 5)
    assert len(run_tournaments(tmp_path, "--seed", "1")[0].splitlines()) == 2 * len(lines), "another seed, other rows"


def test_recorded_tables_are_played_as_they_are(tmp_path, monkeypatch, small_test):
    tasks = recorded(12, 5) + recorded(3, 2)
    tasks[0]["p"][0][1] = None  # an abstention
    (tmp_path / "tables.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    monkeypatch.setattr(tournaments, "draw", lambda results, path: None)
    run_tournaments(tmp_path / "out", "--tables", str(tmp_path / "tables.jsonl"))
    points = json.loads((tmp_path / "out" / "results.json").read_text())["points"]
    assert {(p["size"], p["tasks"]) for p in points} == {(2, 6), (5, 6), (5, 9)}
    assert tournaments.read_judge(tmp_path / "out" / "judge.json")["position_bias"] > 0


@pytest.mark.parametrize(
    "line, reason",
    [
        ('{"task": 1, "correct": [], "p": []}', "no candidate"),
        ('{"task": 1, "correct": [true, false], "p": [[null, 0.5]]}', "a row is missing"),
        ('{"task": 1, "correct": [true, false], "p": [[null], [0.5, null]]}', "a cell is missing"),
        ('{"task": 1, "correct": [true, false], "p": [[null, 1.5], [0.5, null]]}', "no probability"),
    ],
)
def test_tables_that_cannot_be_read(tmp_path, line, reason):
    (tmp_path / "tables.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match="tables.jsonl:1: p must"):
        tournaments.read_tables(tmp_path / "tables.jsonl")


def test_a_judge_with_a_field_too_few(tmp_path):
    (tmp_path / "judge.json").write_text('{"source": "x"}')
    with pytest.raises(ValueError, match="expected"):
        tournaments.read_judge(tmp_path / "judge.json")
