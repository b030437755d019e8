"""The README's table says what experiments/headline.json holds, and each entry leads to its record."""

import json
import re

import pytest

from analysis import headline


def test_the_readme_holds_the_table_that_headline_makes():
    readme = (headline.ROOT / "README.md").read_text(encoding="utf-8")
    assert headline.rewrite(readme, headline.table(headline.read())) == readme, "run python -m analysis.headline"


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
    readme = headline.rewrite((headline.ROOT / "README.md").read_text(encoding="utf-8"), [])
    assert not unfounded(readme)
    invented = "Of the judgements 12.34% are right (experiments/2026-11-30_three_seeds)."
    assert [number for number, _ in unfounded(invented)] == ["12.34"]
    assert [number for number, _ in unfounded("Judges 90.4% right.")] == ["90.4"], "no record is named"


def test_every_entry_leads_to_a_record_that_holds_the_same_number():
    for name, entry in headline.read().items():
        summary = json.loads((headline.ROOT / entry["record"] / "summary.json").read_text(encoding="utf-8"))
        assert summary["headline"][name] == entry
        assert entry["low"] <= entry["value"] <= entry["high"] and entry["n"] > 0 and entry["command"] and entry["commit"]


def test_an_entry_that_lacks_a_field_or_a_label_is_an_error(tmp_path):
    file = tmp_path / "headline.json"
    file.write_text(json.dumps({"x": {"value": 1}}))
    with pytest.raises(ValueError, match="x has the fields"):
        headline.read(file)
    with pytest.raises(ValueError, match="no label"):
        headline.table({"x": {}})


def test_update_keeps_the_other_entries(tmp_path):
    file, entry = tmp_path / "headline.json", dict.fromkeys(headline.FIELDS, 1)
    headline.update({"a": entry}, file)
    headline.update({"b": entry}, file)
    assert set(headline.read(file)) == {"a", "b"}
