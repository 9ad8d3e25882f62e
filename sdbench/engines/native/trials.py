"""Trials of a latency pass: single requests are timed with cells and baselines interleaved, so that drift affects all of them.

A unit is one example, or a batch of examples. Every trial of a unit times all cells in a random order, and the next trial in
its reverse, so that each cell precedes each other equally often. Measures are off, and scoring is finished before. A trial is
recorded when it ends, so an interrupted pass continues with the next. One more trial of a few units also times draft, verification
and the rest separately; its totals are not used as speeds.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from sdbench.engines.latency import LatencyPlan, Measured, forget_peak_memory, order, peak_memory, timing_record
from sdbench.prepare.progress import Bar
from sdbench.records import TimingRecord

SPLIT_UNITS = 4  # so few suffice for costs of calls, medians over many rounds; shares of time are per example
ExampleGroup = tuple[str, ...]  # examples that are decoded together
# As a logarithm: an outlier takes more than 2.5 times the expected seconds per round. Texts of one cell differ by less.
OUTLIER = math.log(2.5)
FEW_ROUNDS = 5  # fewer rounds show neither an outlier nor a typical round
RECENT = 64  # the latest rounds of a cell, among which a typical one is found


@dataclass(frozen=True)
class TimedCell:
    """A timed cell: `time(group, is_split)` decodes the examples once and returns the seconds."""

    cell: str
    time: Callable[[ExampleGroup, bool], Measured]
    has_split: bool = True


def units(examples: Sequence[str], batch_size: int) -> list[ExampleGroup]:
    """Group the examples into batches. A smaller last batch is not timed."""
    starts = range(0, len(examples) - batch_size + 1, batch_size)
    return [tuple(examples[i : i + batch_size]) for i in starts]


def name_of(unit: ExampleGroup) -> str:
    """Return the name of a unit in the column `example` of its timings."""
    return "+".join(unit)


class Trial(NamedTuple):
    """One unit timed by all cells, written as one block. `number` decides the order of the cells."""

    number: int
    unit: ExampleGroup
    repeat: int
    is_split: bool

    @property
    def key(self) -> tuple[str, int, bool]:
        """The key of its records."""
        return name_of(self.unit), self.repeat, self.is_split


def trials_of(timed: Sequence[ExampleGroup], repeats: int) -> list[Trial]:
    """Return repeats × units, then one split repeat of a few units."""
    whole = [(unit, repeat, False) for repeat in range(repeats) for unit in timed]
    split = [(unit, repeats, True) for unit in timed[:SPLIT_UNITS]]
    return [Trial(number, *rest) for number, rest in enumerate(whole + split)]


def num_timed(timed_cells: Sequence[TimedCell], todo: Sequence[Trial]) -> int:
    """Return the number of records of these trials."""
    return sum(timed_cell.has_split or not trial.is_split for trial in todo for timed_cell in timed_cells)


class PromptTimes:
    """Separates the time of reading the prompt from that of decoding, for first rounds that do both.

    A typical round counts as decoding, the rest as prefill. A typical round is the median of the other rounds of the text; if
    these are few, rounds of the cell's last texts count too. If the cell never had another round, all counts as decoding.
    """

    def __init__(self) -> None:
        self._rounds_s: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT))

    def note(self, cell: str, measured: Measured) -> None:
        """Store the times of the rounds that did not read a prompt."""
        self._rounds_s[cell].extend(measured.rounds_s[1 if measured.reads_prompt else 0 :])

    def apart(self, cell: str, measured: Measured) -> Measured:
        """Return the timing with the seconds of reading the prompt moved to prefill_s."""
        if not measured.reads_prompt:
            return measured
        first_s, *others = measured.rounds_s
        known = others if len(others) >= FEW_ROUNDS else [*self._rounds_s[cell], *others]
        self.note(cell, measured)
        typical_s = min(first_s, statistics.median(known)) if known else first_s
        prompt_s = first_s - typical_s
        seconds = {"prefill_s": measured.prefill_s + prompt_s, "decode_s": measured.decode_s - prompt_s}
        return replace(measured, rounds_s=(typical_s, *others), **seconds)


def warm_up(timed_cells: Sequence[TimedCell], timed: Sequence[ExampleGroup]) -> PromptTimes:
    """Run each cell once, so that kernels, caches and the allocator are warm; return the times of its rounds."""
    prompts = PromptTimes()
    with Bar("warming up", len(timed_cells)) as bar:
        for timed_cell in timed_cells:
            measured = timed_cell.time(timed[0], False)
            if measured.reads_prompt and len(measured.rounds_s) <= FEW_ROUNDS and timed_cell.has_split:
                measured = timed_cell.time(timed[0], True)  # a split repeat reads the prompt before its first round
            prompts.note(timed_cell.cell, measured)
            bar.add(tokens=measured.tokens)
    return prompts


def latency_pass(
    timed_cells: Sequence[TimedCell], plan: LatencyPlan, seed: int, prompts: PromptTimes
) -> Iterator[list[TimingRecord]]:
    """Yield the records of each trial when it ends. Outliers are timed again once and marked as stalled."""
    outliers = Outliers()
    by_cell = {timed_cell.cell: timed_cell for timed_cell in timed_cells}
    for trial in plan.todo:
        block: list[TimingRecord] = []
        for index in order(len(timed_cells), trial.number, seed):
            timed_cell = timed_cells[index]
            if trial.is_split and not timed_cell.has_split:
                continue
            block.append(_measure(timed_cell, trial, plan, prompts))
        for index in outliers.indices(block):
            again = _measure(by_cell[block[index].cell], trial, plan, prompts)
            block[index] = replace(again, stall=True)
        outliers.note(block)
        yield block


def _measure(timed_cell: TimedCell, trial: Trial, plan: LatencyPlan, prompts: PromptTimes) -> TimingRecord:
    started_at, load = time.time(), os.getloadavg()[0] if hasattr(os, "getloadavg") else math.nan
    forget_peak_memory()
    measured = prompts.apart(timed_cell.cell, timed_cell.time(trial.unit, trial.is_split))
    record = timing_record(plan, timed_cell.cell, name_of(trial.unit), trial.repeat, measured, started_at=started_at)
    return replace(record, load=load, is_split=trial.is_split, peak_memory_bytes=peak_memory())


class Outliers:
    """Finds timings that took far longer than the cell did in other trials, relative to the other cells of this trial.

    Compared are log seconds per round.
    """

    def __init__(self) -> None:
        self._paces: dict[tuple[str, bool], list[float]] = {}

    def indices(self, block: Sequence[TimingRecord]) -> list[int]:
        """Return the indices of a block's outliers. In the first block, only the rounds within a timing can be compared."""
        offs = {index: off for index, record in enumerate(block) if (off := self._off(record)) is not None}
        usual = statistics.median(offs.values()) if offs else 0.0  # long texts and a slow hour affect all cells
        return [
            index
            for index, record in enumerate(block)
            if offs.get(index, -math.inf) - usual > OUTLIER or _is_uneven(record)
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
    """Return whether some rounds took far longer than most: their sum is far above what the median round predicts."""
    even_s = record.rounds * record.round_p50_s
    return record.rounds >= FEW_ROUNDS and record.decode_s > math.exp(OUTLIER) * even_s


def outlier_sentence(records: Sequence[TimingRecord]) -> str | None:
    """Return a sentence with the number of timings that were repeated."""
    count = sum(record.stall for record in records)
    if not count:
        return None
    return f"{count} of {len(records)} timings stalled and were timed again: they are marked in the column stall"
