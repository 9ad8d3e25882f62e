"""Scoring beside decoding: finished texts drain to worker processes and come back as records, appended at once.

Workers are spawned, not forked: the parent has threads. They import tasks only, so no torch; they ignore Ctrl-C
and SIGTERM, which the parent answers by draining them. Only the parent touches the store.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

from sdbench.records import GenerationRecord, Store

if TYPE_CHECKING:
    from sdbench.tasks.base import DataTask
    from sdbench.types import Example, Score

OnFailure = Callable[[str, str | None, str], None]  # cell, example, message
BATCH, EVERY_S = 64, 2.0  # a part is written when so many are finished, or after so many seconds
ENDS = (signal.SIGINT, signal.SIGTERM)  # the parent's to answer
_task: DataTask


def _start(task: DataTask) -> None:
    global _task
    for name in ENDS:
        signal.signal(name, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.nice(10)  # decoding goes first where they share processors; programs under test inherit it
    _task = task


def _end_with_parent() -> None:
    """A worker holds both ends of its queue, so the end of a killed parent would never be seen there."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker has a parent"
    parent.join()
    os._exit(1)


def _score(pairs: Sequence[tuple[Example, str]], truncated: Sequence[bool]) -> list[Score]:
    return _task.score_all(pairs, truncated)


class Scorers:
    """A pool and what is in flight. `put` never waits; `drain` does."""

    def __init__(self, task: DataTask, *, workers: int | None = None) -> None:
        count = workers or max(1, min(4, (os.cpu_count() or 2) - 1))
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(count, mp_context=context, initializer=_start, initargs=(task,))
        self._waiting: list[tuple[GenerationRecord, Example]] = []
        self._flying: list[tuple[Future[list[Score]], list[GenerationRecord]]] = []
        self._since_s = time.monotonic()

    def start(self) -> None:
        """A worker starts now, while the models load; where there is nothing to score, none does."""
        resource_tracker.ensure_running()  # which would unblock the signals that a worker is to be born without
        self._submit(os.getpid)

    def put(self, record: GenerationRecord, example: Example, store: Store, failed: OnFailure) -> None:
        """One finished text; on the way, whatever has come back is written."""
        self._waiting.append((record, example))
        if len(self._waiting) >= BATCH or time.monotonic() - self._since_s > EVERY_S:
            self._send()
        self._write(store, failed, wait=False)

    def drain(self, store: Store, failed: OnFailure) -> None:
        """Everything put so far is scored and written when this returns."""
        self._send()
        self._write(store, failed, wait=True)

    def close(self) -> None:
        """Waits for the batch in a worker's hands: a pool that is left while it ends complains when Python exits."""
        self._pool.shutdown(cancel_futures=True)

    def _submit(self, what: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """A worker that this starts has the signals blocked until it ignores them: it imports for a while before it can."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
        try:
            return self._pool.submit(what, *arguments)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _send(self) -> None:
        self._since_s = time.monotonic()
        if self._waiting:
            pairs = [(example, record.text) for record, example in self._waiting]
            truncated = [record.finish == "length" for record, _ in self._waiting]
            self._flying.append((self._submit(_score, pairs, truncated), [record for record, _ in self._waiting]))
            self._waiting = []

    def _write(self, store: Store, failed: OnFailure, *, wait: bool) -> None:
        while self._flying and (wait or self._flying[0][0].done()):
            future, records = self._flying.pop(0)
            try:
                scores = future.result()
            except (ArithmeticError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
                for record in records:
                    failed(record.cell, record.example, f"scoring failed: {error}")
                continue
            store.append_generations(
                [_with_score(record, score) for record, score in zip(records, scores, strict=True)]
            )


def _with_score(record: GenerationRecord, score: Score) -> GenerationRecord:
    flags = {**record.flags, **score.flags}
    return replace(record, scores=dict(score.values), stats=dict(score.stats), flags=flags)
