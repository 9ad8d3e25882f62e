"""A drafter as a caller names it: an object, a class, or the name of a file in configs/drafter."""

from collections.abc import Mapping
from typing import Any

import yaml

from sdbench.config import config_dir, nearest
from sdbench.imports import import_object
from sdbench.types import DRAFTER_NEEDS, Drafter, DraftSetup, needs_of

INTERNAL = ("name", "choices", "knobs")  # of a drafter's file: what the configuration reads, not the drafter


def class_of(drafter: object) -> tuple[Any, Mapping[str, Any]]:
    """The class, and the options that its file gives it; an object is its own class here: nothing is left to build."""
    if not isinstance(drafter, str):
        return drafter, {}
    files = {path.stem: path for path in (config_dir() / "drafter").glob("*.yaml")}
    if drafter not in files:
        raise ValueError(f"drafter={drafter} names no file in configs/drafter {nearest(drafter, sorted(files))}")
    tree = yaml.safe_load(files[drafter].read_text()) or {}
    return import_object(str(tree.pop("_target_"))), {key: value for key, value in tree.items() if key not in INTERNAL}


def build(drafter: object, setup: DraftSetup, options: Mapping[str, Any] | None = None) -> Drafter:
    """A drafter for this target: an object as it is, anything else built. What it needs and does not get is a ValueError."""
    made_of, defaults = class_of(drafter)
    needs = needs_of(made_of, DRAFTER_NEEDS)
    named = drafter if isinstance(drafter, str) else getattr(made_of, "__name__", type(made_of).__name__)
    if not isinstance(made_of, type):
        return made_of
    if "draft" in needs and setup.draft is None:
        raise ValueError(f"drafter={named} needs a draft model, and there is none")
    if "tokenizer" in needs and setup.tokenizer is None:
        raise ValueError(f"drafter={named} needs a tokenizer, and there is none")
    given: Any = {**defaults, **(options or {})}
    if not hasattr(made_of, "build"):
        raise ValueError(f"drafter={named} must have a classmethod build(setup, …): derive it from BaseDrafter")
    return made_of.build(setup, **given)  # type: ignore[attr-defined]
