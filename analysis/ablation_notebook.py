# %% [markdown]
# # Ablations: the paper's numbers, and ours beside them
#
# PhyCritic (7B) reports how its critic changes when a part of the method is taken away. The same matrix of runs is done here
# with a tiny model on simulated clips. So look at the order of the rows, not at the height of the numbers.
#
# This notebook reads `tables.json` of a results folder and computes nothing anew. What made the folder, and how the intervals
# and tests are done, is in the `README.md` beside it. `make notebooks` executes this notebook again.

# %% tags=["parameters"]
import json
import os
from pathlib import Path

ROOT = next(folder for folder in (Path.cwd(), *Path.cwd().parents) if (folder / "experiments" / "paper_numbers.json").exists())
os.chdir(ROOT)
FOLDER = Path(os.environ.get("ABLATION_TABLES", "experiments/tables"))  # another results folder: set the variable, or edit this

# %%
from io import BytesIO

import matplotlib.pyplot as plt
from IPython.display import Image, Markdown, display

from analysis.ablation_page import FULL, SHARES, TABLES, markdown

if not (FOLDER / "tables.json").exists():
    raise FileNotFoundError("the results folder has no tables.json: python -m analysis.ablation_tables experiments/tables")
made = json.loads((FOLDER / "tables.json").read_text(encoding="utf-8"))
paper = json.loads(Path("experiments/paper_numbers.json").read_text(encoding="utf-8"))
display(Markdown(f"Seeds {made['seeds']}; {made['n']:,} judgements a seed. {made['left_out'] or 'All of the matrix is here.'}"))

# %% [markdown]
# ## What the orderings say
#
# The full method is compared with each row on the same items of the same seed, in points. An ordering counts as decided only
# where Holm's p is below 5% and two seeds or more all fall on the same side. Where it is not decided, power analysis says how
# many questions would decide it (80% power): for a difference as large as ours, and for one as large as the paper's.

# %%
display(Markdown("\n".join(made["findings"])))

# %% [markdown]
# ## How to read the tables and figures
#
# Accuracy in percent, with a 95% interval that resamples questions. "Paper" holds its 7B numbers, printed without intervals:
# PhyCritic-Bench / CosmosReason1-Bench / VL-RewardBench, for alpha_sp PhyCritic-Bench overall / macro. In the figures circles
# are judge accuracy and squares question accuracy (the paper: PhyCritic-Bench and CosmosReason1-Bench); bars are intervals, the
# dotted line is the full method's judge accuracy.

# %%
MARKS = {"judge_test": ("o", "tab:blue", "judge"), "question_test": ("s", "tab:orange", "question")}


def show(figure, words):
    """Display a figure as a small PNG; `words` say what it shows to whoever does not see it."""
    data = BytesIO()
    figure.savefig(data, dpi=70)
    plt.close(figure)
    display(Image(data.getvalue(), alt=words))


def cells_of(name):
    """The rows of a table as {run: cells}, without those that were not run; None where the table was left out."""
    title, rows = TABLES[name]
    cells = made["tables"].get(title)
    return cells and {run: row for run, row in zip(rows, cells[1:]) if run in made["numbers"]}


def papers(cells):
    """The paper's numbers of a row, as far as it has them: [] or [judge, question, ...]; of alpha_sp the judge's only."""
    numbers = [] if cells[1] == "-" else [float(number) for number in cells[1].split(" / ")]
    return numbers[:1] if cells[0].startswith("alpha_sp") else numbers


def dots(name):
    """Ours and the paper's rows side by side."""
    rows, offset = cells_of(name), {"judge_test": -0.1, "question_test": 0.1}
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 1.3 + 0.36 * len(rows)), sharey=True, layout="constrained")
    for place, (run, cells) in enumerate(rows.items()):
        for (evaluation, (mark, colour, label)), theirs in zip(MARKS.items(), [*papers(cells), None, None]):
            e = made["numbers"][run][evaluation]
            value, low, high = (100 * e[key] for key in ("value", "low", "high"))
            style = {"fmt": mark, "color": colour, "ms": 5, "label": label if not place else None}
            left.errorbar(value, place + offset[evaluation], xerr=[[value - low], [high - value]], capsize=2, **style)
            if theirs is not None:
                right.plot(theirs, place + offset[evaluation], mark, color=colour, ms=5)
    left.set_yticks(range(len(rows)), [cells[0] for cells in rows.values()])
    left.set_ylim(len(rows) - 0.5, -0.5)
    left.axvline(100 * made["numbers"][FULL]["judge_test"]["value"], ls=":", color="gray")
    left.set(title="ours", xlabel="accuracy, %")
    right.set(title="paper, 7B", xlabel="accuracy, %")
    if sum(bool(papers(cells)) for cells in rows.values()) > 1:
        right.axvline(paper["ablations"]["two stages"][0], ls=":", color="gray")
    else:
        right.set(title="paper: the full method only")
    figure.legend(loc="outside upper left", ncols=2, fontsize=8)
    show(figure, f"Accuracy of each row of the table {TABLES[name][0]}, ours and the paper's")


