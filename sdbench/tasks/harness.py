"""Task objects of lm-evaluation-harness: refuse what cannot be decoded, read a task's file, build the object.

The harness is imported only when one of its tasks is named. Not covered: tasks that are Python classes, and groups.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from functools import cache
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from sdbench.config import ConfigError, nearest, show
from sdbench.errors import first_line
from sdbench.imports import import_object
from sdbench.tasks.harness_files import LIBRARY
from sdbench.tasks.harness_rows import fix_seeds, once_per_split
from sdbench.types import Message, Prompt

if TYPE_CHECKING:
    from sdbench.tasks.sandbox import Outcome, Program

DECODED = "generate_until"
STRUCTURE = ("tag", "group", "task_list")  # keys of a file that are not options of its task
# Filters of the harness that change each answer to a row by itself.
PER_ANSWER = (
    *("regex", "regex_pos", "multi_choice_regex", "remove_whitespace"),
    *("lowercase", "uppercase", "map", "format_span"),
)
MISSING_COLUMN = (
    TemplateError,
    LookupError,
)  # what a task raises for a row without a column: its templates, its functions


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


def refuse_undecoded(name: str, config: Mapping[str, Any]) -> None:
    """Raise ConfigError for a task whose file asks for anything but text, or scores several answers to a row together."""
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
    if repeats != 1 and not _scores_first_answer(config):
        raise ConfigError(
            f"task=lm-eval:{name} scores {repeats} answers to a row together, and sdbench scores each answer by itself: choose a "
            "task with repeats: 1 or whose filters take the first answer, and samples= for several answers"
        )
    if config.get("doc_to_image") or config.get("doc_to_audio"):
        raise ConfigError(f"task=lm-eval:{name} has images or sounds, and sdbench supports text prompts only")


def _scores_first_answer(config: Mapping[str, Any]) -> bool:
    """Return whether all filters take the first answer to a row; the harness's default filter does."""
    names = [[step["function"] for step in each["filter"]] for each in config.get("filter_list") or ()]
    return all(next((name for name in each if name not in PER_ANSWER), None) == "take_first" for each in names)


def read_file(path: Path, *, resolves: bool = False) -> dict[str, Any]:
    """Return the content of a task's file with the files that it includes; `resolves`: functions are imported."""
    with quiet():
        return import_object(f"{LIBRARY}._yaml_loader.load_yaml")(path, resolve_func=resolves)


def build(name: str, path: Path, *, shots_split: str | None = None, **changes: Any) -> Any:
    """Return the harness's task object; `changes` override its file. Its data set is loaded.

    `shots_split`: the split of which shots are drawn. If it is the `test_split`, the harness leaves out the evaluated row.
    """
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
    options = {key: value for key, value in config.items() if key not in STRUCTURE} | changes
    if options.get("process_docs") is not None:
        options["process_docs"] = once_per_split(options["process_docs"])
    if shots_split is not None:
        options["fewshot_config"] = {**(config.get("fewshot_config") or {}), "split": shots_split}
    with quiet(), fix_seeds():
        try:
            task = import_object("lm_eval.api.task.ConfigurableTask")(config=options)
        except AssertionError as error:
            if "custom_dataset" in changes or not callable(config.get("custom_dataset")):
                raise
            # The harness gives RULER the name of the evaluated model's tokenizer, to make rows of a given number of tokens.
            why = first_line(error).partition(". ")[0].rstrip(".")
            raise ConfigError(
                f"task=lm-eval:{name} makes its rows with an option that sdbench does not give it ({why}): give it in "
                "`metadata` of a copy of the task's file (task.include_path=), or rows as task.data=FILE; for tasks of RULER, "
                "rows of one length, and `aggregation: mean` for the metric of that length in a copy"
            ) from None
        except MISSING_COLUMN as error:
            if "custom_dataset" not in changes:  # rows of the hub, which have what the task reads
                raise
            raise unread_rows(name, error) from None
        if shots_split is not None and shots_split == task.config.test_split:
            _refuse_shown_rows(name, task)
    return task


def unread_rows(name: str, error: Exception) -> ConfigError:
    """Return the error for rows without a column that a task reads."""
    return ConfigError(
        f"task=lm-eval:{name} cannot read a row ({type(error).__name__}: {first_line(error)}): rows of task.data= and "
        "task.shots_data= need the columns that the task reads"
    )


def _refuse_shown_rows(name: str, task: Any) -> None:
    """Raise ConfigError where an evaluated row could be among its own shots.

    The harness leaves the row out by comparing rows as the task has processed them; a task's own sampler may not do this.
    """
    samplers = import_object("lm_eval.api.samplers.SAMPLER_REGISTRY").values()
    if type(task.sampler) not in samplers or list(task.sampler.df) != list(task.eval_docs):
        raise ConfigError(
            f"task=lm-eval:{name} takes shots from the evaluated rows and cannot leave out the evaluated row itself, since its own "
            "code draws or changes them: give other rows as task.shots_data=FILE"
        )


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


def prompt_of_turns(messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> Prompt:
    """Return the turns, where the harness applies a chat template. Without a generation prompt the last one begins the answer."""
    assert add_generation_prompt or messages[-1]["role"] == "assistant", "the harness begins the answer"
    return Prompt(messages=tuple(Message(turn["role"], turn["content"]) for turn in messages))
