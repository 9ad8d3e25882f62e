"""The one place that knows transformers: a causal model over a ragged cache, with its own attention.

Names load when they are used: a checkpoint's metadata (`sdbench.lm.load`) are read before torch is.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sdbench.lm.cache import Prefix, RaggedCache
    from sdbench.lm.capture import Mode
    from sdbench.lm.model import CHUNK, LM, used_vocab

_HOME = {
    "CHUNK": "model",
    "LM": "model",
    "Mode": "capture",
    "Prefix": "cache",
    "RaggedCache": "cache",
    "used_vocab": "model",
}

__all__ = ["CHUNK", "LM", "Mode", "Prefix", "RaggedCache", "used_vocab"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sdbench.lm' has no attribute {name!r}")
    return getattr(import_module(f"sdbench.lm.{_HOME[name]}"), name)
