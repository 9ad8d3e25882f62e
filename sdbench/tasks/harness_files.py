"""Files of lm-evaluation-harness's tasks: find the YAML file of a task, and list the files that it depends on.

Not covered: what the code of a task imports from other packages, whose versions are in no key.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from sdbench.config import ConfigError, show
from sdbench.files import digest_of_file
from sdbench.imports import import_object

LIBRARY = "lm_eval.tasks"
# Folders that the harness does not read, as old copies of files are there.
UNREAD = {"__pycache__", ".ipynb_checkpoints"}
TASK_LINE = re.compile(r"^task:[ \t]*['\"]?([^\s'\"#\[]+)['\"]?[ \t]*(?:#.*)?$", re.MULTILINE)


def file_of(name: str, include_path: str | None) -> Path:
    """Return the YAML file of a task, from the user's folder before the harness's."""
    words = [word for word in re.split(r"[_\W]", name) if len(word) > 1]
    names, mentions = list[str](), ""
    for root in _roots(include_path):
        # The harness has 14,000 files, so those whose paths share a word with the name come first.
        paths = [
            (not any(word in path.relative_to(root).as_posix() for word in words), path)
            for path in root.rglob("*.yaml")
            if UNREAD.isdisjoint(path.relative_to(root).parts)
        ]
        for _, path in sorted(paths):
            text = path.read_text(encoding="utf-8", errors="replace")
            defined = TASK_LINE.findall(text)
            if name in defined:
                return path
            names += defined
            mentions += text if name in text else ""
    raise ConfigError(_why_not(name, names, mentions))


def _roots(include_path: str | None) -> list[Path]:
    if include_path is not None and not Path(include_path).is_dir():
        raise ConfigError(f"task.include_path={show(include_path)} is not a folder")
    return [*([] if include_path is None else [Path(include_path)]), _library_folder()]


def _library_folder() -> Path:
    return Path(str(import_module(LIBRARY).__file__)).parent


def _why_not(name: str, names: Sequence[str], mentions: str) -> str:
    """Return why a name is not among `names`; `mentions` are the files that contain it."""
    word = re.escape(name)
    if re.search(rf"^(group|tag):\s*['\"]?{word}['\"]?\s*$|^\s*- ['\"]?{word}['\"]?\s*$", mentions, re.MULTILINE):
        members = sorted(task for task in names if task.startswith(name))
        hint = f", such as task=lm-eval:{members[0]}" if members else ""
        return f"task=lm-eval:{name} is a group of tasks, and a run has one task: choose one of the group{hint}"
    if re.search(rf"task:\s*{word}\s*$", mentions, re.MULTILINE):
        return f"task=lm-eval:{name} has no file of its own: write one, and name its folder in task.include_path"
    near = get_close_matches(name, names, n=1)
    return f"task=lm-eval:{show(name)} is not a task of the installed lm_eval" + (
        f": did you mean {near[0]}?" if near else ""
    )


def digests_of(path: Path) -> dict[str, str]:
    """Return name -> hash of each file that decides a task: its YAML file, included files, and the code that these name."""
    waiting, seen = [path.resolve()], dict[Path, str]()
    while waiting:
        file = waiting.pop()
        if file not in seen:
            seen[file] = digest_of_file(file)
            waiting += _imports_of(file) if file.suffix == ".py" else _named_by(file)
    return {_label_of(file, seen): digest for file, digest in sorted(seen.items())}


def _label_of(file: Path, files: Collection[Path]) -> str:
    """Return the shortest end of a path that no other file has."""
    ends = (file.parts[-size:] for size in range(1, len(file.parts) + 1))
    return "/".join(next(end for end in ends if sum(other.parts[-len(end) :] == end for other in files) == 1))


def _named_by(file: Path) -> list[Path]:
    """Return the files that a YAML file includes or takes functions from."""
    text = file.read_text(encoding="utf-8")
    modules = re.findall(r"!function\s+['\"]?([\w.]+)\.\w+", text)
    included = import_object("yaml.compose")(text)
    pairs = getattr(included, "value", [])
    nodes = [value for key, value in pairs if key.value == "include"]
    leaves = [leaf.value for node in nodes for leaf in (node.value if isinstance(node.value, list) else [node])]
    return [*(path for module in modules for path in _code_of(file.parent, module)), *_existing(file.parent, leaves)]


def _code_of(folder: Path, module: str) -> list[Path]:
    """Return the file of a module as the harness chooses it: the one in the folder, else that of an importable module."""
    if beside := _existing(folder, [module.replace(".", "/") + ".py"]):
        return beside
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):  # `harness.build` imported all that is used: this is in a comment
        return []
    return [] if spec is None else _existing(folder, [path for path in [str(spec.origin)] if path.endswith(".py")])


def _imports_of(file: Path) -> list[Path]:
    """Return the files that a Python file imports: modules beside it, in its package, and of the harness's other tasks."""
    library = (_library_folder() / "__init__.py").resolve()  # the version of the harness is in the provenance
    nodes = ast.walk(ast.parse(file.read_bytes()))
    return [path for node in nodes for path in _imported_by(node, file) if path != library]


def _imported_by(node: ast.AST, file: Path) -> Iterator[Path]:
    """Yield the files of an import. A package's `__init__.py` counts unless all names that are imported from it are modules."""
    if isinstance(node, ast.Import):
        for base in (base for alias in node.names for base in _bases_of(file, alias.name)):
            yield from _module_at(base)
    elif isinstance(node, ast.ImportFrom):
        folder, name = file.parent.joinpath(*[".."] * (node.level - 1)), node.module or ""
        for base in [folder / name.replace(".", "/")] if node.level else _bases_of(file, name):
            modules = [_module_at(base / alias.name) for alias in node.names]
            yield from chain(*modules)
            code = _existing(base.parent, [f"{base.name}.py"]) if name else []
            yield from code or ([] if all(modules) else _existing(base, ["__init__.py"]))


def _bases_of(file: Path, module: str) -> list[Path]:
    """Return where an absolute import of a file may lead, without a suffix: beside it, in its package, among the tasks."""
    if f"{module}.".startswith(f"{LIBRARY}."):
        return [_library_folder() / module.removeprefix(LIBRARY).lstrip(".").replace(".", "/")]
    first = module.partition(".")[0]
    is_library = first == LIBRARY.partition(".")[0]
    roots = [] if is_library else [folder.parent for folder in file.parents if folder.name == first]
    return [root / module.replace(".", "/") for root in (file.parent, *roots)]


def _module_at(base: Path) -> list[Path]:
    return _existing(base.parent, [f"{base.name}.py"]) or _existing(base, ["__init__.py"])


def _existing(folder: Path, names: Sequence[str]) -> list[Path]:
    paths = [(folder / name).resolve() for name in names]
    return [path for path in paths if path.is_file()]
