"""Which setting to ship: safe in quality, and faster than the best lossless setting; else stay lossless, or say why neither.

`weigh` gathers everything that the margin does not decide: each setting's loss at the level left for it (safety.py), its
measured speed over lossless (gain.py), its modelled speed. `decide` is then a function of that and of a margin, so that a
report can be decided again without decoding, and a page can do it live.

Which of the safe settings is chosen is decided by its modelled speed, which comes from the records of the quality pass. Its
measured speed has no part in that, so it needs no correction: one setting is tested for speed, one-sided 2.5 %, and against every
lossless draft length, so that no luck of the best one makes it pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sdbench.metrics import sentences
from sdbench.metrics.safety import Comparison, tested
from sdbench.metrics.stats import Estimate
from sdbench.metrics.weigh import Margin, Weighed, margin_of, weigh_sweeps
from sdbench.records import Results


@dataclass(frozen=True, slots=True)
class Advice:
    """What to ship for one pair and task. `cell` is a lenient setting, or None: "stay" lossless, or "none" can be said.

    `speedup` is over the target alone, `gain` over the best lossless setting `rival`; `tests` were made in this order.
    """

    model: str
    task: str
    cell: str | None
    text: str
    tests: tuple[Comparison, ...] = ()
    speedup: Estimate | None = None
    kind: Literal["ship", "stay", "none"] = "none"
    gain: Estimate | None = None
    rival: str | None = None
    margin: float = math.nan


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The advice for every pair, task and temperature of a folder, and all of it as text; `weighed` is what it came from."""

    advices: tuple[Advice, ...]
    weighed: tuple[Weighed, ...] = ()

    @property
    def text(self) -> str:
        return "\n".join(advice.text for advice in self.advices)


def recommend(results: Results, margin: Margin, *, resamples: int = 10_000, seed: int = 0) -> Recommendation:
    """Advice for each pair, task and temperature that has a swept rule."""
    for value in margin.values() if isinstance(margin, Mapping) else (margin,):
        if not value > 0:
            raise ValueError(f"margin must be above 0 points, got {value}")
    sweeps = weigh_sweeps(results, resamples=resamples, seed=seed)
    return Recommendation(tuple(decide(one, margin_of(margin, one.task)) for one in sweeps), sweeps)


def decide(sweep: Weighed, margin: float, *, written: str = "") -> Advice:
    """Return the advice at this margin, which the text calls `written`."""
    written = written or f"{margin:g}"
    if sweep.problem:
        return Advice(sweep.model, sweep.task, None, f"{sweep.title}: none: {sweep.problem}.", margin=margin)
    curves = [tested(curve, margin) for curve in sweep.curves]
    tests = tuple(one for curve in curves for one in curve)
    safe = [one for one in tests if one.is_safe(margin)]
    best = fastest(sweep, safe)
    if best is None:
        text = sentences.none(sweep, tests, margin, written, num_curves=len(curves))
        return Advice(sweep.model, sweep.task, None, f"{sweep.title}: {text}", tests, margin=margin)
    gain = sweep.gains.get(best.cell)
    if gain is None:
        text = sentences.untimed(sweep, best, written)
        return Advice(sweep.model, sweep.task, None, f"{sweep.title}: {text}", tests, margin=margin)
    if gain.is_faster:
        kind, cell, over, sentence = "ship", best.cell, gain.over_target, sentences.ship
    else:
        kind, cell, over, sentence = "stay", None, sweep.lossless.get(gain.best), sentences.stay
    text = f"{sweep.title}: {sentence(sweep, best, gain, written)}"
    return Advice(sweep.model, sweep.task, cell, text, tests, over, kind, gain.over_lossless, gain.best, margin=margin)


def fastest(sweep: Weighed, safe: Sequence[Comparison]) -> Comparison | None:
    """Of the safe settings the fastest by the model, the more lenient where the model is silent; timed ones first."""
    timed = [one for one in safe if one.cell in sweep.gains]
    places = {one.cell: place for curve in sweep.curves for place, one in enumerate(curve)}
    return max(timed or safe, key=lambda one: (_or_zero(sweep.modelled.get(one.cell)), places[one.cell]), default=None)


def timed_settings(results: Results, margin: Margin, *, resamples: int = 2_000, seed: int = 0) -> list[str]:
    """The cells to put on the clock once quality is known: lossless at every draft length, and of each curve the most lenient
    safe setting (the strictest where none is safe) with its neighbours. Works without any timing; the target is not named.
    """
    chosen: dict[str, None] = {}
    for sweep in weigh_sweeps(results, resamples=resamples, seed=seed):
        chosen |= dict.fromkeys(sweep.lossless)
        points = margin_of(margin, sweep.task)
        for curve in sweep.curves:
            safe = [one for one in tested(curve, points) if one.is_safe(points)]
            place = max(len(safe) - 1, 0)
            chosen |= dict.fromkeys(one.cell for one in curve[max(place - 1, 0) : place + 2])
    return list(chosen)


def breakpoints(sweep: Weighed) -> list[float]:
    """The margins at which a decision may change, ascending, above 0: between two of them it stays."""
    ends = [
        end
        for curve in sweep.curves
        for one in curve
        for end in (-one.worst, -one.change, one.loops)
        if 0 < end < math.inf
    ]
    return sorted({round(end, 6) for end in ends})


def _or_zero(value: float | None) -> float:
    return 0.0 if value is None or math.isnan(value) else value
