"""What the quality and latency passes need from an engine. `engine=NAME` names a class that satisfies `EngineKind`."""

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
    from sdbench.plan import Work, WorkItem
    from sdbench.prepare.cells import Point
    from sdbench.prepare.pair import PairMetadata
    from sdbench.records import Store
    from sdbench.types import Generation


class OpenEngine(Protocol):
    """An engine that is open for a job: weights are read, or servers answer."""

    def stop_ids(self, role: str) -> tuple[int, ...]:
        """Return the end-of-text ids of the model that writes the text."""
        ...

    def stages(self) -> list[list[str]]:
        """Return the keys of all cells, in groups to decode one after another, so that each server is started only once."""
        ...

    def stream(self, work: Work, watch: Watch | None = None) -> Iterator[tuple[WorkItem, Generation]]:
        """Decode the work of one role, share by share, until no more can be claimed, and yield items as they end. `watch` is
        called with the progress of unfinished items, if the engine knows it.
        """
        ...

    def time(self, plan: LatencyPlan) -> None:
        """Time everything in `plan.todo`, and append each timing to the records as it is measured."""
        ...

    def close(self) -> None:
        """Close the engine and stop every server that it started, even after an error."""
        ...


class EngineKind(Protocol):
    """A class that a file of configs/engine names, built with the options of that file. It sets `takes_arrivals = True` if its
    latency pass can send requests at their arrival times (`timing.rate`).
    """

    def find(self, run: Run, *, is_read: bool = True) -> PairMetadata:
        """Find the pair's checkpoints and return their metadata; raise ConfigError for an option of the run that this engine does
        not take. `is_read`: this process will read the weights, if the engine does that; only then are memory and device
        checked.
        """
        ...

    def points(self, run: Run, planned: Sequence[Point]) -> list[Point]:
        """Return the points of a sweep that the engine can decode; their keys include what decides a text in this engine."""
        ...

    def open(self, job: Job, store: Store) -> OpenEngine:
        """Open the engine for a job; raise ConfigError for an option of the run that it cannot serve."""
        ...

    def plan_timing(self, job: Job, points: Sequence[Point], store: Store) -> LatencyPlan | None:
        """Return what is left to time of these points in the newest latency pass on this machine; None if it is complete."""
        ...


def kind_of(run: Run) -> Any:
    """Return the engine that a run names, with its options."""
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
