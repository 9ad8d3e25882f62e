"""The law that each token-wise rule emits, written from its paper's equation with numpy: no code is shared with the rules.

p and q are [N,V], without zeros; a setting's knobs are keyword arguments. FORMULAS is a second source for the rules of
configs/verifier that stand in it; a new rule need not.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

Law = Any  # an array [N,V]


def norm(x: Law) -> Law:
    return x / x.sum(1, keepdims=True)


def tv(p: Law, q: Law) -> Law:
    return 0.5 * np.abs(p - q).sum(1, keepdims=True)


def residual(p: Law, q: Law) -> Law:
    """norm((p − q)+), or p where nothing is left."""
    over = np.where(p > q, p - q, 0)
    total = over.sum(1, keepdims=True)
    return np.where(total == 0, p, over / np.where(total == 0, 1, total))


def kept_or(kept: Law, q: Law, other: Law) -> Law:
    """Σ_x q(x)·(1[x kept]·δ_x + 1[x not kept]·other)."""
    stays = np.where(kept, q, 0)
    return stays + (1 - stays.sum(1, keepdims=True)) * other


def ensemble(p: Law, q: Law, *, w: float, mix: str = "prob", greedy: str = "blend") -> Law:
    return w * p + (1 - w) * q if mix == "prob" else norm(p**w * q ** (1 - w))


def lenience(p: Law, q: Law, *, lenience: float, residual: str) -> Law:
    stays = np.minimum(q, p / lenience)
    scale = 1 if residual == "target" else lenience
    return stays + (1 - stays.sum(1, keepdims=True)) * globals()["residual"](p, scale * q)


def lossy(p: Law, q: Law, *, alpha: float, beta: float) -> Law:
    stays = q if alpha == 1 else np.minimum(q, p / (1 - alpha))
    return stays + (1 - stays.sum(1, keepdims=True)) * norm(residual(p / beta, q))


def mentored(p: Law, q: Law, *, divergence: float) -> Law:
    """Clip q between p/β and p/α; β by Σ = 1, α by KL(p‖out) = D, both by halving an interval of their logarithms."""
    if divergence == 0:
        return p

    def clipped(alpha: Law) -> Law:
        low, high = np.zeros_like(alpha), np.full_like(alpha, 200.0)
        for _ in range(70):
            middle = (low + high) / 2
            is_more = np.clip(q, p * np.exp(-middle), p / alpha).sum(1, keepdims=True) > 1
            low, high = np.where(is_more, middle, low), np.where(is_more, high, middle)
        return norm(np.clip(q, p * np.exp(-high), p / alpha))

    low, high = np.full((len(p), 1), -80.0), np.zeros((len(p), 1))
    for _ in range(60):
        middle = (low + high) / 2
        is_far = (p * np.log(p / clipped(np.exp(middle)))).sum(1, keepdims=True) > divergence
        low, high = np.where(is_far, middle, low), np.where(is_far, high, middle)
    is_near = (p * np.log(p / q)).sum(1, keepdims=True) <= divergence
    return np.where(is_near, q, clipped(np.exp(high)))


def cactus(p: Law, q: Law, *, delta: float) -> Law:
    """One rejected token after the other."""
    gamma = np.minimum(1, p + np.sqrt(2 * delta * p * (1 - p)))
    out = np.minimum(q, gamma)
    for x in range(p.shape[1]):
        refused = np.maximum(0, q[:, x] - gamma[:, x])[:, None]
        h = p * ((1 - gamma[:, x]) / (1 - p[:, x]))[:, None]
        h[:, x] = gamma[:, x]
        out = out + refused * residual(h, q)
    return out


def typical(p: Law, q: Law, *, eps: float, delta: float, replacement: str) -> Law:
    entropy = -(p * np.log(p)).sum(1, keepdims=True)
    kept = p > np.minimum(eps, delta * np.exp(-entropy))
    cut = np.where(kept, p, 0)
    return kept_or(kept, q, norm(np.where(kept.any(1, keepdims=True), cut, p)) if replacement == "truncated" else p)


def ranks(p: Law) -> Law:
    """How many tokens are more likely."""
    return (p[:, None, :] > p[:, :, None]).sum(2)


def topk_relaxed(p: Law, q: Law, *, k: int, delta: float, slack: str) -> Law:
    best = p.max(1, keepdims=True)
    return kept_or((ranks(p) < k) & (p >= (best - delta if slack == "difference" else best * (1 - delta))), q, p)


def bild(p: Law, q: Law, *, threshold: float) -> Law:
    return kept_or(-np.log(p) <= threshold, q, p)


def specdec(p: Law, q: Law, *, beta: int, tau: float) -> Law:
    return kept_or((ranks(p) < beta) & (np.log(p) >= np.log(p.max(1, keepdims=True)) - tau), q, p)


def mars(p: Law, q: Law, *, theta: float) -> Law:
    ordered = np.sort(p, 1)
    is_close = (ordered[:, -2] / ordered[:, -1] >= theta)[:, None]
    return kept_or((ranks(p) == 0) | ((ranks(p) == 1) & is_close), q, p)


def sglang(p: Law, q: Law, *, single: float, acc: float) -> Law:
    """One rejected token after the other: what is tried is taken out of p."""
    accept = np.where(p >= single, 1, np.minimum(1, p / acc))
    out = q * accept
    for x in range(p.shape[1]):
        rest = p.copy()
        rest[:, x] = 0
        out = out + (q * (1 - accept))[:, [x]] * norm(rest)
    return out


def exact_match(p: Law, q: Law) -> Law:
    """y ~ p, kept where it is the draft and emitted where it is not: y in both cases."""
    return p


def ears(p: Law, q: Law, *, tolerance: float) -> Law:
    stays = q * np.minimum(1, p / q + tolerance * (1 - p.max(1, keepdims=True)))
    return stays + (1 - stays.sum(1, keepdims=True)) * residual(p, q)


def easd(p: Law, q: Law, *, entropy: float, overlap: float, top: int) -> Law:
    """Where the penalty falls all is rejected and drawn from p; elsewhere min(p, q) + (p − q)+ is p as well."""
    return p


def contrastive(p: Law, q: Law, *, alpha: float, beta: float) -> Law:
    return norm(np.where(p >= alpha * p.max(1, keepdims=True), np.exp((1 + beta) * np.log(p) - beta * np.log(q)), 0))


def synthetic(p: Law, q: Law, *, rate: float) -> Law:
    return rate * q + (1 - rate) * p


def confidence(p: Law, q: Law, *, threshold: float) -> Law:
    return kept_or(q >= threshold, q, p)


def cascade(condition: Callable[[Law, Law, float], Law]) -> Callable[..., Law]:
    return lambda p, q, *, alpha: kept_or(np.broadcast_to(condition(p, q, alpha), p.shape), q, p)


def best(p: Law) -> Law:
    return p.max(1, keepdims=True)


def opt(p: Law, q: Law, *, alpha: float) -> Law:
    """NaN where both sides are equal but for rounding: at α = 1 that is so wherever p exceeds q at one token alone."""
    lead = best(q) - best(p) + alpha * tv(p, q)
    return np.where(np.abs(lead) < 1e-12, np.nan, np.where(lead >= 0, q, p))


def fuzzy(distance: Callable[[Law, Law], Law]) -> Callable[..., Law]:
    return lambda p, q, *, threshold: np.where(distance(p, q) <= threshold, q, p)


def kl(a: Law, b: Law) -> Law:
    return (a * np.log(a / b)).sum(1, keepdims=True)


FORMULAS: dict[str, Callable[..., Law]] = {
    "exact": lambda p, q: p,
    "ensemble": ensemble,
    "lenience": lenience,
    "lossy": lossy,
    "mentored": mentored,
    "cactus": cactus,
    "cascade-chow": cascade(lambda p, q, alpha: best(q) >= 1 - alpha),
    "cascade-diff": cascade(lambda p, q, alpha: best(q) >= best(p) - alpha),
    "cascade-opt": opt,
    "cascade-v1": cascade(lambda p, q, alpha: q >= best(p) - alpha),
    "cascade-v2": cascade(lambda p, q, alpha: p >= best(p) - alpha),
    "cascade-v3": cascade(lambda p, q, alpha: p >= best(p) * (1 - alpha)),
    "fsd-js": fuzzy(lambda p, q: (kl((p + q) / 2, p) + kl((p + q) / 2, q)) / 2),
    "fsd-kl": fuzzy(lambda p, q: kl(q, p)),
    "fsd-tv": fuzzy(tv),
    "typical": typical,
    "topk-relaxed": topk_relaxed,
    "bild": bild,
    "sglang": sglang,
    "specdec": specdec,
    "mars": mars,
    "exact-match": exact_match,
    "ears": ears,
    "easd": easd,
    "contrastive": contrastive,
    "synthetic": synthetic,
    "confidence": confidence,
    "coin": lambda p, q, **knobs: typical(p, q, **{key.removeprefix("rule."): value for key, value in knobs.items()}),
}
