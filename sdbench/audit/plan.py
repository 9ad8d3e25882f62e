"""Plan which claims of a subject can be tested and with how many samples, and draw the samples in parts.

After each part every claim is tested; a setting with a refuted claim gets no more samples.
"""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, NamedTuple, TypeVar

import numpy as np

from sdbench.audit.claims import AcceptanceTest, ClaimTest, ClaimVerdict, DraftTest, LawTest, RoundAcceptanceTest
from sdbench.audit.command import AuditOptions
from sdbench.audit.evidence import ALPHA, first_of
from sdbench.audit.knobs import depends_on_slot
from sdbench.audit.large_vocabulary import ClaimedLaw, EmittedTest, JudgedTest, PrefixTest
from sdbench.audit.laws import TextLaws, claims_draft_law
from sdbench.audit.outcomes import UnknownLawError, is_memoryless, why_unknown
from sdbench.audit.report import ClaimResult
from sdbench.audit.source import Source, Tables
from sdbench.audit.subject import AuditedRule, Subject
from sdbench.audit.texts import DrawTexts, SampledTexts
from sdbench.audit.untested import untested_law

SIZES = (500, 1000, 1500, 2000, 3000, 4000, 6000, 8000, 12000, 16000, 24000, 32000, 48000, 64000)  # texts of a prompt
FALLBACK = 2000  # texts of a prompt where no test states its power in advance
PARTS = (
    250,
    250,
    500,
    1000,
    2000,
    4000,
    8000,
    16000,
    32000,
)  # texts of a prompt and setting in each part; after the last, parts of this size repeat
MIN_TRAINED = 1000  # texts of a prompt of a trained pair, for enough drafted tokens


T = TypeVar("T")


class Fault(NamedTuple):
    """An exception that a rule or a drafter raised: a result, not a crash."""

    setting: int
    trace: str


def run_each(which: Sequence[int], run: Callable[[Sequence[int]], Sequence[T]]) -> list[T | Fault]:
    """Run for these settings at once; where that raises, for each alone, to find whose fault it is."""
    try:
        return list(run(which))
    except Exception:  # noqa: BLE001 - a user's rule may raise anything
        if len(which) == 1:
            return [Fault(which[0], traceback.format_exc())]
    return [result for number in which for result in run_each([number], run)]


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
        tested = [test for test in self.tests if test.samples and test.claim in self.peak]
        return faults + [self._result(name, test, num_tests, options) for test in tested]

    def _result(self, name: str, test: ClaimTest, num_tests: int, options: AuditOptions) -> ClaimResult:
        log_wanted, peak = threshold(num_tests), self.peak[test.claim]
        effect = test.effect(log_wanted)
        verdict: ClaimVerdict = "violated" if peak >= log_wanted else "sound"
        # A TV of t between distributions of texts changes the mean of what is kept of K drafts by at most K·t.
        if verdict == "sound" and not effect.least <= options.tv * getattr(test, "most", 1):
            verdict = "too few"
        p = float(min(1.0, num_tests * np.exp(-max(peak, 0.0))))
        note = "stopped early" if self.is_refuted(log_wanted) else ""
        return ClaimResult(name, test.claim, verdict, float(peak), p, effect, test.samples, test.worst(), note)


def threshold(num_tests: int) -> float:
    """Return the log e at which one of this many tests refutes its claim."""
    return float(np.log(max(num_tests, 1) / ALPHA))


def sample(
    names: Sequence[str], settings: Sequence[RuleTests], options: AuditOptions, *, horizon: int, draw: DrawTexts
) -> tuple[list[ClaimResult], int]:
    """Draw until the horizon, or until every setting is refuted; return all results, and how many texts were drawn."""
    num_tests = options.num_subjects * sum(len(setting.tests) for setting in settings)
    drawn = total = 0
    for look, part in enumerate(chain(PARTS, repeat(PARTS[-1]))):
        count = min(part, horizon - drawn)
        active = [setting for setting in settings if not setting.is_refuted(threshold(num_tests))]
        if count <= 0 or not active:
            break
        samples = run_each(
            [setting.setting for setting in active], lambda which, count=count, look=look: draw(which, count, look)
        )
        for setting, texts in zip(active, samples, strict=True):
            if isinstance(texts, Fault):
                setting.fault = texts.trace
                continue
            total += len(texts[0].tokens)
            try:
                setting.add(texts)
            except Exception:  # noqa: BLE001 - a test computes the law of a user's rule
                setting.fault = traceback.format_exc()
        drawn += count
    return [row for setting in settings for row in setting.results(names[setting.setting], num_tests, options)], total


