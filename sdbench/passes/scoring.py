"""Score texts in worker processes while decoding goes on, and append the records at once.

Workers are spawned, not forked, because the parent has threads. They import tasks only, not torch. They ignore Ctrl-C and
SIGTERM; the parent handles these by draining the workers. Only the parent writes to the store.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

from sdbench.errors import sentence_of_failure
from sdbench.records import GenerationRecord, Store
from sdbench.types import EngineError

if TYPE_CHECKING:
    from sdbench.tasks.base import DataTask
    from sdbench.types import Example, Score

Batched = tuple[GenerationRecord, "Example"]
OnFailure = Callable[[str, str | None, str], None]  # cell, example, message
BATCH, EVERY_S = 64, 2.0  # write a part after so many texts, or after so many seconds
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # handled by the parent
_task: DataTask


def _start(task: DataTask) -> None:
    global _task
    for name in ENDS:
        signal.signal(name, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.nice(10)  # decoding has priority; programs under test inherit this
    _task = task


def _end_with_parent() -> None:
    """End when the parent does. A worker holds both ends of its queue, so it would not notice a killed parent otherwise."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker has a parent"
    parent.join()
    os._exit(1)


class ScoringError(Exception):
    """A metric raised an error. The message has its class and text, since the error itself may not be picklable."""


def _score(pairs: Sequence[tuple[Example, str]], truncated: Sequence[bool]) -> list[Score]:
    try:
        return _task.score_all(pairs, truncated)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a metric may raise anything; the parent records it
        raise ScoringError(sentence_of_failure(error)) from None


class Scorers:
    """A pool of workers and the texts sent to them. `put` never waits; `drain` does."""

    def __init__(self, task: DataTask, *, workers: int | None = None) -> None:
        self._task, self._count = task, workers or max(1, min(4, (os.cpu_count() or 2) - 1))
        self._pool, self._is_second = self._new_pool(), False
        self._waiting: list[Batched] = []
        self._flying: list[tuple[Future[list[Score]], list[Batched]]] = []
        self._since_s = time.monotonic()

    def _new_pool(self) -> ProcessPoolExecutor:
        # Python's tracker of resources ignores the other two signals by itself, and inherits that this one is blocked.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
        try:
            resource_tracker.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self._count, mp_context=context, initializer=_start, initargs=(self._task,))

    def _replace_pool(self) -> None:
        """Start a new pool, once, after the system killed a worker, and score the texts in flight again."""
        if self._is_second:
            raise EngineError(
                "a scoring process was killed twice (is memory short?): what was scored is in the records; run the command again"
            )
        self._is_second = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool, batches = self._new_pool(), [batch for _, batch in self._flying]
        self._flying = [(self._submit(_score, *_arguments(batch)), batch) for batch in batches]

    def start(self) -> None:
        """Start a worker while the models load, unless there is nothing to score."""
        resource_tracker.ensure_running()  # its start unblocks signals, which must stay blocked while a worker starts
        self._submit(os.getpid)

    def put(self, record: GenerationRecord, example: Example, store: Store, failed: OnFailure) -> None:
        """Send one finished text to a worker, and write the results that have come back."""
        self._waiting.append((record, example))
        if len(self._waiting) >= BATCH or time.monotonic() - self._since_s > EVERY_S:
            self._send()
        self._write(store, failed, wait=False)

    def drain(self, store: Store, failed: OnFailure) -> None:
        """Wait until all texts sent so far are scored and written."""
        self._send()
        self._write(store, failed, wait=True)

    def close(self) -> None:
        """Wait for the worker's current batch: leaving a pool earlier causes errors when Python exits."""
        self._pool.shutdown(cancel_futures=True)

    def _submit(self, what: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Submit a task. If this starts a worker, it starts with the signals blocked, because it can ignore them only after its
        imports.
        """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
        try:
            return self._pool.submit(what, *arguments)
        except BrokenProcessPool:
            self._replace_pool()
            return self._pool.submit(what, *arguments)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _send(self) -> None:
        self._since_s = time.monotonic()
        if self._waiting:
            future = self._submit(_score, *_arguments(self._waiting))  # may replace the pool and what is in flight
            self._flying.append((future, self._waiting))
            self._waiting = []

    def _write(self, store: Store, failed: OnFailure, *, wait: bool) -> None:
        while self._flying and (wait or self._flying[0][0].done()):
            future, batch = self._flying[0]
            try:
                scores = future.result()
            except BrokenProcessPool:
                self._replace_pool()
                continue
            except ScoringError as error:
                self._flying.pop(0)
                if len(batch) > 1:  # which text was it? The others still count
                    for pair in batch:
                        future = self._submit(_score, *_arguments([pair]))  # may replace what is in flight
                        self._flying.append((future, [pair]))
                else:
                    failed(batch[0][0].cell, batch[0][0].example, f"scoring failed: {error}")
                continue
            self._flying.pop(0)
            store.append_generations(
                [_with_score(record, score) for (record, _), score in zip(batch, scores, strict=True)]
            )


def _arguments(batch: Sequence[Batched]) -> tuple[list[tuple[Example, str]], list[bool]]:
    return [(example, record.text) for record, example in batch], [record.finish == "length" for record, _ in batch]


def _with_score(record: GenerationRecord, score: Score) -> GenerationRecord:
    flags = {**record.flags, **score.flags}
    return replace(record, scores=dict(score.values), stats=dict(score.stats), flags=flags)
