"""What is emitted has the exact law: chi-square against the audit's enumeration of the rounds with their latents."""

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

import sdbench
from sdbench import noise
from sdbench.audit.evidence import CountEvidence
from sdbench.audit.laws import TextLaws
from sdbench.audit.source import Sampling, Tables
from sdbench.audit.texts import TextBatch, number_of
from sdbench.types import Verdict
from sdbench.verify import Block, Ensemble, Exact, ExactMatch
from tests.engine.models import pair

VOCAB, K, NEW, SAMPLES = 4, 2, 4, 12_000
PROMPT = [0, 1, 2]
ALPHA = 1e-4  # a true null fails once in ten thousand runs; seeds are fixed, so it does not fail by chance


@pytest.fixture(scope="module")
def models():
    return pair("llama", vocab=VOCAB, scale=0.6, eos_token_id=None)


def exact_laws(models, rule):
    """Of the audit: what this rule emits, None being the target alone."""
    tables = Tables(dict(zip(("target", "draft"), models, strict=True)), [PROMPT], VOCAB, NEW)
    return TextLaws(tables, Sampling(), rule, None, K, NEW)


def p_value(models, rule, claimed):
    """Of the emitted sequences against the exact law; sequences expected fewer than five times are pooled."""
    generations = sdbench.generate(
        *models,
        [PROMPT],
        [rule],
        num_draft=K,
        max_new_tokens=NEW,
        samples=SAMPLES,
        batch_size=2000,
        stop_ids=(),
        measure=False,
    )
    texts = TextBatch.of_generations(generations, NEW)
    law = exact_laws(models, claimed).texts(0)
    assert abs(float(law.sum()) - 1) < 1e-9
    counts = CountEvidence(law.numpy(), SAMPLES)
    counts.add(number_of(texts.tokens, VOCAB).numpy())
    keep = counts.expected > 1e-9
    assert counts.seen[~keep].sum() == 0
    return chisquare(counts.seen[keep], counts.expected[keep] * SAMPLES).pvalue


@pytest.mark.parametrize("w", [1.0, 0.5, 0.0])
def test_emitted_sequences_have_the_exact_law(models, w):
    assert p_value(models, Ensemble(w=w), Ensemble(w=w)) > ALPHA


@pytest.mark.parametrize("rule", [Exact(), Block(), ExactMatch()], ids=lambda rule: type(rule).__name__)
def test_a_lossless_rule_emits_the_target(models, rule):
    """By enumeration, to 1e-12; and the target alone is the product of its own laws."""
    law, alone = exact_laws(models, rule).texts(0), exact_laws(models, None)
    torch.testing.assert_close(law, alone.texts(0), rtol=0, atol=1e-12)
    for number, tokens in enumerate(itertools.product(range(VOCAB), repeat=NEW)):
        with torch.no_grad():
            logits = models[0](torch.tensor([[*PROMPT, *tokens]])).logits[0, len(PROMPT) - 1 : -1]
        direct = logits.softmax(-1).gather(-1, torch.tensor(tokens)[:, None]).prod()
        assert abs(float(alone.texts(0)[number] - direct)) < 1e-12


def test_exact_emits_the_target(models):
    assert p_value(models, Exact(), None) > ALPHA


@dataclass(frozen=True, slots=True)
class ResidualOfTheWrongLaw(Exact):
    def replace(self, p, q):
        return p


@dataclass(frozen=True, slots=True)
class ReusedCoin(Exact):
    def __call__(self, evidence, u, state=None):
        return Exact.__call__(self, evidence, torch.cat((u[:, :-1], u[:, :1]), 1), state)


@dataclass(frozen=True, slots=True)
class BonusFromTheDraft(Exact):
    def __call__(self, evidence, u, state=None):
        p = evidence.p.clone()
        if evidence.draft.tokens.shape[1]:
            p[:, -1] = evidence.draft.q[:, -1]
        verdict = Exact.__call__(self, replace(evidence, p=p), u, state)
        return Verdict(verdict.accepted, verdict.next_token, state)


@pytest.mark.parametrize(
    "fault",
    [
        ResidualOfTheWrongLaw,
        *(pytest.param(fault, marks=pytest.mark.slow) for fault in (ReusedCoin, BonusFromTheDraft)),
    ],
)
def test_a_planted_fault_is_caught(models, fault):
    assert p_value(models, fault(), None) < ALPHA


@pytest.mark.slow
def test_one_uniform_a_text_position_is_caught(models, monkeypatch):
    """Noise named by the place in the text: a coin of one round is the draw of another, and the drafter's own."""
    honest = noise.uniforms

    def by_position(keys, rounds, slots, stream):
        places = np.where(slots == noise.DRAW, 0, slots)
        return honest(keys, rounds, places.astype(np.uint64), 0)

    monkeypatch.setattr(noise, "uniforms", by_position)
    assert p_value(models, Exact(), None) < ALPHA
