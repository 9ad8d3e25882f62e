"""The other question: at a speed that is asked for, which setting loses least?

Of each curve the strictest setting that reaches the speed for sure is looked at, so that quality has no part in the choice; of
those the one that loses least, whose limit is at the level left for each of the curves. Being fast enough is tested at 2.5 %
over all settings that were timed.
"""

from __future__ import annotations

from sdbench.metrics.gain import at_level
from sdbench.metrics.recommend import Advice
from sdbench.metrics.safety import ALPHA, Comparison
from sdbench.metrics.sentences import ratio_text, signed
from sdbench.metrics.stats import Estimate
from sdbench.metrics.weigh import Weighed


def at_speed(sweep: Weighed, speed: float) -> Advice:
    """The least loss at `speed` times the target alone; lossless where that is fast enough."""
    if sweep.problem:
        return _none(sweep, f"none: {sweep.problem}")
    timed = {key: gain.over_target for key, gain in sweep.gains.items() if gain.over_target is not None}
    lossless = {key: over for key, over in sweep.lossless.items() if over is not None}
    if not timed and not lossless:
        return _none(sweep, "none yet: no speed was measured; run again with timing on")
    level = 1 - 2 * ALPHA / (len(timed) + len(lossless))
    over = {key: at_level(one, level) for key, one in (timed | lossless).items()}
    free = max((key for key in lossless if over[key].low >= speed), key=lambda key: over[key].value, default=None)
    if free is not None:
        text = (
            f"stay {sweep.names[free]}: {ratio_text(over[free])} the target alone reaches {speed:g}× without any loss."
        )
        return Advice(sweep.model, sweep.task, None, f"{sweep.title}: {text}", (), over[free], "stay", rival=free)
    reached = [_first(curve, over, speed) for curve in sweep.curves]
    best = max((one for one in reached if one is not None), key=lambda one: one.change, default=None)
    if best is None:
        nearest = max(over, key=lambda key: over[key].low)
        known = f"nearest is {sweep.names[nearest]} at {ratio_text(over[nearest])}"
        return _none(sweep, f"none: no setting is proven to reach {speed:g}× the target alone; {known}")
    change = f"{signed(best.change)} points of {sweep.metric.name} against lossless, at worst {signed(best.worst)}"
    text = (
        f"ship {sweep.names[best.cell]}: {ratio_text(over[best.cell])} the target alone (asked for {speed:g}×); "
        f"{change} (n={best.difference.n})."
    )
    gain = sweep.gains[best.cell]
    named = f"{sweep.title}: {text}"
    return Advice(sweep.model, sweep.task, best.cell, named, (), over[best.cell], "ship", gain.over_lossless, gain.best)


def _none(sweep: Weighed, text: str) -> Advice:
    return Advice(sweep.model, sweep.task, None, f"{sweep.title}: {text}.")


def _first(curve: tuple[Comparison, ...], over: dict[str, Estimate], speed: float) -> Comparison | None:
    """The strictest setting that is fast enough for sure."""
    return next((one for one in curve if one.cell in over and over[one.cell].low >= speed), None)
