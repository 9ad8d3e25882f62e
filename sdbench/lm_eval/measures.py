"""What was measured while lm-evaluation-harness had its answers: rates with intervals, for its results file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from sdbench.metrics.acceptance import rates
from sdbench.metrics.export import finite_or_none

if TYPE_CHECKING:
    from sdbench.types import Generation

KEPT = ("acceptance", "acceptance_expected", "tokens_per_round", "bias")


@dataclass
class Measured:
    """The texts of one task of the harness so far."""

    num_draft: int
    seconds: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, generations: Sequence[Generation], seconds: float) -> None:
        """Take note of texts that were decoded together, each of another row; all of them took so many seconds."""
        self.seconds += seconds
        self.rows += [
            _counts(generation, len(self.rows) + i, self.num_draft) for i, generation in enumerate(generations)
        ]

    def to_json(self) -> dict[str, Any]:
        """Each rate as a value with the ends of its 95 % interval, null where it is not known; texts, tokens and seconds."""
        frame = pd.DataFrame(self.rows)
        tokens = int(frame["tokens"].sum())
        estimates = rates(frame)
        measures = {
            name: {end: finite_or_none(getattr(estimates[name], end)) for end in ("value", "low", "high")}
            for name in KEPT
        }
        speed = {"seconds": self.seconds, "tokens_per_s": tokens / self.seconds if self.seconds else None}
        return {**measures, "n": len(frame), "tokens": tokens, **speed}


def _counts(generation: Generation, example: int, num_draft: int) -> dict[str, Any]:
    """The columns that rates are made of."""
    sums = {name: float(sum(getattr(generation, name) or ())) for name in ("tv", "expected", "bias")}
    counts = {name: sum(getattr(generation, name) or ()) for name in ("drafted", "examined", "accepted")}
    return {
        "example": example,
        "num_draft": num_draft,
        "tokens": len(generation.tokens),
        "rounds": len(generation.drafted or ()),
        **counts,
        "spared": (generation.origins or ()).count("sure"),
        **{f"{name}_sum": value for name, value in sums.items()},
    }
