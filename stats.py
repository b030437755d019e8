"""Statistics over the rows that evaluate.py writes: rates with clustered intervals, coupling, paired comparison.

A row is one judgement (`id, order, cluster, suite, verdict, verdict_correct, prediction_correct, ...`) or one answer
(`id, cluster, suite, prediction, correct, ...`). `cluster` is the same for all rows of one question, which are not
independent of each other: both orders of a pair, and several pairs of a question. Nothing here needs torch.
"""

import math

import numpy as np
import scipy  # its stats load where they are used: a second

RESAMPLES = 2000
LEVEL = 0.95


def row_key(row):
    """What identifies a row within a result: its record's id and, for a judgement, the order shown."""
    return (row["id"], row.get("order"))


def is_right(row):
    """Whether the row's verdict (judgement) or prediction (answer) is right; an unreadable one is not."""
    return bool(row["verdict_correct"] if "verdict_correct" in row else row["correct"])


def exact_interval(value, n):
    """Clopper-Pearson interval of a share `value` of `n` independent trials.

    >>> [round(x, 3) for x in exact_interval(1.0, 20)]
    [0.832, 1.0]
    """
    hits, tail = value * n, (1 - LEVEL) / 2
    low = scipy.stats.beta.ppf(tail, hits, n - hits + 1) if hits > 0 else 0.0
    high = scipy.stats.beta.ppf(1 - tail, hits + 1, n - hits) if hits < n else 1.0
    return float(low), float(high)


def clustered_interval(sums, counts, suites):
    """95% interval of the mean over suites of sum(sums) / sum(counts), resampling whole clusters.

    `sums`, `counts` and `suites` hold one entry per cluster, shape (C,); one suite throughout gives the plain rate.
    Where every cluster has the same rate (all right, say) resampling would report certainty, and the exact binomial
    interval with C trials stands in: wider than needed where the rate is neither 0 nor 1.
    """
    sums, counts, suites = np.asarray(sums, float), np.asarray(counts, float), np.asarray(suites)
    rates = sums / counts  # (C,)
    if np.ptp(rates) == 0:
        return exact_interval(rates[0], len(rates))
    members = [suites == suite for suite in np.unique(suites)]  # S masks of (C,)

    def mean_of_rates(index, axis):
        with np.errstate(invalid="ignore"):  # a small suite may be absent from a resample: nan, left out of its mean
            ratios = [(sums * m)[index].sum(axis) / (counts * m)[index].sum(axis) for m in members]
        return np.nanmean(ratios, axis=0)

    result = scipy.stats.bootstrap(
        (np.arange(len(sums)),), mean_of_rates, n_resamples=RESAMPLES, batch=200, vectorized=True,
        confidence_level=LEVEL, method="percentile", rng=np.random.default_rng(0),
    )  # fmt: skip
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def estimate(rows, value, macro=False):
    """{"value", "low", "high", "n", "clusters"} of the share of rows for which `value(row)` is true.

    Rows for which it is None do not belong to the rate. With `macro` the rate is the mean over suites. Without any row
    value, low and high are None.
    """
    totals = {}  # (suite, cluster) -> [sum, count]
    for row in rows:
        outcome = value(row)
        if outcome is not None:
            total = totals.setdefault((row["suite"] if macro else "", row["cluster"]), [0, 0])
            total[0], total[1] = total[0] + bool(outcome), total[1] + 1
    if not totals:
        return {"value": None, "low": None, "high": None, "n": 0, "clusters": 0}
    suites = np.array([suite for suite, _ in totals])
    sums, counts = np.array(list(totals.values())).T  # (C,), (C,)
    rates = [sums[suites == suite].sum() / counts[suites == suite].sum() for suite in np.unique(suites)]
    low, high = clustered_interval(sums, counts, suites)
    return {
        "value": float(np.mean(rates)), "low": low, "high": high, "n": int(counts.sum()), "clusters": len(totals),
    }  # fmt: skip


def chi2_p(chi2):
    """p-value of a chi-square statistic with one degree of freedom (no continuity correction).

    The paper prints 8.93e-13 and 4.66e-37 for these two: p before the statistic was rounded to two places.

    >>> f"{chi2_p(51.07):.2e}", f"{chi2_p(161.76):.2e}"
    ('8.91e-13', '4.67e-37')
    """
    return float(scipy.stats.chi2.sf(chi2, 1))


def coupling(rows):
    """Does a judgement stand and fall with the critic's own answer? The 2x2 table, chi-square, p and phi.

    Table rows: self-prediction right, wrong; columns: judgement right, wrong. An unreadable prediction or verdict is
    wrong. chi2, p and phi are None, with a `reason`, where a row or column of the table is empty.
    """
    rows = [row for row in rows if row["prediction_correct"] is not None]
    table = [
        [sum(bool(r["prediction_correct"]) == p and is_right(r) == v for r in rows) for v in (True, False)]
        for p in (True, False)
    ]
    result = {"table": table, "n": len(rows), "chi2": None, "p": None, "phi": None, "reason": None}
    if not rows:
        return result | {"reason": "no self-predictions: the prompt asks for none"}
    if 0 in (*map(sum, table), *map(sum, zip(*table))):
        return result | {"reason": "all self-predictions, or all judgements, are equally right: nothing can couple"}
    chi2 = float(scipy.stats.chi2_contingency(table, correction=False).statistic)
    (a, b), (c, d) = table
    return result | {"chi2": chi2, "p": chi2_p(chi2), "phi": math.copysign(math.sqrt(chi2 / len(rows)), a * d - b * c)}


