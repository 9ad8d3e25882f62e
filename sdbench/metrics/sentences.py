"""A decision in one sentence: the setting, its possible loss, its gain over lossless, and the evidence."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sdbench.metrics import quality
from sdbench.metrics.needed import needed_examples
from sdbench.metrics.safety import Comparison
from sdbench.metrics.stats import Estimate
from sdbench.metrics.text import format_interval, format_number
from sdbench.metrics.weigh import Gain, Weighed
from sdbench.types import Metric

NEAR = 0.05  # relative distance to the margin at which one decimal would read as a tie
LONGER = 1.05  # longer answers than this get a warning
LIMIT = (
    "At worst: the limit that is compared with the margin. It allows for losses too rare to show in these examples, and is "
    "therefore wider than the intervals of the tables."
)


@dataclass(frozen=True, slots=True)
class Wording:
    """The sentences about the setting `best`, which is safe at a margin written as `written`."""

    sweep: Weighed
    best: Comparison
    margin: float
    written: str

    @property
    def name(self) -> str:
        return self.sweep.names[self.best.cell]

    def ship(self, gain: Gain, untimed: str | None = None) -> str:
        """The setting is safe and faster than lossless."""
        target = f", {gain.over_target.value:.2f}× the target alone" if gain.over_target else ""
        over = f"{gain_text(self.sweep, gain, self.best.cell)}{target}"
        return self._with_notes(f"ship {self.name}: {over}; {self.loss()}.", untimed, is_shipped=True)

    def stay(self, gain: Gain, rival: str, untimed: str | None = None) -> str:
        """The setting is safe, but a speed-up over lossless is not proven; `rival` is the best lossless setting of any pass."""
        over = self.sweep.lossless.get(rival)
        speed = f": {ratio_text(over)} the target alone" if over else ""
        base = "" if rival == gain.best else f"over {self.sweep.names[gain.best]} "
        gains = f"{base}{gain_text(self.sweep, gain, self.best.cell, is_short=True)}"
        proof = f"a speed-up over lossless is not proven ({gains}){self._apart(gain)}"
        text = f"stay {self.sweep.names[rival]}{speed}; {self.name} is safe ({self.loss()}), but {proof}."
        return self._with_notes(text, untimed)

    def alone(self, gain: Gain, rival: str, over: Estimate, untimed: str | None = None) -> str:
        """The best lossless setting, `rival`, ran slower than the target alone, and no safe setting is proven faster than both."""
        lossless = f"{self.sweep.names[rival]} {slower_text(over)}"
        target = f"; over the target alone {ratio_text(gain.over_target)}" if gain.over_target else ""
        base = "lossless" if rival == gain.best else self.sweep.names[gain.best]
        gains = f"over {base} {gain_text(self.sweep, gain, self.best.cell, is_short=True)}{target}"
        proof = f"not proven to be faster than both ({gains}){self._apart(gain)}"
        text = f"do not speculate: {lossless}; {self.name} is safe ({self.loss()}), but {proof}."
        if (shortest := self.sweep.shortest) > 1:
            lengths = ",".join(map(str, sorted({1, 2, shortest})))
            text += f" No draft of fewer than {shortest} tokens was timed: try 'num_draft=[{lengths}]'."
        return self._with_notes(text, untimed)

    def _apart(self, gain: Gain) -> str:
        """Return which lossless settings were timed in other passes only, as the end of a sentence; otherwise ""."""
        if not gain.apart:
            return ""
        others = " and ".join([", ".join(self.sweep.names[key] for key in gain.apart), "this setting"])
        return f", and {others} were timed in different passes: time all of them in one command"

    def untimed_text(self) -> str:
        """The setting is safe, but its speed was not measured."""
        modelled = self.sweep.modelled.get(self.best.cell, math.nan)
        speed = f" and runs at about {modelled:.2f}× the target alone (modelled)" if modelled == modelled else ""
        return self._with_notes(
            f"none yet: {self.name} is safe ({self.loss()}){speed}, but its speed was not measured beside lossless; run again "
            f"with timing on (nothing is decoded again).{slow_lossless(self.sweep)}"
        )

    def loss(self) -> str:
        """Return the setting's loss: as measured, at worst, and in which metric; two decimals near the margin."""
        n, name, worst = self.best.difference.n, self.sweep.metric.name, self.best.worst
        if self.best.num_differing == 0:
            limit = f"a loss of up to {near_text(-worst, self.margin)} points of {name} cannot be excluded at n = {n}"
            return f"no example changed; {limit} (margin {self.written})"
        change, limit = change_text(self.best, self.sweep.metric), worst_text(worst, self.margin, self.sweep.metric)
        return f"{change}, at worst {limit} (margin {self.written}, n={n})"

    def _with_notes(self, text: str, untimed: str | None = None, *, is_shipped: bool = False) -> str:
        """Add notes on the length of answers, untimed settings and the draft alone."""
        sweep, notes = self.sweep, [text]
        if is_shipped:
            notes += length_warning(sweep, self.best.cell)
        if untimed is not None:
            speed = f"modelled at {sweep.modelled[untimed]:.2f}× the target alone, but was not timed"
            command = f"{sweep.command or 'the same command'} margin={self.written}"
            notes.append(f"{sweep.names[untimed]} is safe too and {speed}; to time it: {command}.")
        return " ".join([*notes, *remarks(sweep)])


