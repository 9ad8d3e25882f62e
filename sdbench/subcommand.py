"""Common code of all subcommands: the table of exit codes, --help, and the handling of errors."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdbench.config import ConfigError, show
from sdbench.errors import first_line

if TYPE_CHECKING:
    from sdbench.config import Run

Compose = Callable[[Sequence[str]], "Run"]  # the words of a command line -> the run that they describe


class Exit(IntEnum):
    """The exit codes of all commands."""

    DONE = 0  # audit: every claim is sound
    FAILED = 1  # some cells failed, or an unexpected error; audit: a claim is violated
    BAD_CONFIG = 2
    TOO_FEW = 3  # audit: not enough samples
    FAULT = 4  # audit: an error in the audit itself, so no verdict
    INTERRUPTED = 130


@dataclass(frozen=True)
class Subcommand:
    """A command: `run(words, compose)` returns its exit code; `mistakes` are the exceptions that the user can correct.

    `compose` is None if the command runs as a separate program.
    """

    name: str  # prefix of its messages
    help: Callable[[Sequence[str]], str]
    run: Callable[[Sequence[str], Any], int]
    mistakes: tuple[type[Exception], ...] = (ConfigError,)
    fault: Exit = Exit.FAILED
    interrupted: str = "interrupted; run the same command again to continue"

    def main(self) -> None:
        """Run the command as a separate program."""
        sys.exit(self(sys.argv[1:]))

    def __call__(self, words: Sequence[str], compose: Compose | None = None) -> int:
        if {"-h", "--help"} & set(words):
            print_text(self.help(words).strip())
            return Exit.DONE
        try:
            with ends_as_ctrl_c():
                return self.run(words, compose)
        except self.mistakes as error:
            print(f"{self.name}: {sentence_of(error)}", file=sys.stderr)
            return Exit.BAD_CONFIG
        except KeyboardInterrupt:
            print(f"{self.name}: {self.interrupted}", file=sys.stderr)
            return Exit.INTERRUPTED
        except Exception as error:  # noqa: BLE001 - any other error becomes one sentence and a file with the traceback
            report_fault(error, None)
            return self.fault


def print_text(text: str) -> None:
    """Print a text; a pipe whose reader closes early, such as `| head`, is not an error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise Python's final flush fails


def sentence_of(error: Exception) -> str:
    """Return a user's mistake as one line."""
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"there is no file {error.filename}"
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename} cannot be used: {error.strerror}"
    if isinstance(error, UnicodeDecodeError):
        return f"the file is not UTF-8 text: {error}"
    return str(error) if isinstance(error, ConfigError) else " ".join(str(error).split())


def report_fault(error: Exception, folder: Path | None) -> None:
    """Print one sentence to stderr and write the traceback to `folder`/errors, or to the system's temporary folder."""
    name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{type(error).__name__}.txt"
    text = "".join(traceback.format_exception(error))
    print(
        f"sdbench: {type(error).__name__}: {show(first_line(error))}; the traceback is {_keep(name, text, folder)}",
        file=sys.stderr,
    )


def _keep(name: str, text: str, folder: Path | None) -> str:
    """Return where the traceback was written, or the traceback if nothing can be written."""
    parents = [*([] if folder is None else [folder / "errors"]), Path(tempfile.gettempdir())]
    for parent in parents:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            (parent / name).write_text(text)
        except OSError:
            continue
        return f"in {parent / name}"
    return f"printed here, because no folder could be written:\n{text}"


@contextmanager
def ends_as_ctrl_c() -> Iterator[None]:
    """Treat a scheduler's SIGTERM and a closed terminal's SIGHUP like Ctrl-C, unless a launcher handles or nohup ignores them."""
    is_main = threading.current_thread() is threading.main_thread()
    free = [end for end in (signal.SIGTERM, signal.SIGHUP) if is_main and signal.getsignal(end) is signal.SIG_DFL]
    for end in free:
        signal.signal(end, signal.default_int_handler)
    try:
        yield
    finally:
        for end in free:
            signal.signal(end, signal.SIG_DFL)
