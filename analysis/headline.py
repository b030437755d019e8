"""The numbers that the README states: gathered from the records' summaries, and shown in groups.

    python -m analysis.headline            gather experiments/headline.json and rewrite the README's results table

An entry has FIELDS and is written by the script that measured it, never by hand; low and high are a 95% interval, or the
range over repeats where `unit` says so.
"""

import json
import shlex
import sys
from pathlib import Path

from data import command
from data.files import commit

ROOT = Path(__file__).resolve().parents[1]
FILE, README = ROOT / "experiments" / "headline.json", ROOT / "README.md"
BEGIN, END = "<!-- results: python -m analysis.headline -->", "<!-- /results -->"
FIELDS = ("value", "low", "high", "n", "unit", "command", "record", "commit")
RECORDS = "experiments/2026-11-30_"
GROUPS = {  # title -> {record: {entry: label}}
    "Judge accuracy": {f"{RECORDS}three_seeds": {"stage2_judge_accuracy_base": "base", "stage2_judge_accuracy": "after stage 2"}},
    "The same runs": {f"{RECORDS}three_seeds": {
        "stage1_question_gain": "questions, stage 1 over the base", "ood_judge_accuracy": "judge, out of distribution (stage 2)",
        "stage2_order_consistency": "same verdict in both orders (stage 2)", "demo_minutes": "`make demo` after installation",
        "coupling_chi2_stage1": "self-prediction and verdict coupled (stage 1)", "coupling_chi2_stage2": "the same (stage 2)"}},
    "Ablations: judge accuracy, the full method minus": {"experiments/tables": {
        "two_stage_minus_mixed": "mixed training", "two_stage_minus_stage2_only": "stage 2 alone",
        "full_minus_no_self_reference": "no self-reference", "full_minus_no_r_sp": "no reward for the self-prediction",
        "full_minus_no_criteria": "no criteria in the prompt"}},
    "Mechanism": {f"{RECORDS}mechanism": {
        "counterfactual_flip_rate": "verdicts that change with another self-prediction",
        "counterfactual_paraphrase_rate": "verdicts that change with the same one in other words",
        "calibration_error": "expected calibration error of p_first"}},
    "DPO: questions, against the policy, with pairs of": {f"{RECORDS}dpo": {
        "dpo_gain_critic_pairs": "the critic", "dpo_gain_verifier_pairs": "an answer verifier"}},
    "Best of 16 by the critic": {f"{RECORDS}best_of_n": {"best_of_16_gain": "against one candidate, same questions"}},
    "Best of 32, solved once and equal texts judged once, against judging all anew": {f"{RECORDS}solve_once": {
        "solve_once_generated_ratio": "tokens generated", "solve_once_computed_ratio": "prompt tokens computed",
        "solve_once_accuracy_change": "accuracy of the pick"}},
    "Adaptive tournament (N = 20, k = 2)": {f"{RECORDS}tournaments_recorded": {"adaptive_comparisons_ratio": "comparisons"}},
    "The verifier against llm-verifier": {
        f"{RECORDS}verifier/checks": {
            "peer_tables_identical": "random tables with the same picks and scores",
            "faulty_replies_scored": "faulty replies that became a score, 5,000 among 5,000 good ones"},
        f"{RECORDS}verifier/cost": {"peer_cost_ratio": "prompt tokens computed, same tasks and server"}},
    "Judges that do not look, on balanced pairs": {f"{RECORDS}pair_balance": {
        "length_only_judge": "lengths", "position_only_judge": "positions", "source_only_judge": "sources"}},
    "A training step against stock TRL's (prompt 2,048, completion 256, 8 x 8 frames)": {f"{RECORDS}bench": {
        "step_speedup": "whole step, its time over ours", "step_fwd_bwd_speedup": "forward and backward",
        "step_memory_ratio": "peak memory, ours over its", "gradient_difference": "largest relative difference of gradients",
        "small_prompt_speedup": "whole step at prompt 256, completion 64, 4 x 4 frames"}},
    "Data": {
        f"{RECORDS}loader_checks": {"loader_rows_rejected_unexplained": "rows that a loader dropped without a reason"},
        f"{RECORDS}metaworld": {"metaworld_pairs": "pairs built from Meta-World videos"}},
}  # fmt: skip


def command_of(module, argv):
    """The command that runs, as text; a main calls this first, and so its commit is asked for here."""
    commit()
    return shlex.join(["python", "-m", module, *(sys.argv[1:] if argv is None else argv)])


def write_summary(out, entries, command):
    """<out>/summary.json with the headline's entries, provenance added."""
    where = {"command": command, "record": str(out), "commit": commit()}
    entries = {name: entry | where for name, entry in entries.items()}
    (Path(out) / "summary.json").write_text(json.dumps({"headline": entries}, indent=1) + "\n", encoding="utf-8")


def shown(name, e):
    """An entry's value, interval and unit as text; raises ValueError where a field is missing."""
    if set(e) != set(FIELDS):
        raise ValueError(f"{name} has the fields {sorted(e)}, expected {sorted(FIELDS)}; record it again")
    style = ".1e" if 0 < abs(e["value"]) < 1e-3 else ".2f" if name.endswith(("_ratio", "_speedup")) else ".1f"
    return f"{e['value']:{style}} [{e['low']:{style}}, {e['high']:{style}}] {e['unit']}"


def groups():
    """[{"title", "rows": [{"name", "label", "text", "n", "entry"}], "command", "record"}] of GROUPS, from the records.

    Two commands of a group stand in one text, with "; " between them, two records with ", ".
    """
    found = []
    for title, records in GROUPS.items():
        rows = []
        for record, labels in records.items():
            made = json.loads((ROOT / record / "summary.json").read_text(encoding="utf-8"))["headline"]
            rows += [{"name": name, "label": labels[name], "entry": made.get(name, {})} for name in labels]
        rows = [row | {"text": shown(row["name"], row["entry"]), "n": row["entry"]["n"]} for row in rows]
        commands = dict.fromkeys(row["entry"]["command"] for row in rows)
        found.append({"title": title, "rows": rows, "command": "; ".join(commands), "record": ", ".join(records)})
    return found


def rewritten(text, begin, lines, end):
    """The text of a page with these lines between its two marks; raises ValueError where it has not each of them once."""
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"the page must hold the line {begin!r} and after it {end!r}, each once")
    return "\n".join([text.split(begin)[0] + begin, *lines, end + text.split(end)[1]])


def readme(text):
    """The README's text with its table, a row a group."""
    lines = ["| What | Value [95%], n | Command |", "|---|---|---|"]
    for group in groups():
        values = "<br>".join(f"{row['label']}: {row['text']}, n {row['n']}" for row in group["rows"])
        links = ", ".join(f"[record]({record})" for record in group["record"].split(", "))
        lines.append(f"| **{group['title']}** | {values} | `{group['command']}` ({links}) |")
    return rewritten(text, BEGIN, lines, END)


if __name__ == "__main__":
    command.Parser(description=__doc__).parse_args()
    entries = {row["name"]: row["entry"] for group in groups() for row in group["rows"]}
    FILE.write_text(json.dumps(entries, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    README.write_text(readme(README.read_text(encoding="utf-8")), encoding="utf-8")
