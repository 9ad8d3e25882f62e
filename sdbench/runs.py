"""python -m sdbench.runs [FOLDER ...]: the runs below a folder of results and their state: held, missing, failed, at work.

Expected is what the newest command of a folder asked for, all its shards together. Read from the records alone; nothing is changed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sdbench.records import Results, SchemaError, read
from sdbench.records.claims import jobs_at_work


@dataclass(frozen=True, slots=True)
class RunState:
    """How far a run is; `missing` is None where its records do not say what was asked."""

    name: str
    held: int
    missing: int | None
    failed: int
    at_work: tuple[str, ...]

    @property
    def line(self) -> str:
        missing = "?" if self.missing is None else f"{self.missing:,}"
        who = ", ".join(self.at_work) or "nobody"
        return f"{self.name:<48} held {self.held:>8,}   missing {missing:>8}   failed {self.failed:>3}   at work: {who}"


def states(root: Path) -> Iterator[RunState]:
    """Of the folder itself, or of the results folders right below it."""
    folders = [root] if (root / "records").is_dir() else sorted(path.parent for path in root.glob("*/records"))
    for folder in folders:
        yield state(folder)


def state(folder: Path) -> RunState:
    """Of one results folder."""
    results = read(folder)
    planned = _planned(results)
    frame = results.generations
    if planned is None:
        held, missing = len(frame), None
    else:
        cells, asked = planned
        own = frame[frame["cell"].isin(cells)]
        held, missing = len(frame), max(len(cells) * asked - len(own), 0)
    failed = sum(problem.kind == "failure" for problem in results.problems)
    return RunState(folder.name, held, missing, failed, tuple(jobs_at_work(folder / "claims")))


def _planned(results: Results) -> tuple[set[str], int] | None:
    """(cells, generations of each) that the newest command asked for."""
    for entry in reversed(results.provenance.values()):
        planned = entry.get("planned")
        if planned:
            return set(planned["cells"]), int(planned["examples"]) * int(planned["samples"])
    return None


def main(argv: Sequence[str]) -> int:
    """0, or 2 where a folder holds no run."""
    for word in argv or ["results"]:
        try:
            lines = [one.line for one in states(Path(word))]
        except (SchemaError, ValueError) as error:
            print(f"sdbench.runs: {error}", file=sys.stderr)
            return 2
        if not lines:
            print(f"sdbench.runs: there is no results folder in {word}", file=sys.stderr)
            return 2
        print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
