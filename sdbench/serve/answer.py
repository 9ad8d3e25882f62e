"""Read one streamed answer of a server, chunk by chunk."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sdbench.serve.dialect import SECONDS, STEPS, SUMS, TOTALS, Dialect, all_of, at
from sdbench.serve.rounds import steps_of
from sdbench.types import EngineError

NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Answer:
    """A text as the server sent it: its token ids, the server's counts, and the time of each chunk in seconds since the request."""

    ids: tuple[int, ...]  # those that the server sent
    text: str
    is_stopped: bool
    steps: Mapping[str, Sequence[int]] | None
    totals: Mapping[str, float] | None
    chunks: tuple[tuple[float, int], ...]  # time and number of ids
    server_s: Mapping[str, float]  # first_token, decode, queue; NaN if the server does not report it
    started_at: float
    num_asked: int = 1  # how often the request was sent
    omitted: tuple[int, ...] = ()  # positions of tokens that the stream counts but whose ids it does not send
    ended_s: float = NAN  # when it ended, which without tokens is all that is known of its time
    is_counted: bool = False  # whether the server reports its number of tokens

    @property
    def num_tokens(self) -> int:
        return len(self.ids) + len(self.omitted)

    @property
    def first_token_s(self) -> float:
        return self.chunks[0][0] if self.chunks else NAN

    @property
    def decode_s(self) -> float:
        return self.chunks[-1][0] - self.chunks[0][0] if self.chunks else NAN

    def with_ids(self, ids: Sequence[int]) -> "Answer":
        """Return this answer with all ids, from a second answer to the same request; raise UnansweredError if the text differs."""
        known = tuple(token for position, token in enumerate(ids) if position not in self.omitted)
        if len(ids) != self.num_tokens or known != self.ids:
            raise UnansweredError(
                "its stream omits token ids, and the repeated request gave a different text: does somebody else use the server?"
            )
        return replace(self, ids=tuple(ids), omitted=())


class UnansweredError(Exception):
    """A request got no complete answer; a partial one is dropped. `wait_s` is the wait that the server asked for."""

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class AnswerReader:
    """Collect the chunks of one answer."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.started_at, self._begin = time.time(), time.perf_counter()
        self.ids: list[int | None] = []  # None: counted but not sent
        self.sums: list[tuple[int, int, int]] = []
        self.text, self.finish, self.is_whole = "", None, False
        self.chunks: list[tuple[float, int]] = []
        self.last: Mapping[str, Any] = {}
        self._facts: dict[str, Any] = {}

    def take(self, event: bytes) -> None:
        """Read the data of one server-sent event; raise UnansweredError if it is malformed."""
        if event == b"[DONE]":
            self.is_whole = True
            return
        try:
            self._chunk(dict(json.loads(event)))
        except (TypeError, ValueError, OverflowError) as error:
            raise UnansweredError("a chunk of its answer is not JSON, or has a field of a wrong type") from error

    def _chunk(self, chunk: Mapping[str, Any]) -> None:
        self.last, dialect = chunk, self.dialect
        facts = {
            **{name: at(chunk, dialect.milliseconds.get(name)) for name in SECONDS},
            "steps": all_of(chunk, dialect.steps, STEPS),
            "totals": all_of(chunk, dialect.totals, TOTALS),
            "mean": at(chunk, dialect.tokens_per_step),
            "tokens": at(chunk, dialect.sums.get("tokens") or "usage.completion_tokens"),
        }
        self._facts |= {name: value for name, value in facts.items() if value is not None}
        sums = None if dialect.sums.get("tokens") is None else [at(chunk, dialect.sums.get(name)) or 0 for name in SUMS]
        for choice in at(chunk, dialect.choices) or () if dialect.choices is not None else [chunk]:
            self._choice(choice, None if sums is None else sums[0])
        if sums is not None:
            self.sums.append((sums[0], sums[1], sums[2]))
        self.is_whole = self.is_whole or bool(at(chunk, dialect.last))

    def _choice(self, choice: Mapping[str, Any], count: int | None) -> None:
        """Read one choice of a chunk. `count` is the number of tokens so far, if the server reports it."""
        dialect = self.dialect
        new, text = at(choice, dialect.ids), at(choice, dialect.text)
        if new is None and text:
            raise EngineError(f"the server sends no token ids: its answers have no field {dialect.ids}")
        new = list(new or ())[len(self.ids) :] if dialect.is_cumulative else list(new or ())
        if count and count < len(self.ids) + len(new):
            raise UnansweredError(f"it reports {count} tokens but sent {len(self.ids) + len(new)}")
        if count is not None:
            new = [None] * (count - len(self.ids) - len(new)) + new
        if new:
            self.ids += new
            self.chunks.append((time.perf_counter() - self._begin, len(new)))
        self.text += text or ""
        self.finish = at(choice, dialect.finish) or self.finish

    def ended_at(self, count: int) -> Answer:
        """Return the answer cut to its first `count` ids; the last of them came in the newest chunk."""
        when, size = self.chunks[-1]
        self.chunks[-1] = when, size - (len(self.ids) - count)
        self.ids, self.finish = self.ids[:count], self.dialect.stops[0]
        self._facts.pop("tokens", None)
        return self.answer()

    def answer(self) -> Answer:
        """Return the complete answer; raise UnansweredError if tokens are missing or came twice."""
        if self._facts.get("tokens", len(self.ids)) != len(self.ids):
            raise UnansweredError(f"it reports {self._facts['tokens']} tokens but sent {len(self.ids)}")
        try:
            server_s = {name: float(self._facts.get(name, NAN)) / 1000 for name in SECONDS}
            totals, steps = self._totals(), steps_of(self.sums) if self.sums else self._steps()
        except (TypeError, ValueError) as error:
            raise UnansweredError("a count or a time of its answer is not a number") from error
        return Answer(
            ids=tuple(token for token in self.ids if token is not None),
            text=self.text,
            is_stopped=self.finish in self.dialect.stops,
            steps=steps,
            totals=totals,
            chunks=tuple(self.chunks),
            server_s=server_s,
            started_at=self.started_at,
            omitted=tuple(position for position, token in enumerate(self.ids) if token is None),
            ended_s=time.perf_counter() - self._begin,
            is_counted="tokens" in self._facts,
        )

    def _steps(self) -> dict[str, list[int]] | None:
        """Return the numbers of each step that the server reports; a TypeError or ValueError if they are none."""
        steps = self._facts.get("steps")
        return None if steps is None else {name: [int(count) for count in counts] for name, counts in steps.items()}

    def _totals(self) -> dict[str, float] | None:
        """Return the totals that the server reports, or compute them from its mean number of tokens per step.

        The prefill produces the first token; steps produce the others.
        """
        if self.sums:
            return {"steps": NAN, "drafted": self.sums[-1][1], "accepted": self.sums[-1][2]}
        totals, mean = self._facts.get("totals"), self._facts.get("mean")
        if totals is not None or not mean or not self.ids:
            return totals
        steps = round(len(self.ids) / mean)
        return {"steps": steps, "drafted": NAN, "accepted": len(self.ids) - steps}
