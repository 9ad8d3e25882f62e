"""Tasks: data, prompts, extraction and scores of what a model writes. No torch. Start at `load`."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdbench.config import FAMILIES, config_dir, member_options, nearest
from sdbench.config.checks import refuse_beside_data
from sdbench.imports import import_object

if TYPE_CHECKING:
    from sdbench.tasks.base import DataTask

__all__ = ["build", "load", "names", "options"]


def names() -> list[str]:
    """Return the tasks that have a file in configs/task."""
    return sorted({path.stem for path in (config_dir() / "task").glob("*.yaml")} - set(FAMILIES))


@cache
def _tree(path: Path) -> dict[str, Any]:
    import yaml

    return yaml.safe_load(path.read_text(encoding="utf-8"))


def load(name: str, **options: Any) -> DataTask:
    """Load the task of configs/task/NAME.yaml with some options changed: data, protocol, n, seed, shots, stop, …

    `lm-eval:NAME` is a task of lm-evaluation-harness.
    """
    file, member = member_options(name)
    if file not in (*names(), *FAMILIES):
        raise ValueError(f"there is no task {name} {nearest(name, names())}")
    refuse_beside_data(options)
    tree = {key: value for key, value in _tree(config_dir() / "task" / f"{file}.yaml").items() if key != "choices"}
    return build(**{**tree, **member, **options})


def options(name: str) -> list[str]:
    """Return the options in a task's file."""
    file, _ = member_options(name)
    return [key for key in _tree(config_dir() / "task" / f"{file}.yaml") if key not in ("_target_", "name", "choices")]


def build(_target_: str, *, name: str, **options: Any) -> DataTask:
    """Build a task from the path of its class, as for the YAML files."""
    task = import_object(_target_)
    for option in options:
        if option not in (known := [field.name for field in fields(task) if field.init]):
            raise ValueError(f"{option} is not an option of task {name} {nearest(option, known)}")
    return task(name=name, **options)
