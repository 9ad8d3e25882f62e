"""The committed tables of the tiny pairs show what they should: at T = 0 differences in wording cost nothing, wrong facts do.

`results/embedded/PAIR-TASK-greedy` is a sweep over all 500 test rows at T = 0, `PAIR-TASK` the same at T = 1, `PAIR-TASK-speed` the
timings at T = 0; `scripts/embedded_tables.py` makes them. Scores are on 0–100 here.
"""

from functools import cache
from pathlib import Path

import pandas as pd
import pytest

pytestmark = pytest.mark.results

RESULTS = Path(__file__).parents[2] / "results" / "embedded"
PAIRS = ("llama-tiny", "qwen-tiny", "gemma-tiny")
TASKS = ("cnndm-tiny", "xsum-tiny", "gsm8k-tiny", "wmt-tiny", "humaneval-tiny", "mbpp-tiny")
EXACT = ("gsm8k-tiny", "humaneval-tiny", "mbpp-tiny")
GREEDY, SAMPLED, SPEED = "-greedy", "", "-speed"
WS = {
    GREEDY: {0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1},
    SAMPLED: {0, 0.2, 0.5, 0.7, 0.8, 0.9, 0.95, 1},
}
N = 500
# Goals that were missed (results/README.md): 1.3 for lossless, and 1.15 times that at w = .7.
SLOW, HARDLY_FASTER = {("qwen-tiny", "xsum-tiny")}, {("gemma-tiny", "cnndm-tiny")}


@cache
def table(pair: str, task: str, kind: str) -> pd.DataFrame:
    """Cells with `score`, the headline on 0–100, and `facts` where the task has it."""
    folder = RESULTS / f"{pair}-{task}{kind}"
    frame = pd.read_csv(folder / "summary.csv").set_index("cell", drop=False).copy()
    scores = pd.read_csv(folder / "metrics.csv")
    facts = scores[scores["metric"] == "facts"].set_index("cell")["value"] * 100
    return frame.assign(score=frame["quality"] * (100 if task in EXACT else 1), facts=facts)


def alone(pair: str, task: str, role: str, kind: str) -> pd.Series:
    """The target or the draft by itself."""
    frame = table(pair, task, kind)
    (cell,) = frame[frame["verifier"] == role].index
    return frame.loc[cell]


def at(pair: str, task: str, w: float, kind: str) -> pd.Series:
    """The ensemble at w; w = 1 is lossless."""
    frame = table(pair, task, kind)
    is_lossless = (w == 1) & (frame["verifier"] == "lossless")
    return frame[is_lossless | ((frame["knob"] == "w") & (frame["value"] == w))].iloc[0]


def tasks_where(holds) -> set[str]:
    return {task for task in TASKS if holds(task)}


@pytest.mark.parametrize("kind", [GREEDY, SAMPLED])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("pair", PAIRS)
def test_every_row_and_weight_was_measured(pair, task, kind):
    frame = table(pair, task, kind)
    assert set(frame["n"]) == {N}
    assert {"target", "draft"} <= set(frame["verifier"])
    assert set(frame[frame["knob"] == "w"]["value"]) | {1} == WS[kind], "the lossless cell is w = 1 too"


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("pair", PAIRS)
def test_the_target_alone_is_good(pair, task):
    score = "score" if task in EXACT else "facts"
    assert alone(pair, task, "target", GREEDY)[score] >= 95
    assert alone(pair, task, "target", SAMPLED)[score] >= 88


@pytest.mark.parametrize("pair", PAIRS)
def test_the_draft_alone_reaches_a_third_to_three_quarters_of_the_target(pair):
    def is_between(task: str, kind: str) -> bool:
        return 0.30 <= alone(pair, task, "draft", kind)["score"] / alone(pair, task, "target", kind)["score"] <= 0.75

    assert tasks_where(lambda task: is_between(task, GREEDY)) == set(TASKS)
    sampled = tasks_where(lambda task: is_between(task, SAMPLED))
    assert len(sampled) >= 4
    assert {"cnndm-tiny", "wmt-tiny"} <= sampled


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("pair", PAIRS)
def test_lossless_acceptance_is_that_of_real_pairs(pair, task):
    assert 0.50 <= at(pair, task, 1, GREEDY)["acceptance"] <= 0.70
    most = 0.77 if task == "mbpp-tiny" else 0.75  # the goal is .75 and was missed there (results/README.md)
    assert 0.50 <= at(pair, task, 1, SAMPLED)["acceptance"] <= most


