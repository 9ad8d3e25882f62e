"""The one place that knows transformers: a causal model over a ragged cache, with its own attention."""

from sdbench.lm.cache import Prefix, RaggedCache
from sdbench.lm.model import LM, used_vocab

__all__ = ["LM", "Prefix", "RaggedCache", "used_vocab"]
