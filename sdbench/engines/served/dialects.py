"""The dialects of known servers, from the files of configs/engine."""

import functools
from collections.abc import Mapping
from typing import Any

from sdbench.config import ConfigError, config_dir, nearest, show

NAMELESS = (None, "http", "vllm")  # dialects that keys do not name: older records have no name of a dialect


def named_dialect(name: str) -> tuple[Any, Mapping[str, Any]]:
    """Read the dialect and the rules from a file of configs/engine."""
    dialects = {stem: tree for stem, tree in _engine_files().items() if "dialect" in tree}
    if name not in dialects:
        raise ConfigError(f"engine.dialect={show(name)} is not a known server {nearest(name, dialects)}")
    return dialects[name]["dialect"], dialects[name]["rules"]


@functools.cache
def _engine_files() -> Mapping[str, Any]:
    import yaml

    return {path.stem: yaml.safe_load(path.read_text()) for path in sorted((config_dir() / "engine").glob("*.yaml"))}


def usual_request(engine: str) -> dict[str, Any]:
    """Return the request fields of the engine's file, which extends http.yaml; for a file of the user, those of http.yaml."""
    files = _engine_files()
    dialect = (files.get(engine) or {}).get("dialect") or {}
    fields = {**files["http"]["dialect"]["request"], **(dialect.get("request") or {})}
    return {name: value for name, value in fields.items() if value is not None}
