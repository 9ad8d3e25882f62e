"""Which configuration of a server decoded a cell. Only cells of one configuration are compared."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sdbench.files import digest_of

# Options that may differ within a comparison: rule, name of the model, how the server drafts, vLLM's runner (for verifier=block).
OF_SETTINGS = ("rule", "model", "speculative", "runner")
SECRET = "env"  # its values may be secret keys, so names of sweeps, which are published, have digests instead


def server_of(cell: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the options of a cell's engine that its comparisons hold fixed; {} for the native engine."""
    engine: Mapping[str, Any] = (cell["content"] or {}).get("engine") or {}
    return {name: value for name, value in engine.items() if name not in OF_SETTINGS}


def server_key(cell: Mapping[Any, Any]) -> str | None:
    """Return these options as text, whatever their order; None for the native engine."""
    return json.dumps(server, sort_keys=True) if (server := server_of(cell)) else None


def server_endings(cells: Sequence[Mapping[Any, Any]]) -> list[list[str]]:
    """Return, for each option in which servers differ, OPTION=VALUE of each cell, or "" if its server has no such option."""
    options = [_by_name(server_of(cell)) for cell in cells]
    known = dict.fromkeys(name for given in options for name in given)
    ends = [[f"{name}={given[name]}" if name in given else "" for given in options] for name in known]
    return [words for words in ends if len(set(words)) > 1]


def _by_name(server: Mapping[str, Any]) -> dict[str, Any]:
    """Return {option: value}, as written on the command line: engine, then engine.OPTION and engine.OPTION.NAME.

    The value of an environment variable is replaced by a digest.
    """
    options: dict[str, Any] = {"engine": server.get("name")}
    for name, value in server.items():
        if isinstance(value, Mapping):
            for part, each in value.items():
                shown = f"sha256:{digest_of(str(each), digits=8)}" if name == SECRET else each
                options[f"engine.{name}.{part}"] = shown
        elif name != "name":
            options[f"engine.{name}"] = value
    return options
