"""Speed from one latency pass: ratios of Σtokens/Σseconds to the fastest target-alone baseline of that same pass.

Intervals resample example × repeat: they are conditional on this machine and this process. Modelled speed-ups put
measured costs per call under the recorded rounds of every cell; what is neither a draft nor a verify call is left out.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sdbench.metrics.stats import NAN, Estimate, statistic_interval

ALONE = ("target", "generate")  # the target by our loop, and by transformers' own
UNIT = ["example", "repeat"]


def latest_pass(timings: pd.DataFrame) -> pd.DataFrame:
    """Whole repeats of each cell's newest pass that has a target-alone baseline too."""
    whole = timings[~timings["is_split"].astype(bool)]
    bases = set(whole.loc[whole["verifier"].isin(ALONE), "pass_id"])
    whole = whole[whole["pass_id"].isin(bases)]
    if whole.empty:
        return whole
    newest = whole.groupby(["cell", "pass_id"])["started_at"].max().groupby(level=0).idxmax().map(lambda pair: pair[1])
    return whole[whole["pass_id"].to_numpy() == whole["cell"].map(newest).to_numpy()]


def speeds(timings: pd.DataFrame, **options: float) -> dict[str, dict[str, Estimate]]:
    """{cell: tokens_per_s, speedup, speedup_end_to_end, time_ratio} of all cells that were timed."""
    found: dict[str, dict[str, Estimate]] = {}
    newest = latest_pass(timings)
    for cell, own in newest.groupby("cell", sort=True):
        rivals = newest if newest["pass_id"].nunique() == 1 else timings[~timings["is_split"].astype(bool)]
        same = rivals[(rivals["pass_id"] == own["pass_id"].iloc[0]) & (rivals["model"] == own["model"].iloc[0])]
        alone = same[same["verifier"].isin(ALONE)]
        rate = alone.groupby("cell")[["tokens", "decode_s"]].sum()
        base = alone[alone["cell"] == (rate["tokens"] / rate["decode_s"]).idxmax()]
        found[str(cell)] = _against(own, base, **options)
    return found


def _against(own: pd.DataFrame, base: pd.DataFrame, **options: float) -> dict[str, Estimate]:
    pair = own.merge(base, on=UNIT, suffixes=("", "_base"))
    whole_s, whole_base_s = pair["prefill_s"] + pair["decode_s"], pair["prefill_s_base"] + pair["decode_s_base"]
    ratios = pair["decode_s_base"] / pair["decode_s"]

    def speedup(seconds: pd.Series, base_s: pd.Series) -> Estimate:
        rows = np.stack([pair["tokens"], seconds, pair["tokens_base"], base_s], 1).astype(np.float64)
        return statistic_interval(rows, lambda s: s[:, 0] / s[:, 1] / (s[:, 2] / s[:, 3]), **options)  # type: ignore[arg-type]

    rate = statistic_interval(
        own[["tokens", "decode_s"]].to_numpy(dtype=np.float64),
        lambda s: s[:, 0] / s[:, 1],
        **options,  # type: ignore[arg-type]
    )
    return {
        "tokens_per_s": rate,
        "speedup": speedup(pair["decode_s"], pair["decode_s_base"]),
        "speedup_end_to_end": speedup(whole_s, whole_base_s),
        "time_ratio": Estimate(float(ratios.median()) if len(ratios) else NAN, NAN, NAN, len(ratios)),
    }


def cost(calls: pd.DataFrame, kind: str, tokens: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Seconds of a call of this kind at `tokens` tokens, between the measured sizes by a straight line."""
    mine = calls[calls["kind"] == kind].groupby("tokens")["seconds"].median().sort_index()
    return np.interp(tokens, mine.index.to_numpy(dtype=np.float64), mine.to_numpy(dtype=np.float64))


def prices(calls: pd.DataFrame, timings: pd.DataFrame, model: str, task: str) -> pd.DataFrame:
    """The calls of the newest pass of one pair and task: prices of another pair say nothing about it."""
    own = timings[(timings["model"] == model) & (timings["task"] == task)]
    own = own[own["pass_id"].isin(set(calls["pass_id"]))]
    newest = own.groupby("pass_id")["started_at"].max().sort_index() if len(own) else pd.Series(dtype="float64")
    return calls[calls["pass_id"] == newest.idxmax()] if newest.notna().any() else calls.iloc[:0]


def modelled(generations: pd.DataFrame, calls: pd.DataFrame) -> float:
    """Speed-up of one cell's recorded rounds at one pass's `prices`; NaN where a cost is missing."""
    if calls.empty:
        return NAN
    kinds = set(calls["kind"])
    verifier, num_draft = generations["verifier"].iloc[0], int(generations["num_draft"].iloc[0] or 0)
    if verifier in ("draft", *ALONE) or not {"draft", "verify", "target"} <= kinds:
        return 1.0 if verifier == "target" and "target" in kinds else NAN
    tokens, rounds, drafted = (float(generations[name].sum()) for name in ("tokens", "rounds", "drafted"))
    seconds = drafted * cost(calls, "draft", 1.0) + rounds * cost(calls, "verify", num_draft + 1.0)
    return float(tokens * cost(calls, "target", 1.0) / seconds)


def splits(timings: pd.DataFrame) -> pd.DataFrame:
    """Seconds a token of each cell's split repeats: draft, verify, rest."""
    parts = timings[timings["is_split"].astype(bool)].groupby("cell", sort=True)
    sums = parts[["tokens", "draft_s", "verify_s", "rest_s"]].sum()
    return sums[["draft_s", "verify_s", "rest_s"]].div(sums["tokens"], axis=0)


def percentiles(timings: pd.DataFrame) -> pd.DataFrame:
    """Medians over example × repeat: time to first token and per round."""
    whole = timings[~timings["is_split"].astype(bool)].groupby("cell", sort=True)
    return whole[["first_token_s", "round_p50_s", "round_p90_s", "round_p99_s"]].median()


def drift(timings: pd.DataFrame) -> float:
    """How much slower the last third of a pass was than the first, as a ratio of seconds a round, cells kept apart."""
    whole = timings[~timings["is_split"].astype(bool)].sort_values("started_at")
    whole = whole[whole["pass_id"] == whole["pass_id"].iloc[-1]] if len(whole) else whole
    if len(whole) < 9:
        return NAN
    pace = whole["decode_s"] / whole["rounds"]
    pace = pace / pace.groupby(whole["cell"]).transform("median")
    third = len(pace) // 3
    return float(pace.iloc[-third:].median() / pace.iloc[:third].median())
