"""The latency pass against servers: closed loops of so many requests at once, the cells of one server interleaved.

A block is one cell, all timed examples, one number of requests under way. At concurrency 1 the requests are single, and stand
among the timings as the native engine's do: speed-ups form from these. Every block, that of concurrency 1 too, stands among
the loads. Where cells need several servers and not all may run at once, a repeat goes from server to server and the next
one back. Each cell of a server is warmed up before its first block. Start-up is counted nowhere.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from sdbench.config import Run
from sdbench.engines.latency import machine, new_pass_id, order, quantile
from sdbench.plan import WorkItem
from sdbench.prepare.progress import Bar, warn
from sdbench.records import LoadRecord, Store, TimingRecord, read
from sdbench.serve.client import Answer
from sdbench.types import EngineError

if TYPE_CHECKING:
    import pandas as pd

    from sdbench.engines.job import Models
    from sdbench.engines.served import Http, Setting
    from sdbench.engines.served.decoder import ServedDecoder
    from sdbench.prepare.cells import Point
    from sdbench.prepare.prompts import Prompts

SINGLE = 1


class Block(NamedTuple):
    """What is timed as one."""

    cell: str
    repeat: int
    concurrency: int


class Done(NamedTuple):
    """One request of a block."""

    example: str
    answer: Answer
    tokens: int
    rounds: int


def time_served(kind: Http, run: Run, points: Sequence[Point], prompts: Prompts, models: Models) -> None:
    """Times the blocks that the newest pass on this machine lacks."""
    from sdbench.engines.native.timing import on_the_clock
    from sdbench.metrics.recommend import timed_settings

    timing, store = run.timing, models.store
    assert timing is not None
    examples = list(prompts.ids)[: timing.examples]
    chosen = on_the_clock(points, timing.cells, timed_settings(read(store.folder), run.margin))
    levels = sorted({SINGLE, *kind.concurrency})
    wanted = {Block(point.cell.key, repeat, n) for point in chosen for repeat in range(timing.repeats) for n in levels}
    where = machine()
    pass_id, done = (new_pass_id(), set()) if run.force else newest(read(store.folder), wanted, examples, where)
    todo = wanted - done
    if not todo:
        return
    decoder: ServedDecoder = models.decoder  # pyright: ignore[reportAssignmentType]
    groups: dict[Setting, list[Point]] = {}
    for point in chosen:
        groups.setdefault(decoder.setting(point), []).append(point)
    with Bar("timing", len(todo) * len(examples)) as bar:
        for block, answers, block_s in blocks(decoder, groups, todo, examples, prompts, run.seed):
            records = loads(block, answers, block_s, pass_id, where)
            if block.concurrency == SINGLE:
                store.append_timings([_timing(block, one, pass_id, where) for one in answers])
            store.append_loads(records)
            for record in records:
                bar.add(tokens=record.tokens)
    say_the_difference(store, pass_id)


def newest(results: object, wanted: set[Block], examples: Sequence[str], where: str) -> tuple[str, set[Block]]:
    """The newest pass here over the same examples that holds cells of this sweep, and its whole blocks; else a new one."""
    frame: pd.DataFrame = results.loads  # type: ignore[attr-defined]
    cells = {block.cell for block in wanted}
    frame = frame[(frame["machine"] == where) & frame["cell"].isin(cells)]
    for pass_id in sorted(set(frame["pass_id"]), reverse=True):
        own = frame[frame["pass_id"] == pass_id]
        if set(own["example"]) == set(examples):
            keys = own.groupby(["cell", "repeat", "concurrency"])["example"].nunique()
            whole = {Block(str(c), int(r), int(n)) for (c, r, n), count in keys.items() if count == len(examples)}  # type: ignore[misc]
            return str(pass_id), whole
    return new_pass_id(), set()


def blocks(
    decoder: ServedDecoder,
    groups: dict[Setting, list[Point]],
    todo: set[Block],
    examples: Sequence[str],
    prompts: Prompts,
    seed: int,
) -> Iterator[tuple[Block, list[Done], float]]:
    """Repeat by repeat, server by server and back, at each number of requests the cells of a server in an order of their own."""
    by_key = {point.cell.key: point for points in groups.values() for point in points}
    for repeat in sorted({block.repeat for block in todo}):
        for setting in list(groups)[:: -1 if repeat % 2 else 1]:
            points = groups[setting]
            own = [block for block in todo if block.repeat == repeat and block.cell in {p.cell.key for p in points}]
            for point in points if own else ():
                closed_loop(decoder, point, examples[:1], prompts, SINGLE)  # warm
            for visit, concurrency in enumerate(sorted({block.concurrency for block in own})):
                for place in order(len(points), 2 * visit + repeat, seed):
                    block = Block(points[place].cell.key, repeat, concurrency)
                    if block in todo:
                        answers, block_s = closed_loop(decoder, by_key[block.cell], examples, prompts, concurrency)
                        yield block, answers, block_s


def closed_loop(
    decoder: ServedDecoder, point: Point, examples: Sequence[str], prompts: Prompts, concurrency: int
) -> tuple[list[Done], float]:
    """Each user asks again when it has its answer. A request that had to be asked again is asked alone afterwards: its seconds
    are not those of a server at work."""
    client = decoder.servers.at(decoder.setting(point)).client

    async def work(example: str) -> Answer:
        item = WorkItem(point.cell.key, example, 0)
        return await client.complete(decoder.body(client, point, prompts.ids[example], item))

    try:
        begin = time.perf_counter()
        answers = list(decoder.pump.each(examples, work, concurrency))
        block_s = time.perf_counter() - begin
        again = [example for example, answer in answers if answer.num_asked > 1]
        answers = [pair for pair in answers if pair[0] not in again]
        answers += decoder.pump.each(again, work, SINGLE)
    except EngineError as error:
        raise decoder.servers.explained(client, error) from error
    done = []
    for example, answer in answers:
        generation = decoder.generation(client, point, answer, 0)
        rounds = len(answer.chunks) if generation.drafted is None else len(generation.drafted)
        done.append(Done(example, answer, len(generation.tokens), rounds))
    return sorted(done), block_s if not again else math.nan


def loads(block: Block, answers: Sequence[Done], block_s: float, pass_id: str, where: str) -> list[LoadRecord]:
    return [
        LoadRecord(
            pass_id=pass_id,
            machine=where,
            cell=block.cell,
            example=one.example,
            repeat=block.repeat,
            concurrency=block.concurrency,
            tokens=one.tokens,
            first_token_s=one.answer.first_token_s,
            decode_s=one.answer.decode_s,
            block_s=block_s,
            server_first_token_s=one.answer.server_s["first_token"],
            server_decode_s=one.answer.server_s["decode"],
            server_queue_s=one.answer.server_s["queue"],
            started_at=one.answer.started_at,
        )
        for one in answers
    ]


def _timing(block: Block, one: Done, pass_id: str, where: str) -> TimingRecord:
    """As plain `generate` is timed: the prefill ends with the first token, what follows is decoding."""
    times = [when for when, _ in one.answer.chunks]
    rounds_s = [after - before for before, after in pairwise(times)]
    p50, p90, p99 = (quantile(rounds_s, share) for share in (0.5, 0.9, 0.99))
    return TimingRecord(
        pass_id=pass_id,
        machine=where,
        cell=block.cell,
        example=one.example,
        repeat=block.repeat,
        tokens=one.tokens,
        rounds=one.rounds,
        prefill_s=one.answer.first_token_s,
        decode_s=one.answer.decode_s,
        first_token_s=one.answer.first_token_s,
        round_p50_s=p50,
        round_p90_s=p90,
        round_p99_s=p99,
        started_at=one.answer.started_at,
    )


def say_the_difference(store: Store, pass_id: str) -> None:
    """Seconds that a request took here and not there."""
    from sdbench.metrics.load import overhead

    share = overhead(read(store.folder).loads.query("pass_id == @pass_id"))
    if share > 0.05:
        warn(
            f"by its own clock the server took {share:.0%} less than the client's: the rest is transport and this client"
        )
