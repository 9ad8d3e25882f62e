"""What all intervals share: the estimate that they return, and the checks of their input."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Bounds = tuple[float | None, float | None]  # of a score; None: unknown
NAN = math.nan


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number, its interval, and the number of examples."""

    value: float
    low: float
    high: float
    n: int


def values_of(values: ArrayLike, name: str = "values") -> Array:
    """Return one-dimensional float64 values; raise for NaN."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"{name} must have one dimension, got {array.ndim}")
    if np.isnan(array).any():
        raise ValueError(f"{name} must not contain NaN: drop or count missing values first")
    return array


def check_level(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), got {level}")
    return level


def check_bounds(values: Array, bounds: Bounds | None, name: str = "values") -> tuple[float, float]:
    """Return both bounds as numbers, an unknown one as infinite. Raise if they are not a range or a value lies outside."""
    low, high = bounds or (None, None)
    least, most = -math.inf if low is None else float(low), math.inf if high is None else float(high)
    if not least < most:
        raise ValueError(f"bounds must be a range, the lower end first, got {bounds}")
    slack = 1e-9 * max(abs(end) for end in (least, most, 1.0) if math.isfinite(end))  # sums of shares are rounded
    if values.size and (values.min() < least - slack or values.max() > most + slack):
        raise ValueError(f"{name} must lie within bounds={bounds}, got {values.min():g} to {values.max():g}")
    return least, most


def is_binary(x: Array) -> bool:
    return bool(np.isin(x, (0.0, 1.0)).all())
