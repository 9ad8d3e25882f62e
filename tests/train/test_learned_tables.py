"""The arithmetic behind results/learned: what leniency costs with a draft, and how far a curve may go."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from scripts.learned_tables import DISTILLED, LOST, arms_of, curve, prices, reached, trained, within
from sdbench.metrics.pareto import Resampled


def plane():
    """Three cells and two resamples, the second a tenth lower in quality throughout."""
    x, y = np.array([0.5, 0.6, 0.8]), np.array([0.9, 0.88, 0.5])
    return Resampled(("strict", "near", "far"), x, y, np.stack([x, x + 0.1]), np.stack([y, y - 0.1]), (10,) * 3)


def test_a_curve_goes_as_far_as_its_last_crossing_of_the_floor():
    x, y = np.array([0.8, 0.5, 0.6]), np.array([0.5, 0.9, 0.88])
    assert reached(x, y, 0.69) == pytest.approx(0.7)
    assert reached(x, y, 0.4) == 0.8
    assert reached(x, y, 0.95) == 0


def test_the_cost_of_leniency_is_relative_to_the_same_drafts_strict_cell():
    told = prices(plane(), {1.0: "strict", 0.9: "near", 0.5: "far"})
    assert told["1"]["bought"] == [0, 0, 0]
    assert told["0.9"]["lost"] == pytest.approx([0.02] * 3)
    assert told["0.5"]["bought"] == pytest.approx([0.3] * 3)
    assert told["0.5"]["acceptance"][0] == 0.8


def test_the_reach_of_a_curve_is_relative_to_the_strict_cell_of_the_same_resample():
    value, low, high = within(plane(), ["strict", "near", "far"], "strict")
    expected = 0.6 + 0.2 * (0.88 - (0.9 - LOST)) / 0.38
    assert value == pytest.approx(expected)
    assert (low, high) == pytest.approx((expected + 0.0025, expected + 0.0975))


def test_a_training_of_other_words_is_not_taken_for_the_one_asked_for(tmp_path):
    (tmp_path / "head.json").write_text('{"steps": 1, "price": 0.2, "features": ["tv"]}')
    assert trained("ensemble", tmp_path, "head.json", "steps=1", "price=0.2", "features=[tv]") == tmp_path
    with pytest.raises(ValueError, match="was trained with steps=1, and now steps=100 is asked for"):
        trained("ensemble", tmp_path, "head.json", "steps=100")


def test_a_curve_is_of_one_head():
    columns = {"cell": ["a", "b", "c"], "verifier": ["published"] * 2 + ["ensemble"], "knob_head": ["old", "new", None]}
    results = SimpleNamespace(cells=pd.DataFrame({**columns, "also": [[], [], []]}))
    assert curve(results, "published", "new") == ["b"]  # pyright: ignore[reportArgumentType]
    assert curve(results, "ensemble") == ["c"]  # pyright: ignore[reportArgumentType]


def test_a_curve_ends_in_the_lossless_cell_where_that_is_its_rule_too():
    """w = 1 of the ensemble has no cell of its own: the arms of distilled drafts did without their lossless end, and failed."""
    drafts = ["own", *DISTILLED]
    contents = {
        draft: {"distilled": dict(zip(("loss", "steps"), DISTILLED.get(draft, ("", 0)), strict=True))}
        for draft in drafts
    }
    rows = [
        {"cell": f"{draft} {verifier}", "verifier": verifier, "w": w, "also": also, "content": contents[draft]}
        for draft in drafts
        for verifier, w, also in (("lossless", np.nan, [{"verifier": "ensemble"}]), ("ensemble", 0.9, []))
    ]
    results = SimpleNamespace(cells=pd.DataFrame(rows).assign(knob_head=None))
    learned, *arms = arms_of(results, "head", dict.fromkeys(["learned", *drafts], 0))  # pyright: ignore[reportArgumentType]
    assert learned.lossless == "own lossless"
    for draft, arm in zip(drafts, arms, strict=True):
        assert arm.lossless == f"{draft} lossless"
        assert arm.by_w == {1.0: f"{draft} lossless", 0.9: f"{draft} ensemble"}
