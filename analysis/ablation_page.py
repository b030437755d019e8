"""Which rows the ablation tables have, and the tables and findings as text: Markdown and LaTeX.

analysis/ablation_tables.py makes the numbers.
"""

from pathlib import Path

import yaml

from analysis.pages import cell, markdown

MATRIX = Path(__file__).resolve().parents[1] / "experiments" / "tables.yaml"
PAPER = MATRIX.with_name("paper_numbers.json")
EVALUATIONS = {"judge_test": "Judge", "question_test": "Question", "judge_ood": "Judge, OOD", "question_ood": "Question, OOD"}
FULL = "two_stages"  # the full method: in every table, under a name of its own
# Title of the table that compares the last one's rows
SHARES = "GRPO minus the supervised judge (its shorter training), by share of the pairs"


def tables_of(matrix):
    """{table: (title, {run: label})} of a matrix, rows in the order of its runs, the full method at its place."""
    tables = {}
    for name, about in matrix["tables"].items():
        rows = [(run, how["label"]) for run, how in matrix["runs"].items() if how.get("table") == name]
        rows.insert(about["at"], (FULL, about["full"]))
        tables[name] = (about["title"], dict(rows))
    return tables


PLAN = yaml.safe_load(MATRIX.read_text(encoding="utf-8"))
TABLES = tables_of(PLAN)
PAPER_ROWS = {run: how["paper"] for run, how in PLAN["runs"].items() if "paper" in how}  # of "ablations" in paper_numbers.json
OPTIONAL = {run for run, how in PLAN["runs"].items() if "start" in how}  # weights that are not everywhere
LABELS = {run: label for _, rows in TABLES.values() for run, label in rows.items()}
HOLDS, REVERSED, OPEN, ABSENT = "holds", "does not hold", "cannot be decided", "not run"  # the words of an ordering


def points(entry):
    """A difference as a cell, with Holm's p and the range over seeds."""
    p = f"p {entry['p_holm']:.3f}" if entry["p_holm"] >= 0.001 else "p <.001"
    seeds = entry["seeds"]
    spread = f"seeds {min(seeds):+.1f} to {max(seeds):+.1f}" if len(seeds) > 1 else "one seed"
    return f"{cell(entry | {'value': entry['points']}, '+.1f', 1)}, {p}, {spread}"


def paper_cell(run, label, paper):
    """The paper's numbers of a run: PhyCritic-Bench / CosmosReason1-Bench / VL-RewardBench; of alpha_sp overall / macro."""
    if label.startswith("alpha_sp "):
        numbers = paper["alpha_sp"][label.removeprefix("alpha_sp ")]
    else:
        numbers = paper["ablations"].get(PAPER_ROWS.get(run), [])
    return " / ".join(f"{number:.1f}" for number in numbers) or "-"


def table(rows, numbers, compared, paper):
    """Cells of a table, its header first: ours in percent, the full method's lead over each row in points."""
    cells = [["", "Paper", *EVALUATIONS.values(), "Judge, macro", "Seeds", "Full minus this, judge"]]
    for run, label in rows.items():
        if run in numbers:
            mine = [*(cell(numbers[run][name]) for name in EVALUATIONS), cell(numbers[run]["judge_test"]["macro"])]
            lead = points(compared["judge_test"][run]) if run != FULL else "-"
            cells.append([label, paper_cell(run, label, paper), *mine, str(len(numbers[run]["judge_test"]["seeds"])), lead])
        else:
            cells.append([label, paper_cell(run, label, paper), *[ABSENT] * (len(EVALUATIONS) + 3)])
    return cells


def share_table(entries):
    """Cells of GRPO against the supervised judge that read the same pairs; Holm over these shares."""
    head = ["Share of the pairs", "Judge accuracy, points", "questions", "n for this difference"]
    return [head] + [
        [part, points(entry), f"{entry['clusters']:,}", count(entry["questions_to_decide"])] for part, entry in entries.items()
    ]


def count(n):
    """A number that power analysis gives as a cell: None where none would do, or none can be told."""
    return "-" if n is None else f"{n:,}"


def ordering_table(lines):
    """Cells of the table of the paper's orderings."""
    head = ["Full method against", "on", "Paper, points", "Ours, points", "Ordering"]
    cells = [[*head, "questions", "n for our difference", "n for the paper's", "seeds for ours"]]
    for line in lines:
        theirs = [LABELS[line["run"]], EVALUATIONS[line["evaluation"]], f"{line['paper']:+.1f}"]
        ours, needed = ["-", ABSENT], ["-"] * 4
        if line["verdict"] != ABSENT:
            ours, needed[0] = [points(line), line["verdict"]], f"{line['clusters']:,}"
        if line["verdict"] == OPEN:
            needed[1:] = map(count, (line["questions_to_decide"], line["questions_for_the_papers"], line["seeds_to_decide"]))
        cells.append([*theirs, *ours, *needed])
    return cells


