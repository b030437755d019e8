"""analysis/notebooks.py: the committed notebooks are executed and show the records, and one is run on a small result set."""

import base64
import json
import sys
from io import BytesIO

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pytest
from PIL import Image

import stats
from analysis import ablation_page, ablation_tables, best_of_n, notebooks
from analysis.pages import markdown
from tests.test_ablation_tables import write_results

ROOT = notebooks.ROOT


def committed(name):
    """A notebook of analysis/, as it is committed."""
    return nbformat.read(ROOT / "analysis" / f"{name}_notebook.ipynb", 4)


def cells_of(notebook):
    return [(cell.id, cell.cell_type, cell.source, cell.metadata) for cell in notebook.cells]


def outputs_of(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def shown(notebook):
    """All Markdown that a notebook's cells displayed."""
    return [output["data"]["text/markdown"] for output in outputs_of(notebook) if "text/markdown" in output.get("data", {})]


def pixels_of(png):
    """(H, W, 3) of a base64 PNG."""
    return np.asarray(Image.open(BytesIO(base64.b64decode(png))).convert("RGB"), int)


def code(source, outputs=()):
    """A notebook of one code cell."""
    cell = nbformat.v4.new_code_cell(source, outputs=[nbformat.from_dict(output) for output in outputs], id="cell-0")
    return nbformat.v4.new_notebook(cells=[cell])


@pytest.mark.parametrize("name", ["ablation", "best_of_n"])
def test_the_committed_notebook_is_executed(name):
    notebook = committed(name)
    nbformat.validate(notebook)
    assert notebook.metadata == notebooks.METADATA
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1)), "executed once, from top to bottom"
    notebooks.check(notebook, name)
    images = [output for output in outputs_of(notebook) if "image/png" in output.get("data", {})]
    assert images and all(output.metadata["image/png"]["alt"] for output in images), "every figure says what it shows"


def test_the_committed_notebooks_are_small():
    assert len(notebooks.NOTEBOOKS) == 2 and sum(path.stat().st_size for path in notebooks.NOTEBOOKS) < 400_000


def test_the_committed_ablation_notebook_shows_the_committed_tables():
    made = json.loads((ROOT / "experiments" / "tables" / "tables.json").read_text(encoding="utf-8"))
    text = shown(committed("ablation"))
    assert "\n".join(made["findings"]) in text
    assert all("\n".join(markdown(cells)) in text for cells in made["tables"].values()), "made from other results"


def test_the_committed_best_of_n_notebook_shows_the_committed_record():
    results = json.loads((ROOT / "experiments" / "2026-11-30_best_of_n" / "results.json").read_text(encoding="utf-8"))
    assert "\n".join(best_of_n.table(results)) in shown(committed("best_of_n"))


def test_the_ablation_notebook_on_a_small_result_set(tmp_path, monkeypatch):
    monkeypatch.setattr(stats, "RESAMPLES", 100)
    monkeypatch.setattr(ablation_tables, "FLIPS", 1000)
    runs = [run for run in ablation_tables.wanted() if run not in ("scale_batch", "grpo_75", "no_criteria")]
    write_results(tmp_path, runs)
    names = [name for name in ablation_page.TABLES if name != "criteria"]
    ablation_tables.main([str(tmp_path), "--tables", *names, "--without", "scale_batch", "grpo_75"])
    path = notebooks.make(ROOT / "analysis" / "ablation_notebook.ipynb", tmp_path / "out", {"ABLATION_TABLES": str(tmp_path)})
    notebook = nbformat.read(path, 4)
    assert cells_of(notebook) == cells_of(committed("ablation")), "only outputs change"
    made, text = json.loads((tmp_path / "tables.json").read_text()), shown(notebook)
    assert all("\n".join(markdown(cells)) in text for cells in made["tables"].values()) and len(made["tables"]) == 7
    assert "This table was left out: not run yet." in text and "| scale_rewards batch | - | not run |" in "".join(text)
    assert "two stages over mixed, one stage (judge): +25.0 [" in "".join(text)
    images = [o["data"]["image/png"] for o in outputs_of(notebook) if "image/png" in o.get("data", {})]
    assert len(images) == 5, "a figure for each table that is there"
    assert all((np.abs(pixels_of(image) - (31, 119, 180)).max(-1) <= 16).sum() > 20 for image in images), "dots in tab:blue"


def test_a_failing_cell_is_named_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATION_TABLES", str(tmp_path / "empty"))
    with pytest.raises(SystemExit, match=r"(?s)ablation_notebook.ipynb: .*has no tables.json: python -m analysis.ablation_tables"):
        notebooks.main([str(ROOT / "analysis" / "ablation_notebook.ipynb"), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_the_kernel_is_this_python_and_starts_in_the_root():
    notebook = notebooks.execute(
        code(f"import os, sys\nprint(sys.executable == {sys.executable!r}, os.getcwd() == {str(ROOT)!r})")
    )
    [output] = outputs_of(notebook)
    assert output.text == "True True\n" and "execution" not in notebook.cells[0].metadata, "no times are kept"


@pytest.mark.parametrize("output, message", [
    ({"output_type": "stream", "name": "stderr", "text": "a warning"}, "warns: a warning"),
    ({"output_type": "stream", "name": "stdout", "text": f"in {ROOT}/runs"}, "this machine's alone"),
    ({"output_type": "display_data", "data": {"text/markdown": "/tmp/x"}, "metadata": {}}, "this machine's alone"),
    ({"output_type": "stream", "name": "stdout", "text": "x" * 200_001}, "at most 200,000"),
])  # fmt: skip
def test_check_refuses(output, message):
    notebooks.check(code("", [{"output_type": "stream", "name": "stdout", "text": "60.0 [50.0, 70.0]"}]), "n")
    with pytest.raises(ValueError, match=message):
        notebooks.check(code("", [output]), "n")


def test_shrink_keeps_a_figure_and_loses_bytes():
    data, (figure, axis) = BytesIO(), plt.subplots(figsize=(5, 3))
    axis.fill_between(range(50), np.arange(50) ** 2, alpha=0.3)
    axis.plot(range(50), np.arange(50)[::-1] ** 2, "r")
    figure.savefig(data)
    plt.close(figure)
    before = base64.b64encode(data.getvalue()).decode()
    notebook = code("", [{"output_type": "display_data", "data": {"image/png": before}, "metadata": {}}])
    notebooks.shrink(notebook)
    after = outputs_of(notebook)[0]["data"]["image/png"]
    old, new = pixels_of(before), pixels_of(after)
    assert len(after) < 0.7 * len(before) and old.shape == new.shape and np.abs(old - new).max() <= 24
