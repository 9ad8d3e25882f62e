"""The choice of an engine: what the passes ask of one, whoever decodes. `engine=NAME` names a class that keeps `EngineKind`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Protocol

from sdbench.config import ConfigError, Run, refuse_unknown
from sdbench.errors import first_line
from sdbench.imports import import_object

if TYPE_CHECKING:
    from sdbench.engine.loop import Watch
    from sdbench.engines.job import Job
    from sdbench.engines.latency import LatencyPlan
    from sdbench.plan import WorkItem
    from sdbench.prepare.cells import Point
    from sdbench.prepare.pair import PairMetadata
    from sdbench.records import Store
    from sdbench.types import Generation


class OpenEngine(Protocol):
    """An engine that is open for a job: weights are read, or servers answer."""

    def stop_ids(self, role: str) -> tuple[int, ...]:
        """The end-of-text ids of the model whose text it is."""
        ...

    def stages(self) -> list[list[str]]:
        """All cells, in the parts that are decoded to their ends one after another: what a part opens is opened once."""
        ...

    def stream(self, items: Sequence[WorkItem], watch: Watch | None = None) -> Iterator[tuple[WorkItem, Generation]]:
        """Items of one role, in the order in which they end; `watch` follows those under way, where the engine sees them."""
        ...

    def time(self, plan: LatencyPlan) -> None:
        """Time what the plan lacks, and append it as it is measured."""
        ...

    def close(self) -> None:
        """Stop every server that this engine started, also after an error."""
        ...


class EngineKind(Protocol):
    """A class of configs/engine, made with the options of its file. One whose passes send requests as they arrive
    (`timing.rate`) says `takes_arrivals = True`.
    """

    def find(self, run: Run) -> PairMetadata:
        """The pair from its metadata; an option of the run that this engine does not take is a ConfigError."""
        ...

    def points(self, run: Run, planned: Sequence[Point]) -> list[Point]:
        """Those cells of a sweep that it can make, their keys saying what decides a text here."""
        ...

    def open(self, job: Job, store: Store) -> OpenEngine:
        """Return an engine that is ready to decode; a ConfigError for an option of the run that it cannot serve."""
        ...

    def plan_timing(self, job: Job, points: Sequence[Point], store: Store) -> LatencyPlan | None:
        """What the newest latency pass on this machine lacks of these cells; None where it lacks nothing."""
        ...


def kind_of(run: Run) -> Any:
    """The engine that a run names, with its options."""
    try:
        kind: Any = import_object(str(run.engine.target))
        names = [option.name for option in fields(kind) if option.init] if is_dataclass(kind) else run.engine.options
        refuse_unknown("engine.", run.engine.options, names)
        make: Any = kind
        return make(**run.engine.options)
    except ConfigError:
        raise
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"engine={run.engine.name} cannot be built: {first_line(error)}") from None
