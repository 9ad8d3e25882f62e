"""The checks without samples: near-ties of half precision, captured steps, rules without a base class."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from sdbench.audit import pairs
from sdbench.audit.checks import check_greedy, check_invariance
from sdbench.audit.command import AuditOptions
from sdbench.audit.native import audit
from sdbench.audit.report import ExactCheck
from sdbench.audit.source import Sampling
from sdbench.audit.subject import AuditedRule, Subject
from sdbench.lm.capture import CapturedSteps
from sdbench.types import Evidence, Measures, Verdict
from sdbench.verify import Block, Exact


@dataclass(frozen=True, slots=True)
class Relaxed(Exact):
    """Keeps what is at most e² times less likely than the target's best, and claims to be lossless."""

    needs: ClassVar[frozenset[str]] = frozenset({"raw_if_greedy"})

    def greedy_keeps(self, evidence: Evidence) -> Tensor:
        log_p, _ = evidence.raw_logs()
        return log_p.gather(-1, evidence.draft.tokens[..., None])[..., 0] > log_p.amax(-1) - 2


def greedy_checks(target: Any, draft: Any) -> list[ExactCheck]:
    settings = [AuditedRule("exact", Exact()), AuditedRule("relaxed", Relaxed())]
    return check_greedy(Subject(settings, target, draft, pairs.PROMPTS, Sampling(0.0)), [0, 1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_does_not_hide_a_lenient_rule(dtype):
    exact, relaxed = (check.result().verdict for check in greedy_checks(*(m.to(dtype) for m in pairs.random_pair())))
    assert (exact, relaxed) == ("sound", "violated")


def test_an_unsure_draft_does_not_hide_a_lenient_rule():
    """All of its logits are equal; whether a text is the target's does not depend on them."""
    target, draft = pairs.random_pair()
    draft.get_output_embeddings().weight.data.zero_()
    exact, relaxed = (check.result().verdict for check in greedy_checks(target, draft))
    assert (exact, relaxed) == ("sound", "violated")


@pytest.mark.parametrize(("near_ties", "verdict"), [(12, "too few"), (4, "too few"), (3, "sound"), (0, "sound")])
def test_texts_of_which_many_have_near_ties_prove_little(near_ties, verdict):
    assert ExactCheck("exact", "greedy", 12, [], near_ties=near_ties).result().verdict == verdict


def test_steps_of_the_draft_are_captured_too(monkeypatch):
    captured: set[Any] = set()
    honest = CapturedSteps._capture_step

    def record(self: CapturedSteps, step: Any, kind: Any, length: int, inputs: Any) -> Any:
        captured.add(kind[0][0])
        return honest(self, step, kind, length, inputs)

    monkeypatch.setattr(CapturedSteps, "_capture_step", record)
    subject = Subject([AuditedRule("exact", Exact())], *pairs.random_pair(), pairs.PROMPTS, Sampling(0.0))
    (check,) = check_invariance(subject, [0])
    assert not check.deviations
    assert "draft" in captured


class Bare:
    """The block rule with the members of the protocol only: without a base class."""

    def is_lossless(self) -> Tensor:
        return torch.tensor([True])

    def init_state(self, prompts: Sequence[Tensor], device: Any) -> None:
        return None

    def __call__(self, evidence: Evidence, u: Tensor, state: Tensor | None = None) -> Verdict:
        return Block()(evidence, u, state)

    def measure(self, evidence: Evidence) -> Measures:
        return Block().measure(evidence)


def test_a_rule_without_a_base_class_has_one_text_at_temperature_0():
    subject = Subject([AuditedRule("bare", Bare())], *pairs.random_pair(), pairs.PROMPTS, Sampling(0.0))
    rows = audit(subject, AuditOptions(claims=("greedy", "counters", "q"))).rows
    assert {row.claim: row.verdict for row in rows} == dict.fromkeys(("greedy", "counters", "recorded q"), "sound")
