"""Learned rules pass the audit given what their heads say, in a mixed batch; one that reads a neighbour's state does not."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from sdbench.audit import pairs
from sdbench.audit.build import build
from sdbench.audit.command import AuditOptions, parse_audit
from sdbench.audit.native import audit
from sdbench.audit.source import Sampling
from sdbench.audit.subject import AuditedRule, Subject
from sdbench.cli import compose_run
from sdbench.types import Evidence, Verdict
from sdbench.verify import Diversed, Exact, Head, Judge
from sdbench.verify.head import width_of

CLAIMS = ("greedy", "invariance", "counters")
SAMPLED = ("law", "losslessness", "acceptance", *CLAIMS)


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    return pairs.random_pair()


def head_of(models: tuple[Any, Any], kind: str, *features: str) -> Head:
    """Weights at random, so that what it says differs from place to place."""
    target, draft = (model.config.hidden_size for model in models)
    size = width_of(features, {"target_hidden": target, "token_hidden": target, "draft_hidden": draft})
    weight = torch.randn(1, size, generator=torch.Generator().manual_seed(size))
    return Head(kind, features, {"weight": 3 * weight / size**0.5, "bias": torch.zeros(1)})


def verdict(models: tuple[Any, Any], rules: list[Any], temperature: float) -> str:
    settings = [AuditedRule(f"{type(rule).__name__} {number}", rule) for number, rule in enumerate(rules)]
    subject = Subject(settings, *models, pairs.PROMPTS, Sampling(temperature), stops=(pairs.STOP,))
    return audit(subject, AuditOptions(tv=0.1, claims=SAMPLED if temperature else CLAIMS)).verdict


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0, 1])
def test_learned_rules_emit_the_law_of_what_their_heads_say(models, temperature):
    own = head_of(models, "ensemble", "draft_hidden", "target_hidden")
    rules = [
        Diversed(own),
        Diversed(own, offset=-1.0),
        Judge(head_of(models, "judge", "token_hidden")),
        Diversed(head_of(models, "ensemble", "tv", "target_entropy")),
        Exact(),
    ]
    assert verdict(models, rules, temperature) == "sound"


@dataclass(frozen=True, slots=True)
class Late(Diversed):
    """Judges each draft by the state behind it, and claims nothing else: an off-by-one that no shape betrays."""

    def __call__(self, evidence: Evidence, u: Tensor, state: Tensor | None = None) -> Verdict:
        assert evidence.target_hidden is not None, "its head names the target's states"
        return Diversed.__call__(self, replace(evidence, target_hidden=evidence.target_hidden.roll(-1, 1)), u, state)


@pytest.mark.slow
def test_a_head_that_reads_its_neighbours_state_is_caught(models):
    assert verdict(models, [Late(head_of(models, "ensemble", "target_hidden")), Exact()], 1) == "violated"


def test_a_head_of_the_audited_pair_is_accepted():
    words = ["verifier=judge", "verifier.head=embedded:llama-tiny/gsm8k-tiny", "model=llama-tiny"]
    assert [setting.rule.head.card["model"] for setting in build(parse_audit(words, compose_run)).subject.settings]
