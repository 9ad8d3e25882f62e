"""Measurements during an evaluation by lm-evaluation-harness: rates with intervals, for its results file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from sdbench.metrics.acceptance import rates
from sdbench.metrics.export import finite_or_none

if TYPE_CHECKING:
    from sdbench.types import Generation

KEPT = ("acceptance", "acceptance_expected", "tokens_per_round", "bias")


def measures_of(counts: Sequence[Mapping[str, Any]], num_draft: int) -> dict[str, Any]:
    """Return each rate over the texts of a task with its 95 % interval, the number of texts, tokens and cut prompts, and seconds.

    An unknown rate is null. `counts` has one entry per text: that of `counts_of`, with `is_prompt_cut`, and with the document as
    `example`. Intervals are over documents, each of which may have several texts. Seconds have no interval: the rows of a batch
    share passes, so `seconds` of a text is the time since the previous text ended, and only the sum is a measurement.
    """
    frame = pd.DataFrame(counts).assign(num_draft=num_draft)
    tokens, seconds = int(frame["tokens"].sum()), float(frame["seconds"].sum())
    estimates = rates(frame)
    measures = {
        name: {end: finite_or_none(getattr(estimates[name], end)) for end in ("value", "low", "high")} for name in KEPT
    }
    speed = {"seconds": seconds, "tokens_per_s": tokens / seconds if seconds else None}
    return {**measures, "n": len(frame), "tokens": tokens, "prompts_cut": int(frame["is_prompt_cut"].sum()), **speed}


def counts_of(generation: Generation, seconds: float) -> dict[str, Any]:
    """Return the counts of a text from which rates are computed. `seconds` is the time since the previous text ended."""
    sums = {name: float(sum(getattr(generation, name) or ())) for name in ("tv", "expected", "bias")}
    counts = {name: sum(getattr(generation, name) or ()) for name in ("drafted", "examined", "accepted")}
    return {
        "seconds": seconds,
        "tokens": len(generation.tokens),
        "rounds": len(generation.drafted or ()),
        **counts,
        "spared": (generation.origins or ()).count("sure"),
        **{f"{name}_sum": value for name, value in sums.items()},
    }
