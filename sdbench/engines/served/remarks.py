"""Warnings about what a latency pass measured."""

from __future__ import annotations

from collections.abc import Sequence

from sdbench.prepare.progress import warn
from sdbench.records import Store, read
from sdbench.serve.answer import Answer


def warn_of_other_texts(answers: Sequence[Answer]) -> None:
    """Warn if the server left out ids, so that the end of a text is not known."""
    if num := sum(bool(answer.omitted) for answer in answers):
        warn(
            f"{num} of {len(answers)} timed texts lack some token ids, and repeating the request did not supply them: sdbench "
            "cannot tell where these texts end, so it counts all their tokens"
        )


def warn_of_repeats(num_repeated: int, num_requests: int, concurrency: int) -> None:
    """Warn if requests of a closed loop failed at first: they were repeated alone, so their times are those of an idle server."""
    if num_repeated and concurrency > 1:
        warn(
            f"{num_repeated} of {num_requests} requests of {concurrency} users at once failed at first and were repeated alone: "
            "no speed under load is shown from this loop"
        )


def warn_of_overhead(store: Store, pass_id: str) -> None:
    """Warn if transport and this client take a large part of the time."""
    from sdbench.metrics.load import overhead, parts_of_overhead

    loads = read(store.folder).loads.query("pass_id == @pass_id")
    if (share := overhead(loads)) > 0.05:
        warn(
            f"the server reports {share:.0%} less time than this client measures: the rest is {parts_of_overhead(loads)}"
        )


def warn_of_slots(slots: object, levels: Sequence[int]) -> None:
    """Warn if a closed loop has more users than the server has slots; other servers report none."""
    more = [str(level) for level in levels if isinstance(slots, int) and level > slots]
    if more:
        requests, users = ("1 request", "1 user") if slots == 1 else (f"{slots} requests", f"{slots} users")
        warn(
            f"the server answers {requests} at a time: at engine.concurrency={' and '.join(more)} the others wait for a slot, and "
            f"the speed of a user there is that of {users} at once"
        )
