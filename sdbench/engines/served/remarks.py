"""Warnings about servers and about what a latency pass measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sdbench.prepare.progress import warn
from sdbench.records import Store, read
from sdbench.serve.answer import Answer


def warn_of_other_program(store: Store, facts: Mapping[str, Any]) -> None:
    """Warn if an earlier run of this folder had another program, or version of it, as server of this setting. Keys of texts do not
    name the program, so texts of both stand in one row; a latency pass is of one program.
    """
    runs = reversed(read(store.folder).provenance.values())
    alike = (
        each for run in runs for each in reversed(run.get("servers") or ()) if _setting_of(each) == _setting_of(facts)
    )
    before, now = (None if each is None else _program_of(each) for each in (next(alike, None), facts))
    if before not in (None, now):
        warn(
            f"earlier texts of this folder at the same setting were written by {before}, and this server is {now}: two builds "
            "may write different texts, which are counted together; name=NAME keeps their records apart"
        )


def _setting_of(facts: Mapping[str, Any]) -> list[Any]:
    return [facts.get(name) for name in ("engine", "setting")]


def _program_of(facts: Mapping[str, Any]) -> str:
    """Return version, commit and path of a server's program, as far as they are known."""
    installed = facts.get("installed") or {}
    names = (installed.get("version") or facts.get("version"), installed.get("commit"), installed.get("binary"))
    return " ".join(str(name) for name in names if name) or "an unknown version"


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
