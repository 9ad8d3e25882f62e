"""What is wrong with the records of a folder: failures that no later run corrected, unfinished `force`, cells without a file."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from sdbench.records.planned import Samples, num_held, num_missing

if TYPE_CHECKING:
    import pyarrow as pa

    from sdbench.records.snapshot import Snapshot


def add_problems(snapshot: Snapshot, rows: pa.Table) -> None:
    """Report the problems that these rows show; `rows` has one row per text, the one that counts."""
    names = ("cell", "example", "sample", "run", "epoch")
    latest: dict[tuple[str, str | None], str] = {}  # the last run that wrote a text; its id begins with the time
    new: Samples = defaultdict(lambda: defaultdict(set))  # since the cell was last forced
    held: Samples = defaultdict(lambda: defaultdict(set))  # all
    old: Counter[str] = Counter()
    for cell, example, sample, run, epoch in zip(*(rows[name].to_pylist() for name in names), strict=True):
        is_old = epoch < snapshot.epochs.get(cell, 0)
        old[cell] += is_old
        held[cell][example].add(sample)
        if not is_old:
            new[cell][example].add(sample)
        for scope in ((cell, example), (cell, None)):
            latest[scope] = max(run or "", latest.get(scope, ""))
    for failure in snapshot.failures:
        cell, example = failure["cell"], failure["example"]
        # Texts of the same run do not show that the failure is corrected; that no text is missing does, whoever wrote them.
        is_later = latest.get((cell, example), "") > failure["run"]
        if not is_later and not _is_complete(snapshot, failure["run"], new[cell], example):
            snapshot.report("failure", cell if example is None else f"{cell}, example {example}", failure["message"])
    for cell, num in old.items():
        if num:
            snapshot.report(
                "forced",
                cell,
                f"{num} generations date from before force=true: run the command again without force=true to decode them anew",
            )
        if cell not in snapshot.cells:
            snapshot.report(
                "missing", cell, f"cell-{cell}.json is missing or damaged, so the settings of its records are not known"
            )
    _report_set_aside(snapshot, held)


def _report_set_aside(snapshot: Snapshot, held: Samples) -> None:
    """Report damaged parts that were set aside, as long as any texts that runs of the folder planned are missing."""
    plans = [planned for run in snapshot.runs if (planned := _plan_of(snapshot, run))] if snapshot.set_aside else []
    if any(num_missing(snapshot, planned, held[cell]) for planned in plans for cell in planned["cells"]):
        for name in snapshot.set_aside:
            snapshot.report(
                "missing",
                name,
                f"{name} was damaged and set aside, and texts are missing: run the commands of this folder again",
            )


def _plan_of(snapshot: Snapshot, run: str) -> Mapping[str, Any]:
    """Return what a run was to decode; {} if that is not known."""
    return snapshot.runs.get(run, {}).get("provenance", {}).get("planned") or {}


def _is_complete(snapshot: Snapshot, run: str, held: Mapping[str, Collection[int]], example: str | None) -> bool:
    """Return whether a cell, or one of its examples, has all texts that a run planned; False if it is not known how many."""
    planned = _plan_of(snapshot, run)
    if not planned:
        return False
    if example is not None:
        samples = int(planned["samples"])
        return num_held(held.get(example, ()), samples) == samples
    return num_missing(snapshot, planned, held) == 0
