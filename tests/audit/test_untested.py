"""A claim that claims= names is tested, or has a row that says why it is not."""

from typing import Any

import pytest

from sdbench.audit import pairs
from sdbench.audit.command import CLAIMS, AuditOptions, parse_audit
from sdbench.audit.native import audit, audit_engine
from sdbench.audit.source import Sampling
from sdbench.audit.subject import AuditedRule, Subject
from sdbench.cli import compose_run
from sdbench.verify import Block, Ensemble, Exact


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    return pairs.random_pair()


def untested(models: tuple[Any, Any], claims: Any, *rules: Any, **options: Any) -> dict[str, str]:
    settings = [AuditedRule(f"rule {number}", rule) for number, rule in enumerate(rules or (Exact(),))]
    subject = Subject(settings, *models, pairs.PROMPTS, **{"num_draft": 2, "budget": 3, **options})
    report = audit(subject, AuditOptions(tv=1, samples=50, claims=claims))
    missing = {row.claim: row.note for row in report.rows if not row.samples}
    assert report.verdict == ("too few" if missing else "sound")
    return missing


GREEDY = Sampling(0.0)


def test_a_law_at_temperature_0_is_named(models):
    notes = untested(models, ("law", "acceptance", "counters"), sampling=GREEDY)
    assert notes == dict.fromkeys(("law", "acceptance"), "at this temperature nothing is random, so it was not tested")
    assert not untested(models, CLAIMS, sampling=GREEDY), "without claims= there is nothing to name"
    assert not untested(models, ("q", "greedy", "counters"), sampling=GREEDY)


def test_q_of_a_drafter_without_a_model_is_named(models):
    assert untested(models, ("q", "counters"), drafter="lookup") == {
        "q": "PromptLookup does not declare that it draws from the draft model, so it was not tested"
    }


def test_batches_in_lower_precision_are_named():
    models = tuple(model.float() for model in pairs.random_pair())
    assert set(untested(models, ("invariance", "counters"))) == {"invariance"}  # type: ignore[arg-type]


def test_greedy_texts_of_a_rule_that_draws_are_named(models):
    rule = Ensemble(0.5, greedy="mixture")
    assert set(untested(models, ("greedy", "counters"), rule)) == {"greedy"}


def test_losslessness_is_named_where_no_setting_claims_it(models):
    claims = ("law", "losslessness")
    assert untested(models, claims, Ensemble(0.5)) == {
        "losslessness": "it does not claim to be lossless, so it was not tested"
    }
    assert not untested(models, claims, Ensemble(1.0), Ensemble(0.5))
    assert not untested(models, ("law", "acceptance"), Block())


def test_a_knob_that_a_rule_does_not_have_is_named():
    report = audit_engine(parse_audit(["verifier=block", "claims=[knob,counters]"], compose_run))
    assert {row.claim: row.verdict for row in report.rows} == {"counters": "sound", "knob": "too few"}
