"""The published tables of the tiny pairs stay in the regime they are meant to show: real pairs in small.

`results/embedded/PAIR-TASK/summary.csv` is a sweep at T = 1 over all 500 test rows, `PAIR-TASK-greedy` the same at T = 0;
`results/README.md` has the commands. Scores are on 0–100 here.
"""

from functools import cache
from pathlib import Path

import pandas as pd
import pytest

RESULTS = Path(__file__).parents[2] / "results" / "embedded"
PAIRS = ("llama-tiny", "qwen-tiny", "gemma-tiny")
TASKS = ("cnndm-tiny", "xsum-tiny", "gsm8k-tiny", "wmt-tiny", "humaneval-tiny", "mbpp-tiny")
EXACT = ("gsm8k-tiny", "humaneval-tiny", "mbpp-tiny")
WS = [round(0.1 * step, 1) for step in range(11)]
N = 500


@cache
def table(pair: str, task: str, kind: str = "") -> pd.DataFrame:
    frame = pd.read_csv(RESULTS / f"{pair}-{task}{kind}" / "summary.csv")
    scale = 100 if task in EXACT else 1
    for name in ("quality", "quality_low", "quality_high"):
        frame[name] *= scale
    return frame


def one(pair: str, task: str, verifier: str, kind: str = "") -> pd.Series:
    frame = table(pair, task, kind)
    rows = frame[frame["verifier"] == verifier]
    assert len(rows) == 1
    return rows.iloc[0]


def swept(pair: str, task: str, kind: str = "") -> pd.DataFrame:
    frame = table(pair, task, kind)
    return frame[frame["verifier"] == "ensemble"].set_index("w").sort_index()


def count(pair: str, holds) -> int:
    return sum(bool(holds(task)) for task in TASKS)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("task", TASKS)
def test_every_row_and_weight_was_measured(pair, task):
    frame = table(pair, task)
    assert set(frame["n"].dropna()) == set(table(pair, task, "-greedy")["n"].dropna()) == {N}
    assert {"target", "draft", "lossless"} <= set(frame["verifier"])
    ws = set(swept(pair, task).index) | ({1.0} if one(pair, task, "lossless")["is_lossless"] else set())
    assert ws == set(WS)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("task", TASKS)
def test_the_target_alone_is_good(pair, task):
    greedy = one(pair, task, "target", "-greedy")["quality"]
    assert greedy >= (90 if task in EXACT else 85)
    assert one(pair, task, "lossless")["quality"] >= greedy - 12


@pytest.mark.parametrize("pair", PAIRS)
def test_the_draft_alone_is_clearly_worse(pair):
    assert count(pair, lambda t: one(pair, t, "draft")["quality"] <= 0.6 * one(pair, t, "target")["quality"]) >= 4


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("task", TASKS)
def test_lossless_acceptance_is_that_of_real_pairs(pair, task):
    assert 0.45 <= one(pair, task, "lossless")["acceptance"] <= 0.85


@pytest.mark.parametrize("pair", PAIRS)
def test_leniency_costs_quality_along_a_curve(pair):
    def holds(task: str) -> bool:
        strict, loose = one(pair, task, "lossless"), swept(pair, task).loc[0.0]
        inner = swept(pair, task).loc[0.05:0.95, "quality"]  # a step would leave at most one of them in between
        share = (inner - loose["quality"]) / (strict["quality"] - loose["quality"])
        is_apart = strict["quality"] - loose["quality"] >= 20 and strict["quality_low"] > loose["quality_high"]
        return is_apart and ((share > 0.1) & (share < 0.9)).sum() >= 2

    assert count(pair, holds) >= 4


@pytest.mark.parametrize("pair", PAIRS)
def test_greedy_blend_keeps_the_quality_at_a_higher_acceptance(pair):
    def holds(task: str) -> bool:
        strict, blend = one(pair, task, "lossless", "-greedy"), swept(pair, task, "-greedy").loc[0.7]
        return blend["quality"] >= strict["quality"] - 3 and blend["acceptance"] > strict["acceptance"]

    assert count(pair, holds) >= 2


@pytest.mark.parametrize("pair", PAIRS)
def test_speculation_pays_at_batch_one(pair):
    def lossless_pays(task: str) -> bool:
        return one(pair, task, "lossless")["speedup"] > 1.1

    def lenient_pays(task: str) -> bool:
        kept = table(pair, task)
        kept = kept[kept["verifier"].isin(["ensemble", "lossless"])]  # lossless is w = 1, timed once
        kept = kept[kept["quality"] >= 0.8 * one(pair, task, "target")["quality"]]
        return kept["speedup"].max() >= 1.5

    assert count(pair, lossless_pays) >= 3
    assert count(pair, lenient_pays) >= 2
