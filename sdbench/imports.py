"""Import objects by their path, as in `_target_`."""

from collections.abc import Iterable
from importlib import import_module
from typing import Any


def import_object(path: str) -> Any:
    """Return the object named by `package.module.Name` or `package.module:name`."""
    module, _, name = path.replace(":", ".").rpartition(".")
    return getattr(import_module(module), name)


def first_missing(paths: Iterable[str]) -> str | None:
    """Return the dotted path of the first `package.module:name` that the installed packages lack; None if they have all.

    ModuleNotFoundError if a package, or one that it needs, is not installed.
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
            if not hasattr(value, name) and name not in getattr(value, "__dataclass_fields__", ()):
                return path.replace(":", ".")
            value = getattr(value, name, None)  # None: a field, which only instances have
    return None
