"""Drafters, one file each."""

from sdbench.draft.base import BaseDrafter, NoDraft, prefill_all, reads_target
from sdbench.draft.build import build, cache_share, calls_sure, check, class_of
from sdbench.draft.length import VariableLength
from sdbench.draft.model import ModelDrafter

__all__ = [
    "BaseDrafter",
    "ModelDrafter",
    "NoDraft",
    "VariableLength",
    "build",
    "cache_share",
    "calls_sure",
    "check",
    "class_of",
    "prefill_all",
    "reads_target",
]
