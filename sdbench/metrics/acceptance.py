"""Acceptance and bias of cells: ratios of sums over stored counts, with intervals over examples."""

from typing import Any

import numpy as np
import pandas as pd

from sdbench.metrics.columns import spread, spread_names
from sdbench.metrics.stats import NAN, Array, Estimate, ratio_interval

# name: numerator, denominator, as columns of `.generations`
RATES = {
    "acceptance": ("accepted", "examined"),
    "acceptance_expected": ("expected_sum", "examined"),
    "spared": ("spared", "examined"),
    "block_acceptance": ("accepted", "drafted"),
    "tokens_per_round": ("tokens", "rounds"),
    "accepted_per_round": ("accepted", "rounds"),
    "drafted_per_round": ("drafted", "rounds"),
    "tv": ("tv_sum", "examined"),
    "bias": ("bias_sum", "examined"),
    "bias_per_token": ("bias_sum", "tokens"),
}

# Computed from whole laws at every position, so a constant 0 or 1 is exact and not a sample.
EXACT = ("acceptance_expected", "bias", "bias_per_token")
SPARING = ("sure", "within")  # rules, as a cell's law names them, that may keep drafts without judging them
PER_ROUND = ("tokens_per_round", "accepted_per_round", "drafted_per_round")

COUNTS = ("num_drafted", "num_examined", "num_accepted")
POSITION_COLUMNS = ["cell", "slot", *COUNTS, "n", *spread_names(("marginal", "conditional"))]


def rates(generations: pd.DataFrame, *, law: str = "", **options: float) -> dict[str, Estimate]:
    """Return every rate of one cell; NaN where it is not defined, or nothing was examined.

    `law` is the law of the cell's rule, "" if unknown: under a rule that judges every draft, exactly none is spared.
    """
    is_judging = law != "" and law.partition("/")[0] not in SPARING and not generations["spared"].any()
    exact = (*EXACT, "spared") if is_judging else EXACT
    codes, examples = pd.factorize(generations["example"], sort=True)
    columns = {name: generations[name].to_numpy(dtype=np.float64) for pair in RATES.values() for name in pair}
    sums = {name: np.bincount(codes, values, len(examples)) for name, values in columns.items()}
    num_draft = int(generations["num_draft"].fillna(0).max())
    return {
        name: _rate(
            np.asarray(sums[num], np.float64),
            np.asarray(sums[den], np.float64),
            most=num_draft + (name == "tokens_per_round") if name in PER_ROUND else 1,
            is_exact=name in exact or not num_draft,
            **options,
        )
        for name, (num, den) in RATES.items()
    }


def _rate(num: Array, den: Array, *, most: float = 1, is_exact: bool = False, **options: float) -> Estimate:
    """Return a rate within 0 and `most`. If it is exact and never varies, its limits are the rate itself."""
    if np.isnan(num + den).any() or not den.sum():
        return Estimate(NAN, NAN, NAN, len(num))
    # Sums of exact probabilities are rounded: 5.000000000000001 of 5 counts as 5.
    values = np.where(np.abs(num - den) > 1e-9, num, den)
    limit = max(most, 1) * den  # a float32 distribution over 150,000 ids sums to 1 within 3e-5
    values = np.where((values > limit) & (values <= limit * (1 + 1e-4)), limit, values)
    rate = float(values.sum() / den.sum())
    if is_exact and (np.abs(values - rate * den) <= 1e-9).all():
        return Estimate(rate, rate, rate, len(num))
    return ratio_interval(values, den, bounds=(0, max(most, 1)), **options)  # type: ignore[arg-type]


def by_position(rounds: pd.DataFrame, **options: Any) -> pd.DataFrame:
    """Return one row per cell and slot (1 … K): how often a drafted slot is kept (marginal), and an examined slot
    (conditional).

    Within a round the slots 1 … accepted are kept and 1 … examined are judged.
    """
    rows = []
    for cell, part in rounds[rounds["drafted"] > 0].groupby("cell", sort=True):
        codes, examples = pd.factorize(part["example"], sort=True)
        for slot in range(1, int(part["drafted"].max()) + 1):
            reached = {name: part[name].to_numpy() >= slot for name in ("drafted", "examined", "accepted")}
            counts = {
                f"num_{name}": np.bincount(codes[is_it], minlength=len(examples)) for name, is_it in reached.items()
            }
            row = {"cell": cell, "slot": slot, **{name: int(values.sum()) for name, values in counts.items()}}
            row["n"] = int((counts["num_drafted"] > 0).sum())
            for name, den in (("marginal", "num_drafted"), ("conditional", "num_examined")):
                accepted, total = (counts[key].astype(np.float64) for key in ("num_accepted", den))
                row |= spread(name, _rate(accepted, total, **options))
            rows.append(row)
    return pd.DataFrame(rows, columns=POSITION_COLUMNS)
