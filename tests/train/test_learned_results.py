"""results/learned, as `scripts/learned_tables.py` wrote it: heads beside one number and beside what needs no states."""

import json
from pathlib import Path

import pandas as pd
import pytest

from scripts import learned_tables

pytestmark = pytest.mark.results

ROOT = Path(__file__).parents[2] / "results" / "learned"
NAME = "llama-tiny-gsm8k-tiny"


def stored_part(part: str) -> dict:
    return json.loads((ROOT / f"{NAME}-{part}.json").read_text())


@pytest.mark.parametrize("name", learned_tables.HEADS)
def test_each_head_is_compared_with_the_static_ensemble_on_500_examples(name):
    own = stored_part("ensemble")[name]
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


def test_distilled_drafts_are_compared_at_the_same_examples_with_the_head_beside_them():
    """What README says: where leniency became cheaper, and what the same minutes buy."""
    plane, table = stored_part("distil"), pd.read_csv(ROOT / f"{NAME}-distil.csv")
    for draft in ("own", *learned_tables.DISTILLED):
        rows = table[(table["draft"] == draft) & (table["verifier"] == "ensemble")]
        assert sorted(rows["value"]) == sorted(learned_tables.UNDER)
        assert (rows["n"] == 500).all()
        assert set(plane[draft]["prices"]) == {f"{w:g}" for w in learned_tables.UNDER}
        assert plane[draft]["seconds"] < 15 * 60
    lost = {draft: plane[draft]["prices"]["0.9"]["lost"] for draft in ("own", *learned_tables.DISTILLED)}
    for draft in ("forward_kl", "overlap"):
        assert lost[draft][2] < lost["own"][1], draft
    for draft in ("reverse_kl", "tv"):
        assert lost[draft][2] > lost["own"][1], draft
    assert plane["learned"]["within"][2] < plane["forward_kl-50"]["within"][1]
    assert plane["forward_kl-50"]["seconds"] < plane["learned"]["seconds"]
    assert plane["own"]["within"][2] < plane["learned"]["within"][1]


def test_a_head_wins_on_its_own_task_and_seldom_on_another():
    """As the paper's Table 3."""
    table = pd.read_csv(ROOT / "llama-tiny-transfer.csv")
    assert (table["n"] == 500).all()
    for task in learned_tables.TRANSFERRED:
        own = table[(table["task"] == task) & (table["value"] == 0)].set_index("verifier")
        lossless = table[(table["task"] == task) & (table["verifier"] == "lossless")].iloc[0]
        of = f"of-{task.removesuffix('-tiny')}"
        assert own.at[of, "acceptance_low"] > lossless["acceptance_high"]
        for other in {"of-gsm8k", "of-cnndm", "of-mbpp"} - {of}:
            assert own.at[other, "difference_high"] < own.at[of, "difference_low"], (task, other)


def test_a_frozen_head_is_followed_along_its_targets_training():
    plane, table = stored_part("drift"), pd.read_csv(ROOT / f"{NAME}-drift.csv")
    assert list(plane) == ["0", *map(str, learned_tables.DRIFTED)]
    assert (table["n"] == 500).all()
    assert all(plane[step]["frozen"]["gain"][1] > 0.2 for step in plane)
    frozen = table[(table["verifier"] == "frozen") & (table["value"] == 0)]
    assert (frozen["difference_low"] > -0.06).all()


def test_what_might_have_made_the_head_better_is_reported_with_what_failed():
    plane, table = stored_part("trials"), pd.read_csv(ROOT / f"{NAME}-trials.csv")
    for name in (*learned_tables.TRIALS, "from-swaps"):
        value, low, high = plane[name]["gain"]
        assert low <= value <= high, name
        curve = table[table["verifier"] == name]
        assert len(curve) == len(learned_tables.TRIED)
        assert (curve["n"] == 500).all()
