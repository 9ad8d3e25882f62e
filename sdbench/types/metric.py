"""Metrics that a task declares, and the knobs of a rule as axes of a curve; both travel with a cell as JSON."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

RANGES: Mapping[str, tuple[Any, Any]] = {"share": (0.0, 1.0), "points": (0.0, 100.0), "raw": (None, None)}
# Names (without filters) of the lm-evaluation-harness metrics whose values lie in 0–1 in every task.
HARNESS_SHARES = re.compile(r"^exact_match|^math_verify$|(^|_)(acc|em)(_|$)|^pass(@|_at_)")


@dataclass(frozen=True, slots=True)
class Metric:
    """A measure that a task declares: how its scores are shown, which direction is better, and their bounds.

    A share is stored on 0–1 and shown ×100, points are stored as shown, anything else is raw. For a corpus metric, `stats` names
    the function that computes it from summed statistics ("bleu", "chrf2", "ratio", or "module:function").
    """

    name: str
    unit: Literal["share", "points", "raw"] = "raw"
    best: Literal["high", "low"] = "high"
    bounds: tuple[float | None, float | None] | None = None  # of a stored score; None: those of the unit
    stats: str | None = None

    def __post_init__(self) -> None:
        if self.unit not in RANGES:
            raise ValueError(f"unit of metric {self.name} must be share, points or raw, got {self.unit!r}")
        if self.best not in ("high", "low"):
            raise ValueError(f"best of metric {self.name} must be high or low, got {self.best!r}")
        low, high = RANGES[self.unit] if self.bounds is None else self.bounds
        if low is not None and high is not None and not low < high:
            raise ValueError(f"bounds of metric {self.name} must be a lower and a higher number, got {low} and {high}")
        object.__setattr__(self, "bounds", (low, high))

    @property
    def is_bounded(self) -> bool:
        """Whether both bounds are known: otherwise no loss can be proven small."""
        return self.bounds is not None and None not in self.bounds

    @property
    def scale(self) -> float:
        """The factor between a stored score and the one that is shown."""
        return 100.0 if self.unit == "share" else 1.0

    @property
    def point(self) -> float | None:
        """A hundredth of the range of stored scores; None if the metric is not bounded."""
        low, high = self.bounds or (None, None)
        return None if low is None or high is None else (high - low) / 100

    def holds(self, value: float) -> bool:
        """Return whether a score lies within the bounds."""
        low, high = self.bounds or (None, None)
        return (low is None or value >= low) and (high is None or value <= high)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Metric":
        low, high = data.get("bounds") or (None, None)
        return cls(data["name"], data["unit"], data["best"], (low, high), data.get("stats"))


@dataclass(frozen=True, slots=True)
class Axis:
    """The position of a cell on a knob of its rule. `rank` is the distance from the knob's strict end, at which the rule is the
    one named by `equals`.

    A rank of None means a knob without an order, such as a choice of formulas: each of its values is a separate curve.
    """

    knob: str
    value: float | int | str | bool
    rank: float | None = None
    equals: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Axis":
        return cls(data["knob"], data["value"], data.get("rank"), data.get("equals"))
