"""What comes back from the jobs of a launcher."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Sequence

from hydra.core.utils import JobReturn, JobStatus

from sdbench.subcommand import Exit


def name_of_job(error: Exception, lines: Sequence[Sequence[str]]) -> str:
    """The pair and the task of the job that an error of submitit names by its place in the array."""
    match = re.search(r"Job \d+(?:_(\d+))?\b", str(error))
    index = int(match[1] or 0) if match else len(lines)
    return f": {' '.join(lines[index])}" if index < len(lines) else ""


def exit_code_of(result: JobReturn) -> int:
    if result.status is JobStatus.COMPLETED:
        return int(result.return_value)
    error = result._return_value
    trace = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else str(error)
    print(f"sdbench: a job died: {' '.join(result.overrides or [])}\n{trace}", file=sys.stderr)
    return Exit.FAILED
