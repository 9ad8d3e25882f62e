"""An event loop in a thread: synchronous code sends many requests at once and reads each answer when it is complete."""

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
A = TypeVar("A")


class Pump:
    """Runs coroutines for synchronous code: `run` waits for one, `each` for many."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="requests", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def each(self, asks: Iterable[A], work: Callable[[A], Awaitable[T]], most: int) -> Iterator[tuple[A, T]]:
        """Yield each request with its answer as it ends, at most `most` at a time.

        An error cancels all other requests, and so does closing the generator.
        """
        answers: queue.Queue[tuple[A, T] | BaseException | None] = queue.Queue()
        waiting = iter(asks)

        async def user() -> None:
            for ask in waiting:  # all users share this iterator; they run in one thread, so no request is sent twice
                answers.put((ask, await work(ask)))

        async def users() -> None:
            async with asyncio.TaskGroup() as group:
                for _ in range(most):
                    group.create_task(user())

        def finish(done: Any) -> None:
            error = None if done.cancelled() else done.exception()
            answers.put(error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error)

        under_way = asyncio.run_coroutine_threadsafe(users(), self._loop)
        under_way.add_done_callback(finish)
        try:
            while (answer := answers.get()) is not None:
                if isinstance(answer, BaseException):
                    raise answer
                yield answer
        finally:
            under_way.cancel()

    def close(self) -> None:
        """Cancel all requests that have not ended, and stop the thread."""

        async def end() -> None:
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        if not self._loop.is_closed():
            self.run(end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
