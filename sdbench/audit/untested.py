"""Claims that no test of a setting covers: each gets a row with the verdict "too few" and the reason."""

from collections.abc import Sequence, Set

from sdbench.audit.command import AuditOptions
from sdbench.audit.laws import claims_draft_law
from sdbench.audit.report import ClaimResult
from sdbench.audit.subject import AuditedRule, Subject

UNCERTAIN_CUT = "rounding in half precision moves the cut of top_k and top_p (use dtype=float32)"


def row_of(name: str, claim: str, why: str) -> ClaimResult:
    return ClaimResult(name, claim, "too few", 0, None, None, 0, note=f"{why}, so it was not tested")


def untested_law(subject: Subject, setting: AuditedRule, options: AuditOptions, tested: Set[str]) -> list[ClaimResult]:
    """Return a row for the distribution of texts if it was requested, as by default, and has no test."""
    laws = ("law", "losslessness") if subject.is_enumerable else ("prefixes", "pit")
    requested = [claim for claim in laws if claim in options.claims]
    if not requested or tested & set(laws):
        return []
    return [row_of(setting.name, requested[0], _why_untested(subject, setting, requested[0]))]


def untested_claims(subject: Subject, options: AuditOptions, rows: Sequence[ClaimResult]) -> list[ClaimResult]:
    """Return a row for each claim that claims= names and that no row of a setting covers.

    Without claims= there are none, since the audit then requests only what the rule, the drafter and the temperature allow. The
    claim of a knob belongs to a sweep, not to a setting.
    """
    if not options.names_claims:
        return []
    tested = {(row.setting, row.claim) for row in rows}
    claims = [claim for claim in options.claims if claim != "knob"]
    if any(row.claim == "losslessness" for row in rows):  # other settings do not claim it
        claims = [claim for claim in claims if claim != "losslessness"]
    return [
        row_of(setting.name, claim, _why_untested(subject, setting, claim))
        for setting in subject.settings
        if (setting.name, "runs") not in tested
        for claim in claims
        if not any((setting.name, row) in tested for row in _rows_of(subject, claim))
    ]


def _rows_of(subject: Subject, claim: str) -> Set[str]:
    """Return the claims whose rows answer for this one."""
    if claim == "law":
        return {"law", "losslessness"}  # the law of a lossless setting is the target's
    if claim == "q" and subject.sampling.is_greedy and claims_draft_law(subject.helper):
        return {"q", "recorded q"}  # q is a single token, which "recorded q" compares with the draft model's best
    return {claim}


def _why_untested(subject: Subject, setting: AuditedRule, claim: str) -> str:
    drafter = type(subject.helper).__name__
    if claim == "losslessness" and not setting.is_lossless:
        return "it does not claim to be lossless"
    if claim == "invariance":
        return "tokens are the same in any batch only in float64, and these models have another dtype"
    if claim == "greedy":
        return "it has no single text at temperature 0"
    if claim == "q" and not claims_draft_law(subject.helper):
        return f"{drafter} does not declare that it draws from the draft model"
    if not setting.is_random(subject.sampling):
        return "at this temperature nothing is random"
    if subject.sampling.is_cut_uncertain(subject.target.dtype):
        return UNCERTAIN_CUT
    if claim == "acceptance":
        return f"the probability of keeping a draft of {drafter} is not known"
    texts = "texts" if setting.is_lossless else "lenient texts"
    return f"the distribution of {texts} with {drafter} is not known"


def testable_without_law(subject: Subject, setting: AuditedRule) -> list[str]:
    """Return the claims that can be tested of a rule whose distribution is unknown."""
    is_testable = {
        "q": claims_draft_law(subject.helper),
        "invariance": subject.is_exact,
        "greedy": setting.has_greedy_text,
        "counters": True,
    }
    return [claim for claim, holds in is_testable.items() if holds]
