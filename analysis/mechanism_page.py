"""The tables of analysis/mechanism.py as Markdown."""

import statistics

from analysis.demo_report import percent

PAPER_CHI2 = {"stage1": "51.07", "full": "161.76"}
TITLES = {
    "base": "base", "stage1": "after stage 1", "full": "full (two stages)", "no_r_sp": "no r_sp",
    "no_self_reference": "no self-reference",
}  # fmt: skip


def table(title, head, rows):
    """A heading and a table as lines."""
    lines = ["", f"## {title}", "", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def coupling_table(results):
    """The 2x2 tables with chi-square and phi."""
    rows = []
    for name, result in results.items():
        c = result["coupling"]
        phi = c["reason"] if c["phi"] is None else f"{c['phi']:+.2f} [{c['low']:+.2f}, {c['high']:+.2f}]"
        seeds = [value for value in c["chi2_seeds"] if value is not None]
        chi2 = f"{statistics.mean(seeds):.1f} ({min(seeds):.1f} to {max(seeds):.1f})" if seeds else "-"
        cells = [f"{right} / {wrong}" for right, wrong in c["table"]]
        rows.append([TITLES[name], *cells, chi2, phi, PAPER_CHI2.get(name, "-")])
    head = ["", "solved right: judged right / wrong", "solved wrong: right / wrong"]
    head += ["chi-square, mean of seeds (range)", "phi", "paper's chi-square"]
    return table("Coupling of self-prediction and judgement (order 12; counts of all seeds)", head, rows)


def counterfactual_table(results):
    """Rates of every condition, and below them the other answer against the same answer in other words."""
    rows, notes = [], [""]
    for name, result in results.items():
        made = result["counterfactual"]
        for condition, rates in made["conditions"].items():
            cells = [percent(rates[key]) for key in ("changed", "followed", "unreadable")]
            kinds = "; ".join(f"{kind} {percent(e)} (n {e['n']})" for kind, e in rates["changed_by_kind"].items())
            rows.append([TITLES[name], condition, *cells, str(rates["changed"]["n"]), kinds])
        contrast, (n, of), points = made["other_minus_same_words"], made["eligible"], "-"
        if contrast:
            points = "{:+.1f} [{:+.1f}, {:+.1f}]".format(*(100 * contrast[key] for key in ("value", "low", "high")))
        notes.append(
            f"- {TITLES[name]}: other answer minus other words, {points} points; {n} of {of} judgements could be changed."
        )
    head = ["", "replaced", "verdict changes, %", "verdict as the inserted answer, %", "unreadable, %", "n"]
    title = "Counterfactual: the self-prediction is replaced before the critic compares (analysis/counterfactual.py)"
    return table(title, [*head, "changes by kind of words or thought, %"], rows) + notes


def failure_tables(results):
    """A table of classes by suite for each model."""
    lines = []
    for name, result in results.items():
        rows = [[suite, *map(percent, shares.values())] for suite, shares in result["failures"].items()]
        lines += table(f"Failures, {TITLES[name]}, % of judgements", ["suite", *result["failures"]["all"]], rows)
    return lines


def bias_table(results):
    """Cues, and accuracy where label and cue agree and where they do not."""
    rows = [
        [TITLES[name], cue, *(percent(bias[key]) for key in ("share", "agree", "disagree"))]
        for name, result in results.items()
        for cue, bias in result["biases"].items()
    ]
    return table("Biases", ["", "cue", "verdicts for it, %", "accuracy, right response has it", "wrong response has it"], rows)


def cost_table(results):
    """Tokens and seconds of a judgement."""
    rows = []
    for name, result in results.items():
        c = result["cost"]
        tokens = [f"{c['generated']:.1f}", f"{c['prompt']:.1f}", f"{c['seconds']:.4f}"]
        rows.append([TITLES[name], *tokens, percent(c["accuracy"]), f"{c['per_100_tokens']:.1f}"])
    head = ["", "generated tokens", "prompt tokens", "seconds (as busy as the machine was)", "accuracy, %"]
    return table("Cost of a judgement", [*head, "points of accuracy for 100 generated tokens"], rows)


def calibration_table(results):
    """Calibration error, Brier score and selective accuracy of the models whose p_first could be read."""
    rows, shares = [], []
    for name, result in results.items():
        c = result["calibration"]
        if c["n"]:
            scores = ["{value:.3f} [{low:.3f}, {high:.3f}]".format(**c[key]) for key in ("error", "brier")]
            shares = [f"accuracy of the surest {s['coverage']:.0%}" for s in c["selective"]]
            read = f"{c['n']} ({c['unread']})"
            rows.append([TITLES[name], *scores, f"{c['confidence']:.3f}", *map(percent, c["selective"]), read])
    return table("Calibration of p_first", ["", "calibration error", "Brier", "mean confidence", *shares, "n (unread)"], rows)


def page(results):
    """All tables as lines; what needs a self-prediction is of the models that make one."""
    own = {name: result for name, result in results.items() if "counterfactual" in result}
    lines = coupling_table(own) + counterfactual_table(own) + failure_tables(own)
    return lines + bias_table(results) + cost_table(results) + calibration_table(results)
