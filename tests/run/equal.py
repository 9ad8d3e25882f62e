"""Equality of records: tokens, texts, counts and scores equal, other floats to 1e-9; times do not count."""

from pathlib import Path

import numpy as np
import pandas as pd

from sdbench.records import read

KEY = ["cell", "example", "sample"]


def assert_equal_records(left: Path, right: Path) -> None:
    """Of two results folders: cells, generations, rounds and tokens."""
    a, b = read(left), read(right)
    for name in ("generations", "rounds", "tokens"):
        one, other = getattr(a, name), getattr(b, name)
        by = [*KEY, "round"] if name == "rounds" else KEY
        one, other = (frame.sort_values(by, ignore_index=True) for frame in (one, other))
        assert not one.duplicated(by).any(), f"{name} are double"
        assert len(one) == len(other), f"{len(one)} and {len(other)} {name}"
        for column in one.columns:
            _assert_same(one[column], other[column], f"{name}.{column}")
    assert sorted(a.cells["cell"]) == sorted(b.cells["cell"])


def _assert_same(one: pd.Series, other: pd.Series, what: str) -> None:
    for x, y in zip(one, other, strict=True):
        if isinstance(x, float | list | np.ndarray):
            np.testing.assert_allclose(
                np.asarray(x, float), np.asarray(y, float), rtol=0, atol=1e-9, equal_nan=True, err_msg=what
            )
        else:
            assert x == y or (x is None and y is None), f"{what}: {x!r} and {y!r}"
