"""A client of one OpenAI-compatible server: it reads streamed answers, and repeats requests that fail."""

import asyncio
import json
import random
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, TypeVar

import aiohttp

from sdbench.serve.answer import Answer, AnswerReader, UnansweredError
from sdbench.serve.dialect import Dialect, at, counters_of
from sdbench.types import EngineError

BUSY = (429, 502, 503, 504)
FORBIDDEN = (401, 403)
LIMITS = ("length", "limit")  # finish reasons of a text that reached the server's limit of tokens
CONNECT_S = 10.0
LONGEST_WAIT_S = 60.0  # before a retry, unless the server asks for more
T = TypeVar("T")
IsOver = Callable[[Sequence[Any]], bool]  # whether the last of these ids ends the text


@dataclass(frozen=True, slots=True)
class Patience:
    """How often a request is repeated, and how long the client waits."""

    retries: int = 6
    wait_s: float = 0.5  # before the first retry; doubles each time
    silence_s: float = 600.0  # longest time without a byte from the server


@dataclass
class Client:
    """A client of the server at `url`, which is given without /v1. Call `open` inside the event loop that uses it."""

    url: str
    dialect: Dialect
    patience: Patience = field(default_factory=Patience)
    headers: Mapping[str, Any] = field(default_factory=dict)  # sent with every request; null values are left out
    model: str = ""  # the model's name on the server
    _has_warned: bool = False  # whether it has warned of a long Retry-After
    _session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        connector = aiohttp.TCPConnector(limit=0, force_close=not self.dialect.keeps_connections)
        headers = {name: str(value) for name, value in self.headers.items() if value is not None}
        self._session = aiohttp.ClientSession(connector=connector, headers=headers)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, longer_s: float = 0.0
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield a response; raise UnansweredError if the connection fails. `longer_s` is added to the longest silence."""
        assert self._session is not None, "open() comes before any request"
        silence_s = self.patience.silence_s + longer_s
        times = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=silence_s)
        try:
            async with self._session.request(method, self.url + path, json=body, timeout=times) as response:
                yield response
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UnansweredError(" ".join(str(error).split())[:200] or type(error).__name__) from error

    async def get(self, path: str | None, body: Mapping[str, Any] | None = None) -> Any:
        """Return a page of the server as JSON, or None if there is no such page. With a body it is a POST request."""
        if path is None:
            return None
        async with self._request("GET" if body is None else "POST", path, body) as response:
            return await _page(response)

    async def models(self) -> list[Mapping[str, Any]]:
        """Return the server's list of models, empty if it has none. Raise EngineError on HTTP 401 or 403, and UnansweredError if
        the server is busy or still starts.
        """
        async with self._request("GET", "/v1/models") as response:
            _refuse_busy(response)
            await self._refuse_without_key(response)
            listing = at(await _page(response), "data") or []
        return [model for model in listing if isinstance(model, dict)]

    async def _refuse_without_key(self, response: aiohttp.ClientResponse) -> None:
        if response.status in FORBIDDEN:
            problem = "wants a key: engine.headers.Authorization='Bearer KEY'"
            if any(name.lower() == "authorization" for name in self.headers):
                problem = "does not accept this key, which is from engine.headers.Authorization or the shell"
            message = await _message_of(response)
            raise EngineError(f"the server at {self.url} {problem} (HTTP {response.status}: {message})")

    async def refuses(self, body: Mapping[str, Any]) -> bool:
        """Return whether the server answers a request with HTTP 400."""
        async with self._request("POST", self.dialect.completions, body) as response:
            if response.status not in (200, 400):
                raise UnansweredError(f"HTTP {response.status}: {await _message_of(response)}")
            return response.status == 400

    async def counters(self) -> dict[str, float] | None:
        """Return the numbers of steps, drafted and accepted tokens since the server started; None if it does not count them."""
        if not any(self.dialect.counters.values()):
            return None
        try:
            async with self._request("GET", self.dialect.counters_at) as response:
                page = await response.text(errors="replace")
                return counters_of(page, self.dialect.counters) if response.status == 200 else None
        except UnansweredError as error:
            raise EngineError(f"the counters of the server at {self.url} cannot be read ({error})") from error

    async def complete(self, body: Mapping[str, Any], is_over: IsOver | None = None, *, fills: bool = True) -> Answer:
        """Return one text; raise EngineError after the last retry.

        Incomplete answers are dropped, so no text is counted twice. The server's own `counters` include them.
        """
        answer, num_asked = await self.persist(lambda: self.attempt(body, is_over, fills=fills))
        return replace(answer, num_asked=num_asked)

    async def persist(self, ask: Callable[[], Awaitable[T]]) -> tuple[T, int]:
        """Ask until there is an answer; return it and the number of attempts. Raise EngineError after the last retry."""
        last = None
        for attempt in range(self.patience.retries + 1):
            try:
                return await ask(), attempt + 1
            except UnansweredError as fault:
                last = fault
                if attempt < self.patience.retries:
                    await asyncio.sleep(self._wait_s(attempt, fault.wait_s))
        tries = "1 try" if not self.patience.retries else f"{self.patience.retries + 1} tries"
        raise EngineError(
            f"the server at {self.url} did not answer a request in {tries}; the last failure: {last}. Finished texts are "
            "recorded; run the same command again to continue"
        ) from last

    def _wait_s(self, attempt: int, retry_after_s: float | None) -> float:
        """Return the wait before a retry: it doubles each time, is randomised, and is no shorter than the server asks for."""
        if (retry_after_s or 0.0) > LONGEST_WAIT_S and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"the server at {self.url} asks for a wait of {retry_after_s:.0f} s (Retry-After) before a request is "
                "repeated; Ctrl-C ends the run, and finished texts are recorded",
                stacklevel=2,
            )
        usual_s = self.patience.wait_s * 2**attempt * random.uniform(0.5, 1)
        return max(retry_after_s or 0.0, min(LONGEST_WAIT_S, usual_s))

    async def attempt(self, body: Mapping[str, Any], is_over: IsOver | None = None, *, fills: bool = True) -> Answer:
        """Send a request once and return its text; raise UnansweredError or EngineError if it fails.

        When `is_over` says that the text has ended, the connection is closed and the server stops. What a server reports
        only at the end of its answer is then unknown. `fills`: ids that the stream omits are requested at once (`fill`).
        """
        reader = AnswerReader(self.dialect)
        async with self._request("POST", self.dialect.completions, body) as response:
            _refuse_busy(response)
            await self._refuse_without_key(response)
            if response.status != 200:
                message = await _message_of(response)
                raise EngineError(f"the server at {self.url} refuses a request with HTTP {response.status}: {message}")
            async for event in _events(response.content):
                num_before = len(reader.ids)
                reader.take(event)
                if is_over is not None:
                    for count in range(num_before + 1, len(reader.ids) + 1):
                        if is_over([token for token in reader.ids[:count] if token is not None]):
                            return reader.ended_at(count)
        if "error" in reader.last:
            raise UnansweredError(f"an error inside the answer: {_message(json.dumps(reader.last))}")
        if not reader.is_whole:
            raise UnansweredError("its answer ended early")
        answer = reader.answer()
        self._refuse_cut(answer, reader.finish, body["max_tokens"])
        return await self.fill(body, answer) if fills else answer

    def _refuse_cut(self, answer: Answer, reason: str | None, most: int) -> None:
        """Raise if the server ended a text before its end and before `most` tokens: EngineError if the server has a lower limit,
        UnansweredError if it gave up the request. Without a reason the server's own number of tokens says that a text is whole.
        """
        if answer.is_stopped or answer.num_tokens >= most or (reason is None and answer.is_counted):
            return
        if reason is None:
            raise UnansweredError(
                f"its answer ended at {answer.num_tokens} of {most} tokens without a reason or a count"
            )
        if reason in LIMITS:
            raise EngineError(
                f"the server at {self.url} has a limit lower than max_new_tokens: it ended an answer at {answer.num_tokens} of "
                f"{most} tokens; raise its limit (in vLLM max_new_tokens of --override-generation-config, or the context length), "
                "or lower max_new_tokens"
            )
        raise UnansweredError(
            f"its answer ended at {answer.num_tokens} of {most} tokens with {self.dialect.finish}={reason}"
        )

    async def fill(self, body: Mapping[str, Any], answer: Answer) -> Answer:
        """Return an answer with the ids that its stream omitted. They come from the same request without streaming, which is
        additional load for the server and sends nothing until the text is complete. Raise UnansweredError if that fails or gives
        a different text.

        If a character takes several tokens, llama.cpp's stream contains only the id of the last one.
        """
        if not answer.omitted:
            return answer
        whole, took_s = {**body, "stream": False}, answer.chunks[-1][0]
        async with self._request("POST", self.dialect.completions, whole, longer_s=took_s) as response:
            if response.status != 200:
                raise UnansweredError(f"HTTP {response.status}")
            try:
                page = await response.json(content_type=None)
            except ValueError as error:
                raise UnansweredError("its answer is not JSON") from error
        ids = at(page, self.dialect.ids)
        return answer.with_ids(ids if isinstance(ids, list) else ())


async def _page(response: aiohttp.ClientResponse) -> Any:
    """Return a page as JSON; None if there is no such page, or if it is not JSON."""
    try:
        return await response.json(content_type=None) if response.status == 200 else None
    except ValueError:
        return None


def _refuse_busy(response: aiohttp.ClientResponse) -> None:
    if response.status in BUSY:
        raise UnansweredError(f"HTTP {response.status}", _seconds(response.headers.get("Retry-After")))


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield the data of server-sent events, of any length: the first event can contain all ids of the prompt."""
    left = b""
    async for piece in content.iter_any():
        *lines, left = (left + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
    if left.startswith(b"data:"):  # the last line may end without a newline
        yield left[5:].strip()


def _seconds(header: str | None) -> float | None:
    """Return the value of a Retry-After header in seconds; a date is ignored."""
    try:
        seconds = float(header or "")
    except ValueError:
        return None
    return max(0.0, seconds) if isfinite(seconds) else None


async def _message_of(response: aiohttp.ClientResponse) -> str:
    return _message(await response.text(errors="replace"))


def _message(text: str) -> str:
    """Return the message of an error page: its message field, or the beginning of its text."""
    try:
        tree = json.loads(text)
    except ValueError:
        return " ".join(text.split())[:200] or "no message"
    message = at(tree, "error.message") or at(tree, "message") or at(tree, "detail") or text
    return " ".join(str(message).split())[:200]