def first_shown(row):
    """Whether the verdict is for the response shown first; None where there is no verdict."""
    return None if row["verdict"] is None else str(row["verdict"]) == row["order"][0]


def prefers_longer(row):
    """Whether the verdict is for the longer response; None where there is no verdict, or no longer one."""
    return None if None in (row["verdict"], row["longer"]) else row["verdict"] == row["longer"]


def pairs(rows):
    """One {"suite", "cluster", "consistent"} per pair: the same response preferred in both orders, both readable."""
    verdicts = {}
    for row in rows:
        verdicts.setdefault(row["id"], (row, {}))[1][row["order"]] = row["verdict"]
    return [
        {"suite": row["suite"], "cluster": row["cluster"], "consistent": v["12"] is not None and v["12"] == v["21"]}
        for row, v in verdicts.values()
        if len(v) == 2  # a pair of which a server failed one order says nothing about consistency
    ]


def summarise(rows, mode):
    """Everything that a result states about its rows; `mode` is "question" or "judge"."""
    suites = sorted({row["suite"] for row in rows})
    answer = "verdict" if mode == "judge" else "prediction"
    summary = {
        "accuracy": estimate(rows, is_right),
        "macro": estimate(rows, is_right, macro=True),
        "suites": {suite: estimate([r for r in rows if r["suite"] == suite], is_right) for suite in suites},
        "unreadable": estimate(rows, lambda row: row[answer] is None),
        "cut_off": estimate(rows, lambda row: row["cut_off"]),
    }
    if mode == "judge":
        summary |= {
            "consistency": estimate(pairs(rows), lambda pair: pair["consistent"]),
            "first_share": estimate(rows, first_shown),
            "longer_share": estimate(rows, prefers_longer),
            "prediction_accuracy": estimate(rows, lambda row: row["prediction_correct"]),
            "coupling": coupling(rows),
            # the two orders of a pair are not independent, which swells the chi-square: one judgement a pair, too
            "coupling_one_order": coupling([row for row in rows if row["order"] == "12"]),
        }
    return summary


def mean_gain(gains):
    """(mean, low, high, n) of paired differences, `gains` mapping a cluster to its differences; resampled by cluster."""
    sums, counts = [sum(g) for g in gains.values()], [len(g) for g in gains.values()]
    value = sum(sums) / sum(counts)
    if len({s / c for s, c in zip(sums, counts)}) == 1:  # every question moved alike: no spread to resample
        return value, value, value, sum(counts)
    return (value, *clustered_interval(sums, counts, [""] * len(sums)), sum(counts))


def paired_difference(a, b):
    """{"points", "low", "high", "p", "n"}: by how many points the rows of result `a` are above those of `b`, same questions.

    The interval resamples clusters, both results together. p is McNemar's exact test over answers, or over the
    judgements in order 12 (one per pair, since the orders are not independent). Raises ValueError where the rows of
    the two are not about the same ids and orders.
    """
    from statsmodels.stats.contingency_tables import mcnemar

    rows_a, rows_b = ({row_key(row): row for row in rows} for rows in (a, b))
    odd = sorted(map(str, rows_a.keys() ^ rows_b.keys()))
    if odd or not rows_a:
        raise ValueError(f"the two results are not about the same questions: {len(odd)} rows in one only, e.g. {odd[:3]}")
    gains, cells = {}, [[0, 0], [0, 0]]
    for key, row in rows_a.items():
        right_a, right_b = is_right(row), is_right(rows_b[key])
        gains.setdefault(row["cluster"], []).append(right_a - right_b)
        if key[1] in (None, "12"):
            cells[1 - right_a][1 - right_b] += 1
    value, low, high, n = mean_gain(gains)
    p = float(mcnemar(cells, exact=True).pvalue)
    return {"points": 100 * value, "low": 100 * low, "high": 100 * high, "p": p, "n": n}


def cell(entry):
    """An estimate in percent, for a table.

    >>> cell({"value": 0.5, "low": 0.4, "high": 0.6})
    '50.0 [40.0, 60.0]'
    """
    if entry["value"] is None:
        return "too few pairs"
    return f"{100 * entry['value']:.1f} [{100 * entry['low']:.1f}, {100 * entry['high']:.1f}]"


def share(entry):
    """An estimate as text.

    >>> share({"value": 0.5, "low": 0.4, "high": 0.6, "n": 96, "clusters": 48})
    ' 50.0  [ 40.0,  60.0]  n=96'
    """
    if entry["value"] is None:
        return "    -  (no row)"
    return f"{100 * entry['value']:5.1f}  [{100 * entry['low']:5.1f}, {100 * entry['high']:5.1f}]  n={entry['n']}"
