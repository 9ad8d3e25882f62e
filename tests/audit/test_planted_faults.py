"""The audit catches every planted fault, and passes what is sound."""

from dataclasses import dataclass, replace

import pytest
from torch import Tensor

from sdbench.audit.build import build
from sdbench.audit.command import AuditOptions, parse_audit
from sdbench.audit.native import audit
from sdbench.audit.pairs import random_pair
from sdbench.audit.subject import AuditedRule
from sdbench.cli import compose_run
from sdbench.types import Evidence, Verdict
from sdbench.verify import FLy
from tests.audit.faults import FAULTS, HONEST, Fault

QUICK = ("residual from the wrong law", "one-hot q claimed for a sampled draft")


@pytest.fixture(scope="module")
def models():
    return random_pair()


def verdict(fault: Fault, models, seed: int) -> str:
    with fault.patch():
        return audit(fault.subject(models, seed)).verdict


@pytest.mark.slow
def test_the_default_is_sound(models):
    report = audit(HONEST[0].subject(models))
    assert report.verdict == "sound"
    tested = {row.claim for row in report.rows}
    assert tested == {"law", "losslessness", "acceptance", "q", "recorded q", "counters", "invariance", "greedy"}


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.name in QUICK], ids=lambda fault: fault.name)
def test_a_planted_fault_is_caught(models, fault):
    assert verdict(fault, models, 0) == "violated"


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "fault"), list(enumerate(FAULTS, start=1)), ids=[fault.name for fault in FAULTS])
def test_every_planted_fault_is_caught(models, fault, seed):
    """At one seed each; `python -m scripts.audit_faults` takes three, and its table is committed."""
    assert verdict(fault, models, seed) == "violated"


@pytest.mark.slow
@pytest.mark.parametrize("honest", HONEST[::4], ids=lambda fault: fault.name)
def test_what_is_sound_passes(models, honest):
    assert verdict(honest, models, 1) == "sound"


@dataclass(frozen=True, slots=True)
class ShortWindow(FLy):
    """Forgives what one matching draft follows, and claims to ask for two."""

    def __call__(self, evidence: Evidence, u: Tensor, state: Tensor | None = None) -> Verdict:
        return FLy.__call__(replace(self, window=1), evidence, u, state)


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "said"), [(FLy, "sound"), (ShortWindow, "violated")])
def test_a_joint_rule_is_held_to_its_law_on_a_trained_pair_too(rule, said):
    """Where nothing can be enumerated: round by round, given what was drafted."""
    subject = build(parse_audit(["verifier=fly", "verifier.window=2", "model=llama-tiny"], compose_run)).subject
    subject.settings = [AuditedRule("fly", rule(window=2, entropy=0.01))]
    report = audit(subject, AuditOptions(tv=1, samples=150, claims=("pit", "acceptance")))
    assert {row.claim for row in report.rows} == {"pit", "acceptance"}
    assert report.verdict == said
