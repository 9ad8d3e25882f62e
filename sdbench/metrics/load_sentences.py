"""What the records of an open loop show, in one sentence for each setting: saturation, goodput, and the gain of leniency."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from sdbench.metrics.columns import estimate_of
from sdbench.metrics.open_load import of_newest_pass
from sdbench.metrics.text import format_interval


def sentences(table: pd.DataFrame, cells: pd.DataFrame, slo: Mapping[str, float]) -> list[str]:
    """Return one line per setting on its behaviour under load; `cells` have `label` and `verifier`, in reading order."""
    lines, newest = [], of_newest_pass(table)
    for key, cell in cells.iterrows():
        rows = newest[newest["cell"] == key].sort_values("rate").to_dict("records")
        if rows:
            facts = [_saturation(rows), *_goodput(rows, slo)]
            facts += _gain(rows) if cell["verifier"] not in ("target", "draft", "lossless") else []
            lines.append(f"{cell['label']} under load: {'; '.join(facts)}")
    return lines


def _saturation(rows: Sequence[Mapping[Any, Any]]) -> str:
    """Return as text the lowest saturated rate above all rates that the server keeps up with, or else the highest of these."""
    held = max((row["rate"] for row in rows if row["keeps_up"]), default=-math.inf)
    behind = [row for row in rows if row["is_saturated"] and row["rate"] > held]
    if behind:
        return f"saturated at {behind[0]['rate']:g} requests/s, where {_behaviour_of(behind[0])}"
    late = [row["rate"] for row in rows if row["is_client_behind"] and row["rate"] > held]
    if late:
        least = (
            f"this client cannot send {late[0]:g} requests/s on time, so nothing is known of the server at this rate"
        )
        return f"keeps up with {held:g} requests/s; {least}" if held > 0 else least
    if held > 0:
        return f"keeps up with {held:g} requests/s"
    return "neither proven to keep up nor to be saturated at any rate"


def _behaviour_of(row: Mapping[Any, Any]) -> str:
    """Return what a saturated server does, as text."""
    served = format_interval(estimate_of(row, "throughput"), 2)
    failed = f"{row['failures']} of {row['n']} requests fail"
    if not served:
        return failed
    return f"it serves {served}" + (f" and {failed}" if row["failures"] else "")


def _goodput(rows: Sequence[Mapping[Any, Any]], slo: Mapping[str, float]) -> list[str]:
    """Return the text on the highest goodput of all rates."""
    if not slo:
        return []
    best = max(rows, key=lambda row: row["goodput"])
    names = {"ttft": "cached ttft"} if best["is_cached"] else {}
    within = ", ".join(f"{names.get(name, name)} within {seconds:g} s" for name, seconds in slo.items())
    goodput = format_interval(estimate_of(best, "goodput"), 2)
    return [f"goodput ({within}) is highest at {best['rate']:g} requests/s: {goodput}"]


def _gain(rows: Sequence[Mapping[Any, Any]]) -> list[str]:
    """Return the text on the highest rate at which leniency is faster."""
    known = [row for row in rows if math.isfinite(row["gain_over_lossless_low"])]
    proven = [row for row in known if row["gain_over_lossless_low"] > 1]
    if not known:
        return []
    if not proven:
        left_out = sum(row["unpaired"] for row in known)
        return [f"at no rate are answers proven to come sooner than with lossless{_without(left_out)}"]
    gain = format_interval(estimate_of(proven[-1], "gain_over_lossless"), 2)
    more = "" if proven[-1] is known[-1] else ", and above it no gain is proven"
    at = f"at {proven[-1]['rate']:g} requests/s{_without(proven[-1]['unpaired'])}"
    return [f"answers come {gain} times as soon as with lossless {at}{more}"]


def _without(count: float) -> str:
    return f" (without {count:g} requests that failed with one of the two)" if count else ""
