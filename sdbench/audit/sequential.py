"""Sampling in growing parts: after each, every claim is tested, and a setting whose claim is refuted is drawn no further."""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sdbench.audit.claims import ClaimTest, ClaimVerdict
from sdbench.audit.command import AuditOptions
from sdbench.audit.evidence import ALPHA
from sdbench.audit.report import ClaimResult
from sdbench.audit.texts import RoundBatch, TextBatch

PARTS = (250, 250, 500, 1000, 2000, 4000, 8000, 16000, 32000)  # texts of a prompt and setting at each look

SampledTexts = tuple[TextBatch, RoundBatch | None]
DrawTexts = Callable[[Sequence[int], int, int], list[SampledTexts]]  # (settings, texts of a prompt, look) -> one each


@dataclass
class RuleTests:
    """The tests of one setting, and whether one of them has refuted its claim."""

    setting: int
    tests: Sequence[ClaimTest]
    peak: dict[str, float] = field(default_factory=dict)
    fault: str | None = None

    def add(self, sample: SampledTexts) -> None:
        for test in self.tests:
            test.add(*sample)
            self.peak[test.claim] = max(self.peak.get(test.claim, -np.inf), test.log_e())

    def is_refuted(self, log_wanted: float) -> bool:
        return self.fault is not None or any(peak >= log_wanted for peak in self.peak.values())

    def results(self, name: str, num_tests: int, options: AuditOptions) -> list[ClaimResult]:
        faults = [] if self.fault is None else [ClaimResult.of_fault(name, "runs", self.fault)]
        return faults + [self._result(name, test, num_tests, options) for test in self.tests if test.samples]

    def _result(self, name: str, test: ClaimTest, num_tests: int, options: AuditOptions) -> ClaimResult:
        log_wanted, peak = threshold(num_tests), self.peak.get(test.claim, -np.inf)
        effect = test.effect(log_wanted)
        verdict: ClaimVerdict = "violated" if peak >= log_wanted else "sound"
        if verdict == "sound" and effect.name.startswith("TV") and not effect.least <= options.tv:
            verdict = "too few"
        p = float(min(1.0, num_tests * np.exp(-max(peak, 0.0))))
        note = "stopped early" if self.is_refuted(log_wanted) else ""
        return ClaimResult(name, test.claim, verdict, float(peak), p, effect, test.samples, test.worst(), note)


def threshold(num_tests: int) -> float:
    """The log e at which one of so many tests refutes its claim."""
    return float(np.log(max(num_tests, 1) / ALPHA))


def sample(
    names: Sequence[str], settings: Sequence[RuleTests], options: AuditOptions, *, horizon: int, draw: DrawTexts
) -> tuple[list[ClaimResult], int]:
    """Draw until the horizon, or until every setting is refuted; return all results, and how many texts were drawn."""
    num_tests = sum(len(setting.tests) for setting in settings)
    drawn = total = 0
    for look, part in enumerate(PARTS):
        count = min(part, horizon - drawn)
        active = [setting for setting in settings if not setting.is_refuted(threshold(num_tests))]
        if count <= 0 or not active:
            break
        samples = _draw_each(active, lambda which, count=count, look=look: draw(which, count, look))
        for setting, texts in zip(active, samples, strict=True):
            if isinstance(texts, str):
                setting.fault = texts
                continue
            total += len(texts[0].tokens)
            setting.add(texts)
        drawn += count
    return [row for setting in settings for row in setting.results(names[setting.setting], num_tests, options)], total


def _draw_each(
    settings: Sequence[RuleTests], draw: Callable[[Sequence[int]], list[SampledTexts]]
) -> list[SampledTexts | str]:
    """A sample of each setting, or a traceback: where drawing raises, each is drawn alone to find whose error it is."""
    try:
        return list(draw([setting.setting for setting in settings]))
    except Exception:  # noqa: BLE001 - a user's rule may raise anything: that is a result, not a crash
        if len(settings) == 1:
            return [traceback.format_exc()]
    return [_draw_each([setting], draw)[0] for setting in settings]
