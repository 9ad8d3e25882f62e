"""Versions of classes and of the files in their options, for the keys of cells.

A class of the package has a `version`. A class from outside may have one too, and a hash of its source is also in the key. The
source is every file of its top-level package, and of every module that these files import, at the top or inside a function,
except installed libraries, Python itself and this package. The provenance names the versions of the libraries that matter.
"""

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from sdbench.config import ConfigError
from sdbench.files import digest_of, digest_of_file, digest_of_path
from sdbench.prepare.trained import HEAD_CARD, OF_TRAINING

PACKAGE = "sdbench"


def version_of(kind: type, *, version: object = None) -> str | None:
    """Return a class's version, and for a class from outside a hash of its source; None for a class of the package without one."""
    version = version or getattr(kind, "version", None)
    declared = str(version) if isinstance(version, str | int) and version else None
    if _top(kind.__module__) == PACKAGE:
        return declared
    paths = sorted(sources(kind), key=lambda path: (path.name, str(path)))
    source = digest_of(*(f"{path.name} {digest_of_file(path)}\n" for path in paths))
    return f"{declared or ''} source:{source}".strip()


def version_of_rule(rule: object) -> str | None:
    """Return the version of a rule's class, followed by those of the rules within it."""
    inner = [getattr(rule, f.name) for f in fields(rule)] if is_dataclass(rule) else []
    versions = [version_of_rule(part) for part in inner if hasattr(part, "is_lossless")]
    return " of ".join(map(str, (version_of(type(rule)), *versions))) if versions else version_of(type(rule))


def sources(kind: type) -> set[Path]:
    """Return the source files that decide what a class from outside the package does."""
    own_top, paths = _top(kind.__module__), set[Path]()
    waiting = [base.__module__ for base in kind.__mro__]
    seen: set[str] = set()
    while waiting:
        top = _top(waiting.pop())
        if top in seen or top == PACKAGE:
            continue
        seen.add(top)
        files = _files_of(top) if top == own_top or not _is_library(top) else []
        if not files and top == own_top:
            raise ConfigError(f"{kind.__module__}.{kind.__qualname__} has no source file: put the class into a module")
        paths.update(files)
        waiting += [name for path in files for name in _imports(path)]
    return paths


def files_of(options: Mapping[str, Any], *, prefix: str, digest: Callable[..., str] = digest_of_path) -> dict[str, str]:
    """Return `prefix.option` -> hash of the content, for each option that is a file or a folder, or a list with some. In a folder
    of trained weights, other files of the training are left out: its log, checkpoints, and states of the target.
    """
    digests: dict[str, list[str]] = {}
    for name, path in paths_of(options):
        without = OF_TRAINING if (path / HEAD_CARD).exists() else ()
        digests.setdefault(f"{prefix}.{name}", []).append(digest(path, without=without))
    return {name: " ".join(several) for name, several in digests.items()}


def paths_of(options: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """Yield (option, path) for each option that is a file or a folder; for a list, one pair per such item."""
    for name, value in options.items():
        for text in [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else []:
            if isinstance(text, str) and text and _exists(Path(text)):
                yield name, Path(text)


def is_word(text: object) -> bool:
    """Return whether the value of a text knob is not a path: it has neither a folder nor a suffix."""
    return Path(str(text)).name == str(text) and not Path(str(text)).suffix


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a text that cannot be a file name, for example because it is too long
        return False


def _top(module: str) -> str:
    return module.partition(".")[0]


def _is_library(top: str) -> bool:
    files = () if top in sys.stdlib_module_names else _files_of(top, is_probe=True)
    return not files or bool({"site-packages", "dist-packages"} & set(files[0].parts))


def _files_of(top: str, *, is_probe: bool = False) -> list[Path]:
    """Return the file of a top-level module, or all Python files of a top-level package; `is_probe`: the first is enough."""
    module = sys.modules.get(top)
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):  # a module that has no file
        spec = None
    folders = list((spec and spec.submodule_search_locations) or getattr(module, "__path__", ()))
    if folders:
        files = (path.resolve() for folder in folders for path in Path(folder).rglob("*.py"))
        return list(islice(files, 1)) if is_probe else sorted(files)
    file = (spec.origin if spec and spec.has_location else None) or getattr(module, "__file__", None)
    return [Path(file).resolve()] if file else []


def _imports(path: Path) -> Iterator[str]:
    """Return the modules that a source file imports; none if it is not valid Python, as templates and test files may be."""
    if path.suffix != ".py":
        return
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # null bytes, or an unknown encoding
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
