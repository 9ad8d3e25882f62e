"""sdbench: what lenient speculative decoding costs in quality. The import is fast: names are loaded when they are used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sdbench.engine import Engine, generate
    from sdbench.records import read

__version__ = "0.1.0"

_HOME = {
    "Engine": "sdbench.engine",
    "generate": "sdbench.engine",
    "read": "sdbench.records",
}

_PARTS = ("evaluate_adapter", "tasks")

__all__ = ["Engine", "__version__", "generate", "read"]


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return import_module(f"sdbench.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'sdbench' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