def findings(lines):
    """Lines of Markdown that say which of the paper's orderings hold here, which do not, and which stay open and why."""
    text, titles = [], {HOLDS: "Hold at this scale", REVERSED: "Do not hold (the opposite is shown)", OPEN: "Cannot be decided"}
    for verdict, title in titles.items():
        said = [line for line in lines if line["verdict"] == verdict]
        text += [f"{title}: {len(said)} of {len(lines)}.", ""]
        for line in said:
            why = f"; {why_open(line)}" if verdict == OPEN else ""
            text.append(f"- {name_of(line)}: {points(line)} (paper {line['paper']:+.1f}){why}")
        text += [""] if said else []
    absent = [name_of(line) for line in lines if line["verdict"] == ABSENT]
    return text + ([f"Not run: {'; '.join(absent)}.", ""] if absent else [])


def name_of(line):
    """An ordering in words.

    >>> name_of({"run": "mixed", "evaluation": "judge_test"})
    'two stages over mixed, one stage (judge)'
    """
    full = "alpha_sp 0.2" if line["run"].startswith("alpha_sp") else "two stages"
    return f"{full} over {LABELS[line['run']]} ({EVALUATIONS[line['evaluation']].lower()})"


def why_open(line):
    """Why an ordering is undecided, and the n that would decide it."""
    if len(line["seeds"]) == 1:
        reason = "a single seed decides nothing"
    elif line["p_holm"] < 0.05:
        reason = "the seeds do not all agree"
    else:
        reason = "may be noise"
    there, ours, theirs = line["clusters"], line["questions_to_decide"], line["questions_for_the_papers"]
    lead = "no n decides a difference of 0" if ours is None else f"ours would take {ours:,} questions"
    needs = f"{lead}, the paper's {theirs:,} (here {there:,})"
    if line["seeds_to_decide"]:
        needs += f"; by their spread, {line['seeds_to_decide']:,} seeds (here {len(line['seeds'])})"
    shown = "; so one as large as the paper's should have shown" if theirs <= there and len(line["seeds"]) > 1 else ""
    return f"{reason}; {needs}{shown}"


def latex(title, cells):
    r"""Cells as lines of LaTeX (package booktabs).

    >>> latex("A_b", [["x", "y"], ["5%", "1"]])[1]
    '\\begin{table}\\caption{A\\_b}\\begin{tabular}{ll}\\toprule'
    """
    safe = [[cell.translate({ord(c): f"\\{c}" for c in "%&_#"}).replace("<", "$<$") for cell in row] for row in [[title], *cells]]
    head, *rows = [" & ".join(row) + r" \\" for row in safe[1:]]
    opening = rf"\begin{{table}}\caption{{{safe[0][0]}}}\begin{{tabular}}{{{'l' * len(cells[0])}}}\toprule"
    return ["", opening, head, r"\midrule", *rows, r"\bottomrule\end{tabular}\end{table}"]


def readme(everything, results, paper):
    """The record's page: how it was made, what the orderings say, then every table."""
    commits = sorted({str(row["commit"]) for row in results})
    lines = [
        "# Ablation tables", "",
        f"Seeds {everything['seeds']}; {everything['n']} judgements a seed on the test split (both orders of each pair); greedy "
        "decoding. Percent with 95% intervals that resample questions, seeds pooled; differences in points, paired by item and "
        "seed; p by flipping the signs of whole questions, Holm-corrected over all rows within each evaluation, and over its "
        "shares in the table by share. OOD: the scale's evaluations out of distribution (experiments/matrix/).", "",
        *([f"**Not all of the matrix is here.** {everything['left_out']}", ""] if everything["left_out"] else []),
        "The paper's numbers (7B): PhyCritic-Bench / CosmosReason1-Bench / VL-RewardBench, of alpha_sp PhyCritic-Bench "
        f"overall / macro; {paper['source']}. An ordering is decided where Holm's p is below 5% and two seeds or more are all on "
        "the same side; else the n that would decide it is given (questions, at 80% power and 5% over all rows; the n of seeds "
        "rests on the spread of only a few).", "",
        f"Commands: `python experiments/run.py experiments/tables.yaml` (of another scale with its --scale, --out and --work); "
        f"`{everything['command']}`. "
        f"Machine: {results[-1]['machine']}; versions: {results[-1]['versions']}; "
        f"{'commit' if len(commits) == 1 else 'SEVERAL commits'}: {', '.join(commits)}.", "",
        "## Which of the paper's orderings hold", "", *everything["findings"],
    ]  # fmt: skip
    for title, cells in everything["tables"].items():
        lines += [f"## {title}", "", *markdown(cells), ""]
    return lines[:-1]
