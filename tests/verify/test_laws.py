"""The law of every token-wise rule at every end of its knobs: the paper's formula is what accept and replace make, to 1e-12."""

import numpy as np
import pytest
import torch
from torch import Tensor

from sdbench.verify import Cactus, Coin, Exact, Mentored, Tokenwise
from tests.contracts.parts import Named, parts
from tests.verify.formulas import FORMULAS

PAIRS = 3000
RULES = [named for named in parts("verifier") if isinstance(named.make(**named.settings()[0]), Tokenwise)]
# A rule with a head hangs on more than p and q: given its weights it is the ensemble (tests/verify/test_head.py).
OWN = [named for named in RULES if named.target.__module__.startswith("sdbench.") and "head" not in named.options]
by_rule = pytest.mark.parametrize("named", OWN, ids=str)
by_size = pytest.mark.parametrize("size", [5, 50])


def laws(size: int) -> tuple[Tensor, Tensor]:
    """p and q [PAIRS,1,V], spread as Dirichlet(½): many small probabilities, few large ones."""
    drawn = np.random.default_rng(size).gamma(0.5, size=(2, PAIRS, 1, size)) + 1e-9
    p, q = torch.from_numpy(drawn / drawn.sum(-1, keepdims=True))
    return p, q


def emitted(rule: Tokenwise, p: Tensor, q: Tensor) -> Tensor:
    """Σ_x q(x)·(a(x)·δ_x + (1 − a(x))·r_x), the sum over x written out where r depends on x."""
    kept = q * rule.accept(p, q)
    if not rule.knows_rejected:
        return kept + (1 - kept.sum(-1, keepdim=True)) * rule.replace(p, q)
    out = kept
    for x in range(p.shape[-1]):
        token = torch.full(p.shape[:-1], x)
        out = out + (q - kept)[..., x, None] * rule.replace_rejected(p, q, token)
    return out


def tv(p: Tensor, q: Tensor) -> Tensor:
    return (p - q).abs().sum(-1) / 2


def test_every_formula_belongs_to_a_rule():
    assert set(FORMULAS) <= {named.name for named in OWN}


@pytest.mark.parametrize("named", [named for named in OWN if named.name in FORMULAS], ids=str)
@by_size
def test_what_is_emitted_is_what_the_paper_says(named: Named, size: int):
    p, q = laws(size)
    for setting in named.settings():
        rule = named.make(**setting)
        wanted = torch.from_numpy(FORMULAS[named.name](p[:, 0].numpy(), q[:, 0].numpy(), **setting))
        is_clear = ~wanted.isnan().any(-1)  # elsewhere a threshold is met to the last bit
        assert is_clear.sum() > 0.9 * PAIRS
        for out in (emitted(rule, p, q), rule.out(p, q)):
            torch.testing.assert_close(out[is_clear, 0], wanted[is_clear], rtol=0, atol=1e-12)


@by_size
def test_mentored_decoding_spends_its_divergence_and_no_more(size: int):
    """KL(p‖out) = D to 1e-12, or out = q where KL(p‖q) ≤ D; it accepts at least what Exact does."""
    p, q = laws(size)
    for most in (0.05, 0.2, 1.0):
        out = Mentored(most).out(p, q)
        spent, whole = ((p * (p / law).log()).sum(-1) for law in (out, q))
        torch.testing.assert_close(spent, whole.clamp_max(most), rtol=0, atol=1e-12)
        ours, exact = (torch.minimum(q, law).sum(-1) for law in (out, p))
        assert (ours >= exact - 1e-12).all()


