"""What the audit does not test it says: no setting is called sound whose law was not compared with anything."""

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from sdbench.audit import native, pairs
from sdbench.audit.claims import PAIRS, Effect
from sdbench.audit.command import CLAIMS, AuditOptions, parse_audit
from sdbench.audit.native import audit
from sdbench.audit.plan import RuleTests, plan_tests, sample, threshold
from sdbench.audit.report import AuditReport
from sdbench.audit.source import Sampling
from sdbench.audit.subject import AuditedRule, Subject
from sdbench.audit.texts import TextBatch
from sdbench.cli import compose_run
from sdbench.types import Verdict
from sdbench.verify import Block, CascadeChow, Diversed, Exact, FLy, FuzzyTV, Head, Joint, Lenience, Synthetic, Typical
from sdbench.verify.tokenwise import draw_bonus

WIDE = 40  # ids: 40^4 texts are too many to enumerate


@pytest.fixture(scope="module")
def wide_pair() -> tuple[Any, Any]:
    return pairs.random_pair(vocab=WIDE)


def report_of(
    models: tuple[Any, Any], rule: Any, claims: Any = CLAIMS, samples: int = 300, **options: Any
) -> AuditReport:
    options = {"num_draft": 2, "budget": 4, **options}
    subject = Subject([AuditedRule("rule", rule)], *models, [[0, 1, 2, 0, 1]], **options)
    return audit(subject, AuditOptions(tv=1, samples=samples, claims=claims))


def verdicts(report: AuditReport) -> dict[str, str]:
    return {row.claim: row.verdict for row in report.rows}


def test_a_lenient_law_that_a_drafter_leaves_unknown_is_not_sound(wide_pair):
    report = report_of(wide_pair, Typical(0.5, 0.9), drafter="lookup")
    (row,) = [row for row in report.rows if row.verdict == "too few"]
    assert (report.verdict, row.claim, row.samples) == ("too few", "prefixes", 0)
    assert "the distribution of lenient texts with PromptLookup is not known, so it was not tested" in row.note
    assert report_of(wide_pair, Exact(), drafter="lookup").verdict == "sound"


def test_a_lenient_law_that_cannot_be_enumerated_is_not_sound():
    """A drafter that reads which of its drafts were kept, on the pair whose texts are enumerated."""
    options = {"drafter_options": {"length": "adaptive"}, "num_draft": 3, "budget": 5, "stops": (pairs.STOP,)}
    report = report_of(pairs.random_pair(), Typical(0.5, 0.9), **options)
    assert verdicts(report)["law"] == "too few"


def test_acceptance_that_is_named_is_tested_or_reported(wide_pair):
    assert verdicts(report_of(wide_pair, Block(), ("acceptance",)))["acceptance"] == "sound"
    assert verdicts(report_of(wide_pair, Exact(), ("acceptance",)))["acceptance"] == "sound"
    report = report_of(wide_pair, Exact(), ("acceptance",), drafter="lookup")
    assert (verdicts(report)["acceptance"], report.verdict) == ("too few", "too few")


def test_a_lossless_joint_rule_is_tested_given_its_blocks(wide_pair):
    assert set(verdicts(report_of(wide_pair, Block()))) >= {"prefixes", "pit", "pit given blocks", "acceptance"}
    assert {"pit", "acceptance"} <= set(verdicts(report_of(wide_pair, FLy(window=1, entropy=0.3))))


def test_a_rule_that_draws_at_temperature_0_is_tested_there(wide_pair):
    rows = verdicts(report_of(wide_pair, Synthetic(0.6), sampling=Sampling(0.0)))
    assert (rows["pit"], rows["acceptance"]) == ("sound", "sound")


class KeepsTooMuch(Block):
    """Claims what the block rule does, but judges as if its drafts were likelier."""

    def __call__(self, evidence, u, state=None):
        return Block.__call__(self, evidence, u**2, state)


def test_a_joint_rule_that_keeps_too_much_is_caught_by_acceptance(wide_pair):
    report = report_of(wide_pair, KeepsTooMuch(), ("acceptance",))
    assert verdicts(report)["acceptance"] == "violated"


class CannotAccept(Lenience):
    """Judges blocks, but raises where it is asked for its law."""

    def __call__(self, evidence, u, state=None):
        return Exact()(evidence, u, state)

    def accept(self, p, q):
        raise ZeroDivisionError("no such law")


class HasNoOutcomes(Block):
    def outcomes(self, evidence, prompt, texts):
        raise ZeroDivisionError("no such law")


@pytest.mark.parametrize("rule", [CannotAccept(0.5), HasNoOutcomes()], ids=lambda rule: type(rule).__name__)
def test_a_rule_that_raises_while_its_law_is_computed_is_violated_and_other_settings_are_tested(wide_pair, rule):
    settings = [AuditedRule("raises", rule), AuditedRule("exact", Exact())]
    subject = Subject(settings, *wide_pair, [[0, 1, 2, 0, 1]], num_draft=2, budget=4)
    report = audit(subject, AuditOptions(tv=1, samples=300))
    assert report.verdict == "violated"
    (row,) = [row for row in report.rows if (row.setting, row.claim) == ("raises", "runs")]
    assert row.sentence.startswith("ZeroDivisionError: no such law")
    of_exact = {row.claim: row.verdict for row in report.rows if row.setting == "exact"}
    assert set(of_exact) >= {"prefixes", "pit", "acceptance", "q", "counters", "greedy"}
    assert set(of_exact.values()) == {"sound"}


