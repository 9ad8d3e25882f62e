"""results/vllm/open_load*.csv: what results/README.md says of leniency under load, and of the loads that saturate a server."""

import math
from pathlib import Path

import pandas as pd
import pytest

RESULTS = Path(__file__).parents[2] / "results"
RATES = [4, 8, 16, 24, 32, 48]
SETTINGS = ("target", "lossless", "w = 0.7", "w = 0.5")
GAINS = ("gain_over_target", "gain_over_lossless")
FARTHER = "With limits √2 times as far from the estimate"


def read_loads(name: str) -> dict[str, pd.DataFrame]:
    """The rows of each setting by rate, with `wide_GAIN_low` and `wide_GAIN_high`.

    The limits of the table count each request, and each text was sent twice: at worst both answers say the same, and limits are
    √2 times as far from the estimate, on the scale of logarithms.
    """
    table = pd.read_csv(RESULTS / "vllm" / name)
    for gain in GAINS:
        for end in ("low", "high"):
            table[f"wide_{gain}_{end}"] = table[gain] * (table[f"{gain}_{end}"] / table[gain]) ** math.sqrt(2)
    is_lenient = table["verifier"] == "ensemble"
    names = table["verifier"].where(~is_lenient, "w = " + table["w"].astype(str))
    assert set(names) == set(SETTINGS)
    return {name: rows.set_index("rate") for name, rows in table.groupby(names)}


def readme() -> str:
    return " ".join((RESULTS / "README.md").read_text().split())


def of_table(row: pd.Series) -> str:
    return "{:.2f} [{:.2f}, {:.2f}]".format(*(row[f"gain_over_target{end}"] for end in ("", "_low", "_high")))


def widened(row: pd.Series, gain: str = "gain_over_target") -> str:
    return "{:.2f} [{:.2f}, {:.2f}]".format(row[gain], *(row[f"wide_{gain}_{end}"] for end in ("low", "high")))


def least(rows: pd.DataFrame, gain: str = "gain_over_target") -> pd.Series:
    """The row whose gain is the least sure to be above 1."""
    return rows.loc[rows[f"wide_{gain}_low"].idxmin()]


@pytest.mark.results
def test_lossless_speculation_stops_paying_under_load_and_leniency_does_not():
    of = read_loads("open_load.csv")
    lossless, most, half = (of[name] for name in SETTINGS[1:])
    assert all(rows.index.tolist() == RATES for rows in of.values())
    assert (lossless.loc[[4, 8], "wide_gain_over_target_low"] > 1).all()
    assert (lossless.loc[16:, "wide_gain_over_target_high"] < 1).all()
    for rows in (most, half):
        assert rows[[f"wide_{gain}_low" for gain in GAINS]].gt(1).all().all()
    assert {name for name in SETTINGS if of[name].loc[48, "is_saturated"]} == {"target", "lossless"}
    assert [name for name in SETTINGS if of[name].loc[48, "keeps_up"]] == ["w = 0.5"]
    text = readme()
    for rate in RATES:
        assert f"| {rate} | {' | '.join(of_table(rows.loc[rate]) for rows in (lossless, most, half))} |" in text
    assert least(most).name == least(half).name == 48
    at_8, at_16 = widened(lossless.loc[8]), widened(lossless.loc[16])
    assert (
        f"{FARTHER} lossless speculation has {at_8} at 8 requests a second and {at_16} at 16, and the least gains of leniency, "
        f"at 48, are {widened(most.loc[48])} with w = 0.7 and {widened(half.loc[48])} with w = 0.5"
    ) in text


@pytest.mark.results
def test_beyond_saturation_half_the_target_still_pays_and_lossless_never_does():
    of = read_loads("open_load_avx2.csv")
    lossless, most, half = (of[name] for name in SETTINGS[1:])
    assert all(rows.index.tolist() == [*RATES, 64, 96, 192] for rows in of.values())
    assert lossless.loc[4, "wide_gain_over_target_low"] > 1
    assert (lossless.loc[8:, "wide_gain_over_target_high"] < 1).all()
    assert all(rows.loc[48:, "is_saturated"].all() for rows in of.values())
    assert half["wide_gain_over_target_low"].min() > 1
    assert half.loc[48:, "gain_over_target"].between(1.08, 1.2).all()
    assert most.loc[48:, "gain_over_target"].round(2).agg(["min", "max"]).tolist() == [0.88, 1.08]
    assert min(rows["wide_gain_over_lossless_low"].min() for rows in (most, half)) > 1
    page = " ".join((RESULTS.parent / "docs/engines.md").read_text().split())
    gains = [of_table(most.loc[rate]) for rate in (64, 192, 48)]
    gains[2] = gains[2].replace("0.", ".")
    ends = half.loc[48:, "gain_over_target"].agg(["min", "max"])
    assert "answers with w = 0.5 still come {:.2f} to {:.2f} times as soon".format(*ends) in page
    assert "w = 0.7 come {} times as soon at 64 and {} at 192, but later at 48 ({})".format(*gains) in page
    text = readme()
    for rate in lossless.index:
        assert f"| {rate:.0f} | {' | '.join(of_table(rows.loc[rate]) for rows in (lossless, most, half))} |" in text
    above, over = lossless.loc[lossless.loc[8:, "wide_gain_over_target_high"].idxmax()], least(most, GAINS[1])
    assert over["wide_gain_over_lossless_low"] < half["wide_gain_over_lossless_low"].min()
    at_4, at_8 = widened(lossless.loc[4]), widened(lossless.loc[8])
    assert (
        f"{FARTHER} lossless speculation has {at_4} at 4 a second, {at_8} at 8 and at most {widened(above)} above (at "
        f"{above.name:.0f}), the least gain of w = 0.5 is {widened(least(half))} (at {least(half).name:.0f}), and the least over "
        f"lossless speculation {widened(over, GAINS[1])} (w = 0.7 at {over.name:.0f})"
    ) in text


def bounds_of(rows: pd.DataFrame) -> str:
    """The highest rate that it keeps up with, and the lowest from which on it is saturated at every rate."""
    kept, saturated = (rows.index[rows[column]] for column in ("keeps_up", "is_saturated"))
    assert kept.tolist() == rows.index[: len(kept)].tolist()
    assert saturated.tolist() == rows.index[len(rows) - len(saturated) :].tolist()
    return f"{kept[-1]:.0f} and " + (f"{saturated[0]:.0f}" if len(saturated) else "none")


@pytest.mark.results
def test_the_readme_says_at_which_load_each_setting_saturates():
    loads = []
    for name in ("open_load.csv", "open_load_avx2.csv"):
        of = read_loads(name)
        loads.append([bounds_of(of[setting]) for setting in SETTINGS])
    here, there = loads
    assert (
        "The highest rate that a setting is shown to keep up with and the lowest at which it is shown to be saturated, in requests "
        f"a second: on this processor {here[0]} (target alone), {here[1]} (lossless speculation), {here[2]} (w = 0.7), {here[3]} "
        f"(w = 0.5); on the slower processor, whose table is the next one, {', '.join(there)}, in the same order."
    ) in readme()
