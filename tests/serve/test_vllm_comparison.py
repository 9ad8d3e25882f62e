"""results/vllm: our engine and vLLM with our plug-in, as `scripts/vllm_tables.py` compared them on two tasks at T = 0 and 1."""

from pathlib import Path

import pandas as pd
import pytest

pytestmark = pytest.mark.results

ROOT = Path(__file__).parents[2] / "results" / "vllm"
TASKS = ("gsm8k-tiny", "wmt-tiny")
WS = {0.2, 0.5, 0.7, 0.9, 1.0}


def rows(task: str, temperature: int, measure: str) -> pd.DataFrame:
    table = pd.read_csv(ROOT / "comparison.csv")
    own = table[(table["task"] == task) & (table["temperature"] == temperature)]
    return own[own["measure"].str.startswith(measure)]


@pytest.mark.parametrize("task", TASKS)
def test_texts_that_draw_nothing_are_equal_to_the_last(task):
    own = rows(task, 0, "equal_texts")
    assert set(own["verifier"]) == {"target", "draft", "lossless", "ensemble"}
    assert (own["native"] == 500).all()
    assert (own["vllm"] == 500).all()


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("task", TASKS)
def test_acceptance_is_within_three_points_of_our_own(task, temperature):
    for measure in ("acceptance", "acceptance_behind_first"):
        own = rows(task, temperature, measure)
        own = own[own["measure"] == measure]
        assert set(own[own["verifier"] == "ensemble"]["w"]) == WS
        assert own["is_equivalent"].eq(True).all()
        assert (own["n"] == 500).all()


@pytest.mark.parametrize("task", TASKS)
def test_sampled_quality_is_within_six_points_of_our_own(task):
    own = rows(task, 1, "quality")
    assert set(own[own["verifier"] == "ensemble"]["w"]) == WS
    assert own["is_equivalent"].eq(True).all()


def test_at_temperature_0_the_one_difference_is_the_token_of_the_prefill():
    """With that token left out of ours, what is counted over the same texts is the same to the last examined place."""
    own = rows("gsm8k-tiny", 0, "acceptance_behind_first")
    lossless = own[own["verifier"] == "lossless"]
    assert (lossless["difference"].abs() < 1e-9).all()
