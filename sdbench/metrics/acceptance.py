"""Acceptance and bias of cells: ratios of sums over stored counts, with intervals by example."""

from __future__ import annotations

import numpy as np
import pandas as pd

from sdbench.metrics.stats import NAN, Array, Estimate, ratio_interval

# name: numerator, denominator, as columns of `.generations`
RATES = {
    "acceptance": ("accepted", "examined"),
    "acceptance_expected": ("expected_sum", "examined"),
    "block_acceptance": ("accepted", "drafted"),
    "tokens_per_round": ("tokens", "rounds"),
    "tv": ("tv_sum", "examined"),
    "bias": ("bias_sum", "examined"),
    "bias_per_token": ("bias_sum", "tokens"),
}


def rates(generations: pd.DataFrame, **options: float) -> dict[str, Estimate]:
    """Every rate of one cell; NaN where an identity does not hold, or nothing was examined."""
    codes, examples = pd.factorize(generations["example"], sort=True)
    columns = {name: generations[name].to_numpy(dtype=np.float64) for pair in RATES.values() for name in pair}
    sums = {name: np.bincount(codes, values, len(examples)) for name, values in columns.items()}
    return {
        name: _rate(np.asarray(sums[num], np.float64), np.asarray(sums[den], np.float64), **options)
        for name, (num, den) in RATES.items()
    }


def _rate(num: Array, den: Array, **options: float) -> Estimate:
    if np.isnan(num).any() or not den.sum():
        return Estimate(NAN, NAN, NAN, len(num))
    # Sums of exact probabilities are rounded: 5.000000000000001 of 5 is all of them.
    values = np.where(np.abs(num - den) > 1e-9, num, den)
    return ratio_interval(values, den, **options)  # type: ignore[arg-type]


def by_position(rounds: pd.DataFrame) -> pd.DataFrame:
    """One row a cell and slot (1 … K): how often a drafted slot is kept (marginal), and given that it was examined.

    Within a round the slots 1 … accepted are kept and 1 … examined were looked at.
    """
    found = []
    for cell, part in rounds[rounds["drafted"] > 0].groupby("cell", sort=True):
        drafted, examined, accepted = (part[name].to_numpy() for name in ("drafted", "examined", "accepted"))
        for slot in range(1, int(drafted.max()) + 1):
            counts = {
                "num_drafted": int((drafted >= slot).sum()),
                "num_examined": int((examined >= slot).sum()),
                "num_accepted": int((accepted >= slot).sum()),
            }
            found.append({"cell": cell, "slot": slot, **counts})
    frame = pd.DataFrame(found, columns=["cell", "slot", "num_drafted", "num_examined", "num_accepted"])
    frame["marginal"] = frame["num_accepted"] / frame["num_drafted"]
    frame["conditional"] = frame["num_accepted"] / frame["num_examined"].replace(0, np.nan)
    return frame
