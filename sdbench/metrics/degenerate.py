"""Degenerate texts, from the stored ids: the share of repeated 4-grams, and whether a text ends in a loop.

Loops decode fastest, because the draft predicts every token of them, so both numbers are reported beside acceptance. Not
detected: a text that repeats itself in other words, and loops with a period longer than MAX_PERIOD tokens.
"""

from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from sdbench.records import Results

GRAM = 4
MAX_PERIOD = 64
TURNS, LEAST = 4, 16  # a loop is the same tokens four times in a row, at least 16 tokens in total
COLUMNS = ["cell", "example", "sample", "repeated", "is_loop"]


def repeated_share(ids: ArrayLike) -> float:
    """Return the share of a text's 4-grams that occurred in it before; 0 for a text without 4-grams."""
    tokens = np.asarray(ids, dtype=np.int64).tolist()
    grams = list(zip(*(tokens[start:] for start in range(GRAM)), strict=False))
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def ends_in_loop(ids: ArrayLike) -> bool:
    """Return whether a text ends in a loop; one end-of-text token after it does not count."""
    tokens = np.asarray(ids, dtype=np.int64)
    return _is_loop(tokens) or _is_loop(tokens[:-1])


def _is_loop(tokens: np.ndarray) -> bool:
    if len(tokens) < LEAST:
        return False
    before = tokens[-1 - MAX_PERIOD : -1][::-1]
    for period in np.flatnonzero(before == tokens[-1]) + 1:  # where the last token occurred one period earlier
        size = max(TURNS * int(period), LEAST)
        if size <= len(tokens) and (tokens[-size + period :] == tokens[-size:-period]).all():
            return True
    return False


_SEEN: WeakKeyDictionary[Results, pd.DataFrame] = WeakKeyDictionary()  # the summary and the recommendation both need it


def degenerate(results: Results) -> pd.DataFrame:
    """Return one row per generation: the share of repeated 4-grams, and whether it ends in a loop. Computed once per `Results`."""
    if results not in _SEEN:
        _SEEN[results] = _looked_at(results)
    return _SEEN[results]


def _looked_at(results: Results) -> pd.DataFrame:
    ids = results.ids
    frame = ids[["cell", "example", "sample"]].copy()
    frame["repeated"] = [repeated_share(text) for text in ids["ids"]]
    frame["is_loop"] = [ends_in_loop(text) for text in ids["ids"]]
    return frame.reindex(columns=COLUMNS).astype({"repeated": "float64", "is_loop": "bool"})
