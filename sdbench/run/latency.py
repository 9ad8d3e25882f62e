"""The latency pass: single requests on a clock, cells and baselines interleaved, so that a drifting machine hits all.

A unit is one example, or as many as are decoded together. Every visit of a unit times all cells in an order of its own: a
random permutation, and its reverse at the next visit, so that each cell stands before each other equally often. Measures are
off, scoring is drained before. One more visit of a few units reads the clock between draft, verification and the rest; its
totals are no speeds. Speed-ups form only inside one pass, on one machine.
"""

from __future__ import annotations

import math
import os
import platform
import random
import secrets
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from sdbench.records import TimingRecord

SPLIT_UNITS = 4  # prices of calls are medians over many rounds, but the shares of the time are per example
Unit = tuple[str, ...]  # the examples decoded together
DRIFT = 0.1  # a machine that changes its speed by so much within a pass is worth a sentence


@dataclass(frozen=True)
class Contender:
    """One cell on the clock: `time(unit, is_split)` decodes it once and says what it took. Cells of a kind run the same
    recorded steps; those of no kind have none.
    """

    cell: str
    time: Callable[[Unit, bool], Clocked]
    has_split: bool = True
    kind: Hashable = None


@dataclass(frozen=True)
class Clocked:
    """What one unit took, in seconds; the split is NaN where it was not asked for."""

    tokens: int
    rounds: int
    prefill_s: float
    decode_s: float
    first_token_s: float
    rounds_s: tuple[float, ...] = ()
    draft_s: float = math.nan
    verify_s: float = math.nan
    rest_s: float = math.nan


def machine() -> str:
    """A name for this machine and its accelerator, under which its timings are kept apart."""
    import torch

    parts = [platform.node(), platform.machine(), f"{os.cpu_count()}cpu"]
    parts += [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return " ".join(parts)


def units(examples: Sequence[str], batch_size: int) -> list[Unit]:
    """As many examples as are decoded together; what is left over is not timed, for it would be a smaller batch."""
    starts = range(0, len(examples) - batch_size + 1, batch_size)
    return [tuple(examples[i : i + batch_size]) for i in starts]


def name_of(unit: Unit) -> str:
    """What stands under `example` in its timings."""
    return "+".join(unit)


def order(cells: int, visit: int, seed: int) -> list[int]:
    """The order of the cells at a visit: a permutation, and its reverse at the next."""
    permutation = random.Random(f"{seed}/{visit // 2}").sample(range(cells), cells)
    return permutation[::-1] if visit % 2 else permutation


def spread(count: int, kept: int) -> list[int]:
    """`kept` of `count` places, evenly spread, both ends among them."""
    if kept >= count:
        return list(range(count))
    if kept == 1:
        return [count - 1]
    return sorted({round(i * (count - 1) / (kept - 1)) for i in range(kept)})


def ends(contenders: Sequence[Contender]) -> list[Contender]:
    """Of each kind lossless, which stands first, and both ends of the sweep: the shortest and the longest texts."""
    kinds: dict[Hashable, list[Contender]] = {}
    for contender in contenders:
        if contender.kind is not None:
            kinds.setdefault(contender.kind, []).append(contender)
    return [contender for own in kinds.values() for contender in own[:2] + own[2:][-1:]]


def num_timed(contenders: Sequence[Contender], num_units: int, repeats: int) -> int:
    """How many records a pass will give."""
    split = sum(contender.has_split for contender in contenders) * min(num_units, SPLIT_UNITS)
    return len(contenders) * num_units * repeats + split


def latency_pass(
    contenders: Sequence[Contender], timed: Sequence[Unit], repeats: int, *, seed: int, where: str
) -> Iterator[TimingRecord]:
    """Warm-up, then repeats × units × contenders, then one split repeat of a few; a record as each ends."""
    pass_id = time.strftime("%Y%m%dT%H%M%S", time.gmtime()) + "-" + secrets.token_hex(4)
    for contender in contenders:
        contender.time(timed[0], False)  # warm-up: kernels, caches, allocator
    for unit in timed[1:]:
        for contender in ends(contenders):  # … and the steps of every length that will come
            contender.time(unit, False)
    visits = [(repeat, unit) for repeat in range(repeats) for unit in timed]
    visits += [(repeats, unit) for unit in timed[:SPLIT_UNITS]]
    for visit, (repeat, unit) in enumerate(visits):
        is_split = repeat == repeats
        for index in order(len(contenders), visit, seed):
            contender = contenders[index]
            if is_split and not contender.has_split:
                continue
            started_at, load = time.time(), _load()
            clocked = contender.time(unit, is_split)
            yield _record(pass_id, where, contender.cell, name_of(unit), repeat, clocked, started_at, load, is_split)


def _record(
    pass_id: str,
    where: str,
    cell: str,
    example: str,
    repeat: int,
    clocked: Clocked,
    started_at: float,
    load: float,
    is_split: bool,
) -> TimingRecord:
    p50, p90, p99 = (quantile(clocked.rounds_s, share) for share in (0.5, 0.9, 0.99))
    return TimingRecord(
        pass_id=pass_id,
        machine=where,
        cell=cell,
        example=example,
        repeat=repeat,
        tokens=clocked.tokens,
        rounds=clocked.rounds,
        prefill_s=clocked.prefill_s,
        decode_s=clocked.decode_s,
        first_token_s=clocked.first_token_s,
        round_p50_s=p50,
        round_p90_s=p90,
        round_p99_s=p99,
        draft_s=clocked.draft_s,
        verify_s=clocked.verify_s,
        rest_s=clocked.rest_s,
        started_at=started_at,
        load=load,
        is_split=is_split,
        peak_memory_bytes=peak_memory(),
    )


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value with at least this share at or below it; NaN of nothing."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)] if ordered else math.nan


def peak_memory() -> float:
    """Bytes: of the accelerator where there is one, of the process otherwise."""
    import torch

    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated())
    import resource

    unit = 1 if platform.system() == "Darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def _load() -> float:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else math.nan


def drift(records: Sequence[TimingRecord]) -> float:
    """How much slower the end of a pass was than its beginning: 0.1 is 10 %. Seconds a round, each held against the others
    of its cell, so lengths do not matter; medians over the first and the last third.
    """
    whole = [r for r in records if not r.is_split and r.rounds and r.decode_s > 0]
    cells: dict[str, list[TimingRecord]] = {}
    for record in whole:
        cells.setdefault(record.cell, []).append(record)
    points: list[tuple[float, float]] = []
    for own in cells.values():
        middle = statistics.median(math.log(r.decode_s / r.rounds) for r in own)
        points += [(r.started_at, math.log(r.decode_s / r.rounds) - middle) for r in own]
    points.sort()
    third = len(points) // 3
    if third < 3:
        return 0.0
    first, last = (statistics.median(y for _, y in part) for part in (points[:third], points[-third:]))
    return math.expm1(last - first)


def drift_sentence(records: Sequence[TimingRecord]) -> str | None:
    """What to say about it, if anything."""
    change = drift(records)
    if abs(change) < DRIFT:
        return None
    how = "slower" if change > 0 else "faster"
    return (
        f"this machine became {abs(change):.0%} {how} during the latency pass; cells were interleaved, so speed-ups "
        f"hold on average, but their intervals are wide: time again on a quiet machine"
    )
