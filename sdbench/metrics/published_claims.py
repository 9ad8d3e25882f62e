"""Two claims that papers make without an interval, tested on measured cells: that time falls as acceptance rises, and that a
given percentage of the quality was kept.
"""

from collections.abc import Mapping
from itertools import combinations

import numpy as np
import pandas as pd

from sdbench.metrics.pareto import Resampled

APART = 0.01  # closer acceptances are not compared
QUOTED = (30, 100, 250)  # typical numbers of examples in papers


def check_monotone(speeds: Resampled, acceptance: Mapping[str, float], *, level: float = 0.95) -> dict[str, object]:
    """Return whether among these cells higher acceptance means higher speed, over all pairs of them together.

    "yes": for every pair, beyond noise. "no": one pair is reversed, beyond noise; `slower` accepts more than `faster`.
    Otherwise, and with so few timed units that all of them may be in order by chance (fewer than six at 95 %), "not told
    apart". Without a pair to compare: "one point" for a single cell, "acceptances alike" for several whose acceptances are within
    APART of each other or unknown. `chance` is the share of resamples in which the least certain pair is in order.
    """
    pairs = [
        tuple(sorted(pair, key=lambda key: acceptance[key]))
        for pair in combinations(speeds.cells, 2)
        if abs(acceptance[pair[0]] - acceptance[pair[1]]) > APART
    ]
    number_of = {key: number for number, key in enumerate(speeds.cells)}
    chances = {(a, b): float(np.mean(speeds.xs[:, number_of[b]] > speeds.xs[:, number_of[a]])) for a, b in pairs}
    if not chances:
        answer = "acceptances alike" if len(speeds.cells) > 1 else "one point"
        return {"monotone": answer, "pairs": 0, "chance": np.nan, "slower": "", "faster": ""}
    (less, more), chance = min(chances.items(), key=lambda item: item[1])
    error = (1 - level) / 2 / len(pairs)
    # Resamples of one unit, or of a few that agree, are all in the same order.
    is_enough = 0.5**speeds.n <= (1 - level) / 2
    verdict = "not told apart"
    if is_enough and not error < chance < 1 - error:
        verdict = "no" if chance <= error else "yes"
    named = (more, less) if verdict == "no" else ("", "")
    return {"monotone": verdict, "pairs": len(pairs), "chance": chance, "slower": named[0], "faster": named[1]}


def retention_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Return quality divided by `strict`, the quality of lossless on the n examples that both have, with limits from the interval
    of the `difference`, and whether 30, 100 or 250 examples would have shown a difference: intervals shrink as 1/√n.
    """
    change, n, strict = rows["difference"], rows["n"], rows["strict"]
    frame = pd.DataFrame({"retention": 1 + change / strict}, index=rows.index)
    frame["retention_low"], frame["retention_high"] = (
        1 + rows[f"difference_{end}"] / strict for end in ("low", "high")
    )
    towards_none = (rows["difference_high"] - change).where(change < 0, change - rows["difference_low"])
    for count in QUOTED:
        frame[f"is_told_at_{count}"] = change.abs() > towards_none * np.sqrt(n / count)
    return frame
