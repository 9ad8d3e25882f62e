"""Errors of files of a training that cannot be written, for example on a full disk, or read, because they were deleted."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from sdbench.errors import first_line


class FailedFileError(Exception):
    """A file of a training cannot be written or read; what was written before is intact."""


@contextmanager
def explain_failed_write(path: Path) -> Iterator[None]:
    """Raise FailedFileError, in a sentence, for a failed write of this path, or of one in it or beside it."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        cause = error.__context__ if isinstance(error, RuntimeError) else error  # torch hides the error of a file
        if not isinstance(cause, OSError | SafetensorError) or is_of_another_file(cause, path):
            raise
        raise FailedFileError(
            f"cannot write {path}: {reason_of(cause)}; what was trained up to the last checkpoint is kept, and the same "
            "command goes on from it once there is room and permission"
        ) from error


@contextmanager
def explain_failed_read(path: Path) -> Iterator[None]:
    """Raise FailedFileError, in a sentence, for a failed read of what this training wrote before."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise FailedFileError(
            f"cannot read {path}, which this training wrote before: {reason_of(error)}; the same command goes on from the "
            "last checkpoint and writes again what is missing"
        ) from error


def is_of_another_file(error: OSError | SafetensorError, path: Path) -> bool:
    """Return whether an error names a file that is neither this path nor in or beside it."""
    name = getattr(error, "filename", None)
    return isinstance(name, str) and not Path(name).absolute().is_relative_to(path.absolute().parent)


def reason_of(error: OSError | SafetensorError) -> str:
    reason = (error.strerror if isinstance(error, OSError) else None) or first_line(error)
    return reason[:1].lower() + reason[1:]
