"""What a run says while it runs: a bar on a terminal, a plain line now and then elsewhere; every warning once."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PACKAGE = Path(__file__).parents[1]
PLAIN_EVERY_S = 5.0
EARLY = 0.05  # of the work


class Bar:
    """Counts things done out of a total, with the tokens and the acceptance so far."""

    def __init__(self, title: str, total: int, *, stream: TextIO | None = None) -> None:
        self.title, self.total = title, total
        self.done = self.tokens = self.examined = self.accepted = 0
        self.stream = stream or sys.stderr
        self.started_s = self._said_s = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> Bar:
        if self.stream.isatty() and self.total:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[facts]}"),
            )
            console = Console(file=self.stream)
            self._bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
            self._task = self._bar.add_task(self.title, total=self.total, facts="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self.total:
            print(self._line(), file=self.stream, flush=True)

    def add(self, *, tokens: int = 0, examined: int = 0, accepted: int = 0) -> None:
        """One more is done."""
        self.done += 1
        self.tokens, self.examined, self.accepted = (
            *(self.tokens + tokens, self.examined + examined, self.accepted + accepted),
        )
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, facts=self._facts())
        elif time.monotonic() - self._said_s > PLAIN_EVERY_S:
            self._said_s = time.monotonic()
            print(self._line() + self._time_left(), file=self.stream, flush=True)

    def _facts(self) -> str:
        elapsed = max(time.monotonic() - self.started_s, 1e-9)
        pace = self.tokens / elapsed
        facts = [f"{pace:,.0f} tokens/s" if pace >= 10 else f"{pace:.2g} tokens/s"] if self.tokens else []
        facts += [f"acceptance {self.accepted / self.examined:.3f}"] if self.examined else []
        return ", ".join(facts)

    def _line(self) -> str:
        elapsed = time.monotonic() - self.started_s
        facts = self._facts()
        return f"{self.title}: {self.done}/{self.total} in {elapsed:.1f} s" + (f", {facts}" if facts else "")

    def _time_left(self) -> str:
        """Nothing at first: a batch ends all at once, and the first says little of the others."""
        if self.done < EARLY * self.total:
            return ""
        elapsed = time.monotonic() - self.started_s
        return f", {elapsed / self.done * (self.total - self.done):.0f} s left"


_printed: set[str] = set()


def warn(text: str) -> None:
    """A warning, once a process."""
    if text not in _printed:
        _printed.add(text)
        print(f"sdbench: warning: {text}", file=sys.stderr, flush=True)


@contextmanager
def engine_warnings() -> Iterator[None]:
    """The package's own warnings as lines of ours; those of libraries stay as they are."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def say(message: Warning | str, category: type[Warning], filename: str, *rest: Any) -> None:
            is_ours = Path(filename).is_relative_to(PACKAGE)
            warn(str(message)) if is_ours else show(message, category, filename, *rest)

        warnings.showwarning = say
        warnings.filterwarnings("always", module=r"sdbench\.")
        yield
