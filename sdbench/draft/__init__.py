"""Drafters, a file each."""

from sdbench.draft.base import BaseDrafter
from sdbench.draft.model import ModelDrafter
from sdbench.draft.named import build, class_of
from sdbench.draft.none import NoDraft

__all__ = ["BaseDrafter", "ModelDrafter", "NoDraft", "build", "class_of"]
