"""Records of before cells carried their contracts: what a cell without `metrics` or without `axes` is taken to mean.

The rule: where a cell names no metrics, a score is what the tasks of that time stored under its name, and of any other name
nothing is known. Where it names no axes, a rule's knob is the weight of the target, w, strict at 1; other options have no order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sdbench.types import Axis, Metric

WEIGHT = "w"  # the weight of the target: the knob of the static ensemble, and a column of every summary
SHARES = frozenset(("strict", "flexible", "numeric"))
POINTS = frozenset(("rouge1", "rouge2", "rougeL", "rougeLsum", "diversed_sbleu"))
CORPUS = frozenset(("bleu", "chrf2"))


def metric_named(name: str) -> Metric:
    """What a score of this name was before tasks declared theirs."""
    plain = name.removesuffix("_nostem")
    if plain in SHARES or name.startswith("pass@"):
        return Metric(name, "share")
    if plain in POINTS or plain in CORPUS:
        return Metric(name, "points", stats=name if name in CORPUS else None)
    return Metric(name)


def axes_of(cell: Mapping[Any, Any]) -> tuple[Axis, ...]:
    """The weight, if the cell has one."""
    weight = cell.get(WEIGHT)
    if weight is None or weight != weight:
        return ()
    return (Axis(WEIGHT, float(weight), 1 - float(weight), "lossless"),)
