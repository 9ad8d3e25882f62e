"""Rules that accept as much as a bound on the divergence from p allows: mentored decoding and Cactus."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sdbench.probs import dense, excess
from sdbench.types import Limits
from sdbench.verify.rule import number
from sdbench.verify.tokenwise import Tokenwise, Towards, knob, ratio

ROWS = 1 << 17  # elements of the laws that are sorted at a time
HALVINGS = 60  # bisection steps that find α of mentored decoding


@dataclass(frozen=True, slots=True)
class Mentored(Towards):
    """Mentored decoding (Tran-Thien 2023; with Nock, arXiv:2609.30474): the most acceptance with KL(p‖out) ≤ D, in nats.

    out is q clipped to [p/β, p/α], α ≤ 1 ≤ β, where α and β are determined by Σ out = 1 and KL(p‖out) = D; where KL(p‖q) ≤ D,
    out is q. a = min(1, p/(α·q)), r = norm((p/β − q)+). Exact at D = 0. Needs only p and q. It sorts every position's tokens by
    p/q, which costs more than a tenth of a round of tiny models. It has no greedy form: for one-hot laws KL(p‖out) is 0 or ∞.
    Drafts with p(x) = 0 are rejected, except where out is q.
    """

    version: ClassVar[str] = "2"
    limits: ClassVar[Limits] = Limits(temperature="above_zero")

    divergence: float | Tensor = number(lossless=0)

    def law(self, p: Tensor, q: Tensor) -> Tensor:
        return by_rows(self._law, p, q, knob(self.divergence, p[..., 0].double()))

    def over_bound(self, p: Tensor, q: Tensor, out: Tensor) -> Tensor:
        """Return by how much KL(p‖out) of the emitted law, out [..., V], exceeds D."""
        return (p * (p / out.clamp_min(1e-300)).log()).sum(-1) - float(self.divergence)

    @staticmethod
    def _law(p64: Tensor, q64: Tensor, most: Tensor) -> Tensor:
        low, high = _cuts(p64, q64, most)
        law = torch.maximum(p64 / high, torch.minimum(q64, p64 / low))
        kl = (torch.xlogy(p64, p64) - torch.xlogy(p64, q64)).sum(-1)
        law = torch.where((kl <= most)[..., None], q64, law / law.sum(-1, keepdim=True))
        return torch.where((most == 0)[..., None], p64, law)


def by_rows(law: Callable[[Tensor, Tensor, Tensor], Tensor], p: Tensor, q: Tensor, value: Tensor | float) -> Tensor:
    """Return law(p, q, value) [B,K,V], computed in float64 for a few positions at a time to limit the memory of temporaries."""
    size = p.shape[-1]
    values = torch.as_tensor(value, dtype=torch.float64, device=p.device).expand(p.shape[:-1]).flatten()
    step = max(1, ROWS // size)
    parts = zip(p.reshape(-1, size).split(step), q.reshape(-1, size).split(step), values.split(step), strict=True)
    return torch.cat([law(a.double(), b.double(), knob).to(p.dtype) for a, b, knob in parts]).reshape(p.shape)


def _cuts(p: Tensor, q: Tensor, most: Tensor) -> tuple[Tensor, Tensor]:
    """Return α and β [B,K,1], computed from sums over the first and over the last tokens in the order of p/q.

    The mass that the cut at p/α removes, C(α) = Σ (q − p/α)+, equals the mass that the lift to p/β adds: Σ (p/β − q)+ = C.
    KL(p‖out) falls as α grows, so α is found by bisection.
    """
    order = ratio(p, q).argsort(-1, descending=True)
    p, q = p.gather(-1, order), q.gather(-1, order)
    rho = ratio(p, q)
    first_p, first_q = (torch.nn.functional.pad(x.cumsum(-1), (1, 0)) for x in (p, q))  # [B,K,V+1]: sums of the first n
    last_p, last_q = _sums_of_the_last(p), _sums_of_the_last(q)  # not 1 − first, which loses the digits of a small rest
    has_both = (p > 0) & (q > 0)
    middle = torch.where(has_both, torch.xlogy(p, p) - torch.xlogy(p, q), 0)
    # KL(p‖out) is infinite if a token with p > 0 and q = 0 is not lifted.
    first_kl, only_p = (torch.nn.functional.pad(x.cumsum(-1), (1, 0)) for x in (middle, (p > 0) & (q == 0)))
    # The mass that the lift would add if β were the ρ of each token.
    lifted = first_p[..., :-1] / rho.clamp_min(torch.finfo(p.dtype).tiny) - first_q[..., :-1]

    def solve(low: Tensor) -> tuple[Tensor, Tensor]:
        """Return β and KL(p‖out) for α = low [B,K,1]."""
        n = torch.searchsorted(-rho, -low, right=True)  # tokens with ρ ≥ α
        tail_p, tail_q = last_p.gather(-1, n), last_q.gather(-1, n)
        cut = (tail_q - tail_p / low).clamp_min(0)
        m = torch.searchsorted(lifted, cut, right=False)  # tokens with ρ > β: there `lifted` is below the cut
        high = first_p.gather(-1, m) / (cut + first_q.gather(-1, m))
        high = torch.where(m > 0, high, rho[..., :1]).clamp_min(1)
        kl = tail_p * low.log() + first_kl.gather(-1, n) - first_kl.gather(-1, m) + first_p.gather(-1, m) * high.log()
        return high, torch.where(only_p.gather(-1, n) > only_p.gather(-1, m), torch.inf, kl)

    below, above = (torch.full_like(rho[..., :1], value) for value in (-80.0, 0.0))  # of log α
    for _ in range(HALVINGS):
        half = (below + above) / 2
        is_far = solve(half.exp())[1] > most[..., None]
        below, above = torch.where(is_far, half, below), torch.where(is_far, above, half)
    low = above.exp()
    return low, solve(low)[0]


@dataclass(frozen=True, slots=True)
class Cactus(Tokenwise):
    """Cactus (arXiv:2604.04987, its code): γ(x) = min(1, p + √(2δ·p·(1 − p))), a = min(1, γ/q), r depends on the rejected x.

    r_x = norm((h_x − q)+), where h_x is p with x raised to γ(x) and all other tokens scaled down. Exact at δ = 0. Needs only p
    and q. The paper bounds KL(h_x‖p) by δ. The bound does not hold for the *emitted* law: at δ = 0.05 KL(out‖p) exceeds δ for
    most random pairs (tests/verify/test_laws.py). Greedy: one-hot laws, which is exact match.
    """

    version: ClassVar[str] = "1"
    draws_if_greedy: ClassVar[bool] = False
    is_pointwise: ClassVar[bool] = True
    knows_rejected: ClassVar[bool] = True

    delta: float | Tensor = number(high=10, lossless=0)

    def accept(self, p: Tensor, q: Tensor) -> Tensor:
        return ratio(_raise_law(p, knob(self.delta, p)), q).clamp_max(1)

    def replace(self, p: Tensor, q: Tensor) -> Tensor:
        raise AssertionError("the replacement depends on the rejected draft: use replace_rejected")

    def replace_rejected(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        scale = _scale(p, _raise_law(p, knob(self.delta, p))).gather(-1, x[..., None])
        is_x = dense(x, p.shape[-1], p.dtype) > 0
        return excess(torch.where(is_x, _raise_law(p, knob(self.delta, p)), scale * p), q)

    def out(self, p: Tensor, q: Tensor) -> Tensor:
        """Return out. Each rejected x has its own scale s_x; Σ over x of w_x·(s_x·p − q)+ follows from sums over sorted tokens."""
        return by_rows(self._out, p, q, knob(self.delta, p[..., 0].double()))

    @staticmethod
    def _out(p64: Tensor, q64: Tensor, delta: Tensor) -> Tensor:
        raised = _raise_law(p64, delta[..., None])
        kept = torch.minimum(q64, raised)
        scale, refused = _scale(p64, raised), q64 - kept
        order = ratio(q64, p64).argsort(-1)  # s·p exceeds q first at the first of these tokens as s grows
        rho = ratio(q64, p64).gather(-1, order)
        first_p, first_q = (torch.nn.functional.pad(x.gather(-1, order).cumsum(-1), (1, 0)) for x in (p64, q64))
        n = torch.searchsorted(rho.contiguous(), scale.contiguous())
        total = scale * first_p.gather(-1, n) - first_q.gather(-1, n)  # Σ (s_x·p − q)+; x itself adds nothing
        is_drawn = (refused > 0) & (total > 0)
        weight = torch.where(is_drawn, refused / total.clamp_min(torch.finfo(p64.dtype).tiny), 0)
        rest = torch.where(is_drawn, 0, refused).sum(-1, keepdim=True)
        by_scale = scale.argsort(-1)
        sorted_scale = scale.gather(-1, by_scale)
        last_w, last_ws = (_sums_of_the_last(x.gather(-1, by_scale)) for x in (weight, weight * scale))
        m = torch.searchsorted(sorted_scale.contiguous(), ratio(q64, p64).contiguous(), right=True)
        over = last_ws.gather(-1, m) * p64 - last_w.gather(-1, m) * q64
        return kept + over.clamp_min(0) + rest * p64


def _raise_law(p: Tensor, delta: Tensor | float) -> Tensor:
    """Return γ [B,K,V]."""
    return (p + (2 * delta * p * (1 - p).clamp_min(0)).sqrt()).clamp_max(1)


def _scale(p: Tensor, raised: Tensor) -> Tensor:
    """Return (1 − γ)/(1 − p) [B,K,V]; 1 where γ = p."""
    return torch.where(raised == p, 1, (1 - raised) / (1 - p).clamp_min(torch.finfo(p.dtype).tiny))


def _sums_of_the_last(x: Tensor) -> Tensor:
    """Return […,V+1]: at index n, the sum of all but the first n values."""
    return torch.nn.functional.pad(x.flip(-1).cumsum(-1).flip(-1), (0, 1))
