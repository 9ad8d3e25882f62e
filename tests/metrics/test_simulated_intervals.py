"""scripts/simulate_intervals.py: the page of any list of n, made before a file is written."""

import json

import pytest

from scripts import simulate_intervals


def rows_of_large_n(law, n, runs):
    names = (*simulate_intervals.PARTS, simulate_intervals.OWN)
    return [simulate_intervals.Row(law.name, law.kind, n, name, 0.02, 0.01, 1.0, 5.0) for name in names]


def test_a_list_that_begins_where_few_methods_are_computed_has_a_page_of_these(tmp_path, monkeypatch):
    monkeypatch.setattr(simulate_intervals, "rows_of", rows_of_large_n)
    monkeypatch.setattr(simulate_intervals, "least_reach", list)
    monkeypatch.setattr(simulate_intervals.resample, "ONE_THREAD", 0)  # main raises it: restored at the end
    simulate_intervals.main(["n=500", "runs=10", f"out={tmp_path}"])
    page = (tmp_path / "means.md").read_text()
    assert page.count("\n| Gaffke | 2.0% | 97.0% |") == len(simulate_intervals.KINDS)
    assert "\n| betting |" not in page
    assert {row["n"] for row in json.loads((tmp_path / "means.json").read_text())} == {500}


def test_a_page_that_cannot_be_made_leaves_both_files_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(simulate_intervals, "rows_of", rows_of_large_n)
    monkeypatch.setattr(simulate_intervals, "to_markdown", lambda rows, runs: json.loads("no page"))
    monkeypatch.setattr(simulate_intervals.resample, "ONE_THREAD", 0)
    (tmp_path / "means.json").write_text("before")
    with pytest.raises(ValueError, match="Expecting value"):
        simulate_intervals.main(["n=500", "runs=10", f"out={tmp_path}"])
    assert (tmp_path / "means.json").read_text() == "before"
