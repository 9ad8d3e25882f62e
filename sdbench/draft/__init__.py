"""Drafters, a file each."""

from sdbench.draft.base import BaseDrafter, NoDraft
from sdbench.draft.model import ModelDrafter
from sdbench.draft.named import build, class_of

__all__ = ["BaseDrafter", "ModelDrafter", "NoDraft", "build", "class_of"]
