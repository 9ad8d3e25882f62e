"""Same records: tokens, texts, counts and scores are equal, other floats to 1e-9 or as told; times do not count."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import torch

import sdbench
from sdbench.lm.packed import has_instructions

TOLERANCE = 1e-9
# For an interrupted run on a CPU without instructions for bfloat16. A run that goes on reads prompts in another order, and the
# draft's prompt is a token shorter than the target's, so the same beginning is computed as 39 rows or as 40. There PyTorch's
# products of so many rows end in other digits: the keys of two prompts of eight differed at one or two of their last positions,
# and sums of TV of 8 and 16 by .003 in bfloat16 and 2e-7 in float32. Traced steps move them by 2e-6 in float32, and not at all
# in bfloat16.
RESUMED = TOLERANCE if has_instructions(torch.bfloat16) else 0.03
MEASURES = ("tv_sum", "expected_sum", "bias_sum", "p", "q", "tv", "expected", "bias")  # the other floats
FRAMES = {
    "cells": ["cell"],
    "generations": ["cell", "example", "sample"],
    "rounds": ["cell", "example", "sample", "round"],
    "tokens": ["cell", "example", "sample"],
}


def assert_same_records(left: Path, right: Path, *, is_problem_free: bool = True, tolerance: float = TOLERANCE) -> None:
    """Two results folders hold the same cells, generations, rounds and tokens, none lost and none double."""
    one, two = sdbench.read(left), sdbench.read(right)
    if is_problem_free:
        assert not one.problems, one.problems
        assert not two.problems, two.problems
    for name, key in FRAMES.items():
        assert_same_frame(getattr(one, name), getattr(two, name), key, name, tolerance)


def assert_same_frame(
    left: pd.DataFrame, right: pd.DataFrame, key: list[str], name: str, tolerance: float = TOLERANCE
) -> None:
    """Same rows in the same order under the same columns."""
    assert list(left.columns) == list(right.columns), name
    for frame in (left, right):
        assert not frame.duplicated(key).any(), f"{name}: a record is double"
    lost = set(map(tuple, left[key].to_numpy())) ^ set(map(tuple, right[key].to_numpy()))
    assert not lost, f"{name}: {len(lost)} records in one folder only, as {sorted(lost)[0]}"
    for column in left.columns:
        for place, (a, b) in enumerate(zip(left[column].tolist(), right[column].tolist(), strict=True)):
            where = f"{name}.{column} at {tuple(left[key].iloc[place])}"
            if column in MEASURES:
                assert _is_near(a, b, tolerance), f"{where}: {a} against {b}"
            else:
                assert _is_same(a, b), f"{where}: {a} against {b}"


def _is_near(a: object, b: object, tolerance: float) -> bool:
    if a is None or b is None:
        return a is b
    x, y = np.asarray(a, float), np.asarray(b, float)
    return x.shape == y.shape and np.allclose(x, y, rtol=0, atol=tolerance, equal_nan=True)


def _is_same(a: object, b: object) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (a != a and b != b)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(np.asarray(a), np.asarray(b))
    return a is b or bool(a == b)
