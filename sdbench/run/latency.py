"""The latency pass: single requests on a clock, cells and baselines interleaved, so that a drifting machine hits all.

Every (example, repeat) visits all cells in an order of its own: a random permutation, and its reverse in the next
repeat, so that each cell stands before each other equally often. Measures are off, scoring is drained before. One more
repeat of a few examples reads the clock between draft, verification and the rest; its totals are no speeds.
Speed-ups form only inside one pass, on one machine.
"""

from __future__ import annotations

import math
import os
import platform
import random
import secrets
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sdbench.records import TimingRecord

SPLIT_EXAMPLES = 3  # enough for the prices of calls, which are medians
DRIFT = 0.1  # a machine that changes its speed by so much within a pass is worth a sentence


@dataclass(frozen=True)
class Contender:
    """One cell on the clock: `time(example, seed, is_split)` decodes it once and says what it took."""

    cell: str
    time: Callable[[str, bool], Clocked]


@dataclass(frozen=True)
class Clocked:
    """What one request took, in seconds; the split is NaN where it was not asked for."""

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


def order(cells: int, repeats: int, seed: int, example: int) -> list[list[int]]:
    """The order of the cells in each repeat of one example: a permutation and its reverse, in pairs."""
    draw = random.Random(f"{seed}/{example}")
    orders: list[list[int]] = []
    while len(orders) < repeats:
        permutation = draw.sample(range(cells), cells)
        orders += [permutation, permutation[::-1]]
    return orders[:repeats]


def spread(count: int, kept: int) -> list[int]:
    """`kept` of `count` places, evenly spread, both ends among them."""
    if kept >= count:
        return list(range(count))
    if kept == 1:
        return [count - 1]
    return sorted({round(i * (count - 1) / (kept - 1)) for i in range(kept)})


def latency_pass(
    contenders: Sequence[Contender], examples: Sequence[str], repeats: int, *, seed: int, where: str
) -> Iterator[TimingRecord]:
    """Warm-up, then repeats × examples × contenders, then one split repeat of a few; a record as each ends."""
    pass_id = time.strftime("%Y%m%dT%H%M%S", time.gmtime()) + "-" + secrets.token_hex(4)
    for contender in contenders:
        contender.time(examples[0], False)  # warm-up: kernels, caches, allocator
    for repeat in range(repeats + 1):
        is_split = repeat == repeats
        for number, example in enumerate(examples[:SPLIT_EXAMPLES] if is_split else examples):
            for index in order(len(contenders), repeats + 1, seed, number)[repeat]:
                contender = contenders[index]
                started_at, load = time.time(), _load()
                clocked = contender.time(example, is_split)
                yield _record(pass_id, where, contender.cell, example, repeat, clocked, started_at, load, is_split)


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
    """How much slower the end of a pass was than its beginning: 0.1 is 10 %. Each time is held against others of its
    cell and example, so lengths do not matter; medians over the first and the last third.
    """
    whole = [r for r in records if not r.is_split and r.tokens and r.decode_s > 0]
    groups: dict[tuple[str, str], list[TimingRecord]] = {}
    for record in whole:
        groups.setdefault((record.cell, record.example), []).append(record)
    points: list[tuple[float, float]] = []
    for group in groups.values():
        if len(group) > 1:
            middle = statistics.median(math.log(r.decode_s) for r in group)
            points += [(r.started_at, math.log(r.decode_s) - middle) for r in group]
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
