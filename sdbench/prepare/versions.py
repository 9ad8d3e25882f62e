"""What a class and the files it is given do, as something that changes when they do: for the keys of cells.

A class of the package carries `version`. One from outside may too, and is keyed by its source as well: the module of the class
and of its bases, and what these import from beside themselves. Not covered: other packages that it imports; the provenance does not
name them either.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any

from sdbench.config import ConfigError
from sdbench.files import digest_of, digest_of_file, digest_of_path

PACKAGE = "sdbench"


def version_of(kind: type, *, version: object = None) -> str | None:
    """Its version, and for a class from outside a hash of its source; None for a class of the package without one."""
    version = version or getattr(kind, "version", None)
    declared = str(version) if isinstance(version, str | int) and version else None
    if _top(kind.__module__) == PACKAGE:
        return declared
    paths = sorted(sources(kind), key=lambda path: (path.name, str(path)))
    source = digest_of(*(f"{path.name} {digest_of_file(path)}\n" for path in paths))
    return f"{declared or ''} source:{source}".strip()


def version_of_rule(rule: object) -> str | None:
    """That of its class, and of the classes of the rules within it."""
    inner = [getattr(rule, f.name) for f in fields(rule)] if is_dataclass(rule) else []
    versions = [version_of_rule(part) for part in inner if hasattr(part, "is_lossless")]
    return " of ".join(map(str, (version_of(type(rule)), *versions))) if versions else version_of(type(rule))


def sources(kind: type) -> set[Path]:
    """The files whose content decides what a class from outside the package does."""
    waiting = [base.__module__ for base in kind.__mro__ if _is_own(base.__module__, kind)]
    seen: set[str] = set()
    paths: set[Path] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        module = sys.modules[name]
        path = _file(module)
        if path is None:
            raise ConfigError(f"{kind.__module__}.{kind.__qualname__} has no source file: put the class into a module")
        paths.add(path)
        waiting += [other for other in _imports(module, path) if _is_beside(other, path.parent)]
    return paths


def files_of(options: Mapping[str, Any], *, prefix: str) -> dict[str, str]:
    """`prefix.option` -> hash of the content of each file or folder that an option names."""
    return {
        f"{prefix}.{name}": digest_of_path(Path(text))
        for name, value in options.items()
        for text in ([value] if isinstance(value, str) else value if isinstance(value, list | tuple) else [])
        if isinstance(text, str) and text and _exists(Path(text))
    }


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a text that is no name of a file, such as one that is too long
        return False


def _top(module: str) -> str:
    return module.partition(".")[0]


def _is_own(module: str, kind: type) -> bool:
    """Whether a base is the user's: not the package's, Python's, or that of another installed library."""
    top = _top(module)
    if top == _top(kind.__module__):
        return True
    path = _file(sys.modules.get(module))
    is_library = path is None or {"site-packages", "dist-packages"} & set(path.parts)
    return top != PACKAGE and top not in sys.stdlib_module_names and not is_library


def _imports(module: ModuleType, path: Path) -> Iterator[str]:
    """Modules that the source of a module imports, or takes a name from."""
    if path.suffix != ".py":
        return
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            name = (
                resolve_name("." * node.level + (node.module or ""), module.__package__ or "")
                if node.level
                else node.module
            )
            yield str(name)
            yield from (f"{name}.{alias.name}" for alias in node.names)


def _is_beside(module: str, folder: Path) -> bool:
    path = _file(sys.modules.get(module))
    return path is not None and path.is_relative_to(folder) and _top(module) != PACKAGE


def _file(module: ModuleType | None) -> Path | None:
    name = getattr(module, "__file__", None)
    return None if name is None else Path(name).resolve()
