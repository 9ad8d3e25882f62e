"""The output of a run while it runs: a progress bar on a terminal, otherwise a line now and then; every warning once."""

import math
import sys
import threading
import time
import warnings
from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

PACKAGE = Path(__file__).parents[1]
PLAIN_EVERY_S = 5.0
BAR_EVERY_S = 0.1
SILENT_S = 30.0  # print a line at least so often
EARLY, FEW = 0.05, 10  # share of the work, or number of texts, before which no remaining time is shown
STEPS, AGES = 48, 16  # of the sum, and ages told apart, in `expected_longest`


class Bar:
    """Counts finished texts out of a total, with the tokens and the acceptance so far. `longest` is the most tokens of a text."""

    def __init__(self, title: str, total: int, *, longest: float = math.inf, stream: TextIO | None = None) -> None:
        self.title, self.total, self.longest = title, total, longest
        self.done = self.tokens = self.examined = self.accepted = 0
        self.begun = self.written = 0  # texts whose prompts were read, and tokens written, unfinished texts included
        self.reading_s = self.writing_s = self.texts_s = 0.0  # the last one is summed over the texts in progress
        self._lengths: list[int] = []  # of the finished texts, in order
        self._youngest_s = 0.0  # how long the text that was begun last has been written
        self.stream = stream or sys.stderr
        self.started_s = self._printed_s = self._watched_s = time.monotonic()
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
        self.done += 1
        self.tokens += tokens
        insort(self._lengths, tokens)
        self.examined += examined
        self.accepted += accepted
        self._show()

    def watch(self, texts: int, tokens: int) -> None:
        """Count prompts read and tokens written since the last call; negative where texts start again."""
        now_s = time.monotonic()
        if texts > 0:
            self.reading_s += now_s - self._watched_s
            self._youngest_s = 0.0
        else:
            self._youngest_s += now_s - self._watched_s
            self.writing_s += now_s - self._watched_s
            self.texts_s += (now_s - self._watched_s) * (self.begun - self.done)
        self._watched_s = now_s
        self.begun += texts
        self.written += tokens
        self._show()

    def left_s(self) -> float | None:
        """Estimate the remaining seconds, None at the start.

        The expected length of a text lies between the tokens written per begun text, which is too low, and per finished text,
        which is too high. Prompts count separately, by the time that reading them takes. When the last prompt has been read, the
        longest of the texts in progress decides.
        """
        if not self.done or self.done < min(FEW, EARLY * self.total):
            return None
        if self.done >= self.total:  # only scoring is left
            return 0.0
        if not self.written:  # an engine that does not report progress
            return (time.monotonic() - self.started_s) / self.done * (self.total - self.done)
        least, most = self.written / max(self.begun, self.done), self.written / self.done
        length = min(max(least, math.sqrt(least * most)), self.longest)
        reading_s = self.reading_s / max(self.begun, 1) * max(self.total - self.begun, 0)
        waiting = max(self.total - self.begun, 0)
        token_s = self.texts_s / self.written
        rows = max(self.begun - self.done, 1)
        usual = max(self.written - self.tokens, 0) / rows  # tokens of a text in progress, on average
        youngest = min(self._youngest_s / token_s, usual) if token_s and not waiting else 0.0
        count = min(rows, AGES)
        ages = [youngest + (usual - youngest) * (2 * number + 1) / count for number in range(count)]
        last_s = token_s * expected_longest(self._lengths, ages, rows / count)
        return reading_s + self.writing_s / self.written * waiting * length + last_s

    def report(self) -> None:
        """Print a line if something has happened since the last one, or after a long silence."""
        state, now_s = (self.done, self.begun, self.written), time.monotonic()
        if state != self._printed or now_s - self._printed_s >= SILENT_S:
            self._printed, self._printed_s = state, now_s
            print(self._line() + self._time_left(), file=self.stream, flush=True)

    def _print_lines(self) -> None:
        while not self._is_over.wait(PLAIN_EVERY_S):
            self.report()

    def _show(self) -> None:
        now_s = time.monotonic()
        if self._bar is not None and (self.done == self.total or now_s - self._shown_s >= BAR_EVERY_S):
            self._shown_s = now_s
            self._bar.update(self._task, completed=self.done, facts=self._facts() + self._time_left())

    def _facts(self) -> str:
        elapsed = max(time.monotonic() - self.started_s, 1e-9)
        tokens = max(self.tokens, self.written)
        pace = tokens / elapsed
        facts = [f"{self.begun - self.done} under way"] if self.begun > self.done else []
        facts += [f"{pace:,.0f} tokens/s" if pace >= 10 else f"{pace:.2g} tokens/s"] if tokens else []
        facts += [f"acceptance {self.accepted / self.examined:.3f}"] if self.examined else []
        return ", ".join(facts)

    def _line(self) -> str:
        elapsed = time.monotonic() - self.started_s
        facts = self._facts()
        return f"{self.title}: {self.done}/{self.total} in {elapsed:.1f} s" + (f", {facts}" if facts else "")

    def _time_left(self) -> str:
        left_s = self.left_s()
        return "" if left_s is None else f", {left_s:.0f} s left"


_printed: set[str] = set()


def warn(text: str) -> None:
    """Print a warning, once per process."""
    if text not in _printed:
        _printed.add(text)
        print(f"sdbench: warning: {text}", file=sys.stderr, flush=True)


@contextmanager
def engine_warnings() -> Iterator[None]:
    """Print the package's warnings as lines in our format; those of libraries stay unchanged."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def say(message: Warning | str, category: type[Warning], filename: str, *rest: Any) -> None:
            is_ours = Path(filename).is_relative_to(PACKAGE)
            warn(str(message)) if is_ours else show(message, category, filename, *rest)

        warnings.showwarning = say
        warnings.filterwarnings("always", module=r"sdbench\.")
        yield


def expected_longest(lengths: Sequence[int], ages: Sequence[float], texts_per_age: float) -> float:
    """Estimate the tokens that the longest of several texts still needs: texts that have `ages` tokens so far, if their lengths
    are distributed as `lengths`, those of finished texts in order. A text that is longer than all of those counts as finished.
    """
    longer = [len(lengths) - bisect_right(lengths, age) for age in ages]
    step = max(lengths[-1] - min(ages), 0) / STEPS
    total = 0.0
    for number in range(STEPS):
        more = (number + 0.5) * step
        shares = (
            1 - (len(lengths) - bisect_right(lengths, age + more)) / count
            for age, count in zip(ages, longer, strict=True)
            if count
        )
        total += step * (1 - math.prod(share**texts_per_age for share in shares))
    return total
