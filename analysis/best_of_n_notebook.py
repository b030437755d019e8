# %% [markdown]
# # Best of N, and tournaments
#
# A policy gives N candidates for a question, and the critic picks one. Two questions: how much does accuracy rise with N, and
# how few comparisons does a good pick take?
#
# This notebook reads the records in `experiments/` and computes nothing anew. Commands, machine and commit are in the records.

# %% tags=["parameters"]
import json
import os
from pathlib import Path

ROOT = next(folder for folder in (Path.cwd(), *Path.cwd().parents) if (folder / "experiments" / "paper_numbers.json").exists())
os.chdir(ROOT)
BEST_OF_N = Path(os.environ.get("BEST_OF_N", "experiments/2026-11-30_best_of_n"))
TOURNAMENTS = Path(os.environ.get("TOURNAMENTS", "experiments/2026-11-30_tournaments"))  # a simulated judge, fitted to the critic
RECORDED = Path(os.environ.get("RECORDED", "experiments/2026-11-30_tournaments_recorded"))  # the critic's own verdicts

# %%
from io import BytesIO

import matplotlib.pyplot as plt
from IPython.display import Image, Markdown, display

from analysis import best_of_n, tournaments


def read(folder):
    """The results.json of a record."""
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def show(figure, words):
    """Display a figure as a small PNG; `words` say what it shows to whoever does not see it."""
    data = BytesIO()
    figure.savefig(data, dpi=100)
    plt.close(figure)
    display(Image(data.getvalue(), alt=words))


# %% [markdown]
# ## Accuracy against N
#
# Left: each judge with the tested tournament (solid), and ways to pick that need no tournament (dashed). The oracle takes a
# right candidate wherever there is one. Right: what each judge and tournament costs. Bands are 95% intervals that resample
# questions.

# %%
found = read(BEST_OF_N)
groups = {}
for point in found["points"]:
    groups.setdefault((point["judge"], point["method"]), []).append(point)
colours = dict(zip(dict.fromkeys(judge for judge, _ in groups if judge), best_of_n.JUDGE_COLOURS))
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), sharey=True, layout="constrained")
for (judge, method), points in groups.items():
    if judge is None:
        label, colour = best_of_n.BASELINES[method]
        best_of_n.curve(left, points, "n", color=colour, ls="--", label=label)
        continue
    style = {"color": colours[judge], "marker": best_of_n.MARKERS[method]}
    if method == found["tournament"]:
        best_of_n.curve(left, points, "n", **style, label=judge)
    best_of_n.curve(right, points, "judge_calls", **style, label=f"{judge}, {method}")
sizes = sorted({point["n"] for point in found["points"]})
left.set(xscale="log", xlabel="N candidates", ylabel="accuracy of the pick, %")
left.set_xticks(sizes, sizes)
left.minorticks_off()
calls = [2**k for k in range(8) if 2**k <= max(point["judge_calls"] for point in found["points"])]
right.set(xscale="symlog", xlabel="judge calls a question")
right.set_xticks([0, *calls], [0, *calls])
for axis in (left, right):
    axis.legend(fontsize=6, ncols=2)
show(figure, "Accuracy of the pick against the number of candidates, and against judge calls")

# %%
display(Markdown("\n".join(best_of_n.table(found))))

# %% [markdown]
# ## Accuracy against comparisons
#
# The same candidates for all tournaments. The dashed line is the share of tasks that have a right candidate at all.

# %%
for folder in (TOURNAMENTS, RECORDED):
    results, data = read(folder), BytesIO()
    shown = [size for size in (8, 20) if size in {point["size"] for point in results["points"]}]
    few = results | {"points": [point for point in results["points"] if point["size"] in shown]}
    tournaments.draw(few, data)
    display(Markdown(f"Judge: {results['judge']['source']}."))
    display(Image(data.getvalue(), alt=f"Accuracy of each tournament against its comparisons, N = {shown}"))
    display(Markdown("\n".join(results["verdicts"])))

# %% [markdown]
# ## Your own curves
#
#     python best_of_n.py --help                       candidates, picks, tables
#     python -m analysis.best_of_n OUT "label=picks.jsonl" ...
#     python -m analysis.tournaments --tables tables.jsonl --out OUT
#
# then name the folders at the top of this notebook, or in the environment: `BEST_OF_N`, `TOURNAMENTS`, `RECORDED`.
