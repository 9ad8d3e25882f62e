"""The latency pass with servers: closed loops with a fixed number of users, then open loops; the cells of a server interleaved.

A block is one cell with one number of users. With one user, each timed example is requested once, and its timing is recorded
like those of the native engine; speed-ups come from these. With more users, the examples are requested in a cycle until each
user has sent ASKS requests, and speeds are those of the time in which every user was busy. Blocks of closed loops are recorded
as loads. Open loops, whose requests arrive at a rate, come last (`open_loop`). A repeat visits the servers one after another,
and the next repeat in reverse. Each cell is warmed up before its first block of a repeat. Start-up time is not counted.

A pass belongs to its servers: their addresses and what they report about themselves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from sdbench.engines.latency import (
    LatencyPlan,
    Measured,
    order,
    points_to_time,
    timing_record,
    timings_to_continue,
    warn_of_another_machine,
    warn_of_newer_pass,
)
from sdbench.engines.served.identity import is_there, where_timed
from sdbench.engines.served.open_loop import open_loads
from sdbench.engines.served.remarks import warn_of_other_texts, warn_of_overhead, warn_of_repeats
from sdbench.plan import WorkItem
from sdbench.prepare.arrivals import arrivals_of
from sdbench.prepare.progress import Bar, warn
from sdbench.records import LoadRecord, Results, Store, TimingRecord, read
from sdbench.records.parts import new_stem
from sdbench.serve.answer import Answer, UnansweredError
from sdbench.serve.rounds import round_seconds
from sdbench.types import EngineError

if TYPE_CHECKING:
    from sdbench.engines.job import Job
    from sdbench.engines.served.decoder import ServedDecoder
    from sdbench.engines.served.options import Http
    from sdbench.engines.served.request import ServerSetting
    from sdbench.prepare.cells import Point
    from sdbench.serve.client import Client

SINGLE = 1
ASKS = 3  # requests of each user, at least
AGAIN = 2  # times that a loop of several users is sent again because one of its requests failed at first


class LoadBlock(NamedTuple):
    """What is timed as one block: a closed loop with a number of users, or an open loop with a schedule of arrivals."""

    cell: str
    repeat: int
    concurrency: int = 0
    schedule: str = ""

    @property
    def level(self) -> tuple[str, int]:
        """Equal for blocks that are compared."""
        return self.schedule, self.concurrency


class Ask(NamedTuple):
    """One request of a block."""

    example: str
    cycle: int


@dataclass(frozen=True)
class TimedRequest:
    """A request with its answer, sent at `begin` by this process's clock."""

    ask: Ask
    answer: Answer
    begin: float
    tokens: int
    rounds: int
    rounds_s: tuple[float, ...] = ()  # empty if its rounds are unknown

    @property
    def end(self) -> float:
        return self.begin + (self.answer.chunks[-1][0] if self.answer.chunks else self.answer.ended_s)

    @property
    def first_tokens(self) -> int:
        """Tokens of the first chunk, which came at the end of the prefill."""
        return min(self.tokens, self.answer.chunks[0][1]) if self.answer.chunks else 0


def plan_timing(kind: Http, job: Job, points: Sequence[Point], store: Store) -> LatencyPlan | None:
    """Choose the blocks that the newest pass on these servers lacks."""
    from sdbench.metrics.recommend import timed_settings

    run, timing, results = job.run, job.run.timing, read(store.folder)
    assert timing is not None
    chosen = points_to_time(points, timing.cells, timed_settings(results, run.margin))
    levels = sorted({SINGLE, *kind.concurrency})
    blocks = {
        LoadBlock(point.cell.key, repeat, n) for point in chosen for repeat in range(timing.repeats) for n in levels
    }
    schedules = arrivals_of(run, list(job.prompts.ids))
    blocks |= {LoadBlock(point.cell.key, each.repeat, schedule=each.key) for point in chosen for each in schedules}
    plan = LatencyPlan(new_stem(), where_timed(kind, chosen), chosen, sorted(blocks))
    examples = list(job.prompts.ids)[: timing.examples]
    plan = continue_pass(plan, results, examples, is_cached=kind.may_cache_prompts)
    if len(plan.todo) == len(blocks):
        warn_of_another_machine(results, [block.cell for block in blocks], plan.machine)
    if not plan.todo:
        warn_of_newer_pass(results, [block.cell for block in blocks], plan.machine, examples)
    return plan if plan.todo else None


