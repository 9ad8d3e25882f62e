"""The claim of a knob: for fixed distributions acceptance rises from the lossless end on, and that end equals what it declares."""

import itertools
from collections.abc import Callable, Mapping
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from sdbench.audit.large_vocabulary import slot_evidence
from sdbench.audit.report import ExactCheck
from sdbench.config import Knob, RuleSweep
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

NUM_PAIRS, VOCAB, SLACK = 300, 6, 1e-9
# Their acceptance was seen to fall somewhere (docs/audit.md): noted, and no violation. Their papers were not searched for a claim.
UNORDERED = (CascadeV1, CascadeV2, CascadeV3, Coin, Contrastive, EASD)


def emitted_by(rule: Any, widths: tuple[int, int] = (1, 1)) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Expected acceptance [NUM_PAIRS] and what is emitted [NUM_PAIRS,VOCAB], with p and q, from flat to peaked; random states."""
    generator = torch.Generator().manual_seed(3)
    spread = torch.linspace(0.2, 4, NUM_PAIRS).double()[:, None, None]
    raw = torch.randn(2, NUM_PAIRS, 1, VOCAB, generator=generator, dtype=torch.float64) * spread
    p, q = raw.softmax(-1)
    generator.manual_seed(4)
    target, draft = (torch.randn(NUM_PAIRS, 1, width, generator=generator) for width in widths)
    tokens = torch.zeros(NUM_PAIRS, 1, dtype=torch.int64)
    settled = rule.settled(slot_evidence(p, q, (raw[0], raw[1]), tokens, (target, draft)))
    return (q * settled.accept(p, q)).sum(-1)[:, 0], settled.out(p, q)[:, 0], p[:, 0], q[:, 0]


def check_knobs(
    sweep: RuleSweep, make_rule: Callable[[Mapping[str, Any]], Any], widths: tuple[int, int] = (1, 1)
) -> ExactCheck:
    """Each ordered knob of a token-wise rule, the others fixed; `widths` are the sizes of target's and draft's hidden states."""
    wrong: list[str] = []
    notes: list[str] = []
    compared = 0
    middle = dict(sweep.settings[len(sweep.settings) // 2])
    for knob in sweep.knobs:
        if knob.strict is None or knob.choices:
            continue
        values = sorted({*knob.values, knob.strict}, key=lambda value, knob=knob: knob.rank(value) or 0.0)
        rules = [make_rule({**middle, knob.name: value}) for value in values]
        if not isinstance(rules[0], Tokenwise):
            continue
        emitted = [emitted_by(rule, widths) for rule in rules]
        compared += NUM_PAIRS * (len(values) - 1 + (knob.equals == "exact"))
        for (low, near), (high, far) in itertools.pairwise(zip(values, emitted, strict=True)):
            if (fall := float((near[0] - far[0]).max())) > SLACK:
                sentence = f"acceptance falls by up to {fall:.3g} from {knob.name}={low} to {knob.name}={high}"
                (notes if isinstance(rules[0], UNORDERED) else wrong).append(sentence)
        if knob.equals == "exact":
            wrong += _differences_from_exact(knob, *emitted[0][:3])
    for setting in sweep.settings:
        past = excess_over_bound(make_rule(setting))
        compared += NUM_PAIRS * (past is not None)
        if past is not None and past > SLACK:
            wrong.append(f"{dict(setting)} exceeds the rule's published bound by up to {past:.3g}")
    return ExactCheck(sweep.name, "knob", compared, wrong, note=f"not claimed: {notes[0]}" if notes else "")


def _differences_from_exact(knob: Knob, acceptance: Tensor, out: Tensor, p: Tensor) -> list[str]:
    off = {"emits": out - p, "accepts": acceptance - emitted_by(Exact())[0]}
    return [
        f"{knob.name}={knob.strict} {verb} differently from exact, by up to {float(difference.abs().max()):.3g}"
        for verb, difference in off.items()
        if difference.abs().max() > SLACK
    ]


@singledispatch
def excess_over_bound(rule: Any) -> float | None:
    """By how much the emitted distribution exceeds the bound that the rule's paper states; None where it states none."""
    return None


@excess_over_bound.register(Ensemble)
def _(rule: Ensemble) -> float | None:
    if rule.mix != "prob":
        return None
    _, out, p, q = emitted_by(rule)
    bias, bound = (out - p).abs().sum(-1) / 2, (1 - float(rule.w)) * (p - q).abs().sum(-1) / 2
    return float((bias - bound).max())


@excess_over_bound.register(Mentored)
def _(rule: Mentored) -> float | None:
    _, out, p, _ = emitted_by(rule)
    divergence = (p * (p / out.clamp_min(1e-300)).log()).sum(-1)
    return float((divergence - float(rule.divergence)).max())
