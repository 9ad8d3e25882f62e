"""A client of one server of the OpenAI kind: streamed requests, repeated where nothing can be counted twice."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp

from sdbench.serve.dialect import SECONDS, STEPS, SUMS, TOTALS, Dialect, all_of, at, counters_of
from sdbench.serve.rounds import steps_of
from sdbench.types import EngineError

BUSY = (429, 502, 503, 504)
CONNECT_S = 10.0
LONGEST_WAIT_S = 60.0
NAN = float("nan")
IsOver = Callable[[Sequence[Any]], bool]  # whether the newest of these ids ends a text


@dataclass(frozen=True, slots=True)
class Patience:
    """How often a request is repeated, the first wait (each next one is twice as long), and the longest silence."""

    retries: int = 6
    wait_s: float = 0.5
    silence_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One text as received: uncut ids, the server's counts, and the times of its chunks in seconds from the request."""

    ids: tuple[int, ...]
    text: str
    is_stopped: bool
    steps: Mapping[str, Sequence[int]] | None
    totals: Mapping[str, float] | None
    chunks: tuple[tuple[float, int], ...]  # when, and how many ids
    server_s: Mapping[str, float]  # first_token, decode, queue; NaN where it does not say
    started_at: float
    num_asked: int = 1  # 1: answered at once

    @property
    def first_token_s(self) -> float:
        return self.chunks[0][0] if self.chunks else NAN

    @property
    def decode_s(self) -> float:
        return self.chunks[-1][0] - self.chunks[0][0] if self.chunks else NAN


class UnansweredError(Exception):
    """An attempt without a whole answer; any part of one is dropped. `wait_s`: the wait that the server asks for."""

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


@dataclass
class Client:
    """`url` without /v1. Open it inside the loop that uses it."""

    url: str
    dialect: Dialect
    patience: Patience = field(default_factory=Patience)
    headers: Mapping[str, str] = field(default_factory=dict)
    model: str = ""  # the name under which it serves the model
    _session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        times = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=self.patience.silence_s)
        connector = aiohttp.TCPConnector(limit=0, force_close=not self.dialect.keeps_connections)
        self._session = aiohttp.ClientSession(timeout=times, connector=connector, headers=dict(self.headers))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield a response; what the transport raises is an UnansweredError."""
        assert self._session is not None, "open() comes before any request"
        try:
            async with self._session.request(method, self.url + path, json=body) as response:
                yield response
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UnansweredError(" ".join(str(error).split())[:200] or type(error).__name__) from error

    async def get(self, path: str | None, body: Mapping[str, Any] | None = None) -> Any:
        """A page of the server as JSON, by POST where there is a body; None where there is no such page."""
        if path is None:
            return None
        async with self._request("GET" if body is None else "POST", path, body) as response:
            try:
                return await response.json(content_type=None) if response.status == 200 else None
            except ValueError:
                return None

    async def refuses(self, body: Mapping[str, Any]) -> bool:
        """Whether the server answers a request with HTTP 400."""
        async with self._request("POST", self.dialect.completions, body) as response:
            if response.status not in (200, 400):
                raise UnansweredError(f"HTTP {response.status}: {_message(await response.text())}")
            return response.status == 400

    async def counters(self) -> dict[str, float] | None:
        """Steps, drafted and accepted tokens since the server's start; None where it does not count them."""
        if not any(self.dialect.counters.values()):
            return None
        try:
            async with self._request("GET", self.dialect.counters_at) as response:
                return counters_of(await response.text(), self.dialect.counters) if response.status == 200 else None
        except UnansweredError as error:
            raise EngineError(f"the counters of the server at {self.url} cannot be read ({error})") from error

    async def complete(self, body: Mapping[str, Any], is_over: IsOver | None = None) -> Answer:
        """One text. A request without a whole answer is repeated, as it changes nothing on a server; at last EngineError."""
        reason = ""
        for attempt in range(self.patience.retries + 1):
            try:
                answer = await self.attempt(body, is_over)
            except UnansweredError as fault:
                reason = str(fault)
                if attempt < self.patience.retries:
                    await asyncio.sleep(self._wait_s(attempt, fault.wait_s))
                continue
            return replace(answer, num_asked=attempt + 1)
        tries = self.patience.retries + 1
        raise EngineError(
            f"the server at {self.url} left a request unanswered {tries} times, at last: {reason}; finished texts are in the "
            "records, and the same command goes on from there"
        )

    def _wait_s(self, attempt: int, retry_after_s: float | None) -> float:
        """Twice as long each time, by chance so that users do not come back together; at least what the server asks for."""
        usual_s = self.patience.wait_s * 2**attempt * random.uniform(0.5, 1)
        return min(LONGEST_WAIT_S, max(retry_after_s or 0.0, usual_s))

    async def attempt(self, body: Mapping[str, Any], is_over: IsOver | None = None) -> Answer:
        """One text, or an error: nothing is repeated. Where the newest ids end it by `is_over`, the connection is closed, and the
        server stops; what it would report at its own end stays unknown.
        """
        reader = _Reader(self.dialect)
        async with self._request("POST", self.dialect.completions, body) as response:
            if response.status in BUSY:
                raise UnansweredError(f"HTTP {response.status}", _seconds(response.headers.get("Retry-After")))
            if response.status != 200:
                message = _message(await response.text())
                raise EngineError(f"the server at {self.url} refuses a request with HTTP {response.status}: {message}")
            async for event in _events(response.content):
                num_before = len(reader.ids)
                reader.take(event)
                if is_over is not None:
                    for count in range(num_before + 1, len(reader.ids) + 1):
                        if is_over(reader.ids[:count]):
                            return reader.ended_at(count)
        if "error" in reader.last:
            raise UnansweredError(f"an error within the answer: {_message(json.dumps(reader.last))}")
        if not reader.is_whole:
            raise UnansweredError("its answer broke off")
        if None in reader.ids:
            reader.fill(await self._all_ids(body))
        return reader.answer()

    async def _all_ids(self, body: Mapping[str, Any]) -> Sequence[int]:
        """The ids of the same text, whole: llama.cpp's stream leaves out those of a character's first tokens."""
        async with self._request("POST", self.dialect.completions, {**body, "stream": False}) as response:
            if response.status != 200:
                raise UnansweredError(f"HTTP {response.status}")
            try:
                return at(await response.json(content_type=None), self.dialect.ids) or ()
            except ValueError as error:
                raise UnansweredError("its answer is no JSON") from error