def continue_pass(
    plan: LatencyPlan, results: Results, examples: Sequence[str], *, is_cached: bool = False
) -> LatencyPlan:
    """Return the rest of the newest pass on these servers over the same examples that timed cells of this sweep; the plan
    unchanged if there is none. Cached and uncached prompts are never in one pass.
    """
    frame = timings_to_continue(results.loads, results, {block.cell for block in plan.todo})
    frame = frame[frame["is_cached"] == is_cached]
    for (pass_id, where), part in sorted(
        frame.groupby(["pass_id", "machine"]), reverse=True, key=lambda group: group[0]
    ):
        if is_there(str(where), plan.machine) and set(part["example"]) == set(examples):
            held = {LoadBlock(str(c), int(r), int(n)) for c, r, n in part[[*LoadBlock._fields[:3]]].to_numpy()}
            sent = results.open_loads[results.open_loads["pass_id"] == pass_id]
            held |= {LoadBlock(c, int(r), schedule=s) for c, r, s in sent[["cell", "repeat", "schedule"]].to_numpy()}
            todo = [block for block in plan.todo if block not in held]  # a block is appended as a whole
            if any(block.cell not in set(part["cell"]) for block in todo):
                began = time.strftime("%Y-%m-%d %H:%M", time.gmtime(float(part["started_at"].min())))
                warn(
                    f"the latency pass of {began} UTC is continued: settings timed now are compared with those timed then; "
                    "force=true or another name=NAME times all of them together"
                )
            return LatencyPlan(str(pass_id), str(where), plan.points, todo)
    return plan


def time_plan(decoder: ServedDecoder, plan: LatencyPlan) -> None:
    """Time the blocks of a plan, and append each as it ends."""
    timing, store = decoder.job.run.timing, decoder.store
    assert timing is not None
    examples = list(decoder.job.prompts.ids)[: timing.examples]
    is_cached = decoder.kind.may_cache_prompts
    if is_cached:
        warn("this server may cache prompts: times to the first token are called cached_first_token_s and cached_ttft")
    schedules = {each.key: each for each in arrivals_of(decoder.job.run, list(decoder.job.prompts.ids))}
    closed = [asks_of(examples, block.concurrency) for block in plan.todo if not block.schedule]
    sent = [schedules[block.schedule].times for block in plan.todo if block.schedule]
    with Bar("timing", sum(map(len, [*closed, *sent]))) as bar:
        for block in ordered_blocks(decoder, plan, asks_of(examples[:1], SINGLE)):
            if block.schedule:
                records = open_loads(plan, block.cell, schedules[block.schedule], decoder)
            else:
                requests = closed_loop(decoder, block.cell, asks_of(examples, block.concurrency), block.concurrency)
                records = loads(block, requests, plan, is_cached=is_cached)
                if block.concurrency == SINGLE:
                    timings = [_timing(block, request, plan) for request in requests]
                    store.append([replace(timing, is_cached=is_cached) for timing in timings])
            store.append(records)
            for record in records:
                bar.add(tokens=record.tokens)
    warn_of_overhead(store, plan.pass_id)


def asks_of(examples: Sequence[str], concurrency: int) -> list[Ask]:
    """Return whole cycles through the examples: one for a single user, otherwise enough for ASKS requests of each user."""
    cycles = 1 if concurrency == SINGLE else math.ceil(ASKS * concurrency / len(examples))
    return [Ask(example, cycle) for cycle in range(cycles) for example in examples]


def ordered_blocks(decoder: ServedDecoder, plan: LatencyPlan, warm: Sequence[Ask]) -> Iterator[LoadBlock]:
    """Order the blocks: repeat by repeat, server by server and back; closed loops first; at each load the cells in random order."""
    schedules = arrivals_of(decoder.job.run, list(decoder.job.prompts.ids))
    rank = {each.key: number for number, each in enumerate(schedules, 1)}  # open loops in the order of their options
    groups: dict[ServerSetting, list[str]] = {}
    for point in plan.points:
        groups.setdefault(decoder.setting(point.cell.key), []).append(point.cell.key)
    for repeat in sorted({block.repeat for block in plan.todo}):
        for cells in list(groups.values())[:: -1 if repeat % 2 else 1]:
            blocks = {block for block in plan.todo if block.repeat == repeat and block.cell in cells}
            for cell in cells if blocks else ():
                closed_loop(decoder, cell, warm, SINGLE)
            levels = sorted({(rank.get(block.schedule, 0), block.level) for block in blocks})
            for visit, (_, level) in enumerate(levels):
                by_cell = {block.cell: block for block in blocks if block.level == level}
                numbers = order(len(cells), 2 * visit + repeat, decoder.job.run.seed)
                yield from (by_cell[cells[index]] for index in numbers if cells[index] in by_cell)


