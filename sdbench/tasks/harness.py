"""Task objects of lm-evaluation-harness: find a task's YAML file, build the object, list the files that it depends on.

The harness is imported only when one of its tasks is named. Not covered: tasks that are Python classes, and groups.
"""

from __future__ import annotations

import ast
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdbench.config import ConfigError, nearest, show
from sdbench.errors import first_line
from sdbench.files import digest_of_file
from sdbench.imports import import_object

if TYPE_CHECKING:
    from sdbench.tasks.sandbox import Outcome, Program

LIBRARY = "lm_eval.tasks"
DECODED = "generate_until"
TASK_LINE = re.compile(r"^task:[ \t]*['\"]?([^\s'\"#\[]+)['\"]?[ \t]*(?:#.*)?$", re.MULTILINE)
STRUCTURE = ("tag", "group", "task_list")  # keys of a file that are not options of its task


class CodeEval:
    """The metric code_eval of `evaluate`, with programs run in sdbench's sandbox: the task that scores sets `run`.

    As there, a candidate and its test are one program with one scope, so a name that only the test imports is known to both.
    """

    run: Callable[[Sequence[Program]], list[Outcome]]

    def compute(
        self,
        *,
        references: Sequence[str],
        predictions: Sequence[Sequence[str]],
        k: Sequence[int] = (1, 10, 100),
        **_: Any,
    ) -> tuple[dict[str, float], list[list[str]]]:
        """Return pass@k over the problems, and how each candidate ended."""
        from sdbench.tasks.sandbox import Program

        programs = [
            Program(f"{candidate}\n{test}")
            for test, candidates in zip(references, predictions, strict=True)
            for candidate in candidates
        ]
        done = self.run(programs)
        if (broken := next((each for each in done if each.status == "error"), None)) is not None:
            raise RuntimeError(f"the sandbox could not run a program: {broken.detail}")
        outcomes = iter(done)
        endings = [[next(outcomes).status for _ in candidates] for candidates in predictions]
        counts = [(len(ends), ends.count("passed")) for ends in endings]
        possible = [size for size in k if all(total >= size for total, _ in counts)]
        return {f"pass@{size}": _mean([_pass_at(size, *count) for count in counts]) for size in possible}, endings


def _pass_at(k: int, total: int, passed: int) -> float:
    return 1 - math.comb(total - passed, k) / math.comb(total, k)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


CODE_EVAL = CodeEval()  # one object, for modules of the harness's tasks load the metric once, when they are imported


