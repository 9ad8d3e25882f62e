"""What is emitted has the exact law: chi-square against an enumeration of the rounds with their latent (slot, accepted)."""

import itertools
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

import sdbench
from sdbench import noise
from sdbench.types import Verdict
from sdbench.verify import Ensemble, Exact
from tests.engine.models import pair

VOCAB, K, NEW, SAMPLES = 4, 2, 4, 12_000
PROMPT = [0, 1, 2]
ALPHA = 1e-4  # a true null fails once in ten thousand runs; seeds are fixed, so it does not fail by chance


@pytest.fixture(scope="module")
def models():
    return pair("llama", vocab=VOCAB, scale=0.6, eos_token_id=None)


def laws(model):
    @cache
    def law(context):
        with torch.no_grad():
            return model(torch.tensor([context])).logits[0, -1].softmax(-1).numpy()

    return law


def exact_law(models, w):
    """{sequence: probability}: every round with its drafts, where it stopped, and what came next."""
    p, q = laws(models[0]), laws(models[1])

    @cache
    def law(context, left):
        if not left:
            return {(): 1.0}
        k = min(K, left - 1)
        seen = Counter()

        def go_on(prefix, weight, token_law):
            for token in range(VOCAB):
                chance = weight * token_law[token]
                if chance:
                    emitted = (*prefix, token)
                    for rest, more in law((*context, *emitted), left - len(emitted)).items():
                        seen[(*emitted, *rest)] += chance * more

        def walk(prefix, weight):
            here = (*context, *prefix)
            if len(prefix) == k:
                go_on(prefix, weight, p(here))
                return
            target, draft = p(here), q(here)
            keep = np.minimum(1, 1 - w + w * target / draft)
            refused = (draft * (1 - keep)).sum()
            if refused > 0:
                over = np.maximum(target - draft, 0)
                go_on(prefix, weight * refused, over / over.sum())
            for token in range(VOCAB):
                walk((*prefix, token), weight * draft[token] * keep[token])

        walk((), 1.0)
        return dict(seen)

    return law(tuple(PROMPT), NEW)


def p_value(models, rule, w, **options):
    """Of the emitted sequences against the exact law; sequences expected fewer than five times are pooled."""
    seen = sdbench.generate(
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
    counts = Counter(g.tokens for g in seen)
    law = exact_law(models, w)
    assert abs(sum(law.values()) - 1) < 1e-9
    assert set(counts) <= set(law)
    common = [s for s, chance in law.items() if chance * SAMPLES >= 5]
    observed = np.array([*(counts[s] for s in common), SAMPLES - sum(counts[s] for s in common)], dtype=float)
    expected = np.array([law[s] * SAMPLES for s in common])
    expected = np.append(expected, SAMPLES - expected.sum())
    keep = expected > 1e-6
    return chisquare(observed[keep], expected[keep]).pvalue


@pytest.mark.parametrize("w", [1.0, 0.5, 0.0])
def test_emitted_sequences_have_the_exact_law(models, w):
    assert p_value(models, Ensemble(w=w), w) > ALPHA


def test_exact_emits_the_target(models):
    target = laws(models[0])
    direct = {
        tokens: float(np.prod([target((*PROMPT, *tokens[:i]))[t] for i, t in enumerate(tokens)]))
        for tokens in itertools.product(range(VOCAB), repeat=NEW)
    }
    law = exact_law(models, 1.0)
    assert max(abs(law.get(s, 0.0) - chance) for s, chance in direct.items()) < 1e-12
    assert p_value(models, Exact(), 1.0) > ALPHA


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


@pytest.mark.parametrize("fault", [ResidualOfTheWrongLaw, ReusedCoin, BonusFromTheDraft])
def test_a_planted_fault_is_caught(models, fault):
    assert p_value(models, fault(), 1.0) < ALPHA


def test_one_uniform_a_text_position_is_caught(models, monkeypatch):
    """Noise named by the place in the text: a coin of one round is the draw of another, and the drafter's own."""
    honest = noise.uniforms

    def by_position(keys, rounds, slots, stream):
        places = np.where(slots == noise.DRAW, 0, slots)
        return honest(keys, rounds, places.astype(np.uint64), 0)

    monkeypatch.setattr(noise, "uniforms", by_position)
    assert p_value(models, Exact(), 1.0) < ALPHA
