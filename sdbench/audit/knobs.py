"""The claim of a knob: at fixed p and q, acceptance rises with the distance from the lossless end.

At that end a rule that is declared to equal `exact` must accept and emit as `exact` does. A bound from its paper must hold too.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sdbench.audit.large_vocabulary import slot_evidence
from sdbench.audit.report import ExactCheck
from sdbench.config import Knob, RuleSweep
from sdbench.prepare.rules import rules_of
from sdbench.verify import Exact, Tokenwise

NUM_PAIRS, VOCAB, SLACK = 300, 6, 1e-9


def settle_on_random(
    rule: Any, widths: tuple[int, int], shape: tuple[int, int, int] = (NUM_PAIRS, 1, VOCAB)
) -> tuple[Any, Tensor, Tensor]:
    """Return the rule settled on random blocks, with their p and q of this shape [N,K,V], flat to peaked.

    The slots of a block have the same distributions and the same states; only their drafts differ.
    """
    count, num_slots, vocab = shape
    generator = torch.Generator().manual_seed(3)
    spread = torch.linspace(0.2, 4, count).double()[:, None, None]
    raw = torch.randn(2, count, 1, vocab, generator=generator, dtype=torch.float64) * spread
    raw = raw.repeat(1, 1, num_slots, 1)
    p, q = raw.softmax(-1)
    generator.manual_seed(4)
    target, draft = (torch.randn(count, 1, width, generator=generator).repeat(1, num_slots, 1) for width in widths)
    tokens = torch.arange(num_slots).expand(count, -1)
    return rule.settle(slot_evidence(p, q, (raw[0], raw[1]), tokens, (target, draft))), p, q


def emitted_by(rule: Any, widths: tuple[int, int] = (1, 1)) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return expected acceptance [NUM_PAIRS] and the emitted law [NUM_PAIRS,VOCAB], with p and q."""
    settled, p, q = settle_on_random(rule, widths)
    return (q * settled.accept(p, q)).sum(-1)[:, 0], settled.out(p, q)[:, 0], p[:, 0], q[:, 0]


def depends_on_slot(rule: Any, widths: tuple[int, int], vocab: int) -> bool:
    """Return whether a token-wise rule treats equal positions differently by their slots, or by the drafts of other slots."""
    settled, p, q = settle_on_random(rule, widths, (8, 3, vocab))
    laws = settled.accept(p, q), settled.replace(p, q)
    return not all(torch.allclose(law, law[:, :1].expand_as(law), atol=1e-5, equal_nan=True) for law in laws)


def check_knobs(sweep: RuleSweep, markers: Callable[[str], Sequence[int]], widths: tuple[int, int]) -> ExactCheck:
    """Check each ordered knob of a token-wise rule, the others fixed; `widths`: sizes of target's and draft's hidden states."""
    wrong: list[str] = []
    notes: list[str] = []
    compared = 0
    middle = dict(sweep.settings[len(sweep.settings) // 2])
    for knob in sweep.knobs:
        if knob.strict is None or knob.choices:
            continue
        values = sorted({*knob.values, knob.strict}, key=lambda value, knob=knob: knob.rank(value) or 0.0)
        rules = rules_of(replace(sweep, settings=tuple({**middle, knob.name: value} for value in values)), markers)
        if not isinstance(rules[0], Tokenwise):
            continue
        emitted = [emitted_by(rule, widths) for rule in rules]
        compared += NUM_PAIRS * (len(values) - 1 + (knob.equals == "exact"))
        for (low, near), (high, far) in itertools.pairwise(zip(values, emitted, strict=True)):
            if (fall := float((near[0] - far[0]).max())) > SLACK:
                sentence = f"acceptance falls by up to {fall:.3g} from {knob.name}={low} to {knob.name}={high}"
                (wrong if rules[0].is_ordered else notes).append(sentence)
        if knob.equals == "exact":
            wrong += _differences_from_exact(knob, *emitted[0][:3])
    for setting, rule in zip(sweep.settings, rules_of(sweep, markers), strict=True):
        past = over_bound(rule)
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


def over_bound(rule: Any) -> float | None:
    """Return by how much the emitted law exceeds the bound in the rule's paper; None where it states none."""
    if not hasattr(rule, "over_bound"):
        return None
    _, out, p, q = emitted_by(rule)
    past = rule.over_bound(p, q, out)
    return None if past is None else float(past.max())