def file_of(name: str, include_path: str | None) -> Path:
    """Return the YAML file of a task, from the user's folder before the harness's."""
    words = [word for word in re.split(r"[_\W]", name) if len(word) > 1]
    names, mentions = list[str](), ""
    for root in _roots(include_path):
        # The harness has 14,000 files, so those whose paths share a word with the name come first.
        paths = [
            (not any(word in path.relative_to(root).as_posix() for word in words), path)
            for path in root.rglob("*.yaml")
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


def refuse_undecoded(name: str, config: Mapping[str, Any]) -> None:
    """Raise ConfigError for a task whose file asks for anything but text, one sample per answer."""
    kind, repeats = config.get("output_type", DECODED), config.get("repeats", 1)
    if kind != DECODED:
        raise ConfigError(
            f"task=lm-eval:{name} compares log-likelihoods ({kind}) and decodes no text, so there is nothing to measure: "
            "choose a generate_until task"
        )
    if "class" in config:
        raise ConfigError(
            f"task=lm-eval:{name} is a Python class, and sdbench supports only tasks defined in YAML files"
        )
    if repeats != 1:
        raise ConfigError(
            f"task=lm-eval:{name} scores {repeats} answers to a row together, and sdbench scores each answer by itself: choose a "
            "task with repeats: 1, and samples= for several answers"
        )
    if config.get("doc_to_image") or config.get("doc_to_audio"):
        raise ConfigError(f"task=lm-eval:{name} has images or sounds, and sdbench supports text prompts only")


def read_file(path: Path, *, resolves: bool = False) -> dict[str, Any]:
    """Return the content of a task's file with the files that it includes; `resolves`: functions are imported."""
    with quiet():
        return import_object(f"{LIBRARY}._yaml_loader.load_yaml")(path, resolve_func=resolves)


def build(name: str, path: Path, **changes: Any) -> Any:
    """Return the harness's task object; `changes` override its file. Its data set is loaded."""
    _compile_templates_once()
    is_code = bool(read_file(path).get("unsafe_code"))
    with _code_metric() if is_code else nullcontext():
        try:
            config = read_file(path, resolves=True)
        except (
            AssertionError,
            ImportError,
        ) as error:  # its module asserts versions of libraries, as that of minerva_math
            raise ConfigError(f"task=lm-eval:{name} cannot be imported: {first_line(error)}") from None
    _refuse_unknown_filters(name, config)
    if is_code and not any(map(_uses_code_metric, _functions(config))):
        raise ConfigError(
            f"task=lm-eval:{name} runs generated programs outside the sandbox of sdbench, so it is refused"
        )
    with quiet():
        options = {key: value for key, value in config.items() if key not in STRUCTURE}
        return import_object("lm_eval.api.task.ConfigurableTask")(config={**options, **changes})


def _refuse_unknown_filters(name: str, config: Mapping[str, Any]) -> None:
    """Raise ConfigError for a filter that the harness does not have: it would fail on the first answer."""
    import_module("lm_eval.filters")  # where they register
    known = sorted(import_object("lm_eval.api.registry.filter_registry").keys())
    steps = [step for each in config.get("filter_list") or () for step in each["filter"]]
    if unknown := [
        step["function"] for step in steps if not callable(step["function"]) and step["function"] not in known
    ]:
        raise ConfigError(
            f"task=lm-eval:{name} uses a filter that lm_eval does not have, {show(unknown[0])} {nearest(unknown[0], known)}"
        )


@cache
def _compile_templates_once() -> None:
    """Cache compiled templates: the harness compiles them for each row and shot, which takes most of its time for prompts."""
    env = import_object("lm_eval.utils.env")
    env.from_string = cache(env.from_string)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress progress bars and log messages; errors are raised."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    with redirect_stderr(StringIO()), redirect_stdout(StringIO()):
        yield


@contextmanager
def _code_metric() -> Iterator[None]:
    """Replace code_eval: modules of code tasks load it, and run a program with it, when they are imported."""
    import evaluate  # takes seconds and brings torch

    load = evaluate.load
    evaluate.load = lambda path, *more, **options: CODE_EVAL if path == "code_eval" else load(path, *more, **options)
    try:
        yield
    finally:
        evaluate.load = load


def _functions(tree: Any) -> Iterator[Callable[..., Any]]:
    """Yield every function in a tree of options."""
    if callable(tree):
        yield tree
    elif isinstance(tree, Mapping | list):
        for part in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _functions(part)


def _uses_code_metric(function: Callable[..., Any]) -> bool:
    return any(value is CODE_EVAL for value in getattr(function, "__globals__", {}).values())


def digests_of(path: Path) -> dict[str, str]:
    """Return name -> hash of each file that decides a task: its YAML file, included files, and the code that these name."""
    waiting, seen = [path.resolve()], dict[Path, str]()
    while waiting:
        file = waiting.pop()
        if file not in seen:
            seen[file] = digest_of_file(file)
            waiting += _imports_of(file) if file.suffix == ".py" else _named_by(file)
    names = [file.name for file in seen]
    return {
        file.name if names.count(file.name) == 1 else f"{file.parent.name}/{file.name}": digest
        for file, digest in sorted(seen.items())
    }


def _named_by(file: Path) -> list[Path]:
    """Return the files that a YAML file includes or takes functions from."""
    text = file.read_text(encoding="utf-8")
    codes = [module.replace(".", "/") + ".py" for module in re.findall(r"!function\s+['\"]?([\w.]+)\.\w+", text)]
    included = import_object("yaml.compose")(text)
    pairs = getattr(included, "value", [])
    nodes = [value for key, value in pairs if key.value == "include"]
    leaves = [leaf.value for node in nodes for leaf in (node.value if isinstance(node.value, list) else [node])]
    return _existing(file.parent, [*codes, *leaves])


def _imports_of(file: Path) -> list[Path]:
    """Return the files that a Python file imports: modules beside it, and those of the harness's other tasks."""
    paths: list[str] = []
    for node in ast.walk(ast.parse(file.read_bytes())):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            base = "../" * (node.level - 1) + (node.module or "")
            modules = [base, *(f"{base}.{alias.name}".lstrip(".") for alias in node.names)]
        for module in modules:
            inside = module.removeprefix(f"{LIBRARY}.")
            root = f"{_library_folder()}/" if inside != module else ""
            paths.append(root + re.sub(r"(?<=\w)\.(?=\w)", "/", inside) + ".py")
    return _existing(file.parent, paths)


def _existing(folder: Path, names: Sequence[str]) -> list[Path]:
    paths = [(folder / name).resolve() for name in names]
    return [path for path in paths if path.is_file()]
