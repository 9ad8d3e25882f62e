"""Import objects by their path, as in `_target_`."""

from collections.abc import Iterable
from dis import get_instructions
from importlib import import_module
from types import FunctionType
from typing import Any


def import_object(path: str) -> Any:
    """Return the object named by `package.module.Name` or `package.module:name`."""
    module, _, name = path.replace(":", ".").rpartition(".")
    return getattr(import_module(module), name)


def first_missing(paths: Iterable[str]) -> str | None:
    """Return the first `package.module:name` that an installed package lacks, dotted; None if it has all.

    ModuleNotFoundError if the package, or one that it needs, is not installed.
    """
    for path in paths:
        module, _, names = path.partition(":")
        try:
            value = import_module(module)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith(f"{module.partition('.')[0]}."):
                return str(error.name)
            raise
        for name in filter(None, names.split(".")):
            if not _has(value, name):
                return path.replace(":", ".")
            value = getattr(value, name, None)  # None: an attribute of instances
    return None


def _has(value: Any, name: str) -> bool:
    """Return whether an object has an attribute, or a class gives its instances one: a field, or a name that a method sets."""
    if hasattr(value, name) or name in getattr(value, "__dataclass_fields__", ()):
        return True
    members = [each for parent in getattr(value, "__mro__", ()) for each in vars(parent).values()]
    return any(
        step.opname == "STORE_ATTR" and step.argval == name
        for method in members
        if isinstance(method, FunctionType)
        for step in get_instructions(method)
    )
