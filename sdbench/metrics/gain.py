"""Speed over the best lossless setting: what a lenient one gains on top of what costs no quality.

Both are timed in the same pass on the same examples. The unit is the example, its repeats added up: repeats of one text are no
independent evidence. Limits are Student's on the log scale, from the jackknife over examples: few examples are the rule here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from sdbench.metrics.cells import lossless_rules
from sdbench.metrics.stats import NAN, Estimate, rates_interval, student

SUMS = ["tokens", "decode_s"]
RATES = (1, -1, -1, 1)  # tokens a second over those of the base


def ratio(timings: pd.DataFrame, cell: str, base: str, *, level: float = 0.95) -> Estimate | None:
    """Tokens a second of `cell` over those of `base`, in the newest pass that timed both; None where none did."""
    whole = timings[~timings["is_split"].astype(bool) & timings["cell"].isin([cell, base])]
    passes = set(whole.loc[whole["cell"] == cell, "pass_id"]) & set(whole.loc[whole["cell"] == base, "pass_id"])
    if not passes:
        return None
    same = whole[whole["pass_id"].isin(passes)]
    newest = same.groupby("pass_id")["started_at"].max().fillna(0.0).idxmax()
    sums = same[same["pass_id"] == newest].groupby(["cell", "example"])[SUMS].sum()
    pair = pd.concat([sums.loc[cell], sums.loc[base]], axis=1, join="inner")
    return rates_interval(pair.to_numpy(dtype=np.float64), RATES, level=level) if len(pair) else None


def at_level(estimate: Estimate, level: float) -> Estimate:
    """A 95 % interval of `ratio` at another level."""
    wider = student(estimate.n, level) / student(estimate.n, 0.95) if estimate.n > 1 else NAN
    low, high = (estimate.value * (end / estimate.value) ** wider for end in (estimate.low, estimate.high))
    return Estimate(estimate.value, float(low), float(high), estimate.n)


def lossless_settings(cells: pd.DataFrame) -> list[str]:
    """Of the cells of one sweep (with `rank`): the lossless rule at every draft length, and other rules that are lossless.

    The strict end of a lenient rule is the lossless rule again, and stands for it only where that was not run.
    """
    own = cells.index[cells["verifier"] == "lossless"]
    rules = lossless_rules(cells)
    others = rules.index[rules["rank"] != 0] if len(own) else rules.index
    return [str(key) for key in (*own, *others)]


def best_of(timings: pd.DataFrame, keys: Sequence[str], cell: str) -> str | None:
    """Of `keys` the one with the most tokens a second in the newest pass that timed `cell` and any of them."""
    whole = timings[~timings["is_split"].astype(bool)]
    passes = set(whole.loc[whole["cell"] == cell, "pass_id"])
    rivals = whole[whole["cell"].isin(list(keys)) & whole["pass_id"].isin(passes)]
    if rivals.empty:
        return None
    newest = rivals.groupby("pass_id")["started_at"].max().fillna(0.0).idxmax()
    sums = rivals[rivals["pass_id"] == newest].groupby("cell")[SUMS].sum()
    return str((sums["tokens"] / sums["decode_s"]).idxmax())
