"""results/vllm/open_load.csv: what results/README.md says of leniency under load."""

from pathlib import Path

import pandas as pd
import pytest

RESULTS = Path(__file__).parents[2] / "results"
RATES = [4, 8, 16, 24, 32, 48]


@pytest.mark.results
def test_lossless_speculation_stops_paying_under_load_and_leniency_does_not():
    table = pd.read_csv(RESULTS / "vllm" / "open_load.csv")
    lossless = table[table["verifier"] == "lossless"].set_index("rate")
    assert lossless.index.tolist() == RATES
    assert (lossless.loc[[4, 8], "gain_over_target_low"] > 1).all()
    assert (lossless.loc[16:, "gain_over_target_high"] < 1).all()
    lenient = table[table["verifier"] == "ensemble"]
    assert lenient.groupby("w")["rate"].apply(list).to_dict() == {0.5: RATES, 0.7: RATES}
    assert (lenient[["gain_over_target_low", "gain_over_lossless_low"]] > 1).all().all()
    at_most = table[table["rate"] == RATES[-1]].set_index(["verifier", "w"], drop=False)
    assert set(at_most.index[at_most["is_saturated"]].get_level_values(0)) == {"target", "lossless"}
    assert at_most[at_most["keeps_up"]]["w"].tolist() == [0.5]
    text = (RESULTS / "README.md").read_text()
    for rate in RATES:
        rows = [
            lossless.loc[rate],
            *(lenient[(lenient["rate"] == rate) & (lenient["w"] == w)].iloc[0] for w in (0.7, 0.5)),
        ]
        shown = [
            "{:.2f} [{:.2f}, {:.2f}]".format(*(row[f"gain_over_target{end}"] for end in ("", "_low", "_high")))
            for row in rows
        ]
        assert f"| {rate} | {' | '.join(shown)} |" in text


@pytest.mark.results
def test_beyond_saturation_half_the_target_still_pays_and_lossless_never_does():
    table = pd.read_csv(RESULTS / "vllm" / "open_load_avx2.csv")
    table = table.assign(
        setting=[f"w = {w}" if w == w else rule for w, rule in zip(table["w"], table["verifier"], strict=True)]
    )
    assert sorted(table["rate"].unique()) == [*RATES, 64, 96, 192]
    lossless, most, half = (
        table[table["setting"] == name].set_index("rate") for name in ("lossless", "w = 0.7", "w = 0.5")
    )
    assert lossless.loc[4, "gain_over_target_low"] > 1
    assert (lossless.loc[8:, "gain_over_target_high"] < 1).all()
    assert table.loc[table["rate"] >= 48, "is_saturated"].all()
    assert half["gain_over_target_low"].min() > 1
    assert half.loc[48:, "gain_over_target"].between(1.08, 1.2).all()
    assert most.loc[48:, "gain_over_target"].round(2).agg(["min", "max"]).tolist() == [0.88, 1.08]
    assert min(most["gain_over_lossless_low"].min(), half["gain_over_lossless_low"].min()) > 1
    text = (RESULTS / "README.md").read_text()
    for rate in lossless.index:
        ends = ("", "_low", "_high")
        rows = ([part.loc[rate, f"gain_over_target{end}"] for end in ends] for part in (lossless, most, half))
        assert f"| {rate:.0f} | {' | '.join('{:.2f} [{:.2f}, {:.2f}]'.format(*row) for row in rows)} |" in text
