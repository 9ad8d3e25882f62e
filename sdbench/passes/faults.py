"""The net under a command: an exception that nobody expected becomes one sentence and a file; SIGTERM is Ctrl-C."""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sdbench.config import show
from sdbench.errors import first_line


def report_fault(error: Exception, folder: Path | None) -> None:
    """One sentence to stderr; the traceback to `folder`/errors, or to the system's temporary folder."""
    name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{type(error).__name__}.txt"
    text = "".join(traceback.format_exception(error))
    print(
        f"sdbench: {type(error).__name__}: {show(first_line(error))}; the traceback is {_keep(name, text, folder)}",
        file=sys.stderr,
    )


def _keep(name: str, text: str, folder: Path | None) -> str:
    """Where the traceback was written; the text itself where nothing can be written."""
    places = [*([] if folder is None else [folder / "errors"]), Path(tempfile.gettempdir())]
    for place in places:
        try:
            place.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)
        except OSError:
            continue
        return f"in {place / name}"
    return f"here, as no folder takes it:\n{text}"


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """A scheduler's SIGTERM ends a job as Ctrl-C does; a launcher that has a use of its own for it keeps it."""
    is_free = (
        threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if is_free:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        if is_free:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
