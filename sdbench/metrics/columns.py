"""An estimate as columns of a table: NAME, NAME_low, NAME_high."""

from __future__ import annotations

from collections.abc import Iterable

from sdbench.metrics.stats import Estimate

ENDS = ("", "_low", "_high")


def spread(name: str, estimate: Estimate) -> dict[str, float]:
    """A value and its limits under their columns."""
    return dict(zip(spread_names((name,)), (estimate.value, estimate.low, estimate.high), strict=True))


def spread_names(names: Iterable[str]) -> list[str]:
    """The columns of several estimates."""
    return [f"{name}{end}" for name in names for end in ENDS]
