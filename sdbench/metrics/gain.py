"""Speed over the best lossless setting: what a lenient setting gains on top of lossless speculation.

Both are timed in the same pass on the same examples. The unit is the example, with its repeats averaged, because repeats of a
text are not independent. Limits are Student's on the log scale, from the jackknife over examples, since there are few of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from sdbench.metrics.cells import lossless_rules
from sdbench.metrics.speed import with_decoded
from sdbench.metrics.stats import NAN, Estimate, rates_interval, student

SUMS = ["tokens", "decoded_tokens", "decode_s", "total_s"]
RATES = (1, -1, -1, 1)  # tokens per second over those of the base
TIMES = (-1, 1)  # the base's seconds per answer, including its prompt, over those of the cell


@dataclass(frozen=True)
class Passes:
    """Every latency pass of a folder: the times of each cell for each example, its repeats averaged."""

    sums: pd.DataFrame  # [pass_id, cell, example]: tokens, decoded_tokens, decode_s, total_s
    started: pd.Series  # [pass_id, cell]: when its last timing began

    @classmethod
    def of(cls, timings: pd.DataFrame) -> "Passes":
        whole = timings[~timings["is_split"].astype(bool)]
        whole = with_decoded(whole).assign(total_s=whole["prefill_s"] + whole["decode_s"])
        sums = whole.groupby(["pass_id", "cell", "example"], sort=True)[
            SUMS
        ].mean()  # cells may have other numbers of repeats
        return cls(sums, whole.groupby(["pass_id", "cell"], sort=True)["started_at"].max().fillna(0.0))

    def newest_id(self, cell: str, rivals: Sequence[str]) -> str | None:
        """Return the newest pass that timed `cell` and any of the rivals; None if there is none."""
        cells = self.started.index.get_level_values("cell")
        passes = self.started.index.get_level_values("pass_id")
        shared = set(passes[cells == cell]) & set(passes[cells.isin(list(rivals))])
        if not shared:
            return None
        same = self.started[passes.isin(shared) & cells.isin([cell, *rivals])]
        return str(same.groupby(level="pass_id").max().idxmax())

    def newest(self, cell: str, rivals: Sequence[str]) -> pd.DataFrame | None:
        """Return [cell, example] of the newest pass that timed `cell` and any of the rivals; None if there is none."""
        pass_id = self.newest_id(cell, rivals)
        return None if pass_id is None else self.sums.loc[pass_id]

    def only(self, pass_id: str) -> "Passes":
        """Return one of the passes."""
        return Passes(self.sums.loc[[pass_id]], self.started.loc[[pass_id]])

    def ratio(self, cell: str, base: str, *, level: float = 0.95) -> Estimate | None:
        """Return tokens per second of `cell` over those of `base` in the newest pass that timed both; None if there is none."""
        return self._ratio(cell, base, ["decoded_tokens", "decode_s"], RATES, level)

    def sooner(self, cell: str, base: str) -> Estimate | None:
        """Return the seconds per answer of `base` over those of `cell`, whatever the lengths of their texts."""
        return self._ratio(cell, base, ["total_s"], TIMES, 0.95)

    def _ratio(
        self, cell: str, base: str, columns: list[str], powers: tuple[int, ...], level: float
    ) -> Estimate | None:
        frame = self.newest(cell, [base])
        if frame is None:
            return None
        pair = pd.concat([frame.loc[cell, columns], frame.loc[base, columns]], axis=1, join="inner").dropna()
        return rates_interval(pair.to_numpy(dtype=np.float64), powers, level=level) if len(pair) else None

    def best_of(self, keys: Sequence[str], cell: str) -> str | None:
        """Return the one of `keys` with the most tokens per second in the newest pass that timed `cell` and any of them."""
        frame = self.newest(cell, keys)
        if frame is None:
            return None
        held = frame.groupby(level="cell").sum()
        held = held[held.index.isin(list(keys))]
        return str((held["decoded_tokens"] / held["decode_s"]).fillna(0).idxmax())


def at_level(estimate: Estimate, level: float) -> Estimate:
    """Convert a 95 % interval of `ratio` to another level."""
    wider = student(estimate.n, level) / student(estimate.n, 0.95) if estimate.n > 1 else NAN
    low, high = (estimate.value * (end / estimate.value) ** wider for end in (estimate.low, estimate.high))
    return Estimate(estimate.value, float(low), float(high), estimate.n)


def p_value_of(ratio: Estimate) -> float:
    """Return the one-sided p-value of a ratio of `Passes` being 1 or less; 1 if it has no limits."""
    from scipy.special import stdtr

    if ratio.n < 2 or not ratio.low > 0:
        return 1.0
    reach = math.log(ratio.value / ratio.low)
    log = math.log(ratio.value)
    distance = log * student(ratio.n, 0.95) / reach if reach else math.copysign(math.inf, log)
    return float(stdtr(ratio.n - 1, -distance))


def lossless_settings(cells: pd.DataFrame) -> list[str]:
    """Return the lossless cells of one sweep (with `rank`): the lossless rule at every draft length, and other lossless rules.

    The strict end of a lenient rule is the lossless rule again; it is included only if the lossless rule was not run.
    """
    lossless = cells.index[cells["verifier"] == "lossless"]
    rules = lossless_rules(cells)
    others = rules.index[rules["rank"] != 0] if len(lossless) else rules.index
    return [str(key) for key in (*lossless, *others)]
