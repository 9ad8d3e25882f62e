"""An estimate as three columns of a table: NAME, NAME_low, NAME_high."""

from collections.abc import Iterable, Mapping
from typing import Any

from sdbench.metrics.stats import NAN, Estimate

WEIGHT = "w"  # weight of the target, the knob of the static ensemble; every summary has this column
ENDS = ("", "_low", "_high")


def spread(name: str, estimate: Estimate) -> dict[str, float]:
    """Return a value and its limits by column name."""
    return dict(zip(spread_names((name,)), (estimate.value, estimate.low, estimate.high), strict=True))


def spread_names(names: Iterable[str]) -> list[str]:
    """Return the columns of several estimates."""
    return [f"{name}{end}" for name in names for end in ENDS]


def estimate_of(row: Mapping[Any, Any], name: str) -> Estimate:
    """Return the estimate that `spread` wrote into a row; NaN for what is missing."""
    value, low, high = (NAN if row.get(column) is None else float(row[column]) for column in spread_names((name,)))
    n = row.get(f"{name}_n", row.get("n", NAN))  # a difference has a number of its own
    return Estimate(value, low, high, 0 if n is None or n != n else int(n))
