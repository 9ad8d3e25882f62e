"""Which setting to use: safe in quality and faster than lossless; otherwise stay lossless, or do not speculate.

`weigh` computes everything that does not depend on the margin: each setting's loss at its level of the test (safety.py), its
measured speed over lossless (gain.py), its modelled speed. `decide` is a function of that and of a margin, so a report can be
decided again without decoding, and a page can do it live.

Faster means: more tokens per second than every lossless draft length and than the target alone, and less time per answer, all
proven. If no safe setting is faster, the advice is the best lossless setting, or the target alone if that is faster. The safe
settings that were timed are tested together, by Holm's method at one-sided 2.5 %: with eight texts of uneven length at most 3.1
% of simulated runs recommended a setting that is not faster. Of those that pass, the one with the most modelled answers per
second is chosen; the model uses the records of the quality pass.

`at_speed` answers the reverse question: which setting loses least at a given speed? From each curve it takes the strictest
setting that is proven to reach the speed, a choice that does not depend on quality, and of these the one that loses least. The
limit of its loss is at the level of each curve. Being fast enough is tested at 2.5 % over all settings that were timed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sdbench.metrics import sentences
from sdbench.metrics.gain import at_level
from sdbench.metrics.safety import ALPHA, Comparison, run_in_sequence
from sdbench.metrics.stats import Estimate, holm
from sdbench.metrics.weigh import Margin, Weighed, margin_of, weigh_sweeps
from sdbench.records import Results


@dataclass(frozen=True, slots=True)
class Advice:
    """What to use for one pair and task. `kind` is "ship" for the lenient setting in `cell`. Otherwise `cell` is None, and `kind`
    is "stay" (lossless), "alone" (the target alone is faster than lossless) or "none" (there is no answer).

    `speedup` is over the target alone, `gain` over the best lossless setting of the same pass. `rival` is that setting, or for
    "stay" and "alone" the best lossless setting of any pass. `tests` are in the order in which they were made. `untimed` is a
    safe setting that is modelled to be faster still, but was not timed.
    """

    model: str
    task: str
    cell: str | None
    text: str
    tests: tuple[Comparison, ...] = ()
    speedup: Estimate | None = None
    kind: Literal["ship", "stay", "alone", "none"] = "none"
    gain: Estimate | None = None
    rival: str | None = None
    margin: float = math.nan
    untimed: str | None = None


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The advice for every pair, task and temperature of a folder, and all of it as text; `weighed` is its input."""

    advices: tuple[Advice, ...]
    weighed: tuple[Weighed, ...] = ()

    @property
    def text(self) -> str:
        pairs = zip(self.advices, self.weighed, strict=True)
        is_wider = any(sentences.is_wider(weighed, test) for advice, weighed in pairs for test in advice.tests)
        return "\n".join([*(advice.text for advice in self.advices), *([sentences.LIMIT] if is_wider else [])])


def recommend(results: Results, margin: Margin, *, resamples: int = 10_000, seed: int = 0) -> Recommendation:
    """Return advice for each pair, task and temperature that has a swept rule."""
    for value in margin.values() if isinstance(margin, Mapping) else (margin,):
        if not value > 0:
            raise ValueError(f"margin must be above 0 points, got {value}")
    sweeps = weigh_sweeps(results, resamples=resamples, seed=seed)
    return Recommendation(tuple(decide(sweep, margin_of(margin, sweep.task)) for sweep in sweeps), sweeps)


def decide(sweep: Weighed, margin: float, *, written: str = "") -> Advice:
    """Return the advice at this margin, which the text writes as `written`."""
    written = written or f"{margin:g}"
    bare = Advice(sweep.model, sweep.task, None, "", margin=margin)
    if sweep.problem:
        return replace(bare, text=f"{sweep.title}: none: {sweep.problem}.")
    if sweep.quality is not None and not sweep.quality.low > margin:
        return replace(bare, text=f"{sweep.title}: none: {sentences.at_the_floor(sweep, sweep.quality, written)}")
    tests = tuple(test for curve in sweep.curves for test in run_in_sequence(curve, margin))
    safe = [test for test in tests if test.is_safe(margin)]
    timed = [test for test in safe if test.cell in sweep.gains]
    proven = proven_faster(sweep, timed)
    best = fastest(sweep, proven or timed or safe)
    bare = replace(bare, tests=tests)
    if best is None:
        return replace(bare, text=f"{sweep.title}: {sentences.none(sweep, tests, margin, written)}")
    words = sentences.Wording(sweep, best, margin, written)
    gain = sweep.gains.get(best.cell)
    if gain is None:
        return replace(bare, text=f"{sweep.title}: {words.untimed_text()}")
    faster = fastest(sweep, [test for test in safe if sweep.answers_of(test.cell) > sweep.answers_of(best.cell)])
    untimed = faster.cell if faster is not None and faster.cell not in sweep.gains else None
    given = replace(bare, gain=gain.over_lossless, rival=gain.best, untimed=untimed)
    if best in proven:
        text = f"{sweep.title}: {words.ship(gain, untimed)}"
        return replace(given, kind="ship", cell=best.cell, speedup=gain.over_target, text=text)
    rival = sweep.best_lossless or gain.best
    given, over = replace(given, rival=rival), sweep.lossless.get(rival)
    if over is not None and over.value < 1:
        return replace(given, kind="alone", text=f"{sweep.title}: {words.alone(gain, rival, over, untimed)}")
    return replace(given, kind="stay", speedup=over, text=f"{sweep.title}: {words.stay(gain, rival, untimed)}")


