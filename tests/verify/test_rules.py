"""The exact law of every rule on enumerated laws: out, acceptance, bias, both ends of the knob, empty and full drafts."""

import pytest
import torch

from sdbench.types import DraftBlock, Evidence
from sdbench.verify import Ensemble, Exact, FuzzyJS, FuzzyKL, FuzzyTV, stack, tokenwise

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


@pytest.mark.parametrize("kind", [FuzzyJS, FuzzyKL, FuzzyTV])
def test_fuzzy_decoding_at_threshold_0_emits_the_target_where_rounding_hides_its_distance_from_the_draft(kind):
    """In float32 the divergence of laws that nearly agree may be rounded to 0 or below; that of equal laws is 0."""
    generator = torch.Generator().manual_seed(0)
    raw_p = 3 * torch.randn(128, 2, 1000, generator=generator)
    raw_q = raw_p[:, :1] + 1e-4 * torch.randn(128, 1, 1000, generator=generator)
    raw_q[::16] = raw_p[::16, :1]
    p, q = raw_p.softmax(-1), raw_q.softmax(-1)
    evidence = Evidence(p, DraftBlock(q.argmax(-1), q, torch.ones(128).long(), raw_q), logits=raw_p)
    p = p[:, :1]
    assert (kind(0.0).distance(p, q) <= 0).any()
    rule = stack([kind(0.0), kind(0.01)] * 64).settle(evidence)
    assert torch.equal(rule.out(p, q)[::2], p[::2])
    assert (rule.accept(p, q)[::2] == 0).all()
    assert (rule.accept(p, q)[1::2] == 1).all()


def test_lossless_is_claimed_where_it_holds():
    assert Exact().is_lossless().all()
    assert Ensemble(w=1).is_lossless().all()
    assert not Ensemble(w=0.99).is_lossless().any()


