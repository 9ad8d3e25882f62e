"""Which claims can be tested of a subject, and with how many samples."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sdbench.audit import outcomes
from sdbench.audit.audit import Options, Trial
from sdbench.audit.claims import AcceptanceTest, DraftTest, LawTest, Test
from sdbench.audit.evidence import ALPHA, first_of
from sdbench.audit.laws import Laws
from sdbench.audit.outcomes import UnknownLawError, has_outcomes, is_memoryless
from sdbench.audit.source import Source, Tables
from sdbench.audit.subject import Setting, Subject
from sdbench.audit.trained import Claimed, EmittedTest, JudgedTest, PlaceTest, PrefixTest
from sdbench.draft import ModelDrafter

SIZES = (500, 1000, 1500, 2000, 3000, 4000, 6000, 8000, 12000, 16000, 24000, 32000, 48000, 64000)  # of a prompt
FALLBACK = 2000  # texts of a prompt where no test states its power in advance
LEAST_TRAINED = 1000  # … of a trained pair, for enough drafted tokens


@dataclass
class Plan:
    """What is tested by samples, and what cannot be, with the reason."""

    trials: list[Trial]
    horizon: int
    untested: dict[str, str] = field(default_factory=dict)  # setting -> why its law is not tested


def drafter_is_model(subject: Subject) -> bool:
    return isinstance(subject.helper, ModelDrafter)


def why_unknown(subject: Subject, setting: Setting, source: Source) -> str | None:
    """Why the law of this setting's texts cannot be worked out; None where it can. A stranger's error is passed on."""
    if not has_outcomes(setting.rule):
        return outcomes.why_unknown(setting.rule)
    if isinstance(source, Tables):
        try:
            laws_of(subject, setting.rule, source).texts(0)
        except UnknownLawError as error:
            return str(error)
    return None


def laws_of(subject: Subject, rule: Any, source: Tables) -> Laws:
    """The laws under this rule, worked out once."""
    place = "laws", id(rule)
    if place not in source.blocks:
        source.blocks[place] = Laws(source, subject.sampling, rule, subject.helper, subject.num_draft, subject.budget)
    return source.blocks[place]


def make(subject: Subject, options: Options, source: Source) -> Plan:
    """The tests of every setting; how many texts of a prompt are drawn is what the wanted power needs."""
    build = _enumerated if isinstance(source, Tables) else _trained
    unknown: dict[str, str] = {}
    faults: dict[int, str] = {}
    for number, setting in enumerate(subject.settings):
        try:
            why = why_unknown(subject, setting, source)
        except Exception:  # noqa: BLE001 - a stranger's rule may raise anything: that is a finding, not a crash
            faults[number] = traceback.format_exc()
        else:
            unknown |= {} if why is None else {setting.name: why}

    def trials(horizon: int) -> list[Trial]:
        made = [
            Trial(number, build(subject, setting, source, options, horizon, setting.name not in unknown))
            for number, setting in enumerate(subject.settings)
            if setting.draws(subject.sampling) and number not in faults
        ]
        return [trial for trial in made if trial.tests]

    first = trials(SIZES[0])
    num_tests = sum(len(trial.tests) for trial in first)
    log_wanted = float(np.log(max(num_tests, 1) / ALPHA))

    def is_enough(size: float) -> bool:
        tests = [test for trial in trials(int(size)) for test in trial.tests]
        stated = [test for test in tests if isinstance(test, LawTest | PrefixTest)]
        sizes = [int(size)] * len(subject.prompts)
        return all(test.least(sizes, log_wanted) <= options.tv for test in stated)

    if options.samples is not None:
        horizon = options.samples
    elif any(isinstance(test, LawTest | PrefixTest) for trial in first for test in trial.tests):
        horizon = int(min(first_of(SIZES, is_enough), SIZES[-1]))
    else:
        horizon = FALLBACK
    broken = [Trial(number, [], fault=fault) for number, fault in faults.items()]
    if not isinstance(source, Tables) and options.samples is None:
        horizon = max(horizon, LEAST_TRAINED)
    return Plan([*trials(horizon), *broken], horizon, unknown)


def _enumerated(
    subject: Subject, setting: Setting, source: Any, options: Options, horizon: int, is_known: bool
) -> list[Test]:
    own, alone = laws_of(subject, setting.rule, source), laws_of(subject, None, source)
    drawn = horizon * len(subject.prompts) * subject.budget
    has_model = drafter_is_model(subject) and not subject.sampling.is_greedy
    makers: dict[str, tuple[bool, Callable[[], Test]]] = {
        "law": (is_known, lambda: LawTest("law", own, subject.stops, horizon, with_rounds=True)),
        "losslessness": (
            setting.is_lossless and not subject.sampling.is_greedy,
            lambda: LawTest("losslessness", alone, subject.stops, horizon),
        ),
        "acceptance": (is_known, lambda: AcceptanceTest(own, subject.stops)),
        "q": (has_model, lambda: DraftTest("q", drawn, source=source, sampling=subject.sampling)),
    }
    return [test() for claim, (holds, test) in makers.items() if holds and claim in options.claims]


def _trained(
    subject: Subject, setting: Setting, source: Any, options: Options, horizon: int, is_known: bool
) -> list[Test]:
    if subject.sampling.is_greedy:
        return []
    has_model = drafter_is_model(subject)
    is_exact = subject.rounding < 1e-6
    plain = setting.rule if is_memoryless(setting.rule) else None
    rule = None if setting.is_lossless else plain
    own = Claimed(source, subject.sampling, rule, has_model, is_exact)
    is_stated = setting.is_lossless or own.is_tokenwise
    by_origin = Claimed(source, subject.sampling, plain, has_model, is_exact)
    tokens, count = horizon * len(subject.prompts) * subject.budget, len(subject.prompts)
    # A second token is drafted whatever became of the first where a block holds two and another round may follow.
    with_second = rule is None or (subject.num_draft > 1 and subject.budget > 2)
    coins = PlaceTest() if by_origin.is_tokenwise and "acceptance" in options.claims else None
    tests: list[Test] = []
    if is_stated and "prefixes" in options.claims:
        tests.append(PrefixTest(own, count, horizon, with_second and subject.budget > 1))
    if is_stated and {"pit", "acceptance"} & set(options.claims):
        tests.append(EmittedTest("pit", tokens, claimed=by_origin, coins=coins))
        tests += [] if coins is None else [coins]
    if not is_stated and has_model and is_known and {"pit", "acceptance"} & set(options.claims):
        kept = PlaceTest() if "acceptance" in options.claims else None
        given = {"source": source, "sampling": subject.sampling, "prompts": subject.prompts, "is_exact": is_exact}
        tests.append(JudgedTest("pit", tokens, rule=setting.rule, coins=kept, **given))
        tests += [] if kept is None else [kept]
    if has_model and "q" in options.claims:
        tests.append(DraftTest("q", tokens, source=source, sampling=subject.sampling, most=2000))
    return tests


def remaining(subject: Subject) -> Sequence[str]:
    """The claims that need no law."""
    return ("q", "invariance", "greedy", "counters")
