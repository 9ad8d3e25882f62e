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
from sdbench.engines.latency import (
    Clocked,
    LatencyPlan,
    machine,
    new_pass_id,
    on_the_clock,
    order,
    timing_record,
    warn_of_another_machine,
)
from sdbench.engines.served.decoder import ServedDecoder
from sdbench.plan import WorkItem
from sdbench.prepare.progress import Bar, warn
from sdbench.records import LoadRecord, Store, TimingRecord, read
from sdbench.serve.client import Answer
from sdbench.types import EngineError

if TYPE_CHECKING:
    import pandas as pd

    from sdbench.engines.served.options import HttpOptions
    from sdbench.engines.served.setting import ServerSetting
    from sdbench.prepare.cells import Point
    from sdbench.prepare.prompts import Prompts

SINGLE = 1


class LoadBlock(NamedTuple):
    """What is timed as one."""

    cell: str
    repeat: int
    concurrency: int


class TimedRequest(NamedTuple):
    """One request of a block."""

    example: str
    answer: Answer
    tokens: int
    rounds: int


def plan_timing(
    kind: HttpOptions, run: Run, points: Sequence[Point], prompts: Prompts, store: Store
) -> LatencyPlan | None:
    """Choose the blocks that the newest pass on this machine lacks."""
    from sdbench.metrics.recommend import timed_settings

    timing, results = run.timing, read(store.folder)
    assert timing is not None
    chosen = on_the_clock(points, timing.cells, timed_settings(results, run.margin))
    levels = sorted({SINGLE, *kind.concurrency})
    blocks = {
        LoadBlock(point.cell.key, repeat, n) for point in chosen for repeat in range(timing.repeats) for n in levels
    }
    where, examples = machine(), list(prompts.ids)[: timing.examples]
    pass_id, done = (new_pass_id(), set()) if run.force else newest(results, blocks, examples, where)
    todo = sorted(blocks - done)
    if not done and not run.force:
        warn_of_another_machine(results, [block.cell for block in blocks], where)
    return LatencyPlan(pass_id, where, chosen, todo) if todo else None


class ServedEngine(ServedDecoder):
    """Servers that can also be timed."""

    def time(self, plan: LatencyPlan, prompts: Prompts, store: Store) -> None:
        timing = self.job.run.timing
        assert timing is not None
        examples = list(prompts.ids)[: timing.examples]
        groups: dict[ServerSetting, list[Point]] = {}
        for point in plan.points:
            groups.setdefault(self.setting(point), []).append(point)
        with Bar("timing", len(plan.todo) * len(examples)) as bar:
            for block, answers, block_s in run_blocks(
                self, groups, set(plan.todo), examples, prompts, self.job.run.seed
            ):
                records = loads(block, answers, block_s, plan)
                if block.concurrency == SINGLE:
                    store.append([_timing(block, answer, plan) for answer in answers])
                store.append(records)
                for record in records:
                    bar.add(tokens=record.tokens)
        warn_of_overhead(store, plan.pass_id)


def newest(results: object, wanted: set[LoadBlock], examples: Sequence[str], where: str) -> tuple[str, set[LoadBlock]]:
    """The newest pass here over the same examples that holds cells of this sweep, and its whole blocks; else a new one."""
    frame: pd.DataFrame = results.loads  # type: ignore[attr-defined]
    cells = {block.cell for block in wanted}
    frame = frame[(frame["machine"] == where) & frame["cell"].isin(cells)]
    for pass_id in sorted(set(frame["pass_id"]), reverse=True):
        of_pass = frame[frame["pass_id"] == pass_id]
        if set(of_pass["example"]) == set(examples):
            keys = of_pass.groupby(["cell", "repeat", "concurrency"])["example"].nunique()
            whole = {LoadBlock(str(c), int(r), int(n)) for (c, r, n), count in keys.items() if count == len(examples)}  # type: ignore[misc]
            return str(pass_id), whole
    return new_pass_id(), set()


def run_blocks(
    decoder: ServedDecoder,
    groups: dict[ServerSetting, list[Point]],
    todo: set[LoadBlock],
    examples: Sequence[str],
    prompts: Prompts,
    seed: int,
) -> Iterator[tuple[LoadBlock, list[TimedRequest], float]]:
    """Repeat by repeat, server by server and back, at each number of requests the cells of a server in an order of their own."""
    by_key = {point.cell.key: point for points in groups.values() for point in points}
    for repeat in sorted({block.repeat for block in todo}):
        for setting in list(groups)[:: -1 if repeat % 2 else 1]:
            points = groups[setting]
            blocks = [block for block in todo if block.repeat == repeat and block.cell in {p.cell.key for p in points}]
            for point in points if blocks else ():
                closed_loop(decoder, point, examples[:1], prompts, SINGLE)  # warm
            for visit, concurrency in enumerate(sorted({block.concurrency for block in blocks})):
                for index in order(len(points), 2 * visit + repeat, seed):
                    block = LoadBlock(points[index].cell.key, repeat, concurrency)
                    if block in todo:
                        answers, block_s = closed_loop(decoder, by_key[block.cell], examples, prompts, concurrency)
                        yield block, answers, block_s


def closed_loop(
    decoder: ServedDecoder, point: Point, examples: Sequence[str], prompts: Prompts, concurrency: int
) -> tuple[list[TimedRequest], float]:
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
        raise decoder.servers.explain(client, error) from error
    done = []
    for example, answer in answers:
        generation = decoder.generation(client, point, answer, 0)
        rounds = len(answer.chunks) if generation.drafted is None else len(generation.drafted)
        done.append(TimedRequest(example, answer, len(generation.tokens), rounds))
    return sorted(done), block_s if not again else math.nan


def loads(block: LoadBlock, answers: Sequence[TimedRequest], block_s: float, plan: LatencyPlan) -> list[LoadRecord]:
    return [
        LoadRecord(
            pass_id=plan.pass_id,
            machine=plan.machine,
            cell=block.cell,
            example=request.example,
            repeat=block.repeat,
            concurrency=block.concurrency,
            tokens=request.tokens,
            first_token_s=request.answer.first_token_s,
            decode_s=request.answer.decode_s,
            block_s=block_s,
            server_first_token_s=request.answer.server_s["first_token"],
            server_decode_s=request.answer.server_s["decode"],
            server_queue_s=request.answer.server_s["queue"],
            started_at=request.answer.started_at,
        )
        for request in answers
    ]


def _timing(block: LoadBlock, request: TimedRequest, plan: LatencyPlan) -> TimingRecord:
    """As plain `generate` is timed: the prefill ends with the first token, what follows is decoding."""
    answer, times = request.answer, [when for when, _ in request.answer.chunks]
    clocked = Clocked(
        tokens=request.tokens,
        rounds=request.rounds,
        prefill_s=answer.first_token_s,
        decode_s=answer.decode_s,
        first_token_s=answer.first_token_s,
        rounds_s=tuple(after - before for before, after in pairwise(times)),
    )
    return timing_record(plan, block.cell, request.example, block.repeat, clocked, started_at=answer.started_at)


def warn_of_overhead(store: Store, pass_id: str) -> None:
    """Say how much of the time is transport and this client, where it is much."""
    from sdbench.metrics.load import overhead

    share = overhead(read(store.folder).loads.query("pass_id == @pass_id"))
    if share > 0.05:
        warn(
            f"by its own clock the server took {share:.0%} less than the client's: the rest is transport and this client"
        )
