"""results/drafters/losses.*: every loss raises acceptance from that of the untrained layer, at T = 0 and T = 1."""

from pathlib import Path

import pandas as pd
import pytest

from scripts import mtp_losses
from sdbench import read
from sdbench.card import CARD
from tests.records.synthetic import write_synthetic

DRAFTERS = Path(__file__).parents[2] / "results" / "drafters"
LOSSES = ("forward_kl", "tv", "overlap")


@pytest.mark.results
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("temperature", [0, 1])
def test_each_loss_raises_acceptance_with_an_interval_above_zero(loss, temperature):
    lines = [line.split(" | ") for line in (DRAFTERS / "losses.md").read_text().splitlines() if line.startswith("| ")]
    (row,) = [row for row in lines if row[0] == f"| {loss}" and row[1] == str(temperature)]
    gain, _, low = row[-1].partition(" [")
    assert 0 < float(low.partition(",")[0]) < float(gain)


@pytest.mark.results
def test_acceptance_by_position_is_that_of_the_committed_counts():
    table = pd.read_csv(DRAFTERS / "losses.csv")
    assert set(table["loss"]) == {"untrained", *LOSSES}
    examined = table[table["num_examined"] > 0]
    assert (examined["num_accepted"] / examined["num_examined"]).tolist() == pytest.approx(
        examined["conditional"].tolist(), abs=1e-5
    )
    assert (examined["conditional"].between(examined["conditional_low"], examined["conditional_high"])).all()
    first = examined[examined["slot"] == 1].set_index(["loss", "temperature"])["conditional"]
    assert all(first[loss, T] > first["untrained", T] for loss in LOSSES for T in (0, 1))


def test_the_page_has_the_number_of_examples_that_its_figures_are_of(tmp_path, monkeypatch):
    """Records of an earlier command with a larger n are read whole."""
    results = read(write_synthetic(tmp_path / "run", n=7, ws=(), timing_examples=0, drafters=("mtp",)))
    texts = results.generations[results.generations["drafter"] == "mtp"]
    rounds = results.rounds[results.rounds["cell"].isin(texts["cell"])]
    (tmp_path / CARD).write_text('{"seconds": 1}')
    monkeypatch.setattr(mtp_losses, "train", lambda *_: tmp_path)
    monkeypatch.setattr(mtp_losses, "decode", lambda *_: (rounds, texts))
    assert mtp_losses.main(["n=3", "temperatures=1", "losses=tv", f"out={tmp_path}"]) == 0
    assert "lossless, n = 7, 5 drafted tokens" in (tmp_path / "losses.md").read_text()
    assert "lossless, n = 3 to 7, " in mtp_losses.text_of([["tv"] * 10], {7, 3, 5}, "200", {})
