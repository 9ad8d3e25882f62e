"""Engines that are servers: those that run already (Http), and vLLM servers that are started here (Vllm)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sdbench.engines.served.options import HttpOptions, VllmOptions

if TYPE_CHECKING:
    from sdbench.engines.job import Job
    from sdbench.engines.latency import LatencyPlan
    from sdbench.engines.served.timing import ServedEngine
    from sdbench.prepare.cells import Point
    from sdbench.prepare.prompts import Prompts
    from sdbench.records import Store


class _Served:
    """What both kinds do with their options."""

    def open(self, job: Job, prompts: Prompts, store: Store) -> ServedEngine:
        from sdbench.engines.served.timing import ServedEngine

        assert isinstance(self, HttpOptions)
        return ServedEngine(self, job, prompts, store)

    def plan_timing(self, job: Job, points: Sequence[Point], prompts: Prompts, store: Store) -> LatencyPlan | None:
        from sdbench.engines.served.timing import plan_timing

        assert isinstance(self, HttpOptions)
        return plan_timing(self, job.run, points, prompts, store)


@dataclass(kw_only=True)
class Http(_Served, HttpOptions):
    """Servers that run already."""


@dataclass(kw_only=True)
class Vllm(_Served, VllmOptions):
    """Servers that are started here, one for each setting."""