@dataclass
class AuditPlan:
    """The tests of each setting, and the most texts of a prompt that are drawn."""

    settings: list[RuleTests]
    horizon: int
    untested: list[ClaimResult] = field(
        default_factory=list
    )  # claims that no test can decide for this rule and drafter


def is_law_known(subject: Subject, setting: AuditedRule, source: Source) -> bool:
    """Return whether the law of this setting's texts can be computed. An error of the rule itself is raised."""
    if why_unknown(setting.rule):
        return False
    if isinstance(source, Tables):
        try:
            laws_of(subject, setting.rule, source).texts(0)
        except UnknownLawError:
            return False
    return True


def laws_of(subject: Subject, rule: Any, source: Tables) -> TextLaws:
    """Return the laws under this rule, computed once."""
    key = "laws", id(rule)
    if key not in source.cache:
        source.cache[key] = TextLaws(source, subject.sampling, rule, subject.helper, subject.num_draft, subject.budget)
    return source.cache[key]


def plan_tests(subject: Subject, options: AuditOptions, source: Source) -> AuditPlan:
    """Return the tests of every setting, with as many texts of a prompt as the requested power needs."""
    known = run_each(
        range(len(subject.settings)), lambda which: [is_law_known(subject, subject.settings[n], source) for n in which]
    )
    faults = {result.setting: result.trace for result in known if isinstance(result, Fault)}
    random = [number for number, setting in enumerate(subject.settings) if setting.is_random(subject.sampling)]

    def all_tests(horizon: int) -> list[RuleTests]:
        tests_of: Any = enumerated_tests if isinstance(source, Tables) else token_tests

        def build(which: Sequence[int]) -> list[RuleTests]:
            return [
                RuleTests(n, tests_of(subject, subject.settings[n], source, options, horizon, known[n])) for n in which
            ]

        built = run_each([number for number in random if number not in faults], build)
        faults.update((each.setting, each.trace) for each in built if isinstance(each, Fault))
        return [each for each in built if isinstance(each, RuleTests) and each.tests]

    horizon = options.samples
    if horizon is None:
        horizon = least_horizon(all_tests, len(subject.prompts), options) or FALLBACK
        horizon = horizon if isinstance(source, Tables) else max(horizon, MIN_TRAINED)
    planned = all_tests(horizon)
    broken = [RuleTests(number, [], fault=trace) for number, trace in faults.items()]
    tested = {setting.setting: {test.claim for test in setting.tests} for setting in planned}
    untested = [
        row
        for number in random
        if number not in faults
        for row in untested_law(subject, subject.settings[number], options, tested.get(number, set()))
    ]
    return AuditPlan([*planned, *broken], horizon, untested)


def least_horizon(
    tests_of: Callable[[int], Sequence[RuleTests]], num_prompts: int, options: AuditOptions
) -> int | None:
    """Return how many texts of a prompt the tests of prefixes need to detect a TV of options.tv; None without such a test."""

    def prefix_tests(size: int) -> list[LawTest | PrefixTest]:
        tests = [test for setting in tests_of(size) for test in setting.tests]
        return [test for test in tests if isinstance(test, LawTest | PrefixTest)]

    log_wanted = threshold(options.num_subjects * sum(len(setting.tests) for setting in tests_of(SIZES[0])))

    def is_enough(size: float) -> bool:
        return all(test.least([int(size)] * num_prompts, log_wanted) <= options.tv for test in prefix_tests(int(size)))

    return int(min(first_of(SIZES, is_enough), SIZES[-1])) if prefix_tests(SIZES[0]) else None


