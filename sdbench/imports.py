"""Objects named by a path, as `_target_` names a class."""

from importlib import import_module
from typing import Any


def import_object(path: str) -> Any:
    """Return what `package.module.Name` or `package.module:name` names."""
    module, _, name = path.replace(":", ".").rpartition(".")
    return getattr(import_module(module), name)
