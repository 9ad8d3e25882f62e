"""An open loop: each request is sent at its time, whether or not earlier ones have ended, so that overload becomes visible.

A closed loop waits for a slow server and so hides how long users would have waited. Times count from the planned arrival, so a
request that the client sends late has waited longer. A request that fails is recorded and not repeated; an answer without a
token is a failure. Ids that a stream omits are not requested, because that would be unplanned load; their tokens are counted.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sdbench.plan import WorkItem
from sdbench.records import OpenLoadRecord
from sdbench.serve.answer import UnansweredError
from sdbench.serve.file_limit import allow_requests
from sdbench.types import EngineError

if TYPE_CHECKING:
    from sdbench.engines.latency import LatencyPlan
    from sdbench.engines.served.decoder import ServedDecoder
    from sdbench.prepare.arrivals import Arrivals
    from sdbench.serve.answer import Answer
    from sdbench.serve.client import Client

LEAD_S = 0.05  # until the first arrival; by then all requests are waiting for their times
NAN = float("nan")


@dataclass(frozen=True)
class SentRequest:
    """A request and the seconds, from the start of the loop, at which it was sent, its tokens came and it ended."""

    number: int
    sent_s: float
    first_token_s: float
    last_token_s: float
    under_way: int
    started_at: float
    tokens: int = 0
    server_s: Mapping[str, float] = field(default_factory=dict)
    failure: str = ""
    chunks_s: tuple[float, ...] = ()  # when each chunk with tokens came; the records have the gaps between them

    @classmethod
    def of_answer(
        cls, number: int, sent_s: float, under_way: int, started_at: float, answer: Answer, length: int | None = None
    ) -> SentRequest:
        """Build it from an answer. One without a token has no times, and is a failure, as in `vllm bench serve`; so is one of
        another length than `timing.tokens`, because a shorter answer comes sooner.
        """
        times = tuple(sent_s + when for when, _ in answer.chunks)
        failure = "" if times else "it sent no token"
        if times and length not in (None, answer.num_tokens):
            failure = f"it sent {answer.num_tokens} tokens instead of timing.tokens={length}"
        if failure:
            return cls(number, sent_s, NAN, NAN, under_way, started_at, failure=failure)
        more = {"tokens": answer.num_tokens, "server_s": answer.server_s, "chunks_s": times}
        return cls(number, sent_s, times[0], times[-1], under_way, started_at, **more)

    @property
    def gaps_s(self) -> tuple[float, ...] | None:
        """Seconds between successive chunks, to the microsecond; None for a failure."""
        if self.failure:
            return None
        return tuple(round(after - before, 6) for before, after in pairwise(self.chunks_s))


def open_loads(plan: LatencyPlan, cell: str, arrivals: Arrivals, decoder: ServedDecoder) -> list[OpenLoadRecord]:
    """Send the requests of a cell at their arrival times; return one record for each, in the order of arrival."""
    return [
        OpenLoadRecord(
            pass_id=plan.pass_id,
            machine=plan.machine,
            cell=cell,
            example=arrivals.examples[request.number],
            repeat=arrivals.repeat,
            rate=arrivals.rates[request.number],
            schedule=arrivals.key,
            loop=arrivals.loop,
            request=request.number,
            tokens=request.tokens,
            arrival_s=arrivals.times[request.number],
            sent_s=request.sent_s,
            first_token_s=request.first_token_s,
            last_token_s=request.last_token_s,
            under_way=request.under_way,
            **{f"server_{name}_s": seconds for name, seconds in request.server_s.items()},
            started_at=request.started_at,
            failure=request.failure,
            is_cached=arrivals.has_cache or decoder.kind.may_cache_prompts,
            gaps_s=request.gaps_s,
        )
        for request in open_loop(decoder, cell, arrivals)
    ]


def open_loop(decoder: ServedDecoder, cell: str, arrivals: Arrivals) -> list[SentRequest]:
    """Send each request at its time. Raise EngineError if all fail, or if the server no longer answers afterwards."""
    allow_requests(len(arrivals.times), arrivals.option)
    client = decoder.servers.at(decoder.setting(cell)).client
    bodies = [body_of(decoder, client, cell, example, arrivals) for example in arrivals.examples]
    if (
        arrivals.has_cache and client.dialect.salt is not None
    ):  # one salt for the loop, so that it starts without cached prompts
        salt = secrets.token_hex(8)
        bodies = [body | {client.dialect.salt: salt} for body in bodies]
    is_over = decoder.is_over if arrivals.tokens is None else None
    under_way, start = 0, time.perf_counter() + LEAD_S

    async def work(number: int) -> SentRequest:
        nonlocal under_way
        await asyncio.sleep(max(0.0, start + arrivals.times[number] - time.perf_counter()))
        under_way += 1
        together, sent_s, started_at = under_way, time.perf_counter() - start, time.time()
        try:
            answer = await client.attempt(bodies[number], is_over, fills=False)
        except (UnansweredError, EngineError) as error:
            return SentRequest(number, sent_s, NAN, NAN, together, started_at, failure=str(error) or "no answer")
        finally:
            under_way -= 1
        return SentRequest.of_answer(number, sent_s, together, started_at, answer, arrivals.tokens)

    sent = sorted((request for _, request in decoder.pump.each(range(len(bodies)), work, len(bodies))), key=_number_of)
    _refuse_dead_server(decoder, client, sent)
    return sent


def body_of(decoder: ServedDecoder, client: Client, cell: str, example: str, arrivals: Arrivals) -> dict[str, Any]:
    """Return the request for one answer of an open loop."""
    body = decoder.salted_body(client, WorkItem(cell, example, 0))
    if arrivals.tokens is not None:
        body |= {"max_tokens": arrivals.tokens, "stop": [], "stop_token_ids": [], **client.dialect.fixed_length}
    return {**body, **(client.dialect.cached_prompts if arrivals.has_cache else {})}


def _number_of(request: SentRequest) -> int:
    return request.number


def _refuse_dead_server(decoder: ServedDecoder, client: Client, sent: list[SentRequest]) -> None:
    """Raise if a server answered no request or has ended. Failures of some requests are a result, not an error."""
    failures = [request.failure for request in sent if request.failure]
    try:
        decoder.servers.refuse_dead(client)
        if not failures:
            return
    except EngineError as error:
        raise decoder.servers.explain(client, error) from error
    problem = "answered no request of the open loop" if len(failures) == len(sent) else ""
    has_died = decoder.servers.death_of(client) is not None
    try:  # a gateway may answer for a server that has ended, and a server that was too busy answers later
        if not has_died and not problem and not decoder.pump.run(client.persist(client.models))[0]:
            problem = "no longer lists its models at /v1/models"
    except EngineError as fault:
        problem = f"no longer lists its models at /v1/models ({fault.__cause__ or fault})"
    if problem or has_died:
        error = EngineError(f"the server at {client.url} {problem}; the last failure: {failures[-1]}")
        raise decoder.servers.explain(client, error)