def closed_loop(decoder: ServedDecoder, cell: str, asks: Sequence[Ask], concurrency: int) -> list[TimedRequest]:
    """Run a closed loop: each user sends its next request when it has its answer. If a request had to be retried, a loop of
    several users is sent again, at most AGAIN times. Requests that were retried in the last loop are then sent alone, so their
    times are not those of a server under load. Ids that a stream omitted are requested at the end.
    """
    client = decoder.servers.at(decoder.setting(cell)).client

    async def work(ask: Ask) -> tuple[float, Answer]:
        body = decoder.salted_body(client, WorkItem(cell, ask.example, 0))
        return time.perf_counter(), await client.complete(body, decoder.is_over, fills=False)

    async def fill(pair: tuple[Ask, tuple[float, Answer]]) -> Answer:
        ask, (_, answer) = pair
        try:
            return await client.fill(decoder.salted_body(client, WorkItem(cell, ask.example, 0)), answer)
        except UnansweredError:
            return answer

    try:
        answers = list(decoder.pump.each(asks, work, concurrency))
        for _ in range(AGAIN if concurrency > SINGLE else 0):
            if any(answer.num_asked > 1 for _, (_, answer) in answers):
                answers = list(decoder.pump.each(asks, work, concurrency))
        again = [ask for ask, (_, answer) in answers if answer.num_asked > 1]
        answers = [pair for pair in answers if pair[0] not in again] + list(decoder.pump.each(again, work, SINGLE))
        filled = list(decoder.pump.each(sorted(answers, key=lambda pair: pair[0]), fill, SINGLE))
        decoder.servers.refuse_dead(client)
    except EngineError as error:
        raise decoder.servers.explain(client, error) from error
    done = []
    for (ask, (begin, _)), answer in filled:
        counts = _counts(decoder, client, WorkItem(cell, ask.example, 0), answer)
        done.append(TimedRequest(ask, answer, begin if not again else math.nan, *counts))
    warn_of_other_texts([request.answer for request in done])
    warn_of_repeats(len(again), len(done), concurrency)
    return done


def _counts(
    decoder: ServedDecoder, client: Client, item: WorkItem, answer: Answer
) -> tuple[int, int, tuple[float, ...]]:
    """Return tokens, rounds and rounds_s of a timed text. If ids are missing, its end is unknown, and all its tokens count."""
    num_chunks = len(answer.chunks)
    if answer.omitted:
        return answer.num_tokens, num_chunks if answer.steps is None else 1 + len(answer.steps["drafted"]), ()
    generation = decoder.generation(client, item, answer)
    num_rounds = num_chunks if generation.drafted is None else len(generation.drafted)
    return len(generation.tokens), num_rounds, round_seconds(generation, answer.chunks)


def loads(
    block: LoadBlock, requests: Sequence[TimedRequest], plan: LatencyPlan, *, is_cached: bool = False
) -> list[LoadRecord]:
    """Return the records of a block's requests. If some were repeated alone, times of the whole block are NaN."""
    begins, ends = ([getattr(request, name) for request in requests] for name in ("begin", "end"))
    # All users are busy from the first request of the last user until, after the last request was sent, an answer ends.
    start = sorted(begins)[min(block.concurrency, len(begins)) - 1]
    stop = min((end for end in ends if end >= max(begins)), default=math.nan)
    held_s = stop - start
    under_way_s = sum(max(0.0, min(end, stop) - max(begin, start)) for begin, end in zip(begins, ends, strict=True))
    return [
        LoadRecord(
            pass_id=plan.pass_id,
            machine=plan.machine,
            cell=block.cell,
            example=request.ask.example,
            repeat=block.repeat,
            concurrency=block.concurrency,
            tokens=request.tokens,
            first_token_s=request.answer.first_token_s,
            decode_s=request.answer.decode_s,
            block_s=max(ends) - min(begins),
            **{f"server_{name}_s": seconds for name, seconds in request.answer.server_s.items()},
            started_at=request.answer.started_at,
            cycle=request.ask.cycle,
            held_s=held_s,
            held_tokens=min(
                request.tokens,
                sum(new for when, new in request.answer.chunks if start <= request.begin + when <= stop),
            ),
            reached=under_way_s / held_s if held_s else math.nan,
            is_cached=is_cached,
            first_tokens=request.first_tokens,
        )
        for request in requests
    ]


def _timing(block: LoadBlock, request: TimedRequest, plan: LatencyPlan) -> TimingRecord:
    """Return a timing as for plain `generate`: the prefill ends with the first token, the rest is decoding."""
    answer = request.answer
    measured = Measured(
        tokens=request.tokens,
        rounds=request.rounds,
        prefill_s=answer.first_token_s,
        decode_s=answer.decode_s,
        first_token_s=answer.first_token_s,
        rounds_s=request.rounds_s,
        first_tokens=request.first_tokens,
    )
    return timing_record(plan, block.cell, request.ask.example, block.repeat, measured, started_at=answer.started_at)
