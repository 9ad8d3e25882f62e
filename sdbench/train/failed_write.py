"""A full disk while a training writes a checkpoint, states or its result."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from sdbench.errors import first_line


class FailedWriteError(Exception):
    """A file of a training cannot be written, as on a full disk; what was written before is intact."""


@contextmanager
def explain_failed_write(path: Path) -> Iterator[None]:
    """Raise FailedWriteError, in a sentence, for a failed write within this context."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        cause = error.__context__ if isinstance(error, RuntimeError) else error  # torch hides the error of a file
        if not isinstance(cause, OSError | SafetensorError):
            raise
        reason = (cause.strerror if isinstance(cause, OSError) else None) or first_line(cause)
        raise FailedWriteError(
            f"cannot write {path}: {reason[:1].lower() + reason[1:]}; what was trained up to the last checkpoint "
            "is kept, and the same command goes on from it once there is room and permission"
        ) from error
