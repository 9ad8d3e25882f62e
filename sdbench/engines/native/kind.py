"""The package's engine as an EngineKind: models in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sdbench.config import ConfigError, Run
from sdbench.engines.native.decode import Decoder
from sdbench.errors import first_line

if TYPE_CHECKING:
    from sdbench.engines.job import Job
    from sdbench.engines.latency import LatencyPlan
    from sdbench.prepare.cells import Point
    from sdbench.prepare.pair import LoadedPair, PairMetadata
    from sdbench.prepare.pair_info import PairInfo
    from sdbench.prepare.rules import DrafterClass
    from sdbench.records import Store


class Native:
    """Decodes every cell and records every measure."""

    def find(self, run: Run, *, is_read: bool = True) -> PairMetadata:
        from sdbench.prepare import pair as pairs

        return pairs.find(run.model, device=run.device, dtype=run.dtype, is_read=is_read)

    def points(self, run: Run, planned: Sequence[Point]) -> list[Point]:
        return list(planned)

    def open(self, job: Job, store: Store | None = None) -> Decoder:
        """Read the weights, and record what each drafter derives from them, if anything."""
        from sdbench.engines.native.memory import out_of_memory
        from sdbench.lm.load import free_bytes
        from sdbench.prepare import pair as pairs

        metadata = job.pair_info.metadata
        free = free_bytes(metadata.device, is_spread=job.run.model.device_map is not None)
        try:
            pair = pairs.load(metadata)
        except (MemoryError, RuntimeError) as error:
            sentence = out_of_memory(error, metadata, free)
            if sentence is None:
                raise
            raise ConfigError(sentence) from error
        refuse_another_dtype(job.pair_info, pair)
        decoder = Decoder(job, pair, store)
        if store is not None:
            for drafter in job.parts.drafters:
                if hasattr(drafter.kind, "facts"):
                    store.add_drafter({"name": drafter.name, **facts_of(decoder, drafter)})
        return decoder

    def plan_timing(self, job: Job, points: Sequence[Point], store: Store) -> LatencyPlan | None:
        from sdbench.engines.native.timing import plan_timing

        return plan_timing(job, points, store)


def facts_of(decoder: Decoder, drafter: DrafterClass) -> Mapping[str, Any]:
    """Return what a drafter derives from the weights; raise ConfigError for weights that it cannot use."""
    try:
        built: Any = decoder.engine.drafter(drafter.kind, decoder.warp, drafter.component.options)
    except ValueError as error:
        raise ConfigError(f"drafter={drafter.name}: {first_line(error)}") from error
    return built.facts


def refuse_another_dtype(pair_info: PairInfo, pair: LoadedPair) -> None:
    """Raise if weights were loaded in another dtype than their metadata names, because keys of cells contain the latter."""
    for role, model in pair.models.items():
        planned, got = pair_info.numerics[f"{role}_dtype"], str(model.dtype)
        if planned != got and pair_info.metadata.quantization(role) is None:
            name = planned.removeprefix("torch.")
            raise ConfigError(
                f"the {role} names {planned} as the dtype of its weights, but they were loaded as {got}: write dtype={name}"
            )