def curves(name):
    """Judge accuracy against the share of the pairs read: GRPO and the supervised judge."""
    figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
    shares = {run: int(label.split(", ")[1].rstrip("%")) for run, label in TABLES[name][1].items()}
    for start, label, colour in (("GRPO", "GRPO", "tab:blue"), ("supervised", "supervised judge", "tab:green")):
        runs = [run for run, cells in cells_of(name).items() if cells[0].startswith(start)]
        entries = [made["numbers"][run]["judge_test"] for run in runs]
        value, low, high = ([100 * e[key] for e in entries] for key in ("value", "low", "high"))
        at = [shares[run] for run in runs]
        axis.plot(at, value, "o-", color=colour, ms=4, label=label)
        axis.fill_between(at, low, high, color=colour, alpha=0.15, lw=0)
    axis.set(xlabel="share of the pairs read, %", ylabel="judge accuracy, %", xticks=sorted(set(shares.values())))
    axis.legend(fontsize=8)
    show(figure, "Judge accuracy against the share of the pairs read, GRPO and the supervised judge")


def ablation(name):
    """A table and its figure, or that it was left out."""
    title, _ = TABLES[name]
    if title not in made["tables"]:
        return display(Markdown("This table was left out: not run yet."))
    display(Markdown("\n".join(markdown(made["tables"][title]))))
    curves(name) if name == "data" else dots(name)


# %% [markdown]
# ## Training strategy
#
# The paper's claim: first the skill (stage 1), then the judging (stage 2), is better than either alone and than both mixed. The
# reverse order is not in the paper.

# %%
ablation("strategy")

# %% [markdown]
# ## Self-reference
#
# Does the critic judge better because it solves the question first? "no self-reference" does not ask for its own answer; "no
# r_sp" asks for it, but does not reward it.

# %%
ablation("self_reference")

# %% [markdown]
# ## Weight of the reward for the critic's own answer
#
# The weight of the judgement is 0.9 less this one.

# %%
ablation("alpha_sp")

# %% [markdown]
# ## Criteria in the prompt

# %%
ablation("criteria")

# %% [markdown]
# ## What the paper lacks
#
# A judge trained on the right verdicts alone (supervised), a reward for the judgement only, the form of the format reward, how
# rewards are scaled, and the base before it was spoiled.

# %%
ablation("lacks")

# %% [markdown]
# ## More data
#
# Shares of the pairs that stage 2 reads; the number of steps stays the same, so a small share is read more often. The last
# table compares the two judges that read the same share, on the same items.

# %%
ablation("data")
if SHARES in made["tables"]:
    display(Markdown("\n".join(markdown(made["tables"][SHARES]))))

# %% [markdown]
# ## Every ordering with the n that would decide it

# %%
display(Markdown("\n".join(markdown(made["tables"]["The paper's orderings"]))))

# %% [markdown]
# ## The same at 7B
#
# One line of `experiments/tables.yaml` sets the scale. Change
#
#     scale: experiments/matrix/physworld.yaml
#
# to `experiments/matrix/phycritic_7b.yaml`, or give it on the command line. `--dry_run` prints every command, its steps and its
# token budget, and runs nothing:
#
#     python experiments/run.py experiments/tables.yaml --scale experiments/matrix/phycritic_7b.yaml \
#         --out experiments/tables_7b --work runs/tables_7b --dry_run
#
# Without `--dry_run` it runs what is not there yet. Then `python -m analysis.ablation_tables experiments/tables_7b` makes the
# tables, and this notebook, executed on them:
#
#     ABLATION_TABLES=experiments/tables_7b python -m analysis.notebooks analysis/ablation_notebook.py --out runs/tables_7b
#
# Nothing of the 7B has been run here.
