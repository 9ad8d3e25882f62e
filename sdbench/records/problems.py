"""What is wrong with the records of a folder: failures that nobody has corrected, unfinished `force`, cells without a file."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from sdbench.records.snapshot import Snapshot


def add_problems(snapshot: Snapshot, rows: pa.Table) -> None:
    """Report the problems that show in these rows, those that count of each text."""
    cells, examples, runs, epochs = (rows[name].to_pylist() for name in ("cell", "example", "run", "epoch"))
    latest: dict[tuple[str, str | None], str] = {}  # the last run that wrote a text; its id begins with the time
    counts: Counter[tuple[str, str | None]] = Counter()
    old: Counter[str] = Counter()
    for cell, example, run, epoch in zip(cells, examples, runs, epochs, strict=True):
        is_old = epoch < snapshot.epochs.get(cell, 0)
        old[cell] += is_old
        for scope in ((cell, example), (cell, None)):
            latest[scope] = max(run or "", latest.get(scope, ""))
            counts[scope] += not is_old
    for failure in snapshot.failures:
        cell, example = failure["cell"], failure["example"]
        # Other texts of the same run prove nothing, unless no text is missing: another process may have written it.
        is_later = latest.get((cell, example), "") > failure["run"]
        if not is_later and not 0 < _num_planned(snapshot, failure["run"], example) <= counts[cell, example]:
            snapshot.report("failure", cell if example is None else f"{cell}, example {example}", failure["message"])
    for cell, num in old.items():
        if num:
            snapshot.report("forced", cell, f"{num} generations are not yet computed anew since force=true")
        if cell not in snapshot.cells:
            snapshot.report("missing", cell, f"cell-{cell}.json is missing or torn: no labels for its records")


def _num_planned(snapshot: Snapshot, run: str, example: str | None) -> int:
    """Return how many texts of a cell, or of one of its examples, a run was to have; 0 if that is not known."""
    planned = snapshot.runs.get(run, {}).get("provenance", {}).get("planned") or {}
    return int(planned.get("samples", 0)) * (1 if example is not None else int(planned.get("examples", 0)))
