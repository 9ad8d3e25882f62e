"""Requests that arrive at a rate: latency, goodput, and the rate at which a setting no longer keeps up.

Latency counts from the planned arrival. The unit is the request: limits of a percentile are order statistics, limits of goodput
are those of a proportion. An answer has many times between chunks, which the bootstrap resamples together. All these limits treat
requests as independent, even requests of the same text. Requests close in time share a queue, so near saturation the limits are
narrower than the spread of several passes. The unit of a gain is the text: requests of the same text are summed.

Saturation shows in the growth of latency. If every second of arrivals adds b seconds to the latency, requests that arrive
within T seconds leave within T (1 + b), so 1 / (1 + b) of them are served. The first requests, which meet an empty server, are
left out. Requests that fail are not answered: the share of those that do bounds what is served, with its interval. A server
is saturated by the growth of latency from the sending: a client that sends later and later is not its fault. It keeps up by the
growth from the planned arrival, because such a client offers less than the planned rate.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from sdbench.metrics.columns import spread, spread_names
from sdbench.metrics.stats import (
    NAN,
    Estimate,
    pooled_quantiles,
    proportion_interval,
    quantile_interval,
    rates_interval,
    student,
)

PERCENTILES = (50, 90, 99)
SECONDS = ("ttft_s", "cached_ttft_s", "tpot_s", "e2el_s", "queue_s", "service_s")  # a request has one of each
OF_SERVER = ("queue_s", "service_s")  # need what a server reports with the last token of an answer
LATENCIES = tuple(
    f"{name}_p{percent}_s"
    for name in ("ttft", "cached_ttft", "tpot", "itl", "e2el", "queue", "service")
    for percent in PERCENTILES
)
GAINS = ("gain_over_target", "gain_over_lossless")
WITH_INTERVALS = ("throughput", "goodput", *LATENCIES, *GAINS)
COUNTS = ["n", "failures", "requests_per_s", "peak_concurrency", "send_delay_p99_s", "is_cached"]
VERDICTS = ["is_client_behind", "keeps_up", "is_saturated"]
COLUMNS = ["cell", "rate", "pass_id", *COUNTS, *VERDICTS, "slo", *spread_names(WITH_INTERVALS), "unpaired"]
KEY = ["cell", "rate"]
LOOP = ["pass_id", "schedule", "repeat"]  # what identifies a loop; two cells are compared within a loop only
WARM_UP, PARTS = 0.2, 6  # share of first requests left out; number of parts of the others, whose means give the slope
NOISE = 1e-12  # of the largest time: means of equal times differ by less
BEHIND = 0.95  # of the arrival rate; a server that is proven to serve less is saturated


def open_load_table(
    open_loads: pd.DataFrame, slo: Mapping[str, float] | None = None, *, level: float = 0.95
) -> pd.DataFrame:
    """Return one row per cell and rate, from the newest schedule. Without bounds, goodput counts all requests that did not fail."""
    requests = with_latencies(newest_schedules(open_loads))
    rows = []
    for (cell, rate), part in requests.groupby(KEY, sort=True):  # type: ignore[misc]
        row: dict[str, Any] = {"cell": cell, "rate": rate, "pass_id": part["pass_id"].iloc[0]}
        row |= {"n": len(part), "failures": int(part["is_failed"].sum()), "slo": bounds_text(slo or {})}
        answered, seconds = _with_cached_apart(part[~part["is_failed"]]), seconds_of(part)
        row["requests_per_s"] = len(answered) / seconds if seconds else NAN
        row["peak_concurrency"] = int(part["under_way"].max())
        row["send_delay_p99_s"] = float(np.quantile(part["sent_s"] - part["arrival_s"], 0.99))
        row["is_cached"] = bool(part["is_cached"].any())
        row["is_client_behind"] = is_client_behind(part, level=level)
        row["is_saturated"] = served_share(part, "from_sending_s", level=level).high < BEHIND
        row["keeps_up"] = served_share(part, level=level).low >= BEHIND
        row |= spread("throughput", throughput(part, level=level))
        good = proportion_interval(int(is_good(part, slo or {}).sum()), len(part), level=level)
        scale = len(part) / seconds if seconds else NAN
        row |= spread("goodput", Estimate(good.value * scale, good.low * scale, good.high * scale, good.n))
        for name in SECONDS:
            values = answered[name].dropna()
            if name in OF_SERVER and len(values) < len(answered):
                values = values.iloc[:0]  # answers that this client ended lack it, and they are no random part
            for percent in PERCENTILES:
                estimate = quantile_interval(values, percent / 100, level=level)
                row |= spread(f"{name.removesuffix('_s')}_p{percent}_s", estimate)
        row |= _between_chunks(answered["gaps_s"], level=level)
        rows.append(row | gains(part, requests[requests["rate"] == rate], level=level))
    return pd.DataFrame(rows, columns=COLUMNS)


def newest_schedules(open_loads: pd.DataFrame) -> pd.DataFrame:
    """Return the requests of each row: for each cell, rate and repeat those of the newest pass and schedule. All repeats are of
    the loop that was sent last, and prompts may be cached in all of them or in none. Loops of old records have no hash and count
    as one loop.
    """
    known = open_loads.groupby("schedule")["loop"].transform("max")  # a pass may continue after an update of sdbench
    open_loads = open_loads.assign(loop=known)
    key = [*KEY, "repeat", "pass_id", "schedule", "loop", "is_cached"]
    begins = open_loads.groupby(key, as_index=False)["started_at"].max().sort_values("started_at")
    for name in ("is_cached", "loop"):
        begins = begins[begins[name] == begins.groupby(KEY)[name].transform("last")]
    newest = begins.drop_duplicates([*KEY, "repeat"], keep="last")
    newest = newest[newest["pass_id"] == newest.groupby(KEY)["pass_id"].transform("max")]
    return open_loads.merge(newest.drop(columns="started_at"), on=key)


def with_latencies(requests: pd.DataFrame) -> pd.DataFrame:
    """Add columns: failure; seconds to the first token, between tokens, to the last; seconds of waiting to be sent and queueing;
    the rest.
    """
    queue = requests["sent_s"] - requests["arrival_s"] + requests["server_queue_s"]
    answer = requests["last_token_s"] - requests["arrival_s"]
    decode = requests["last_token_s"] - requests["first_token_s"]
    return requests.assign(
        is_failed=requests["failure"] != "",
        ttft_s=requests["first_token_s"] - requests["arrival_s"],
        tpot_s=decode / (requests["tokens"] - 1).where(requests["tokens"] > 1),
        e2el_s=answer,
        from_sending_s=requests["last_token_s"] - requests["sent_s"],
        queue_s=queue,
        service_s=answer - queue,
    )


def _with_cached_apart(requests: pd.DataFrame) -> pd.DataFrame:
    """Move times to the first token of prompts that may be cached into a separate column."""
    is_cached, seconds = requests["is_cached"].astype(bool), requests["ttft_s"]
    return requests.assign(ttft_s=seconds.mask(is_cached), cached_ttft_s=seconds.where(is_cached))


def _between_chunks(gaps: pd.Series, *, level: float) -> dict[str, float]:
    """Return percentiles of the times between chunks of all answers; NaN if a record is too old to have them, because the others
    alone are not the whole load.
    """
    groups = [] if gaps.isna().any() else gaps.tolist()
    estimates = pooled_quantiles(groups, [percent / 100 for percent in PERCENTILES], level=level)
    columns: dict[str, float] = {}
    for percent, estimate in zip(PERCENTILES, estimates, strict=True):
        columns |= spread(f"itl_p{percent}_s", estimate)
    return columns


def seconds_of(part: pd.DataFrame) -> float:
    """Return the seconds from the first request that was sent to the last token, summed over the repeats.

    `vllm bench serve` begins earlier, before the wait for the first arrival, so its rates are lower by that share.
    """
    loops = part.groupby("repeat").agg(begin=("sent_s", "min"), last=("last_token_s", "max"), sent=("sent_s", "max"))
    return float((loops[["last", "sent"]].max(axis=1) - loops["begin"]).sum())


def is_good(part: pd.DataFrame, slo: Mapping[str, float]) -> pd.Series:
    """Return whether a request did not fail and kept every bound. An answer of one token has no time between tokens."""
    good = ~part["is_failed"]
    for name, bound in slo.items():
        good &= ~(part[f"{name}_s"] > bound)
    return good


def served_share(part: pd.DataFrame, latency: str = "e2el_s", *, level: float = 0.95) -> Estimate:
    """Return the share of arriving requests that are served, from failures and the growth of a latency over the time of arrival.

    The upper limit uses the interval of the share of failures. The lower limit uses that share as measured, because otherwise few
    requests could prove nothing; it is 0 if failures leave too few answers to measure the growth of latency.
    """
    growth = _slope_of(part, "arrival_s", latency, level=level)
    failures = int(part["is_failed"].sum())
    answered = proportion_interval(len(part) - failures, len(part), level=level)
    most = answered.high if failures else 1.0
    if failures and math.isnan(growth.value):
        return Estimate(answered.value, 0.0, most, len(part))
    value, low, high = (
        share / (1 + slope) if not slope <= -1 else math.inf
        for share, slope in ((answered.value, growth.value), (answered.value, growth.high), (most, growth.low))
    )
    return Estimate(value, low, high, len(part))


def is_client_behind(part: pd.DataFrame, *, level: float = 0.95) -> bool:
    """Return whether this client is proven to send requests later and later, so that fewer than the planned rate arrive."""
    growth = _slope_of(part.assign(delay_s=part["sent_s"] - part["arrival_s"]), "arrival_s", "delay_s", level=level)
    return 1 / (1 + max(growth.low, 0.0)) < BEHIND


def throughput(part: pd.DataFrame, *, level: float = 0.95) -> Estimate:
    """Return answers per second, from the times between their ends."""
    ends = part.sort_values("last_token_s")
    numbered = ends.assign(number=ends.groupby("repeat").cumcount().astype("float64"))
    seconds = _slope_of(numbered, "number", "last_token_s", level=level)
    value, low, high = (
        1 / slope if not slope <= 0 else math.inf for slope in (seconds.value, seconds.high, seconds.low)
    )
    return Estimate(value, low, high, len(part))


def _slope_of(part: pd.DataFrame, x: str, y: str, *, level: float) -> Estimate:
    """Fit a line through answers without the first ones, with repeats centred separately; NaN if there are too few, or if all
    have the same `x`.

    The line goes through means of consecutive parts, with Student's t, because neighbours share a queue.
    """
    answered = part[~part["is_failed"]].sort_values(x)
    loops = [loop[[x, y]].to_numpy(np.float64) for _, loop in answered.groupby("repeat")]
    loops = [loop[int(WARM_UP * len(loop)) :] for loop in loops]
    if not loops or min(map(len, loops)) < 2 * PARTS:
        return Estimate(NAN, NAN, NAN, len(part))
    means = [np.array([chunk.mean(0) for chunk in np.array_split(loop, PARTS)]) for loop in loops]
    across, along = np.concatenate([mean - mean.mean(0) for mean in means]).T
    squares, num_free = float(across @ across), len(across) - len(loops) - 1
    largest = max(float(np.abs(loop[:, 0]).max()) for loop in loops)
    if squares <= len(across) * (NOISE * largest) ** 2:  # a trace may end in one burst
        return Estimate(NAN, NAN, NAN, len(part))
    slope = float(across @ along) / squares
    error = math.sqrt(float(((along - slope * across) ** 2).sum()) / num_free / squares)
    reach = student(num_free + 1, level) * error
    return Estimate(slope, slope - reach, slope + reach, len(part))


def gains(part: pd.DataFrame, same: pd.DataFrame, *, level: float) -> dict[str, float]:
    """Return how much sooner than the target alone, and than lossless at the same draft length, requests are answered. Of several
    lossless settings at this length, that of the same drafter counts.

    Only requests that both settings answered are compared, their seconds summed by example. `unpaired` is the number of requests
    that were left out of the comparison with lossless.
    """
    first, row = part.iloc[0], {}
    for name in ("target", "lossless"):
        base = same[same["verifier"] == name]
        if name == "lossless" and first["num_draft"]:
            base = base[base["num_draft"] == first["num_draft"]]
            same_drafter = base[base["drafter"] == first["drafter"]]
            base = same_drafter if len(same_drafter) else base
        if len(base) and base["cell"].nunique() == 1:
            pairs = base.merge(part, on=[*LOOP, "request", "example"], suffixes=("_base", ""))
            both = pairs.dropna(subset=["e2el_s_base", "e2el_s"])
            sums = both.groupby("example", sort=True)[["e2el_s_base", "e2el_s"]].sum()
            row |= spread(f"gain_over_{name}", rates_interval(sums.to_numpy(np.float64), (1, -1), level=level))
            row |= {"unpaired": len(pairs) - len(both)} if name == "lossless" else {}
    return row


def bounds_text(slo: Mapping[str, float]) -> str:
    """Return the bounds of goodput as text: ttft 0.5 s, tpot 0.05 s; empty without bounds."""
    return ", ".join(f"{name} {seconds:g} s" for name, seconds in slo.items())


def of_newest_pass(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of each cell's newest pass: other passes had another server or machine, so a curve may not join them."""
    return table[table["pass_id"] == table.groupby("cell")["pass_id"].transform("max")]
