"""The rules that a request can name to sdbench's plug-in in a vLLM server, the fields that name them, and a check that the rules
of the plug-in are those of this version.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from sdbench import verify
from sdbench.config import ConfigError
from sdbench.prepare.progress import warn
from sdbench.prepare.versions import version_of_rule
from sdbench.types import needs_of
from sdbench.verify import Exact, Head, Tokenwise, family

if TYPE_CHECKING:
    from sdbench.serve.client import Client
    from sdbench.serve.pump import Pump

STATES = {"target_hidden": "the target", "draft_hidden": "the draft"}
VERSION = "sdbench_version"


def refuse_for_the_plugin(name: str, rule: Any) -> None:
    """Raise for a rule that the plug-in cannot run. It runs token-wise rules that read only the distributions of both models."""
    states = [STATES[need] for need in sorted(needs_of(rule) & set(STATES))]
    if states:
        why = f"reads hidden states of {states[0]}, which vLLM's verification does not see"
    elif isinstance(rule, Tokenwise) and isinstance(getattr(rule, "head", None), Head):
        why = "reads a head of trained weights, which no request carries"
    elif not isinstance(rule, Tokenwise):
        has_state = type(rule).init_state is not Tokenwise.init_state
        why = (
            "carries a state from block to block, which vLLM does not keep"
            if has_state
            else "judges a block as a whole"
        )
    elif rule.limits.sure:
        why = "keeps what the drafter is sure of, and a server's drafters are never sure"
    elif not _is_plain(rule):
        why = "is not a rule of sdbench.verify whose knobs are numbers and strings, as a request requires"
    else:
        return
    raise ConfigError(
        f"verifier={name} {why}: the plug-in takes rules that judge one token at a time; use engine=native"
    )


def request_of(rule: Any) -> dict[str, str]:
    """Return the fields of a request for a rule: its class, its knobs as JSON, and its version, with those of rules within it."""
    tree = _tree(rule)
    knobs = json.dumps(tree["sdbench_knobs"], sort_keys=True)
    return {**tree, "sdbench_knobs": knobs, VERSION: str(version_of_rule(rule))}


def compare_versions(client: Client, pump: Pump, body: Mapping[str, Any], field: str, rules: Iterable[Any]) -> None:
    """Request one token with each kind of rule: the plug-in refuses a rule whose version differs from its own, which raises an
    EngineError with its message. An older plug-in compares no versions, and answers even a made-up one: warn.
    """
    if not pump.run(client.refuses({**body, field: {**request_of(Exact()), VERSION: "none"}})):
        warn(
            f"the server at {client.url} has an older plug-in, which cannot tell whether its rules are those of this sdbench: "
            "install sdbench and plugins/vllm there again"
        )
        return
    for rule in {family(rule): rule for rule in rules}.values():
        pump.run(client.complete({**body, field: request_of(rule)}))


def _tree(rule: Any) -> dict[str, Any]:
    kind = type(rule)
    is_exported = getattr(verify, kind.__name__, None) is kind
    name = f"{'sdbench.verify' if is_exported else kind.__module__}.{kind.__qualname__}"
    knobs = {name: _tree(value) if isinstance(value, Tokenwise) else value for name, value in _knobs_of(rule).items()}
    return {"sdbench_rule": name, "sdbench_knobs": knobs}


def _knobs_of(rule: Any) -> dict[str, Any]:
    return {knob.name: getattr(rule, knob.name) for knob in fields(rule)} if is_dataclass(rule) else {}


def _is_plain(rule: Any) -> bool:
    """Return whether a rule and the rules within it are of sdbench.verify, with numbers and strings as knobs."""
    is_ours = type(rule).__module__.split(".")[:2] == ["sdbench", "verify"]
    values = _knobs_of(rule).values()
    return is_ours and all(isinstance(x, str | bool | int | float | None) or _is_plain(x) for x in values)