def test_mentored_decoding_keeps_its_bound_where_the_draft_lacks_tokens():
    """top_p, copied tokens and low temperatures give q = 0 for tokens that the target may write."""
    generator = torch.Generator().manual_seed(3)
    p, q = (torch.rand(200, 1, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    q[torch.rand(q.shape, generator=generator) < 0.3] = 0
    q[..., 0] += 0.01
    p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    p = torch.cat((p, torch.tensor([[[0.1, 0.5, 0.4, 0, 0, 0, 0, 0]]], dtype=torch.float64)))
    q = torch.cat((q, torch.tensor([[[0, 0.3, 0.7, 0, 0, 0, 0, 0]]], dtype=torch.float64)))
    for most in (0.05, 0.2, 1.0):
        out = Mentored(most).out(p, q)
        spent = (torch.xlogy(p, p) - torch.xlogy(p, out)).sum(-1)
        whole = (torch.xlogy(p, p) - torch.xlogy(p, q)).sum(-1)
        assert (spent <= whole.clamp_max(most) + 1e-9).all()
        if most < 1:  # beyond, some cuts are of less mass than float64 resolves
            torch.testing.assert_close(spent, whole.clamp_max(most), rtol=0, atol=1e-9)


@by_rule
@by_size
def test_the_claimed_law_follows_from_accept_and_replace(named: Named, size: int):
    p, q = laws(size)
    for setting in named.settings():
        rule = named.make(**setting)
        torch.testing.assert_close(emitted(rule, p, q), rule.out(p, q), rtol=0, atol=1e-12)


@by_rule
@by_size
def test_no_rule_accepts_more_than_the_bound_allows(named: Named, size: int):
    p, q = laws(size)
    for setting in named.settings():
        rule = named.make(**setting)
        acceptance = (q * rule.accept(p, q)).sum(-1)
        assert (acceptance <= 1 - tv(p, q) + tv(rule.out(p, q), p) + 1e-12).all()


@by_rule
@by_size
def test_a_coin_keeps_the_law_and_never_accepts_less(named: Named, size: int):
    p, q = laws(size)
    for setting in named.settings():
        rule = named.make(**setting)
        coin = Coin(rule)
        torch.testing.assert_close(emitted(coin, p, q), rule.out(p, q), rtol=0, atol=1e-12)
        gain = (q * coin.accept(p, q)).sum(-1) - (q * rule.accept(p, q)).sum(-1)
        assert (gain > -1e-12).all()
        if named.name == "lenience":
            assert gain.abs().max() < 1e-12, "lenience has nothing to gain by a coin"


@by_rule
def test_what_says_that_it_is_lossless_emits_the_target(named: Named):
    p, q = laws(5)
    for setting in named.settings():
        rule = named.make(**setting)
        is_exact = bool((tv(rule.out(p, q), p) < 1e-12).all())
        assert is_exact or not bool(rule.is_lossless().all())


def test_cactus_bounds_the_law_that_it_aims_at_and_not_what_it_emits():
    """KL(out‖p) ≤ δ, as one may read arXiv:2604.04987, is refuted: at δ = 0.05 it fails for most pairs (V = 5), or all (V = 50)."""
    shares = {}
    for size in (5, 50):
        p, q = laws(size)
        for delta in (0.05, 0.2, 1.0):
            out = Cactus(delta).out(p, q)
            kl = (torch.xlogy(out, out) - torch.xlogy(out, p)).sum(-1)
            shares[size, delta] = float((kl > delta).double().mean())
    assert shares[5, 0.05] > 0.6
    assert shares[50, 0.05] > 0.99
    assert all(shares[size, 0.05] > shares[size, 1.0] for size in (5, 50))


def test_cactus_aims_within_its_bound_to_second_order():
    """KL(h_x‖p) ≤ δ holds as its expansion γ(x) = p + √(2δ·p·(1 − p)) has it: up to a small excess, and exactly as δ → 0."""
    p, _ = laws(5)
    x = p.argmax(-1, keepdim=True)
    best = p.gather(-1, x)[..., 0]
    for delta in (1e-6, 1e-4):
        gamma = (best + (2 * delta * best * (1 - best)).sqrt()).clamp_max(1)
        inside = (best > 0.3) & (best < 0.7)
        kl = torch.xlogy(gamma, gamma / best) + torch.xlogy(1 - gamma, (1 - gamma) / (1 - best))
        assert (kl[inside] / delta).sub(1).abs().max() < 0.02


def test_exact_match_accepts_the_sum_of_products():
    p, q = laws(5)
    rule = next(named for named in OWN if named.name == "exact-match").make()
    torch.testing.assert_close((q * rule.accept(p, q)).sum(-1), (p * q).sum(-1))
    assert ((p * q).sum(-1) <= (q * Exact().accept(p, q)).sum(-1)).all()
