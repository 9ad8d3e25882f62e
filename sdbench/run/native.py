"""The engine of this package as the runner opens it: models in this process, their memory, their type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sdbench.config import ConfigError, Run

if TYPE_CHECKING:
    from sdbench.records import Store
    from sdbench.run.cells import Point
    from sdbench.run.decode import Decoder
    from sdbench.run.job import Job, Models
    from sdbench.run.outline import Outline
    from sdbench.run.pair import LoadedPair, PairMetadata
    from sdbench.run.quality import Prompts


class Native:
    """Every cell, every measure."""

    def find(self, run: Run) -> PairMetadata:
        from sdbench.run import pair as pairs

        return pairs.find(run.model, device=run.device, dtype=run.dtype)

    def points(self, run: Run, planned: Sequence[Point]) -> list[Point]:
        return list(planned)

    def open(self, job: Job, prompts: Prompts, store: Store | None = None) -> Decoder:
        """Reads the weights; nothing is told to the store."""
        from sdbench.lm.load import free_bytes
        from sdbench.run import pair as pairs
        from sdbench.run.decode import Decoder
        from sdbench.run.memory import out_of_memory

        run, metadata = job.run, job.outline.metadata
        free = free_bytes(metadata.device, is_spread=run.model.device_map is not None)
        try:
            pair = pairs.load(metadata)
        except (MemoryError, RuntimeError) as error:
            sentence = out_of_memory(error, metadata, free)
            if sentence is None:
                raise
            raise ConfigError(sentence) from error
        refuse_another_dtype(job.outline, pair)
        longest = max(map(len, prompts.ids.values()), default=0)
        return Decoder.make(run, job.outline, pair, job.task, longest)

    def time(self, run: Run, points: Sequence[Point], prompts: Prompts, models: Models) -> None:
        from sdbench.run.timing import time_points

        time_points(run, points, prompts, models)


def refuse_another_dtype(outline: Outline, pair: LoadedPair) -> None:
    """The keys of cells were made from metadata: weights that came in another type than these say would lie under a wrong one."""
    for role, model in pair.models.items():
        planned, got = outline.numerics[f"{role}_dtype"], str(model.dtype)
        if planned != got and outline.metadata.quantization(role) is None:
            name = planned.removeprefix("torch.")
            raise ConfigError(
                f"the {role} says that its weights are {planned} and was loaded as {got}: write dtype={name}"
            )
