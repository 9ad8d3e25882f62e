"""The exact law of every rule on enumerated laws: out, acceptance, bias, both ends of the knob, empty and full drafts."""

import pytest
import torch

from sdbench.types import DraftBlock, Evidence
from sdbench.verify import Ensemble, Exact, stack

V = 5
RULES = [Exact(), *(Ensemble(w=w, mix=mix) for w in (0.0, 0.3, 1.0) for mix in ("prob", "logit"))]


def laws(b=40, k=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    p, q = torch.rand(2, b, k, V, dtype=torch.float64, generator=generator)
    p[..., 0] = q[..., 0] = 0  # a token that neither has
    p[::3, :, 1] = 0  # one that only the draft has
    q[1::3, :, 2] = 0  # and one that only the target has
    return p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)


def tv(p, q):
    return (p - q).abs().sum(-1) / 2


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_out_is_a_law_without_nan_at_both_ends(rule):
    p, q = laws()
    out = rule.out(p, q)
    assert torch.isfinite(out).all()
    assert torch.allclose(out.sum(-1), torch.ones(()).double(), atol=1e-12)
    assert (out[..., 0] == 0).all()
    assert out.dtype == torch.float64


def test_exact_emits_p():
    p, q = laws()
    assert torch.allclose(Exact().out(p, q), p, atol=1e-12)


@pytest.mark.parametrize("w", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_the_ensemble_emits_v_accepts_1_minus_w_tv_and_is_biased_by_the_rest(w):
    p, q = laws()
    rule = Ensemble(w=w)
    assert torch.allclose(rule.out(p, q), w * p + (1 - w) * q, atol=1e-12)
    assert torch.allclose((q * rule.accept(p, q)).sum(-1), 1 - w * tv(q, p), atol=1e-12)
    assert torch.allclose(tv(rule.out(p, q), p), (1 - w) * tv(q, p), atol=1e-12)


@pytest.mark.parametrize("w", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_the_mixture_of_logits_emits_the_normalised_product_of_powers(w):
    p, q = laws()
    v = p**w * q ** (1 - w)
    assert torch.allclose(Ensemble(w=w, mix="logit").out(p, q), v / v.sum(-1, keepdim=True), atol=1e-12)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_measured_values_are_those_of_the_definition(rule):
    p, q = laws()
    bonus = p[:, :1]
    draft = DraftBlock(q.argmax(-1), q, torch.full((len(p),), 3))
    measured = rule.measure(Evidence(torch.cat((p, bonus), 1), draft))
    assert torch.allclose(measured.tv, tv(p, q), atol=1e-12)
    assert torch.allclose(measured.expected, (q * rule.accept(p, q)).sum(-1), atol=1e-12)
    assert torch.allclose(measured.bias, tv(rule.out(p, q), p), atol=1e-12)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_an_empty_draft_is_the_target(rule):
    p, q = laws()
    u = torch.rand(len(p), 4, dtype=torch.float64)
    empty = DraftBlock(q.argmax(-1), q, torch.zeros(len(p), dtype=torch.int64))
    verdict = rule(Evidence(torch.cat((p, p[:, :1]), 1), empty), u)
    cdf = p[:, 0].cumsum(-1)
    assert (verdict.accepted == 0).all()
    assert (verdict.next_token == (cdf > u[:, -1:] * cdf[:, -1:]).long().argmax(-1)).all()


def test_w_0_keeps_every_draft():
    p, q = laws()
    draft = DraftBlock(q.argmax(-1), q, torch.full((len(p),), 3))
    verdict = Ensemble(w=0.0)(Evidence(torch.cat((p, p[:, :1]), 1), draft), torch.rand(len(p), 4, dtype=torch.float64))
    assert (verdict.accepted == 3).all()


@pytest.mark.parametrize("rule", [Exact(), Ensemble(w=0.4)], ids=str)
def test_one_row_and_one_slot_keep_their_shape_and_dtype(rule):
    p, q = laws(1, 1)
    for dtype in (torch.float32, torch.float64):
        for result in (rule.accept(p.to(dtype), q.to(dtype)), rule.replace(p.to(dtype), q.to(dtype))):
            assert result.shape == (1, 1, V)
            assert result.dtype == dtype


def test_stacked_knobs_judge_each_row_by_its_own():
    p, q = laws(6)
    ws = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    together = stack([Ensemble(w=w) for w in ws])
    for row, w in enumerate(ws):
        one = slice(row, row + 1)
        assert torch.allclose(together.out(p, q)[one], Ensemble(w=w).out(p[one], q[one]), atol=1e-15)


def test_equal_laws_are_always_accepted():
    p, _ = laws()
    assert torch.allclose((p * Exact().accept(p, p)).sum(-1), torch.ones(()).double())
    assert torch.allclose(Exact().replace(p, p), p)


def test_lossless_is_claimed_where_it_holds():
    assert Exact().is_lossless().all()
    assert Ensemble(w=1).is_lossless().all()
    assert not Ensemble(w=0.99).is_lossless().any()
