"""Which rules a request can carry to the plug-in that runs inside a vLLM server, and what it says of them."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from sdbench.config import ConfigError, Run

if TYPE_CHECKING:
    from sdbench.prepare.cells import Point


def refuse_for_the_plugin(run: Run, point: Point) -> None:
    """It judges one token at a time, from the two laws that the server drew from."""
    from sdbench.types import needs_of
    from sdbench.verify.tokenwise import Tokenwise

    name, rule = point.cell.verifier, point.rule
    if not isinstance(rule, Tokenwise):
        raise ConfigError(
            f"verifier={name} judges a block as a whole, and the plug-in takes rules that judge one token at a time"
        )
    knobs = knobs_of(rule)
    if type(rule).__module__.split(".")[:2] != ["sdbench", "verify"] or not all(map(_is_plain, knobs.values())):
        raise ConfigError(
            f"verifier={name} is no rule of sdbench.verify with plain knobs, which alone a request can carry to the plug-in"
        )
    unmet = sorted(needs_of(rule) - (frozenset({"raw_if_greedy"}) if run.temperature > 0 else frozenset()))
    if unmet:
        what = {"raw_if_greedy": "logits of the draft at temperature 0"}.get(unmet[0], unmet[0])
        instead = "give it greedy=mixture or a temperature above 0" if hasattr(rule, "greedy") else "leave it out"
        raise ConfigError(
            f"verifier={name} reads {what}, which a server does not hand to the plug-in: {instead}, or use engine=native"
        )


def knobs_of(rule: Any) -> dict[str, Any]:
    """The fields of a rule."""
    return {knob.name: getattr(rule, knob.name) for knob in fields(rule)} if is_dataclass(rule) else {}


def _is_plain(value: object) -> bool:
    return isinstance(value, str | bool | int | type(None)) or (isinstance(value, float) and abs(value) < float("inf"))
