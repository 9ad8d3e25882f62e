"""The claim of a knob: at fixed laws more is accepted the further from the strict end, and there it is what it says it equals."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from sdbench.audit.audit import Check
from sdbench.audit.trained import shown
from sdbench.config import RuleSweep
from sdbench.verify import (
    EASD,
    CascadeV1,
    CascadeV2,
    CascadeV3,
    Coin,
    Contrastive,
    Ensemble,
    Exact,
    Mentored,
    Tokenwise,
)

PAIRS, SIZE, SLACK = 300, 6, 1e-9
# Found not to accept more and more outwards (docs/audit.md): a fall is noted, and no violation. Their papers were not searched.
UNORDERED = (CascadeV1, CascadeV2, CascadeV3, Coin, Contrastive, EASD)


def laws_to_try() -> tuple[Tensor, Tensor]:
    """Random logits [PAIRS,1,SIZE] of two sides, from flat to peaked."""
    generator = torch.Generator().manual_seed(3)
    spread = torch.linspace(0.2, 4, PAIRS).double()[:, None, None]
    raw = torch.randn(2, PAIRS, 1, SIZE, generator=generator, dtype=torch.float64) * spread
    return raw[0], raw[1]


def states_to_try(widths: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Random states [PAIRS,1,·] of target and draft, for rules that read them."""
    generator = torch.Generator().manual_seed(4)
    target, draft = (torch.randn(PAIRS, 1, width, generator=generator) for width in widths)
    return target, draft


def accepted(rule: Any, widths: tuple[int, int] = (1, 1)) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Expected acceptance [PAIRS] and what is emitted [PAIRS,SIZE] at the laws p and q."""
    raw_p, raw_q = laws_to_try()
    p, q = raw_p.softmax(-1), raw_q.softmax(-1)
    tokens = torch.zeros(PAIRS, 1, dtype=torch.int64)
    own = rule.settled(shown(p, q, raw_p, raw_q, tokens, states_to_try(widths)))
    return (q * own.accept(p, q)).sum(-1)[:, 0], own.out(p, q)[:, 0], p[:, 0], q[:, 0]


def check(sweep: RuleSweep, make: Callable[[dict[str, Any]], Any], widths: tuple[int, int] = (1, 1)) -> Check:
    """Along each ordered knob of a token-wise rule, the others held; `make` makes the rule of a setting, `widths` are those of
    the states of target and draft."""
    wrong: list[str] = []
    notes: list[str] = []
    compared = 0
    middle = dict(sweep.settings[len(sweep.settings) // 2])
    for knob in sweep.knobs:
        if knob.strict is None or knob.choices:
            continue
        values = sorted({*knob.values, knob.strict}, key=lambda value, knob=knob: knob.rank(value) or 0.0)
        rules = [make({**middle, knob.name: value}) for value in values]
        if not isinstance(rules[0], Tokenwise):
            continue
        made = [accepted(rule, widths) for rule in rules]
        for (low, near), (high, far) in itertools.pairwise(zip(values, made, strict=True)):
            compared += PAIRS
            less = (near[0] - far[0]).max()
            if less > SLACK:
                said = f"acceptance falls by up to {float(less):.3g} from {knob.name}={low} to {knob.name}={high}"
                (notes if isinstance(rules[0], UNORDERED) else wrong).append(said)
        if knob.equals == "exact":
            out, p = made[0][1], made[0][2]
            exact = accepted(Exact())[0]
            compared += PAIRS
            for said, off in (("emits", (out - p).abs().max()), ("accepts", (made[0][0] - exact).abs().max())):
                if off > SLACK:
                    wrong.append(
                        f"at {knob.name}={knob.strict} it {said} what exact does not, by up to {float(off):.3g}"
                    )
    for setting in sweep.settings:
        rule = make(dict(setting))
        excess = past_bound(rule)
        compared += PAIRS * (excess is not None)
        if excess is not None and excess > SLACK:
            wrong.append(f"what {dict(setting)} emits is past its published bound by up to {excess:.3g}")
    return Check(sweep.name, "knob", compared, wrong, note=f"not claimed: {notes[0]}" if notes else "")


@singledispatch
def past_bound(rule: Any) -> float | None:
    """By how much what is emitted passes the bound that the rule's paper states for it; None: it states none."""
    return None


@past_bound.register(Ensemble)
def _(rule: Ensemble) -> float | None:
    if rule.mix != "prob":
        return None
    _, out, p, q = accepted(rule)
    bias, bound = (out - p).abs().sum(-1) / 2, (1 - float(rule.w)) * (p - q).abs().sum(-1) / 2
    return float((bias - bound).max())


@past_bound.register(Mentored)
def _(rule: Mentored) -> float | None:
    _, out, p, _ = accepted(rule)
    spent = (p * (p / out.clamp_min(1e-300)).log()).sum(-1)
    return float((spent - float(rule.divergence)).max())
