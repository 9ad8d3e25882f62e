"""Drafters, a file each."""

from sdbench.draft.model import ModelDrafter
from sdbench.draft.none import NoDraft

__all__ = ["ModelDrafter", "NoDraft"]