def hides_drafts(subject: Subject, setting: AuditedRule) -> bool:
    """Return whether a draft after the first may be missing from a recorded round because of which token it is."""
    return bool(subject.stops) and not is_memoryless(setting.rule)


def enumerated_tests(
    subject: Subject, setting: AuditedRule, source: Tables, options: AuditOptions, horizon: int, is_known: bool
) -> list[ClaimTest]:
    laws, stops, is_greedy = laws_of(subject, setting.rule, source), subject.stops, subject.sampling.is_greedy
    tests: list[ClaimTest] = []
    if is_known and "law" in options.claims:
        tests.append(LawTest("law", laws, stops, horizon, with_rounds=True))
    if setting.is_lossless and not is_greedy and "losslessness" in options.claims:
        tests.append(LawTest("losslessness", laws_of(subject, None, source), stops, horizon))
    if is_known and "acceptance" in options.claims:
        tests.append(RoundAcceptanceTest(laws=laws, stops=stops))
    if claims_draft_law(subject.helper) and not is_greedy and "q" in options.claims:
        num_drafts = horizon * len(subject.prompts) * subject.budget
        given = {"source": source, "sampling": subject.sampling, "is_first_only": hides_drafts(subject, setting)}
        tests.append(DraftTest("q", num_drafts, **given))
    return tests


def token_tests(
    subject: Subject, setting: AuditedRule, source: Source, options: AuditOptions, horizon: int, is_known: bool
) -> list[ClaimTest]:
    """Return the tests where texts cannot be enumerated: of prefixes, and token by token."""
    if subject.sampling.is_cut_uncertain(subject.target.dtype):
        return []
    sampling, has_model, is_exact = subject.sampling, claims_draft_law(subject.helper), subject.rounding < 1e-6
    memoryless = setting.rule if is_memoryless(setting.rule) else None
    rule = None if setting.is_lossless else memoryless
    claimed = ClaimedLaw(source, sampling, rule, has_model, is_exact)
    is_stated = not sampling.is_greedy and (setting.is_lossless or claimed.is_tokenwise)
    is_by_slot = (
        is_stated and has_model and memoryless is not None and depends_on_slot(memoryless, subject.widths, source.vocab)
    )
    by_origin = ClaimedLaw(source, sampling, None if is_by_slot else memoryless, has_model, is_exact)
    num_tokens = horizon * len(subject.prompts) * subject.budget
    is_by_origin = is_stated and by_origin.is_tokenwise
    is_emitted = is_by_origin or (setting.is_lossless and not sampling.is_greedy)  # the law of each token is known
    is_judged = has_model and is_known and not is_by_origin  # its rounds are tested given their blocks
    wants_tokens = bool({"pit", "acceptance"} & set(options.claims))
    acceptance = AcceptanceTest() if "acceptance" in options.claims else None
    tests: list[ClaimTest] = []
    if is_stated and "prefixes" in options.claims:
        # If a block holds two drafts and another round may follow, the second token is drafted whether or not the first was
        # kept; the text does not show in which slot.
        is_whole = subject.num_draft > 1 and not getattr(subject.helper, "varies_length", False) and not is_by_slot
        with_second = (rule is None or (is_whole and subject.budget > 2)) and subject.budget > 1
        tests.append(PrefixTest(claimed, [horizon] * len(subject.prompts), with_second))
    if is_emitted and wants_tokens:
        fed = acceptance if is_by_origin else None
        tests.append(EmittedTest("pit", num_tokens, claimed=by_origin, acceptance=fed))
    if is_judged and wants_tokens:
        given = {"source": source, "sampling": sampling, "rule": setting.rule, "is_exact": is_exact}
        claim = "pit given blocks" if is_emitted else "pit"
        tests.append(JudgedTest(claim, num_tokens, acceptance=acceptance, **given))
    tests += [acceptance] if acceptance is not None and (is_by_origin or is_judged) else []
    if has_model and not sampling.is_greedy and "q" in options.claims:
        given = {"source": source, "sampling": sampling, "is_first_only": hides_drafts(subject, setting)}
        tests.append(DraftTest("q", num_tokens, max_rounds=2000, **given))
    return tests
