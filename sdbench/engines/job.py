"""A job as it is known before weights are read, and its engine, which is opened at first use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from sdbench.config import Run
from sdbench.engines.protocol import kind_of
from sdbench.prepare.cells import points
from sdbench.prepare.pair_info import PairInfo
from sdbench.prepare.prompts import Prompts
from sdbench.prepare.refuse import refuse
from sdbench.prepare.rules import build_parts, refuse_folder_of_run
from sdbench.prepare.task import build_task
from sdbench.prepare.trained import with_trained

if TYPE_CHECKING:
    from sdbench.engines.protocol import EngineKind, OpenEngine
    from sdbench.prepare.cells import Point
    from sdbench.prepare.rules import Parts
    from sdbench.records import Store
    from sdbench.tasks.base import DataTask


def prepare(
    run: Run, words: Sequence[str], *, may_hash: bool = True, is_read: bool = True, is_recorded: bool = True
) -> Job:
    """Resolve, identify, build and check a run; everything that can be refused before weights are read is refused here.

    `may_hash`: large local files may be read to hash them. Without it the keys of cells differ from those of a run, unless the
    files were hashed before. `is_read`: the weights will be read here, so this machine must have the memory and the device.
    `is_recorded`: texts will be written to the folder of the run; false for a training.
    """
    run = with_trained(run)
    engine = kind_of(run)
    pair_info = PairInfo.read(engine.find(run, is_read=is_read), may_hash=may_hash)
    parts = build_parts(run, pair_info.ids_of)
    if is_recorded:
        refuse_folder_of_run(run, parts)
    task = build_task(run)
    refuse(run, pair_info, parts, task)
    planned = join_repeated(engine.points(run, points(run, task, pair_info, parts)))
    return Job(run, words, task, pair_info, parts, engine, planned)


def join_repeated(planned: Sequence[Point]) -> tuple[Point, ...]:
    """Return the points without those that repeat a lossless point's texts; the lossless cell then names their cells."""
    cells = {point.cell.key: point.cell for point in planned if point.cell.same_as is None}
    for point in planned:
        if point.cell.same_as is not None:
            cells[point.cell.same_as] = cells[point.cell.same_as].with_repeated(point.cell)
    return tuple(replace(point, cell=cells[point.cell.key]) for point in planned if point.cell.key in cells)


@dataclass(frozen=True)
class Job:
    """What is known of a job before weights are read."""

    run: Run
    words: Sequence[str]
    task: DataTask
    pair_info: PairInfo
    parts: Parts
    engine: EngineKind
    planned: tuple[Point, ...]  # the cells that this engine can decode

    @cached_property
    def points(self) -> dict[str, Point]:
        """The planned points by the keys of their cells."""
        return {point.cell.key: point for point in self.planned}

    @cached_property
    def prompts(self) -> Prompts:
        """The examples and their prompts as ids. Raises ConfigError if there is no room for a prompt."""
        return Prompts.make(self.task, self.pair_info, self.run, self.parts)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its answer."""
        return max(map(len, self.prompts.ids.values()), default=0) + self.task.max_new_tokens


@dataclass
class Models:
    """A job's engine, opened at first use: if no text is missing, no weights are read and no server is contacted."""

    job: Job
    store: Store

    @cached_property
    def decoder(self) -> OpenEngine:
        return self.job.engine.open(self.job, self.store)

    def close(self) -> None:
        """Close the engine if it was opened."""
        if "decoder" in self.__dict__:
            self.decoder.close()
