"""Measurements during an evaluation by lm-evaluation-harness: rates with intervals, for its results file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from sdbench.metrics.acceptance import rates
from sdbench.metrics.columns import spread
from sdbench.metrics.export import finite_or_none
from sdbench.metrics.stats import NAN, Estimate, rates_interval

if TYPE_CHECKING:
    from sdbench.types import Generation

KEPT = ("acceptance", "acceptance_expected", "tokens_per_round", "bias")


def measures_of(counts: Mapping[str, Sequence[Mapping[str, Any]]], num_draft: int) -> dict[str, dict[str, Any]]:
    """Return for each task its rates over texts with 95 % intervals, the number of texts, tokens and cut prompts, and seconds.

    An unknown rate is null. `counts` has for each task one entry per text: that of `counts_of`, with `is_prompt_cut`, and with the
    document as `example`. Intervals are over documents, each of which may have several texts; those of seconds and of tokens per
    second are over batches, because the texts of a batch share passes.
    """
    texts = [{**each, "task": task} for task, part in counts.items() for each in part]
    if not texts:
        return {}
    frame = pd.DataFrame(texts).assign(num_draft=num_draft)
    frame["seconds"] = _shared_seconds(frame)
    return {str(task): _measures_of(part) for task, part in frame.groupby("task", sort=False)}


def _shared_seconds(frame: pd.DataFrame) -> pd.Series:
    """Return the seconds of each text: those of its batch, which texts of several tasks may share, divided by rounds.

    Answers that an earlier version stored name no batch; they keep the time since the previous text ended.
    """
    if "batch" not in frame:
        return frame["seconds"]
    batches = frame.groupby("batch")
    share = frame["rounds"] / batches["rounds"].transform("sum")
    return (batches["seconds"].transform("sum") * share).fillna(frame["seconds"])


def _measures_of(frame: pd.DataFrame) -> dict[str, Any]:
    tokens = int(frame["tokens"].sum())
    estimates = rates(frame)
    measures = {
        name: {end: finite_or_none(getattr(estimates[name], end)) for end in ("value", "low", "high")} for name in KEPT
    }
    counts = {"n": len(frame), "tokens": tokens, "prompts_cut": int(frame["is_prompt_cut"].sum())}
    return {**measures, **counts, **{name: finite_or_none(value) for name, value in _speed(frame).items()}}


def _speed(frame: pd.DataFrame) -> dict[str, float]:
    """Return the seconds of as many texts, and the tokens per second, with limits; NaN from a single batch, or without batches."""
    tokens, seconds = float(frame["tokens"].sum()), float(frame["seconds"].sum())
    is_known = "batch" in frame and bool(frame["batch"].notna().all())
    batches = frame.assign(texts=1.0).groupby("batch" if is_known else (lambda _: "unknown"))
    sums = batches[["seconds", "texts", "tokens"]].sum().to_numpy(np.float64)
    each, rate = (rates_interval(sums[:, columns], (1, -1)) for columns in ([0, 1], [2, 0]))
    total = Estimate(seconds, len(frame) * each.low, len(frame) * each.high, len(sums))
    return {
        **spread("seconds", total),
        **spread("tokens_per_s", replace(rate, value=tokens / seconds if seconds else NAN)),
    }


def counts_of(generation: Generation, seconds: float, batch: str) -> dict[str, Any]:
    """Return the counts of a text from which rates are computed. `seconds` is the time since the previous text ended, of whatever
    task; `batch` names the texts that share their seconds.
    """
    sums = {name: float(sum(getattr(generation, name) or ())) for name in ("tv", "expected", "bias")}
    counts = {name: sum(getattr(generation, name) or ()) for name in ("drafted", "examined", "accepted")}
    return {
        "seconds": seconds,
        "batch": batch,
        "tokens": len(generation.tokens),
        "rounds": len(generation.drafted or ()),
        **counts,
        "spared": (generation.origins or ()).count("sure"),
        **{f"{name}_sum": value for name, value in sums.items()},
    }