def at_speed(
    sweep: Weighed, best: Comparison, gain: Gain, over_target: Estimate, speed: float, margin: float, limits: str
) -> str:
    """A setting that is fast enough, and its loss; `limits` is the level of the limits of `over_target`."""
    limit = f"at worst {worst_text(best.worst, margin, sweep.metric)}"
    change = f"{change_text(best, sweep.metric)}, {limit}"
    target = f"{ratio_text(over_target)} the target alone (asked for {speed:g}×{limits})"
    over = f"{target}, {gain_text(sweep, gain, best.cell)}"
    text = f"ship {sweep.names[best.cell]}: {over}; {change} (n={best.difference.n})."
    return " ".join([text, *length_warning(sweep, best.cell), *remarks(sweep)])


def level_text(level: float, num_timed: int) -> str:
    """Return the level of limits over the target alone if it is not 95 %, as the end of a sentence; otherwise ""."""
    return f"; limits at {100 * level:.4g} % each, since {num_timed} settings were timed" if num_timed > 1 else ""


def too_slow(
    sweep: Weighed,
    speed: float,
    over: Mapping[str, Estimate],
    *,
    failing: Sequence[Comparison],
    later: Sequence[Comparison],
    margin: float,
    limits: str,
) -> str:
    """No setting is fast enough, or all that are fast enough fail or do not answer sooner; `over` is the speed of each."""
    setting = "usable setting"
    if failing:
        reason = f"{sweep.names[failing[0].cell]} does, but {excess_text(failing[0], margin)}"
    elif later:
        gain = sweep.gains[later[0].cell]
        times = {"lossless": gain.sooner, "the target alone": gain.sooner_target}
        known = ", ".join(f"{ratio_text(time)} over {name}" for name, time in times.items() if time)
        faster = f"{sweep.names[later[0].cell]} does in tokens a second"
        reason = f"{faster}, but it is not proven to be faster per {answer_text(sweep)} ({known})"
    else:
        nearest = max(over, key=lambda key: over[key].low)
        setting, reason = "setting", f"nearest is {sweep.names[nearest]} at {ratio_text(over[nearest])}{limits}"
    return " ".join([f"no {setting} is proven to reach {speed:g}× the target alone; {reason}.", *remarks(sweep)])


def gain_text(sweep: Weighed, gain: Gain, cell: str, *, is_short: bool = False) -> str:
    """Return the gain over lossless: in tokens per second, in the time of an answer, and what was timed."""
    sooner = f"{ratio_text(gain.sooner)} per {answer_text(sweep)}" if gain.sooner else ""
    if is_short:
        return ", ".join(filter(None, [ratio_text(gain.over_lossless), sooner]))
    length = f", answers {length_text(sweep.lengths[cell])}" if cell in sweep.lengths else ""
    over = f"{ratio_text(gain.over_lossless)} over {sweep.names[gain.best]}"
    return f"{over}, {sooner}{length} ({timed_text(gain.over_lossless.n, sweep.batch_size)})" if sooner else over


def answer_text(sweep: Weighed) -> str:
    """Return what a measured time of an answer covers: an answer or, since a batch is timed as a whole, a batch of answers."""
    return "answer" if sweep.batch_size == 1 else "batch of answers"


def timed_text(n: int, batch_size: int) -> str:
    """Return what n units of a latency pass are, such as 8 texts at batch 1, or 2 batches of 4."""
    return f"{n} texts at batch 1" if batch_size == 1 else batches_text(n, batch_size)


def batches_text(n: int, batch_size: int) -> str:
    """Return a text such as 2 batches of 4."""
    return f"{n} {'batch' if n == 1 else 'batches'} of {batch_size}"


def length_warning(sweep: Weighed, cell: str) -> list[str]:
    """Return a warning if the answers of a setting are much longer than those of lossless."""
    length = sweep.lengths.get(cell)
    if length is None or not length.value > LONGER:
        return []
    return [f"Warning: its answers are {length_text(length)} than those of lossless."]


def excess_text(test: Comparison, margin: float) -> str:
    """Return by how many points more of a setting's texts fail, and how."""
    more, way = test.excess
    return f"{near_text(more, margin)} points more of its texts {way} than with lossless"


def length_text(length: Estimate) -> str:
    """Return a text such as 3 % longer, or as long."""
    per_cent = round(100 * (length.value - 1))
    return f"{abs(per_cent)} % {'longer' if per_cent > 0 else 'shorter'}" if per_cent else "as long"


