"""The latency pass: single requests on a clock, cells and baselines interleaved, so that a drifting machine hits all.

A unit is one example, or as many as are decoded together. Every visit of a unit times all cells in an order of its own: a
random permutation, and its reverse at the next visit, so that each cell stands before each other equally often. Measures are
off, scoring is drained before. A visit is written as it ends, so a pass that was cut off goes on with the next. One more visit
of a few units reads the clock between draft, verification and the rest; its totals are no speeds. Speed-ups form only inside one
pass, on one machine.
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sdbench.records import TimingRecord

if TYPE_CHECKING:
    import pandas as pd

SPLIT_UNITS = 4  # prices of calls are medians over many rounds, but the shares of the time are per example
Unit = tuple[str, ...]  # the examples decoded together
STALL = math.log(2.5)  # so much slower than expected, in logarithms; texts of a cell differ by less in seconds a round
FEW_ROUNDS = 5  # fewer say nothing of each other
DRIFT = 0.1  # a machine that changes its speed by so much within a pass is worth a sentence


@dataclass(frozen=True)
class Contender:
    """One cell on the clock: `time(unit, is_split)` decodes it once and says what it took."""

    cell: str
    time: Callable[[Unit, bool], Clocked]
    has_split: bool = True


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


class Visit(NamedTuple):
    """One unit timed by all cells: the block that is written as one. `number` decides the order of the cells."""

    number: int
    unit: Unit
    repeat: int
    is_split: bool

    @property
    def key(self) -> tuple[str, int, bool]:
        """Under what its records stand."""
        return name_of(self.unit), self.repeat, self.is_split


def visits(timed: Sequence[Unit], repeats: int) -> list[Visit]:
    """repeats × units, then one split repeat of a few."""
    whole = [(unit, repeat, False) for repeat in range(repeats) for unit in timed]
    split = [(unit, repeats, True) for unit in timed[:SPLIT_UNITS]]
    return [Visit(number, *rest) for number, rest in enumerate(whole + split)]


def num_timed(contenders: Sequence[Contender], todo: Sequence[Visit]) -> int:
    """How many records these visits will give."""
    return sum(contender.has_split or not visit.is_split for visit in todo for contender in contenders)


def new_pass_id() -> str:
    return time.strftime("%Y%m%dT%H%M%S", time.gmtime()) + "-" + secrets.token_hex(4)


def warm_up(contenders: Sequence[Contender], timed: Sequence[Unit]) -> None:
    """Kernels, caches, the allocator."""
    for contender in contenders:
        contender.time(timed[0], False)


def latency_pass(
    contenders: Sequence[Contender], todo: Sequence[Visit], *, pass_id: str, seed: int, where: str
) -> Iterator[list[TimingRecord]]:
    """The records of each visit as it ends. What stalled is timed again, once, and marked."""
    stalls = Stalls()
    for visit in todo:
        block: list[TimingRecord] = []
        for index in order(len(contenders), visit.number, seed):
            contender = contenders[index]
            if visit.is_split and not contender.has_split:
                continue
            block.append(_timed(contender, visit, pass_id, where))
        by_cell = {contender.cell: contender for contender in contenders}
        for place in stalls.places(block):
            again = _timed(by_cell[block[place].cell], visit, pass_id, where)
            block[place] = replace(again, stall=True)
        stalls.note(block)
        yield block


def _timed(contender: Contender, visit: Visit, pass_id: str, where: str) -> TimingRecord:
    started_at, load = time.time(), _load()
    clocked = contender.time(visit.unit, visit.is_split)
    return _record(pass_id, where, contender.cell, visit, clocked, started_at, load)


class Stalls:
    """What is far off its own cell at other visits and the other cells at this one: seconds a round, as logarithms."""

    def __init__(self) -> None:
        self._paces: dict[tuple[str, bool], list[float]] = {}

    def places(self, block: Sequence[TimingRecord]) -> list[int]:
        """Which records of a block are stalls. The first block has no others to be held against but its own rounds."""
        offs = {place: off for place, record in enumerate(block) if (off := self._off(record)) is not None}
        usual = statistics.median(offs.values()) if offs else 0.0  # a longer text, a slower hour: all cells of a block
        return [
            place
            for place, record in enumerate(block)
            if offs.get(place, -math.inf) - usual > STALL or _is_uneven(record)
        ]

    def note(self, block: Sequence[TimingRecord]) -> None:
        for record in block:
            if (pace := _pace(record)) is not None:
                self._paces.setdefault((record.cell, record.is_split), []).append(pace)

    def _off(self, record: TimingRecord) -> float | None:
        others, pace = self._paces.get((record.cell, record.is_split), []), _pace(record)
        return None if pace is None or not others else pace - statistics.median(others)


def _pace(record: TimingRecord) -> float | None:
    return math.log(record.decode_s / record.rounds) if record.rounds and record.decode_s > 0 else None


def _is_uneven(record: TimingRecord) -> bool:
    """Some rounds took far longer than most: their sum is far above what the median round makes of it."""
    even_s = record.rounds * record.round_p50_s
    return record.rounds >= FEW_ROUNDS and record.decode_s > math.exp(STALL) * even_s


def _record(
    pass_id: str, where: str, cell: str, visit: Visit, clocked: Clocked, started_at: float, load: float
) -> TimingRecord:
    p50, p90, p99 = (quantile(clocked.rounds_s, share) for share in (0.5, 0.9, 0.99))
    return TimingRecord(
        pass_id=pass_id,
        machine=where,
        cell=cell,
        example=name_of(visit.unit),
        repeat=visit.repeat,
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
        is_split=visit.is_split,
        peak_memory_bytes=peak_memory(),
    )


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value with at least this share at or below it; NaN of nothing."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)] if ordered else math.nan


def peak_memory() -> float:
    """Bytes: of the accelerator where there is one, of the process otherwise.

    From the kernel's page of the process where it says so: `ru_maxrss` starts at the peak of the process that launched this one.
    """
    import torch

    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated())
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith("VmHWM:"):  # not every kernel says it
            return float(line.split()[1]) * 1024
    import resource

    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * (1 if platform.system() == "Darwin" else 1024)


def _load() -> float:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else math.nan


def drift_sentence(timings: pd.DataFrame) -> str | None:
    """What to say of a pass at whose end the machine was slower or faster than at its beginning; None where it was neither."""
    from sdbench.metrics.speed import drift

    change = drift(timings) - 1
    if not abs(change) >= DRIFT:  # NaN where the pass is too short to tell
        return None
    how = "slower" if change > 0 else "faster"
    return (
        f"this machine became {abs(change):.0%} {how} during the latency pass; cells were interleaved, so speed-ups "
        f"hold on average, but their intervals are wide: time again on a quiet machine"
    )


def stall_sentence(records: Sequence[TimingRecord]) -> str | None:
    """How many were timed again."""
    count = sum(record.stall for record in records)
    if not count:
        return None
    return f"{count} of {len(records)} timings stalled and were timed again: they are marked in the column stall"
