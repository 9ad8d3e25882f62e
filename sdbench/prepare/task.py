"""The task of a run, with the run's number of examples and answer length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sdbench.config import ConfigError, Run
from sdbench.hub import HubError

if TYPE_CHECKING:
    from sdbench.tasks.base import DataTask


def build_task(run: Run) -> DataTask:
    """Build the task with the run's n and max_new_tokens; its errors become ConfigErrors."""
    from sdbench import tasks

    options = {**run.task.options, "n": run.n}
    if run.max_new_tokens is not None:
        options["max_new_tokens"] = run.max_new_tokens
    try:
        task = tasks.build(str(run.task.target), name=run.task.name, **options)
        _ = task.ids, task.environment()  # raises if rows are missing, or if there is no sandbox where code must run
    except (ConfigError, HubError):
        raise
    except (ValueError, OSError, TypeError, RuntimeError, ImportError, AttributeError, LookupError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise ConfigError(f"task={run.task.name}: {lines[0]}") from None
    return task