def remarks(sweep: Weighed) -> list[str]:
    """Return remarks that do not depend on the decision: a draft that loses nothing, settings that were left out."""
    notes = []
    if sweep.draft is not None and not sweep.draft.high < 0:
        loss = format_interval(sweep.draft, 1) + (", positive is better" if sweep.metric.best == "low" else "")
        notes.append(f"On this task no loss of the draft alone is proven ({loss}).")
    if sweep.left_out:
        names = ", ".join(f"{sweep.names[cell]} (n={n})" for cell, n in sweep.left_out.items())
        notes.append(f"Left out, with too few examples: {names}.")
    return notes


def at_the_floor(sweep: Weighed, score: Estimate, written: str) -> str:
    """Lossless scores so low that a loss of the margin could not show."""
    level = f"lossless is only {format_interval(score, 1)} points of {sweep.metric.name} above the worst score"
    advice = "raise max_new_tokens, or choose an easier task, a better target or a smaller margin"
    return f"this run cannot tell: {level}, so a loss of the margin ({written}) could not show; {advice}."


def is_wider(sweep: Weighed, test: Comparison) -> bool:
    """Return whether the limit of a test lies outside the interval of its difference."""
    ends = (test.difference.low, test.difference.high)
    return sweep.metric.is_bounded and test.worst < min(quality.points(end, sweep.metric) for end in ends) - 0.01


def none(sweep: Weighed, tests: Sequence[Comparison], margin: float, written: str) -> str:
    """No setting is safe: a loss beyond the margin, failures, or too few examples, with how many the best setting might need."""
    return " ".join([_none(sweep, tests, margin, written) + slow_lossless(sweep), *remarks(sweep)])


def slow_lossless(sweep: Weighed) -> str:
    """Return a sentence if lossless speculation is proven to be slower than no speculation; otherwise ""."""
    over = sweep.lossless.get(best := sweep.best_lossless or "")
    if over is None or not over.high < 1:
        return ""
    return f" Lossless speculation is slower than no speculation: {sweep.names[best]} {slower_text(over)}."


def slower_text(over: Estimate) -> str:
    """Return the speed of lossless over the target alone, below 1, and that it is not proven to be slower if it is not."""
    if over.high < 1:
        return f"runs at {ratio_text(over)} the speed of the target alone"
    return f"is not shown to be faster than the target alone ({ratio_text(over)})"


def _none(sweep: Weighed, tests: Sequence[Comparison], margin: float, written: str) -> str:
    failing = [test for test in tests if test.worst > -margin]
    if failing and not any(test.is_safe(margin) for test in tests):
        more, way = max(test.excess for test in failing)
        texts = f"{near_text(more, margin)} points more texts {way} than with lossless"
        return f"none within the margin of {points(written)}: {texts}."
    hopeful = [test for test in tests if test.change > -margin]
    if not hopeful:
        return f"none within the margin of {points(written)}."
    best = max(hopeful, key=lambda test: test.worst)
    known = f"but its loss may be as large as {near_text(-best.worst, margin)} points"
    limit = known if best.worst == best.worst else "its largest possible loss is not known"
    more = needed_examples(best, margin, sweep.alpha) if written == f"{margin:g}" else ""
    tail = f"; {more}" if more else ""
    return (
        f"none: n is too small to tell (n={best.difference.n}); nearest is {sweep.names[best.cell]}: "
        f"{change_text(best, sweep.metric)}, {limit} (margin {written}){tail}."
    )


def points(written: str) -> str:
    """Return a text such as 0.5 points, 1 point."""
    return f"{written} point{'' if written == '1' else 's'}"


def change_text(test: Comparison, metric: Metric) -> str:
    """Return a text such as -1.9 points of bleu against lossless."""
    than = "than" if metric.best == "low" else "against"
    return f"{signed_text(test.change, 1, metric, f' points of {metric.name}')} {than} lossless"


def worst_text(worst: float, margin: float, metric: Metric, unit: str = "") -> str:
    """Return the limit of a change as in a sentence, such as -1.2 or, where less is better, 1.2 worse."""
    return signed_text(worst, _digits_near(worst + margin), metric, unit)


def signed_text(points: float, digits: int, metric: Metric, unit: str = "") -> str:
    """Return a change in points, with a word instead of a sign where less is better, since there the score of a loss rises."""
    if metric.best == "low":
        return f"{format_number(abs(points), digits)}{unit} {'better' if points > 0 else 'worse'}"
    return f"{format_signed(points, digits)}{unit}"


def format_signed(points: float, digits: int = 1) -> str:
    """Return a text such as +0.5, -1.2."""
    return format_number(points, digits, is_signed=True)


def limit_text(worst: float, margin: float) -> str:
    """Return the limit of a change such as -1.2, with two decimals where one would read as a tie with the margin."""
    return format_signed(worst, _digits_near(worst + margin))


def near_text(points: float, margin: float) -> str:
    """Return points such as 1.2, with two decimals where one would read as a tie with the margin."""
    return format_number(points, _digits_near(points - margin))


def _digits_near(distance: float) -> int:
    """Return two decimals at this distance to the margin where one would read as a tie, otherwise one."""
    return 2 if abs(distance) < NEAR else 1


def ratio_text(estimate: Estimate) -> str:
    """Return a text such as 1.24× [1.18, 1.31]."""
    return format_interval(estimate, 2, unit="×")
