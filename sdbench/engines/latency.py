"""What all latency passes share: the cells to time, their order, the name of the machine, and the records.

Speed-ups are computed within one pass on one machine, so an interrupted pass continues only on that machine.
"""

from __future__ import annotations

import math
import os
import platform
import random
from collections.abc import Collection, Hashable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdbench.prepare.progress import warn
from sdbench.prepare.provenance import version_of_package
from sdbench.records import Results, TimingRecord
from sdbench.types import Axis

if TYPE_CHECKING:
    import pandas as pd

    from sdbench.prepare.cells import Point


TIMED_WITH = ("sdbench", "torch", "transformers")


@dataclass(frozen=True)
class LatencyPlan:
    """What a latency pass still has to time; the type of the items in `todo` depends on the engine."""

    pass_id: str
    machine: str
    points: Sequence[Point]
    todo: Sequence[Any]


@dataclass(frozen=True)
class Measured:
    """The seconds of one timing; draft_s, verify_s and rest_s are NaN unless they were requested."""

    tokens: int
    rounds: int
    prefill_s: float
    decode_s: float
    first_token_s: float
    rounds_s: tuple[float, ...] = ()
    draft_s: float = math.nan
    verify_s: float = math.nan
    rest_s: float = math.nan
    drafted_per_round: float = math.nan  # drafted tokens per round of a text, on average
    reads_prompt: bool = False  # the first round also read the prompt, which prefill_s does not include
    first_tokens: int = 0  # tokens that came with the prefill; decode_s does not include their time


def machine() -> str:
    """Return a name for this machine and its accelerators, by which timings of several machines are kept apart."""
    import torch

    parts = [platform.node(), platform.machine(), f"{os.cpu_count()}cpu"]
    parts += [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return " ".join(parts)


def timings_to_continue(timings: pd.DataFrame, results: Results, cells: Collection[str]) -> pd.DataFrame:
    """Return the timings of these cells in passes that may be continued. A pass is left out if `force=true` has requested any of
    the cells again since it began, because it has timed texts that are replaced.
    """
    newest = max((results.forced_at.get(cell, "") for cell in cells), default="")
    return timings[timings["cell"].isin(list(cells)) & (timings["pass_id"] > newest)]  # both begin with the time


def other_versions(results: Results, pass_id: str) -> str:
    """Return the packages that decide speeds and whose version has changed since a pass began, each with its former version."""
    runs = results.runs_of_cells
    run = min(runs.loc[runs["pass_id"] == pass_id, "run"], default="")  # begins with the time
    before = results.provenance.get(run, {}).get("versions") or {}
    return ", ".join(
        f"{name} {before[name]}" for name in TIMED_WITH if before.get(name) not in (None, version_of_package(name))
    )


def warn_of_another_machine(results: Results, cells: Sequence[str], where: str) -> None:
    """Warn if a new pass begins because these cells were timed only elsewhere."""
    timings = results.timings
    others = sorted(set(timings.loc[timings["cell"].isin(list(cells)), "machine"]) - {where})
    if others:
        warn(f"speeds in these records were timed on {others[-1]}, and this is {where}: a new latency pass begins")


def warn_of_newer_pass(results: Results, cells: Sequence[str], where: str, units: Sequence[str]) -> None:
    """Warn if the speeds shown for these cells, all timed on this machine, come from a newer pass on another machine, or from one
    with other texts or batches, which shares none of the `units`.
    """
    from sdbench.metrics.speed import latest_pass

    newest = latest_pass(results.timings)
    newest = newest[newest["cell"].isin(list(cells))]
    others = sorted(set(newest["machine"]) - {where})
    if len(newest) and set(newest["example"]).isdisjoint(units):
        warn(
            "the speeds shown are from a newer pass with another timing.batch_size or other texts: a run with another name= "
            "times these again"
        )
    if others:
        warn(
            f"the speeds shown were timed on {others[-1]}, after those of this machine, {where}: "
            "a run with another name= times them here again"
        )


def order(cells: int, trial: int, seed: int) -> list[int]:
    """Return the order of the cells in a trial: a random permutation, and its reverse in the next trial."""
    permutation = random.Random(f"{seed}/{trial // 2}").sample(range(cells), cells)
    return permutation[::-1] if trial % 2 else permutation


def evenly_spaced(count: int, kept: int) -> list[int]:
    """Return `kept` of `count` indices, evenly spread, including both ends; the last index if `kept` is 1."""
    if kept >= count:
        return list(range(count))
    if kept == 1:
        return [count - 1]
    return sorted({round(i * (count - 1) / (kept - 1)) for i in range(kept)})


def points_to_time(points: Sequence[Point], cells: int, advised: Sequence[str]) -> list[Point]:
    """Return both baselines and `cells` points of each curve: first those between which the recommendation decides (`advised`,
    keys of cells), then others spread over the curve. The lossless end of a curve is left out, because the lossless baseline does
    the same work. Other lossless settings, such as block verification, are timed, since a setting must be faster than each.
    """
    chosen = [point for point in points if point.cell.verifier in ("target", "lossless")]
    curves: dict[Hashable, list[Point]] = {}
    for point in points:
        if point.role == "pair" and point.cell.verifier != "lossless" and not _is_strict_end(point):
            curves.setdefault(_curve(point), []).append(point)
    for curve in curves.values():
        near = [index for index, point in enumerate(curve) if point.cell.key in advised]
        near = near[max(0, len(near) - cells) // 2 :][:cells]
        far = [index for index in evenly_spaced(len(curve), cells) if index not in near][: cells - len(near)]
        chosen += [curve[index] for index in sorted([*near, *far])]
    return chosen


def _curve(point: Point) -> Hashable:
    """Return what points of one curve share: everything but the first knob with an order."""
    first = _along(point)
    others = [Axis.from_json(axis) for axis in point.cell.axes if first is None or axis["knob"] != first.knob]
    return point.cell.verifier, point.stream, point.num_draft, tuple((axis.knob, axis.value) for axis in others)


def _along(point: Point) -> Axis | None:
    """Return a point's position on the first knob whose values have an order; None without such a knob."""
    axes = [Axis.from_json(axis) for axis in point.cell.axes]
    return next((axis for axis in axes if axis.rank is not None), None)


def _is_strict_end(point: Point) -> bool:
    """Return whether a point is the lossless end of its curve; `metrics.gain` does not compare with such points."""
    along = _along(point)
    return point.cell.is_lossless and along is not None and along.rank == 0


def timing_record(
    plan: LatencyPlan, cell: str, example: str, repeat: int, measured: Measured, *, started_at: float
) -> TimingRecord:
    """Return a measurement as its record."""
    values: dict[str, Any] = asdict(measured)
    rounds_s, _ = values.pop("rounds_s"), values.pop("reads_prompt")
    values |= {f"round_p{percent}_s": quantile(rounds_s, percent / 100) for percent in (50, 90, 99)}
    return TimingRecord(plan.pass_id, plan.machine, cell, example, repeat, **values, started_at=started_at)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value with at least this share at or below it; NaN if there are none."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)] if ordered else math.nan


def forget_peak_memory() -> None:
    """Let `peak_memory` count from now on, if it is that of an accelerator. The kernel's peak of a process stays what it is."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak_memory() -> float:
    """Return peak memory in bytes: of the accelerator since `forget_peak_memory`, or of the process if there is none.

    Read from the kernel's status file of the process if possible: `ru_maxrss` starts at the peak of the parent process.
    """
    import torch

    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated())
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith("VmHWM:"):  # not every kernel has this line
            return float(line.split()[1]) * 1024
    import resource

    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * (1 if platform.system() == "Darwin" else 1024)