@pytest.mark.parametrize("pair", PAIRS)
def test_at_seven_tenths_acceptance_has_risen_and_greedy_quality_holds(pair):
    def gain(task: str, kind: str) -> float:
        return at(pair, task, 0.7, kind)["acceptance"] - at(pair, task, 1, kind)["acceptance"]

    def loss(task: str) -> float:
        return at(pair, task, 1, GREEDY)["score"] - at(pair, task, 0.7, GREEDY)["score"]

    assert len(tasks_where(lambda task: gain(task, GREEDY) >= 0.10)) >= 5
    assert tasks_where(lambda task: gain(task, SAMPLED) >= 0.06) == set(TASKS)
    assert len(tasks_where(lambda task: loss(task) <= 1)) >= 5


@pytest.mark.parametrize("pair", PAIRS)
def test_sampled_quality_falls_from_the_first_step_but_not_at_once(pair):
    def loss(task: str) -> float:
        return at(pair, task, 1, SAMPLED)["score"] - at(pair, task, 0.95, SAMPLED)["score"]

    assert len(tasks_where(lambda task: loss(task) <= 5)) >= 3


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("pair", PAIRS)
def test_near_the_draft_quality_is_lost(pair, task):
    lossless, loose = at(pair, task, 1, GREEDY), at(pair, task, 0.2, GREEDY)
    assert lossless["score"] - loose["score"] >= (15 if task in EXACT else 12)
    if task not in EXACT:
        assert lossless["facts"] - loose["facts"] >= 15
    assert at(pair, task, 0.2, SAMPLED)["score"] <= 0.75 * at(pair, task, 1, SAMPLED)["score"]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("pair", PAIRS)
def test_speculation_pays_at_batch_one_and_lenience_pays_more(pair, task):
    def lossless(kind: str) -> pd.Series:
        frame = table(pair, task, kind)
        return frame[frame["verifier"] == "lossless"].set_index("num_draft")["speedup"]

    assert lossless(f"{SPEED}-sampled").max() >= 1.3
    strict, frame = lossless(SPEED), table(pair, task, SPEED)
    assert strict.max() >= (1.25 if (pair, task) in SLOW else 1.3)
    lenient = frame[(frame["knob"] == "w") & (frame["value"] == 0.7)].set_index("num_draft")["speedup"]
    assert lenient[strict.idxmax()] >= (1.05 if (pair, task) in HARDLY_FASTER else 1.15) * strict.max()


def test_the_picture_is_no_accident_of_one_training():
    """Each of three drafts gains by w = 0.7 without a loss of more than a point, and loses at w = 0.2."""
    frame = pd.read_csv(RESULTS / "seeds.csv")
    seeds = frame.groupby(["task", "seed"])
    assert {task: frame[frame["task"] == task]["seed"].nunique() for task in frame["task"]} == {
        "cnndm-tiny": 3,
        "gsm8k-tiny": 3,
    }
    for (task, _), rows in seeds:
        score = rows.set_index("w")["quality"] * (100 if task in EXACT else 1)
        acceptance = rows.set_index("w")["acceptance"]
        assert 0.50 <= acceptance[1] <= 0.70
        assert acceptance[0.7] >= acceptance[1] + 0.10
        assert score[0.7] >= score[1] - 1
        assert score[0.2] <= score[1] - (15 if task in EXACT else 12)


def test_the_amount_of_a_loss_depends_on_the_drafts_training_and_the_shape_does_not():
    """What results/README.md says of drafts of three seeds."""
    frame = pd.read_csv(RESULTS / "seeds.csv")
    losses = {}
    for (task, seed), part in frame.groupby(["task", "seed"]):
        scores = part.set_index("w")["quality"] * (100 if task in EXACT else 1)
        losses[task, seed] = scores[1.0] - scores
    assert len(losses) == 6
    assert round(max(each[[0.9, 0.8, 0.7]].max() for each in losses.values()), 1) == 0.7
    assert all(each[0.5] > 8 for each in losses.values())
    assert [round(losses["gsm8k-tiny", seed][0.5]) for seed in (1, 11, 12)] == [43, 45, 29]
    lossless = frame[(frame["task"] == "cnndm-tiny") & (frame["w"] == 1)]
    assert lossless["acceptance"].round(2).tolist() == [0.58, 0.54, 0.51]
    assert (lossless["acceptance_low"].to_numpy()[:-1] > lossless["acceptance_high"].to_numpy()[1:]).all()