class _Reader:
    """The chunks of one answer."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.started_at, self._begin = time.time(), time.perf_counter()
        self.ids: list[int | None] = []  # None: counted and not sent
        self.sums: list[tuple[int, int, int]] = []
        self.text, self.finish, self.is_whole = "", None, False
        self.chunks: list[tuple[float, int]] = []
        self.last: Mapping[str, Any] = {}
        self._facts: dict[str, Any] = {}

    def take(self, event: str) -> None:
        if event == "[DONE]":
            self.is_whole = True
            return
        try:
            chunk = json.loads(event)
        except ValueError as error:
            raise UnansweredError("a part of its answer is no JSON") from error
        self.last, dialect = chunk, self.dialect
        facts = {
            **{name: at(chunk, dialect.milliseconds.get(name)) for name in SECONDS},
            "steps": all_of(chunk, dialect.steps, STEPS),
            "totals": all_of(chunk, dialect.totals, TOTALS),
            "mean": at(chunk, dialect.tokens_per_step),
            "usage": at(chunk, "usage.completion_tokens"),
        }
        self._facts |= {name: value for name, value in facts.items() if value is not None}
        sums = None if dialect.sums.get("tokens") is None else [at(chunk, dialect.sums.get(name)) or 0 for name in SUMS]
        for choice in at(chunk, dialect.choices) or () if dialect.choices is not None else [chunk]:
            self._choice(choice, None if sums is None else sums[0])
        if sums is not None:
            self.sums.append((sums[0], sums[1], sums[2]))
        self.is_whole = self.is_whole or bool(at(chunk, dialect.last))

    def _choice(self, choice: Mapping[str, Any], count: int | None) -> None:
        """`count`: how many tokens there are by now, where the server says so."""
        dialect = self.dialect
        new, text = at(choice, dialect.ids), at(choice, dialect.text)
        if new is None and text:
            raise EngineError(f"a server answers without token ids: its answers have no {dialect.ids}")
        new = list(new or ())[len(self.ids) :] if dialect.is_cumulative else list(new or ())
        if count is not None:
            new = [None] * (count - len(self.ids) - len(new)) + new
        if new:
            self.ids += new
            self.chunks.append((time.perf_counter() - self._begin, len(new)))
        self.text += text or ""
        self.finish = at(choice, dialect.finish) or self.finish

    def ended_at(self, count: int) -> Answer:
        """The answer as far as its first `count` ids, which the newest chunk completes."""
        when, size = self.chunks[-1]
        self.chunks[-1] = when, size - (len(self.ids) - count)
        self.ids, self.finish = self.ids[:count], self.dialect.stops[0]
        self._facts.pop("usage", None)
        return self.answer()

    def fill(self, ids: Sequence[int]) -> None:
        """Complete the ids from another answer to the same request, if it is the same text."""
        known = [(position, token) for position, token in enumerate(self.ids) if token is not None]
        if len(ids) != len(self.ids) or any(ids[position] != token for position, token in known):
            raise UnansweredError("its stream leaves out token ids, and the same request has another text")
        self.ids = list(ids)

    def answer(self) -> Answer:
        if self._facts.get("usage", len(self.ids)) != len(self.ids):
            raise UnansweredError(f"it counts {self._facts['usage']} tokens and sent {len(self.ids)}")
        server_s = {name: float(self._facts.get(name, NAN)) / 1000 for name in SECONDS}
        return Answer(
            ids=tuple(token for token in self.ids if token is not None),
            text=self.text,
            is_stopped=self.finish in self.dialect.stops,
            steps=steps_of(self.sums) if self.sums else self._facts.get("steps"),
            totals=self._totals(),
            chunks=tuple(self.chunks),
            server_s=server_s,
            started_at=self.started_at,
        )

    def _totals(self) -> dict[str, float] | None:
        """As reported, or computed from the mean tokens of a step: the first token is the prefill's."""
        if self.sums and self.sums[-1][1]:
            return {"steps": NAN, "drafted": self.sums[-1][1], "accepted": self.sums[-1][2]}
        totals, mean = self._facts.get("totals"), self._facts.get("mean")
        if totals is not None or not mean or not self.ids:
            return totals
        steps = round(len(self.ids) / mean)
        return {"steps": steps, "drafted": NAN, "accepted": len(self.ids) - steps}


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[str]:
    """The data of server-sent events. Lines may be longer than a reader's buffer: the first one can hold a prompt's ids."""
    left = b""
    async for piece in content.iter_any():
        *lines, left = (left + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip().decode()


def _seconds(header: str | None) -> float | None:
    """Retry-After in seconds; a date is left to the usual wait."""
    try:
        return None if header is None else max(0.0, float(header))
    except ValueError:
        return None


def _message(text: str) -> str:
    """The message of an error: OpenAI's field, or the beginning of the page."""
    try:
        tree = json.loads(text)
    except ValueError:
        return " ".join(text.split())[:200] or "no message"
    message = at(tree, "error.message") or at(tree, "message") or at(tree, "detail") or text
    return " ".join(str(message).split())[:200]
