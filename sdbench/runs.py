"""Summarise a results folder: runs, missing cells, who is working.

Missing generations are counted cell by cell, against what the newest command of a folder requested, including all its shards. A
generation that `force=true` requested again counts as missing. The records are only read; nothing is changed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sdbench.records import read
from sdbench.records.claims import jobs_at_work
from sdbench.subcommand import Exit, Subcommand

HELP = """sdbench.runs: summarise results folders: texts held, missing and failed, and the jobs that are working.

  python -m sdbench.runs [FOLDER …]     a run's folder, or one that holds several (results)

Missing texts are those that the newest command of a folder, with all its shards, requested and that are not recorded yet. Nothing
is changed.
Exit codes: 0 done, 1 something unexpected happened, 2 bad configuration, 130 interrupted.
"""


@dataclass(frozen=True, slots=True)
class RunState:
    """The progress of a run; `missing` is None if its records do not say what was planned."""

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


def states_of(root: Path) -> Iterator[RunState]:
    """Summarise the folder itself, or the results folders directly below it."""
    folders = [root] if (root / "records").is_dir() else sorted(path.parent for path in root.glob("*/records"))
    return map(state_of, folders)


def state_of(folder: Path) -> RunState:
    """Summarise one results folder."""
    results = read(folder)
    failed = sum(problem.kind == "failure" for problem in results.problems)
    at_work = tuple(jobs_at_work(folder / "claims"))
    return RunState(folder.name, len(results.held()), results.num_missing(), failed, at_work)


def run(words: Sequence[str], _compose: None) -> int:
    """Print one line per run."""
    for word in words or ["results"]:
        lines = [state.line for state in states_of(Path(word))]
        if not lines:
            raise ValueError(f"there is no results folder in {word}")
        print("\n".join(lines))
    return Exit.DONE


COMMAND = Subcommand("sdbench.runs", lambda _: HELP, run, mistakes=(ValueError,))

if __name__ == "__main__":
    COMMAND.main()