def proven_faster(sweep: Weighed, timed: Sequence[Comparison]) -> list[Comparison]:
    """Return the safe settings that are proven to be faster, by Holm's method over all of them."""
    p_values = holm([sweep.gains[test.cell].p_value for test in timed])
    return [test for test, p in zip(timed, p_values, strict=True) if p < ALPHA]


def fastest(sweep: Weighed, settings: Sequence[Comparison]) -> Comparison | None:
    """Return the setting with the most modelled answers per second; without a model, the more lenient one."""
    places = {test.cell: index for curve in sweep.curves for index, test in enumerate(curve)}
    return max(settings, key=lambda test: (sweep.answers_of(test.cell), places[test.cell]), default=None)


def at_speed(sweep: Weighed, speed: float, margin: float) -> Advice:
    """Return the setting with the least loss at `speed` times the target alone; lossless if that is fast enough.

    A setting is left out if texts that loop or fail exceed those of lossless by more than `margin` points, and if its answers
    are not proven to take less time than those of lossless and of the target alone. If lossless scores so low that a loss of the
    margin could not show, only lossless is advised.
    """
    bare = Advice(sweep.model, sweep.task, None, "")
    if sweep.problem:
        return replace(bare, text=f"{sweep.title}: none: {sweep.problem}.")
    timed = {key: gain.over_target for key, gain in sweep.gains.items() if gain.over_target is not None}
    lossless = {key: over for key, over in sweep.lossless.items() if over is not None}
    if not timed and not lossless:
        return replace(bare, text=f"{sweep.title}: none yet: no speed was measured; run again with timing on.")
    num_timed = len(timed) + len(lossless)
    level = 1 - 2 * ALPHA / num_timed
    limits = sentences.level_text(level, num_timed)
    over = {key: at_level(ratio, level) for key, ratio in (timed | lossless).items()}
    free = max((key for key in lossless if over[key].low >= speed), key=lambda key: over[key].value, default=None)
    if free is not None:
        ratio = f"{sentences.ratio_text(over[free])} the target alone"
        text = f"{sweep.title}: stay {sweep.names[free]}: {ratio} reaches {speed:g}× without any loss{limits}."
        return replace(bare, text=text, speedup=over[free], kind="stay", rival=free)
    if sweep.quality is not None and not sweep.quality.low > margin:
        return replace(bare, text=f"{sweep.title}: none: {sentences.at_the_floor(sweep, sweep.quality, f'{margin:g}')}")
    fast = [[test for test in curve if test.cell in over and over[test.cell].low >= speed] for curve in sweep.curves]
    failing = [test for tests in fast for test in tests if test.has_excess(margin)]
    later = [test for tests in fast for test in tests if not sweep.gains[test.cell].is_sooner(level)]
    reached = [next((test for test in tests if test not in failing and test not in later), None) for tests in fast]
    best = max((test for test in reached if test is not None), key=lambda test: test.change, default=None)
    if best is None:
        words = sentences.too_slow(sweep, speed, over, failing=failing, later=later, margin=margin, limits=limits)
        return replace(bare, text=f"{sweep.title}: none: {words}")
    gain, reach = sweep.gains[best.cell], over[best.cell]
    text = f"{sweep.title}: {sentences.at_speed(sweep, best, gain, reach, speed, margin, limits)}"
    return replace(
        bare, kind="ship", cell=best.cell, text=text, speedup=reach, gain=gain.over_lossless, rival=gain.best
    )


def timed_settings(results: Results, margin: Margin, *, resamples: int = 2_000, seed: int = 0) -> list[str]:
    """Return the cells to time once quality is known: lossless at every draft length, and of each curve the most lenient safe
    setting (the strictest if none is safe) with its neighbours. Needs no timings. The target is not included.
    """
    chosen: dict[str, None] = {}
    for sweep in weigh_sweeps(results, resamples=resamples, seed=seed):
        chosen |= dict.fromkeys(sweep.lossless)
        points = margin_of(margin, sweep.task)
        for curve in sweep.curves:
            safe = [test for test in run_in_sequence(curve, points) if test.is_safe(points)]
            last = max(len(safe) - 1, 0)
            chosen |= dict.fromkeys(test.cell for test in curve[max(last - 1, 0) : last + 2])
    return list(chosen)


def breakpoints(sweep: Weighed) -> list[float]:
    """Return the margins above 0, ascending, at which a decision may change."""
    tests = [test for curve in sweep.curves for test in curve]
    limits = [limit for test in tests for limit in (-test.worst, test.excess[0])]
    ends = [*limits, *(-test.change for test in tests)]
    # Near the margin a limit is shown with another decimal.
    ends += [limit + side * sentences.NEAR for limit in limits for side in (-1, 1)]
    ends += [sweep.quality.low] if sweep.quality is not None else []
    return sorted({round(end, 6) for end in ends if 0 < end < math.inf})
