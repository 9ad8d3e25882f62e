"""Speed from one latency pass: ratios of Σtokens/Σseconds to the fastest target-alone baseline of that same pass.

Intervals resample example × repeat: they are conditional on this machine and this process. Modelled speed-ups put
measured costs per call under the recorded rounds of every cell; what is neither a draft nor a verify call is left out.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sdbench.metrics.stats import NAN, Estimate, mean_interval, median_interval, ratio_interval, statistic_interval

ALONE = ("target", "generate")  # the target by our loop, and by transformers' own
UNIT = ["example", "repeat"]
TIMES = ["tokens", "prefill_s", "decode_s"]
PARTS = ("draft_s", "verify_s", "rest_s")
SPLIT_KINDS = ("draft", "verify")  # calls whose prices come from the split repeat
COLUMNS = ["pass_id", *UNIT, *TIMES]


def latest_pass(timings: pd.DataFrame) -> pd.DataFrame:
    """Whole repeats of each cell's newest pass that has a target-alone baseline too."""
    whole = timings[~timings["is_split"].astype(bool)]
    bases = set(whole.loc[whole["verifier"].isin(ALONE), "pass_id"])
    whole = whole[whole["pass_id"].isin(bases)]
    if whole.empty:
        return whole
    newest = whole.groupby(["cell", "pass_id"])["started_at"].max().groupby(level=0).idxmax().map(lambda pair: pair[1])
    return whole[whole["pass_id"].to_numpy() == whole["cell"].map(newest).to_numpy()]


