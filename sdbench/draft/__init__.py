"""Drafters, a file each."""

from sdbench.draft.base import BaseDrafter, NoDraft, build, class_of
from sdbench.draft.model import ModelDrafter

__all__ = ["BaseDrafter", "ModelDrafter", "NoDraft", "build", "class_of"]