def ties(b, k, seed):
    """Un-tempered logits with many ties, so that a law's most likely token is often one of several."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, (b, k, V), generator=generator).double() / 2


@pytest.mark.parametrize("mix", ["prob", "logit"])
@pytest.mark.parametrize("w", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("keeps_logits", [True, False])
def test_the_blend_computes_no_law_where_both_models_agree_and_decides_as_if_it_did(monkeypatch, mix, w, keeps_logits):
    b, k = 60, 3
    raw_p, raw_q = ties(b, k + 1, 0), ties(b, k, 1)
    raw_p[:20, :k] = raw_q[:20]
    x = torch.randint(
        0, V, (b, k), generator=torch.Generator().manual_seed(2)
    )  # not always what the draft would choose
    q = raw_q.argmax(-1)
    x = torch.where(torch.arange(b)[:, None] % 3 > 0, q, x)
    block = DraftBlock(x, q if keeps_logits else x, torch.full((b,), k), raw_q if keeps_logits else None)
    evidence = Evidence(raw_p.argmax(-1), block, True, raw_p)
    rule = stack([Ensemble(w=w, mix=mix)] * 30 + [Ensemble(w=(1 + w) / 2, mix=mix)] * 30)
    u = torch.full((b, k + 1), 0.5, dtype=torch.float64)
    counts = []
    plain = Evidence.raw_logs

    def counted(self, pick):
        logs = plain(self, pick)
        counts.append(logs[0].shape[:-1].numel())
        return logs

    monkeypatch.setattr(Evidence, "raw_logs", counted)
    monkeypatch.setattr(tokenwise, "SLICE", V)  # a slot at a time
    quick = rule(evidence, u)
    num_quick = sum(counts)
    monkeypatch.setattr(Ensemble, "agrees_with_both", torch.tensor(False))
    whole = rule(evidence, u)
    assert torch.equal(quick.accepted, whole.accepted)
    assert torch.equal(quick.next_token, whole.next_token)
    assert num_quick < (sum(counts) - num_quick) * (0.95 if w == 0 else 0.85), (
        "at w = 0 only half of the rows are spared"
    )


def test_tokens_that_only_the_logits_tell_apart_are_decided_alike_in_any_batch():
    """In float32 the logarithms of the law of two neighbouring floats are equal. A lossless end still says what the target says,
    and no row changes what another one does.
    """
    raw = torch.zeros(2, 2, 1000)
    raw[:, :, 0], raw[:, :, 1] = 0.1, torch.tensor(0.1).nextafter(torch.tensor(1.0))
    draft = raw[:, :1].clone()
    draft[1, 0, 7] = 3.0  # the second row's draft would rather say something else
    best = raw.argmax(-1)
    logs = raw.log_softmax(-1)
    assert (best == 1).all()
    assert torch.equal(logs[..., 0], logs[..., 1])

    def decided(rows, *ws):
        block = DraftBlock(best[rows, :1], draft[rows].argmax(-1), torch.ones(len(rows)).long(), draft[rows])
        evidence = Evidence(best[rows], block, True, raw[rows])
        verdict = stack([Ensemble(w=w) for w in ws])(evidence, torch.full((len(rows), 2), 0.5))
        return list(zip(verdict.accepted.tolist(), verdict.next_token.tolist(), strict=True))

    assert decided([1], 1.0) == decided([0, 1], 1.0, 1.0)[:1] == [(1, 1)], "w = 1 is lossless"
    assert decided([0], 0.5) == decided([0, 1], 0.5, 0.5)[:1] == [(1, 1)]
    alone = decided([0], 0.0)
    assert decided([0, 0], 0.5, 0.0) == [(1, 1), *alone], "a row at w = 0 decides for itself only"
    assert decided([0, 0], 0.0, 0.5) == [*alone, (1, 1)]


@pytest.mark.parametrize("mix", ["prob", "logit"])
def test_at_w_0_the_blend_keeps_the_first_of_tokens_that_the_draft_finds_alike(mix):
    """The target's choice is as likely to the draft as the drafted token, which v = q still prefers."""
    raw_p = torch.tensor([[[0.0, 0, 0, 1, 0], [0, 0, 0, 1, 0]]]).double()
    raw_q = torch.tensor([[[0.0, 0, 1, 1, 0]]]).double()
    x = torch.tensor([[2]])
    evidence = Evidence(raw_p.argmax(-1), DraftBlock(x, x, torch.tensor([1]), raw_q), True, raw_p)
    u = torch.full((1, 2), 0.5, dtype=torch.float64)
    verdict = Ensemble(w=0.0, mix=mix)(evidence, u)
    assert (verdict.accepted.tolist(), verdict.next_token.tolist()) == ([1], [3])


def test_a_rule_from_outside_with_its_own_law_is_asked_where_both_models_agree():
    class NoThree(Ensemble):
        def greedy_scores(self, log_p, log_q):
            scores = super().greedy_scores(log_p, log_q)
            scores[..., 3] = -torch.inf
            return scores

    raw = torch.tensor([[[0.0, 2, 0, 3, 0], [0, 2, 0, 3, 0]]]).double()
    x = torch.tensor([[3]])
    evidence = Evidence(raw.argmax(-1), DraftBlock(x, x, torch.tensor([1]), raw[:, :1]), True, raw)
    u = torch.full((1, 2), 0.5, dtype=torch.float64)
    verdict = NoThree(w=0.5)(evidence, u)
    assert (verdict.accepted.tolist(), verdict.next_token.tolist()) == ([0], [1])


def test_at_temperature_0_tv_is_of_untempered_laws_or_unknown_never_of_tokens():
    """Exact reads tokens only, and their total variation, 0 or 1, would be another number than what other rules report."""
    raw_p, raw_q = ties(8, 3, 0), ties(8, 2, 1)
    x = raw_q.argmax(-1)
    evidence = Evidence(raw_p.argmax(-1), DraftBlock(x, x, torch.full((8,), 2), raw_q), True, raw_p)
    assert Exact().measure(evidence).tv.isnan().all()
    assert torch.allclose(
        Ensemble(w=0.5).measure(evidence).tv, tv(raw_p[:, :2].softmax(-1), raw_q.softmax(-1)), atol=1e-12
    )
