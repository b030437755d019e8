"""The README's table says what experiments/headline.json holds, and each entry leads to its record."""

import json

import pytest

from analysis import headline


def test_the_readme_holds_the_table_that_headline_makes():
    readme = (headline.ROOT / "README.md").read_text(encoding="utf-8")
    assert headline.rewrite(readme, headline.table(headline.read())) == readme, "run python -m analysis.headline"


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
