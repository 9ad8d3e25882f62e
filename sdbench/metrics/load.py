"""Speed of a server under load: by cell and number of concurrent requests, per user and in total, by both clocks."""

from typing import Any

import numpy as np
import pandas as pd

from sdbench.metrics.columns import spread, spread_names
from sdbench.metrics.speed import FIRST_TOKEN, first_token_of, with_decoded
from sdbench.metrics.stats import NAN, median_interval, rates_interval

RATES = ("tokens_per_s_user", *FIRST_TOKEN, "speedup_user")
COLUMNS = ["cell", "concurrency", "reached", "n", *spread_names(RATES), "tokens_per_s_all", "speedup_all", "overhead"]
KEY = ["cell", "concurrency"]


def load_table(loads: pd.DataFrame, *, level: float = 0.95) -> pd.DataFrame:
    """Return one row per cell and concurrency of its newest pass. Speed-ups are over the target alone at the same concurrency
    of the same pass; `overhead` is the share of a request's time that the server does not report.
    """
    loads = with_decoded(loads)
    rows = []
    for (cell, concurrency), part in loads.groupby(KEY, sort=True):  # type: ignore[misc]
        newest = part["pass_id"].max()  # an id begins with the time
        current = part[part["pass_id"] == newest]
        same = loads[(loads["pass_id"] == newest) & (loads["concurrency"] == concurrency)]
        base = same[same["verifier"] == "target"]
        row: dict[str, Any] = {"cell": cell, "concurrency": int(concurrency), "n": current["example"].nunique()}
        row["reached"] = current["reached"].mean()
        users = users_of(current)
        sums = users.groupby("example", sort=True)[["decoded_tokens", "decode_s"]].sum()
        row |= spread("tokens_per_s_user", rates_interval(sums.to_numpy(np.float64), (1, -1), level=level))
        for name, seconds in first_token_of(users).items():
            row |= spread(name, median_interval(seconds.dropna(), level=level))
        if len(base):
            alone = users_of(base).groupby("example", sort=True)[["decoded_tokens", "decode_s"]].sum()
            pairs = sums.join(alone.add_suffix("_base"), how="inner").to_numpy(np.float64)
            row |= spread("speedup_user", rates_interval(pairs, (1, -1, -1, 1), level=level))
            row["speedup_all"] = in_all(current) / (in_all(base) or NAN)  # it is 0 if the target's texts have no token
        rows.append({**row, "tokens_per_s_all": in_all(current), "overhead": overhead(current)})
    return pd.DataFrame(rows, columns=COLUMNS)


def users_of(part: pd.DataFrame) -> pd.DataFrame:
    """Return the requests of loops that served all users at once; in other loops some were repeated alone, without load."""
    return part[part["block_s"].notna() | (part["concurrency"] == 1)]


def in_all(part: pd.DataFrame) -> float:
    """Return tokens per second of all users while all of them were busy, over the undisturbed repeats; NaN without one."""
    blocks = part.groupby("repeat").agg(tokens=("held_tokens", "sum"), seconds=("held_s", "first")).dropna()
    return float(blocks["tokens"].sum()) / (float(blocks["seconds"].sum()) or NAN)


def overhead(part: pd.DataFrame) -> float:
    """Return the share of the client's seconds that are not the server's queue, prefill or decoding; NaN if the server does not
    report prefill and decoding. Time in a queue that it does not report counts as overhead.
    """
    server = part[["server_first_token_s", "server_decode_s"]].sum(axis=1, skipna=False)
    server = server + part["server_queue_s"].fillna(0)
    client = part["first_token_s"] + part["decode_s"]
    both = server.notna() & client.notna()
    return float(1 - server[both].sum() / client[both].sum()) if both.any() else NAN


def parts_of_overhead(part: pd.DataFrame) -> str:
    """Return what the overhead consists of, as text."""
    is_known = part.loc[part["server_decode_s"].notna(), "server_queue_s"].notna().all()
    return "transport and this client" if is_known else "queueing, transport and this client"