def against_baseline(timings: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """{cell: one row an (example, repeat), its times beside those (`_base`) of the fastest target-alone baseline}."""
    found: dict[str, pd.DataFrame] = {}
    newest = latest_pass(timings)
    for cell, own in newest.groupby("cell", sort=True):
        rivals = newest if newest["pass_id"].nunique() == 1 else timings[~timings["is_split"].astype(bool)]
        same = rivals[(rivals["pass_id"] == own["pass_id"].iloc[0]) & (rivals["model"] == own["model"].iloc[0])]
        alone = same[same["verifier"].isin(ALONE)]
        rate = alone.groupby("cell")[["tokens", "decode_s"]].sum()
        base = alone[alone["cell"] == (rate["tokens"] / rate["decode_s"]).idxmax()]
        found[str(cell)] = own[COLUMNS].merge(base[[*UNIT, *TIMES]], on=UNIT, suffixes=("", "_base"))
    return found


def speeds(timings: pd.DataFrame, **options: float) -> dict[str, dict[str, Estimate]]:
    """{cell: tokens_per_s, speedup, speedup_end_to_end, time_ratio} of all cells that were timed."""
    return {cell: _against(pair, **options) for cell, pair in against_baseline(timings).items()}


def _against(pair: pd.DataFrame, **options: float) -> dict[str, Estimate]:
    whole_s, whole_base_s = pair["prefill_s"] + pair["decode_s"], pair["prefill_s_base"] + pair["decode_s_base"]

    def speedup(seconds: pd.Series, base_s: pd.Series) -> Estimate:
        rows = np.stack([pair["tokens"], seconds, pair["tokens_base"], base_s], 1).astype(np.float64)
        return statistic_interval(rows, lambda s: s[:, 0] / s[:, 1] / (s[:, 2] / s[:, 3]), **options)  # type: ignore[arg-type]

    rows = pair[["tokens", "decode_s"]].to_numpy(dtype=np.float64)
    return {
        "tokens_per_s": statistic_interval(rows, lambda s: s[:, 0] / s[:, 1], **options),  # type: ignore[arg-type]
        "speedup": speedup(pair["decode_s"], pair["decode_s_base"]),
        "speedup_end_to_end": speedup(whole_s, whole_base_s),
        "time_ratio": _geometric(pair["decode_s_base"] / pair["decode_s"], **options),
    }


def _geometric(ratios: pd.Series, **options: float) -> Estimate:
    """The typical ratio of times for the same request, whatever the lengths of the two answers."""
    logs = mean_interval(np.log(ratios.to_numpy(dtype=np.float64)), **options)  # type: ignore[arg-type]
    return Estimate(float(np.exp(logs.value)), float(np.exp(logs.low)), float(np.exp(logs.high)), logs.n)


def cost(calls: pd.DataFrame, kind: str, tokens: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Seconds of a call of this kind at `tokens` tokens, between the measured sizes by a straight line."""
    mine = calls[calls["kind"] == kind].groupby("tokens")["seconds"].median().sort_index()
    return np.interp(tokens, mine.index.to_numpy(dtype=np.float64), mine.to_numpy(dtype=np.float64))


def prices(calls: pd.DataFrame, timings: pd.DataFrame, model: str, task: str) -> pd.DataFrame:
    """The calls of the newest pass of one pair and task: prices of another pair say nothing about it."""
    own = timings[(timings["model"] == model) & (timings["task"] == task)]
    own = own[own["pass_id"].isin(set(calls["pass_id"]))]
    newest = own.groupby("pass_id")["started_at"].max().sort_index() if len(own) else pd.Series(dtype="float64")
    if not newest.notna().any():
        return calls.iloc[:0]
    found = calls[calls["pass_id"] == newest.idxmax()]
    is_split = found["kind"].isin(SPLIT_KINDS)
    pace = pace_of_splits(own[own["pass_id"] == newest.idxmax()])
    return found.assign(seconds=found["seconds"].where(~is_split, found["seconds"] / pace))


def pace_of_splits(timings: pd.DataFrame) -> float:
    """How much slower a round was in the split repeat of a pass than in its whole ones; 1 where that is unknown.

    The split repeat comes last and reads the clock more often: its shares are what it is asked for, its pace is not.
    """
    pairs = timings[(timings["rounds"] > 0) & timings["num_draft"].fillna(0).gt(0)]
    round_s = pairs["decode_s"] / pairs["rounds"]
    cells = [pairs["cell"], pairs["is_split"].astype(bool)]
    paces = round_s.groupby(cells).median().unstack().reindex(columns=[False, True])
    pace = (paces[True] / paces[False]).median()
    return 1.0 if np.isnan(pace) else float(pace)


def modelled(generations: pd.DataFrame, calls: pd.DataFrame, **options: float) -> Estimate:
    """Speed-up of one cell's recorded rounds at one pass's `prices`, by example at fixed prices; NaN without a price."""
    unknown = Estimate(NAN, NAN, NAN, 0)
    if calls.empty:
        return unknown
    kinds, n = set(calls["kind"]), generations["example"].nunique()
    verifier, num_draft = generations["verifier"].iloc[0], int(generations["num_draft"].iloc[0] or 0)
    if verifier in ("draft", *ALONE) or not {"draft", "verify", "target"} <= kinds:
        return Estimate(1.0, 1.0, 1.0, n) if verifier == "target" and "target" in kinds else unknown
    sums = generations.groupby("example", sort=True)[["tokens", "rounds", "drafted"]].sum()
    seconds = sums["drafted"] * cost(calls, "draft", 1.0) + sums["rounds"] * cost(calls, "verify", num_draft + 1.0)
    return ratio_interval(sums["tokens"] * cost(calls, "target", 1.0), seconds, **options)  # type: ignore[arg-type]


def splits(timings: pd.DataFrame, **options: float) -> dict[str, dict[str, Estimate]]:
    """{cell: seconds a token in draft calls, verify calls, the rest and all}, from the split repeats of its newest pass."""
    split = timings[timings["is_split"].astype(bool)].dropna(subset=list(PARTS))  # plain generate has no parts
    found = {}
    for cell, part in split.groupby("cell", sort=True):
        own = part[part["pass_id"] == part.loc[part["started_at"].idxmax(), "pass_id"]] if _is_timed(part) else part
        seconds = {name: own[name] for name in PARTS} | {"split_s": own[list(PARTS)].sum(axis=1)}
        found[str(cell)] = {name: ratio_interval(own_s, own["tokens"], **options) for name, own_s in seconds.items()}  # type: ignore[arg-type]
    return found


def percentiles(timings: pd.DataFrame, *, level: float = 0.95) -> dict[str, dict[str, Estimate]]:
    """{cell: medians over example × repeat of the time to the first token and of percentiles of a round}."""
    names = ("first_token_s", "round_p50_s", "round_p90_s", "round_p99_s")
    whole = timings[~timings["is_split"].astype(bool)].groupby("cell", sort=True)
    return {
        str(cell): {name: median_interval(part[name].dropna(), level=level) for name in names} for cell, part in whole
    }


def _is_timed(part: pd.DataFrame) -> bool:
    return bool(part["started_at"].notna().any())


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
