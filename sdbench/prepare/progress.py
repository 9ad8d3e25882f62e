"""The output of a run while it runs: a progress bar on a terminal, otherwise a line every few seconds; each warning once."""

import math
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from sdbench.prepare.remaining import Remaining, TextStream

PACKAGE = Path(__file__).parents[1]
PLAIN_EVERY_S = 5.0
BAR_EVERY_S = 0.1
SILENT_S = 30.0  # longest time without a line
EARLY, FEW = 0.05, 10  # share of the work, or number of texts, before which no remaining time is shown


class Bar:
    """Counts finished texts out of a total, with the tokens and the acceptance so far. `longest` is the most tokens of a text.
    `streams` are the batch streams that decode the texts, in order; None stands for a single one.
    """

    def __init__(
        self,
        title: str,
        total: int,
        *,
        longest: float = math.inf,
        streams: Sequence[TextStream] | None = None,
        stream: TextIO | None = None,
    ) -> None:
        self.title, self.total = title, total
        self.examined = self.accepted = 0
        self.remaining = Remaining(streams or [TextStream(total)], longest)
        self.stream = stream or sys.stderr
        self.started_s = self._printed_s = self._watched_s = self._seen_s = time.monotonic()
        self._waited_s = 0.0  # for weights and servers
        self._shown_s = -math.inf
        self._printed = (-1, -1, -1)
        self._bar: Progress | None = None
        self._is_over = threading.Event()

    def __enter__(self) -> "Bar":
        if self.stream.isatty() and self.total:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[facts]}"),
            )
            self._bar = Progress(*columns, console=Console(file=self.stream), transient=True)
            self._task = self._bar.add_task(self.title, total=self.total, facts="")
            self._bar.start()
        elif self.total:
            threading.Thread(target=self._print_lines, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        if self._bar is not None:
            self._bar.stop()
        if self.total:
            print(self._line(), file=self.stream, flush=True)

    def add(self, *, tokens: int = 0, examined: int = 0, accepted: int = 0) -> None:
        """Count one finished text."""
        self._seen_s = time.monotonic()
        self.remaining.finish(tokens)
        self.examined += examined
        self.accepted += accepted
        self._show()

    def watch(self, texts: int, tokens: int) -> None:
        """Count prompts read and tokens written since the last call: negative for texts that start again, both 0 after a wait."""
        now_s = time.monotonic()
        self.remaining.watch(texts, tokens, now_s - self._watched_s)
        if not texts and not tokens:
            self._waited_s += now_s - self._seen_s
        self._watched_s = self._seen_s = now_s
        self._show()

    def left_s(self) -> float | None:
        """Estimate the remaining seconds, None at the start."""
        done = self.remaining.done
        if not done or done < min(FEW, EARLY * self.total):
            return None
        if done >= self.total:  # only scoring is left
            return 0.0
        if not self.remaining.written:  # an engine that does not report progress
            return (time.monotonic() - self.started_s - self._waited_s) / done * (self.total - done)
        return self.remaining.left_s()

    def report(self) -> None:
        """Print a line if the counts have changed since the last one, or after SILENT_S seconds without one."""
        state, now_s = (self.remaining.done, self.remaining.begun, self.remaining.written), time.monotonic()
        if state != self._printed or now_s - self._printed_s >= SILENT_S:
            self._printed, self._printed_s = state, now_s
            print(self._line() + self._time_left(), file=self.stream, flush=True)

    def _print_lines(self) -> None:
        while not self._is_over.wait(PLAIN_EVERY_S):
            self.report()

    def _show(self) -> None:
        now_s = time.monotonic()
        done = self.remaining.done
        if self._bar is not None and (done == self.total or now_s - self._shown_s >= BAR_EVERY_S):
            self._shown_s = now_s
            self._bar.update(self._task, completed=done, facts=self._facts() + self._time_left())

    def _facts(self) -> str:
        elapsed = max(time.monotonic() - self.started_s, 1e-9)
        remaining = self.remaining
        tokens, under_way = max(remaining.finished, remaining.written), remaining.begun - remaining.done
        pace = tokens / elapsed
        facts = [f"{under_way} under way"] if under_way > 0 else []
        facts += [f"{pace:,.0f} tokens/s" if pace >= 10 else f"{pace:.2g} tokens/s"] if tokens else []
        facts += [f"acceptance {self.accepted / self.examined:.3f}"] if self.examined else []
        return ", ".join(facts)

    def _line(self) -> str:
        elapsed = time.monotonic() - self.started_s
        facts = self._facts()
        return f"{self.title}: {self.remaining.done}/{self.total} in {elapsed:.1f} s" + (f", {facts}" if facts else "")

    def _time_left(self) -> str:
        left_s = self.left_s()
        return "" if left_s is None else f", {left_s:.0f} s left"


_printed: set[str] = set()


def warn(text: str) -> None:
    """Print a warning, once in each run."""
    if text not in _printed:
        _printed.add(text)
        print(f"sdbench: warning: {text}", file=sys.stderr, flush=True)


@contextmanager
def engine_warnings() -> Iterator[None]:
    """Print the package's warnings of a run with `warn`, also those that an earlier run of this process has printed; those of
    libraries stay unchanged.
    """
    _printed.clear()
    with warnings.catch_warnings():
        show = warnings.showwarning

        def say(message: Warning | str, category: type[Warning], filename: str, *rest: Any) -> None:
            is_ours = Path(filename).is_relative_to(PACKAGE)
            warn(str(message)) if is_ours else show(message, category, filename, *rest)

        warnings.showwarning = say
        warnings.filterwarnings("always", module=r"sdbench\.")
        yield
