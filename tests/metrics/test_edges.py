"""Odd folders are summarised without a warning, and what cannot be said is left empty."""

import pytest

import sdbench
from sdbench.metrics import export, theory
from sdbench.metrics.recommend import recommend
from sdbench.metrics.summary import summarise
from tests.records.synthetic import write_synthetic

ODD = {
    "one example": {"n": 1},
    "two examples, three samples": {"n": 2, "samples": 3},
    "timings only": {"n": 0, "timing_examples": 1},
    "nothing": {"n": 0, "timing_examples": 0},
    "greedy": {"n": 5, "temperature": 0.0, "timing_examples": 0},
    "one timing, two tasks": {"n": 52, "tasks": ("humaneval-tiny", "xsum-tiny"), "timing_examples": 1, "repeats": 1},
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", ODD)
def test_an_odd_folder_gives_tables_and_sentences_without_nan(case, tmp_path):
    results = sdbench.read(write_synthetic(tmp_path / "r", ws=(0.5, 1.0), **ODD[case]))
    summary = summarise(results, resamples=500)
    export.export(results, summary, tmp_path / "exports")
    theory.laws(summary)
    theory.predict(results, [0.0, 1.0])
    assert "nan" not in recommend(results, 5.0, resamples=500).text
    assert "nan" not in export.to_markdown(summary)
