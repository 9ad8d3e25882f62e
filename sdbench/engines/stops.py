"""Where a text ends: at a stop id, or where its newest tokens complete a stop string."""

from collections.abc import Callable, Collection, Sequence


def stopper(text: Callable[[Sequence[int]], str], stops: Sequence[str]) -> Callable[[Sequence[int]], bool] | None:
    """Return a test of whether the newest tokens complete a stop string; `text` decodes ids. It reads only the tail: a token is
    at least one byte, so no stop string spans more tokens than it has bytes.
    """
    if not stops:
        return None
    tail = max(len(stop.encode()) for stop in stops) + 4

    def should_stop(ids: Sequence[int]) -> bool:
        end = text(ids[-tail:])
        return any(stop in end for stop in stops)

    return should_stop


def end_of(
    ids: Sequence[int], stops: Collection[int], should_stop: Callable[[Sequence[int]], bool] | None
) -> int | None:
    """Return the number of ids up to the one that ends the text; None if none does."""
    for count, token in enumerate(ids, start=1):
        if token in stops or (should_stop is not None and should_stop(ids[:count])):
            return count
    return None
