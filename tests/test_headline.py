"""The README's table says what the records say, and so does experiments/headline.json; its prose is founded in records too."""

import json
import re

import pytest

from analysis import headline
from data import files
from data.files import commit


def test_readme_and_headline_hold_what_the_records_hold():
    readme = headline.README.read_text(encoding="utf-8")
    assert headline.readme(readme) == readme, "run python -m analysis.headline"
    groups = headline.groups()
    assert len(groups) == 12 and all(row["text"] in readme for group in groups for row in group["rows"])
    commands = [group["command"] for group in groups]
    assert all(readme.count(f"| `{command}` (") == commands.count(command) for command in commands)
    entries = {row["name"]: row["entry"] for group in groups for row in group["rows"]}
    assert json.loads(headline.FILE.read_text(encoding="utf-8")) == entries, "run python -m analysis.headline"
    for entry in entries.values():
        assert entry["low"] <= entry["value"] <= entry["high"] and entry["n"] > 0 and entry["command"] and entry["commit"]
        assert (headline.ROOT / entry["record"]).is_dir() and "--claim" not in entry["command"]
    with pytest.raises(ValueError, match="must hold the line"):
        headline.readme("no marks")


def test_every_entry_of_a_record_is_in_a_group_and_each_once():
    names = [name for records in headline.GROUPS.values() for labels in records.values() for name in labels]
    files = (headline.ROOT / "experiments").rglob("summary.json")
    recorded = {name for file in files for name in json.loads(file.read_text(encoding="utf-8")).get("headline", {})}
    assert len(names) == 36 == len({*names}) and {*names} == recorded


def test_an_entry_that_lacks_a_field_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "summary.json").write_text(json.dumps({"headline": {"x": {"value": 1}}}))
    for name, said in (("x", r"x has the fields \['value'\]"), ("y", r"y has the fields \[\]")):
        monkeypatch.setattr(headline, "GROUPS", {"title": {tmp_path: {name: "label"}}})
        with pytest.raises(ValueError, match=said):
            headline.groups()


def test_a_summary_names_command_record_and_the_commit_that_began(tmp_path, monkeypatch):
    """The commit is asked for once, before the work; what the work goes on to write does not change it."""
    command, began = headline.command_of("analysis.x", ["--out", "a b"]), commit()
    monkeypatch.setattr(files.subprocess, "run", None)  # cannot be asked again
    headline.write_summary(tmp_path, {"x": {"value": 1, "low": 0, "high": 2, "n": 3, "unit": "%"}}, command)
    [entry] = json.loads((tmp_path / "summary.json").read_text())["headline"].values()
    assert entry["command"] == "python -m analysis.x --out 'a b'" and entry["commit"] == began
    assert entry["record"] == str(tmp_path) and headline.shown("x", entry) == "1.0 [0.0, 2.0] %"


def unfounded(text):
    """(number, paragraph) of each percentage or number of points that stands in no record which its paragraph names."""
    found = []
    for paragraph in re.split(r"\n\s*\n|\n(?=- )", text):
        records = [headline.ROOT / name for name in re.findall(r"experiments/[\w-]+", paragraph)]
        pages = "".join(page.read_text(encoding="utf-8") for record in records for page in record.glob("*.md"))
        said = re.findall(r"[-+]?\d+\.\d+(?=\]? (?:points|%)|%|\])", paragraph)
        found += [(number, paragraph) for number in said if number.lstrip("+-") not in re.findall(r"\d+\.\d+", pages)]
    return found


def test_numbers_of_the_readmes_prose_stand_in_the_records_that_it_names():
    readme = headline.README.read_text(encoding="utf-8")
    assert not unfounded(headline.rewritten(readme, headline.BEGIN, [], headline.END))
    invented = "Of the judgements 12.34% are right (experiments/2026-11-30_three_seeds)."
    assert [number for number, _ in unfounded(invented)] == ["12.34"]
    assert [number for number, _ in unfounded("Judges 90.4% right.")] == ["90.4"], "no record is named"
