"""The other question: at a speed that is asked for, which setting loses least?

Of each curve the strictest setting that reaches the speed for sure is looked at, so that quality has no part in the choice; of
those the one that loses least, whose limit is at the level left for each of the curves. Being fast enough is tested at 2.5 %
over all settings that were timed.
"""

from __future__ import annotations

import math
from dataclasses import replace

from sdbench.metrics.gain import at_level
from sdbench.metrics.recommend import Advice
from sdbench.metrics.safety import ALPHA
from sdbench.metrics.sentences import gain_text, ratio_text, signed
from sdbench.metrics.weigh import Weighed


def at_speed(sweep: Weighed, speed: float, margin: float = math.inf) -> Advice:
    """Return the least loss at `speed` times the target alone; lossless where that is fast enough.

    A setting of which `margin` points more texts loop or fail than of lossless is left out, however fast it is.
    """
    bare = Advice(sweep.model, sweep.task, None, "")
    if sweep.problem:
        return replace(bare, text=f"{sweep.title}: none: {sweep.problem}.")
    timed = {key: gain.over_target for key, gain in sweep.gains.items() if gain.over_target is not None}
    lossless = {key: over for key, over in sweep.lossless.items() if over is not None}
    if not timed and not lossless:
        return replace(bare, text=f"{sweep.title}: none yet: no speed was measured; run again with timing on.")
    level = 1 - 2 * ALPHA / (len(timed) + len(lossless))
    over = {key: at_level(ratio, level) for key, ratio in (timed | lossless).items()}
    free = max((key for key in lossless if over[key].low >= speed), key=lambda key: over[key].value, default=None)
    if free is not None:
        text = (
            f"stay {sweep.names[free]}: {ratio_text(over[free])} the target alone reaches {speed:g}× without any loss."
        )
        return replace(bare, text=f"{sweep.title}: {text}", speedup=over[free], kind="stay", rival=free)
    fast = [[test for test in curve if test.cell in over and over[test.cell].low >= speed] for curve in sweep.curves]
    failing = [test for tests in fast for test in tests if test.excess[0] > margin]
    reached = [next((test for test in tests if test not in failing), None) for tests in fast]
    best = max((test for test in reached if test is not None), key=lambda test: test.change, default=None)
    if best is None:
        nearest = max(over, key=lambda key: over[key].low)
        reason = f"nearest is {sweep.names[nearest]} at {ratio_text(over[nearest])}"
        if failing:
            more, way = failing[0].excess
            reason = (
                f"{sweep.names[failing[0].cell]} does, but {more:.1f} points more of its texts {way} than with lossless"
            )
        text = (
            f"none: no setting is proven to reach {speed:g}× the target alone{' and usable' * bool(failing)}; {reason}."
        )
        return replace(bare, text=f"{sweep.title}: {text}")
    change = f"{signed(best.change)} points of {sweep.metric.name} against lossless, at worst {signed(best.worst)}"
    gain = sweep.gains[best.cell]
    text = (
        f"ship {sweep.names[best.cell]}: {ratio_text(over[best.cell])} the target alone (asked for {speed:g}×), "
        f"{gain_text(sweep, gain, best.cell)}; {change} (n={best.difference.n})."
    )
    shipped = replace(bare, kind="ship", cell=best.cell, text=f"{sweep.title}: {text}", speedup=over[best.cell])
    return replace(shipped, gain=gain.over_lossless, rival=gain.best)