@pytest.mark.parametrize("cut", [{"top_p": 0.8}, {"top_k": 3}], ids=["top_p", "top_k"])
def test_a_cut_that_rounding_moves_is_no_evidence(wide_pair, cut):
    """An engine whose logits differ by .1 keeps other tokens: one at the cut may have any probability."""
    target, draft = (copy.deepcopy(model).bfloat16() for model in wide_pair)
    assert Sampling(1.0, **cut).is_cut_uncertain(torch.float16)
    assert not Sampling(1.0, **cut).is_cut_uncertain(torch.float32)
    assert not Sampling(1.0, None, 1.0).is_cut_uncertain(torch.bfloat16)
    subject = Subject([AuditedRule("rule", Exact())], target, draft, [[0, 1]], Sampling(1.0, **cut), budget=4)
    row_count = {}
    for claims in (CLAIMS, ("prefixes", "pit", "acceptance", "q")):
        plan = plan_tests(subject, AuditOptions(tv=1, samples=300, claims=claims), subject.source())
        row_count[claims] = [(row.claim, row.verdict) for row in plan.untested]
        assert not plan.settings
        assert "moves the cut of top_k and top_p (use dtype=float32), so it was not tested" in plan.untested[0].note
    assert set(map(tuple, row_count.values())) == {(("prefixes", "too few"),)}


class Peeks(Joint):
    """Keeps all drafts if the last is likely, else none: whether the first ends the text depends on those after it."""

    def __call__(self, evidence, u, state=None):
        drafts, lengths = evidence.draft.tokens, evidence.draft.lengths
        if not drafts.shape[1]:
            return draw_bonus(evidence, u, state)
        rows, last = torch.arange(len(drafts)), (lengths - 1).clamp_min(0)
        is_likely = drafts[rows, last] == evidence.draft.q[rows, last].argmax(-1)
        return Verdict(torch.where(is_likely, lengths, 0), torch.zeros_like(lengths))


def test_drafts_that_a_stop_hides_are_no_evidence_against_q():
    """The engine does not record drafts after a stop; for a joint rule those that are recorded are a biased sample."""
    report = report_of(pairs.random_pair(), Peeks(), ("q",), num_draft=2, budget=3, stops=(1,), samples=2000)
    assert verdicts(report)["q"] == "sound"


@pytest.mark.parametrize("rule", [CascadeChow(0.1), FuzzyTV(0.5)], ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("drafter", ["lookup", "suffix"])
def test_a_rule_of_raw_logits_reads_those_of_its_drafter(rule, drafter):
    """Not those of the pair's draft model, from which nothing was drafted."""
    report = report_of(pairs.random_pair(), rule, ("law", "acceptance"), drafter=drafter, samples=1000)
    assert set(verdicts(report).values()) == {"sound"}


def slot_head(*weights: float) -> Head:
    """Return a head whose weight of the target grows with the slot: .05, .5, .95 for 3 and -3."""
    weight, bias = (torch.tensor(values) for values in ([[weights[0]]], [weights[1]]))
    return Head("ensemble", ("slot",), {"weight": weight, "bias": bias})


@dataclass(frozen=True, slots=True)
class OneSlotLate(Diversed):
    """Claims what its head says, but judges each draft as if it were in the slot before."""

    def __call__(self, evidence, u, state=None):
        return Diversed(slot_head(3.0, -6.0))(evidence, u, state)


@pytest.mark.parametrize(("rule", "verdict"), [(Diversed, "sound"), (OneSlotLate, "violated")])
def test_a_rule_that_reads_the_slot_is_held_to_the_slots_of_its_blocks(wide_pair, rule, verdict):
    claims = ("prefixes", "pit", "acceptance")
    report = report_of(wide_pair, rule(slot_head(3.0, -3.0)), claims, samples=1000, num_draft=3, budget=6)
    assert report.verdict == verdict
    assert set(verdicts(report)) == set(claims)
    assert [row.effect.untested for row in report.rows if row.claim == "prefixes"] == [PAIRS]


@dataclass
class Fixed:
    """A test with this evidence, whatever is sampled."""

    value: float
    claim: str = "law"
    samples: int = 1

    def add(self, texts: Any, rounds: Any) -> None: ...

    def log_e(self) -> float:
        return self.value

    def effect(self, log_wanted: float) -> Effect:
        return Effect("TV", 0, 0, 1, 0)

    def worst(self) -> None:
        return None


def test_audits_of_one_run_share_its_family_wise_error():
    """Evidence that just refutes one claim of one audit refutes none of five audits."""
    texts = TextBatch.of([0], [[1]], 1)

    def verdict(num_subjects: int) -> str:
        tests: Any = [Fixed(threshold(1) + 0.1)]
        options = AuditOptions(num_subjects=num_subjects)
        rows, _ = sample(["rule"], [RuleTests(0, tests)], options, horizon=1, draw=lambda *_: [(texts, None)])
        return rows[0].verdict

    assert [verdict(1), verdict(5)] == ["violated", "sound"]


def test_as_many_texts_are_drawn_as_are_requested():
    drawn: list[int] = []

    def draw(which: Any, count: int, look: int) -> list[Any]:
        drawn.append(count)
        return [(TextBatch.of([0], [[1]], 1), None)]

    tests: Any = [Fixed(0)]
    sample(["rule"], [RuleTests(0, tests)], AuditOptions(), horizon=200_000, draw=draw)
    assert sum(drawn) == 200_000


def test_each_drafter_of_a_run_is_an_audit_of_it(monkeypatch):
    seen: list[int] = []

    def record(subject: Subject, options: AuditOptions) -> AuditReport:
        seen.append(options.num_subjects)
        return AuditReport("", [])

    monkeypatch.setattr(native, "audit", record)
    native.audit_engine(parse_audit(["drafter=[lookup,suffix,model]", "claims=[law]"], compose_run))
    assert seen == [3, 3, 3]
