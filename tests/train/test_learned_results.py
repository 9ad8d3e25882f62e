"""results/learned, as `scripts/learned_tables.py` wrote it: heads beside one number and beside what needs no states."""

import json
from pathlib import Path

import pandas as pd
import pytest

from scripts import learned_tables

ROOT = Path(__file__).parents[2] / "results" / "learned"
NAME = "llama-tiny-gsm8k-tiny"


def told(part: str) -> dict:
    return json.loads((ROOT / f"{NAME}-{part}.json").read_text())


@pytest.mark.parametrize("name", learned_tables.HEADS)
def test_each_head_is_compared_with_the_static_ensemble_on_500_examples(name):
    own = told("ensemble")[name]
    for measure in ("hypervolume", "area", "gain"):
        value, low, high = own[measure]
        assert low <= value <= high, measure
    assert own["seconds"] < 15 * 60
    assert own["is_constant"] is (own["last"]["spread"] < 0.02)
    table = pd.read_csv(ROOT / f"{NAME}-ensemble.csv")
    curve = table[table["verifier"] == name]
    assert len(curve) == len(learned_tables.OFFSETS)
    assert (curve["n"] == 500).all()
    assert (table[table["verifier"] == "ensemble"]["n"] == 500).all()
