"""The numbers that the README states: entries of experiments/headline.json, and the table made from them.

    python -m analysis.headline            rewrite the README's results table

An entry is written by the script that measured it, never by hand:
{"name": {"value", "low", "high", "n", "unit", "command", "record", "commit"}}; low and high are a 95% interval, or the
range over repeats where `unit` says so.
"""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "experiments" / "headline.json"
BEGIN, END = "<!-- results: python -m analysis.headline -->", "<!-- /results -->"
FIELDS = ("value", "low", "high", "n", "unit", "command", "record", "commit")
LABELS = {
    "stage1_question_gain": "Question accuracy, stage 1 against the base, same questions",
    "stage2_judge_accuracy_base": "Judge accuracy, base",
    "stage2_judge_accuracy": "Judge accuracy after stage 2",
    "stage2_order_consistency": "Same verdict in both orders, after stage 2",
    "coupling_chi2_stage1": "Self-prediction and judgement coupled, after stage 1",
    "coupling_chi2_stage2": "The same after stage 2",
    "ood_judge_accuracy": "Judge accuracy out of distribution, after stage 2",
    "demo_minutes": "Duration of `make demo` after installation",
    "best_of_16_gain": "Best of 16 by the critic against one candidate, same questions",
    "solve_once_generated_ratio": "Best of 32, solved once and equal texts judged once, against judging all anew: tokens generated",
    "solve_once_computed_ratio": "The same: prompt tokens computed",
    "solve_once_accuracy_change": "The same: accuracy of the pick",
    "adaptive_comparisons_ratio": "Comparisons of the adaptive tournament against the pivot tournament's (N = 20, k = 2)",
    "peer_tables_identical": "Random tables on which the pivot tournament equals llm-verifier's",
    "peer_cost_ratio": "Prompt tokens computed against llm-verifier's, same tasks and server",
    "faulty_replies_scored": "Faulty replies of a judge that became a score, of 5,000 among 5,000 good ones",
    "loader_rows_rejected_unexplained": "Rows that a loader dropped without a reason (fixtures and spoiled copies)",
    "length_only_judge": "A judge of lengths alone, on balanced pairs",
    "position_only_judge": "A judge of positions alone",
    "source_only_judge": "A judge of sources alone",
    "metaworld_pairs": "Pairs built from Meta-World videos",
    "step_fwd_bwd_speedup": "Forward and backward, stock TRL's time over ours (prompt 2,048, completion 256, 8 x 8 frames)",
    "step_speedup": "Whole step, the same",
    "step_memory_ratio": "Peak memory of that step, ours over stock TRL's",
    "gradient_difference": "Largest relative difference of gradients, ours and stock TRL's",
    "small_prompt_speedup": "Whole step at prompt 256, completion 64, 4 x 4 frames",
    "two_stage_minus_mixed": "Judge accuracy, two stages against mixed",
    "two_stage_minus_stage2_only": "Judge accuracy, two stages against stage 2 alone",
    "full_minus_no_self_reference": "Judge accuracy, full method against no self-reference",
    "full_minus_no_r_sp": "Judge accuracy, full method against no reward for the self-prediction",
    "full_minus_no_criteria": "Judge accuracy, full method against no criteria in the prompt",
    "counterfactual_flip_rate": "Verdicts that change with another self-prediction put in its place",
    "counterfactual_paraphrase_rate": "Verdicts that change with the same one in other words",
    "calibration_error": "Expected calibration error of p_first",
    "dpo_gain_critic_pairs": "Question accuracy after DPO with the critic's pairs, against the policy",
    "dpo_gain_verifier_pairs": "The same with an answer verifier's pairs",
}


def read(file=FILE):
    """All entries; raises ValueError where one lacks a field."""
    entries = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    for name, entry in entries.items():
        if set(entry) != set(FIELDS):
            raise ValueError(f"{file}: {name} has the fields {sorted(entry)}, expected {sorted(FIELDS)}")
    return entries


def update(entries, file=FILE):
    """Set these entries and leave the others as they are."""
    merged = read(file) | entries
    file.write_text(json.dumps(merged, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def table(entries):
    """The results as lines of Markdown, in the order of LABELS; an entry without a label is an error."""
    unknown = set(entries) - set(LABELS)
    if unknown:
        raise ValueError(f"{FILE}: no label in analysis/headline.py for {sorted(unknown)}")
    lines = ["| Result | Value | n | Reproduce |", "|---|---|---|---|"]
    for name, label in LABELS.items():
        if name in entries:
            e = entries[name]
            style = ".1e" if 0 < abs(e["value"]) < 1e-3 else ".2f" if name.endswith(("_ratio", "_speedup")) else ".1f"
            value = f"{e['value']:{style}} [{e['low']:{style}}, {e['high']:{style}}] {e['unit']}"
            lines.append(f"| {label} | {value} | {e['n']} | `{e['command']}` ([record]({e['record']})) |")
    return lines


def rewrite(text, lines):
    """The README's text with the table between its two marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n".join([before + BEGIN, *lines, END + after])


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(rewrite(readme.read_text(encoding="utf-8"), table(read())), encoding="utf-8")
