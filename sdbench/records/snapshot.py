"""What a folder holds at one moment: complete parts; a merged part counts instead of those that it replaces."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdbench.records.keys import Cell
from sdbench.records.parts import ASIDE, TornPartError, list_parts, read_json, read_replaces, read_table

if TYPE_CHECKING:
    import pyarrow as pa

TABLES = (
    "generations",
    "tokens",
    "timings",
    "calls",
    "loads",
    "open_loads",
    "pooled",
    "partings",
    "vocabulary",
    "examples",
)
_ANEW = "running the command again computes its records anew"
# By kind, what is lost if the footer of a part is intact but a page is damaged (bit rot), which the writer does not check.
_REPAIRS = {
    "tokens": "its arrays per token are lost until force=true makes them anew",
    "vocabulary": "the texts of single tokens are missing",
    "examples": "prompts and references are missing",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """Something a reader of the records should know. kind: "torn", "unread", "missing", "failure" or "forced"."""

    kind: str
    name: str
    message: str


@dataclass
class Snapshot:
    """Paths of the parts that count, by kind and stem in time order, and the contents of the small files."""

    parts: dict[str, dict[str, Path]]
    cells: dict[str, Cell]
    runs: dict[str, dict[str, Any]]
    failures: list[dict[str, Any]]
    epochs: dict[str, int]  # cell -> the epoch that force has requested
    forced_at: dict[str, str] = field(default_factory=dict)  # cell -> stem of the newest force that names it
    forced: dict[str | None, set[str]] = field(default_factory=dict)  # token -> cells requested with it
    problems: list[Problem] = field(default_factory=list)
    set_aside: tuple[str, ...] = ()  # names of damaged parts of generations that do not count any more
    subsets: dict[str, list[str]] = field(default_factory=dict)  # key -> ids of the examples that runs planned
    servers: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # run -> facts about its servers
    drafters: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # run -> facts about its drafters

    def tables(
        self, kind: str, columns: list[str] | None = None, *, checked_whole: Collection[str] = ()
    ) -> dict[str, pa.Table]:
        """Return stem -> table of every complete part; a torn one becomes a problem.

        A part whose stem is in `checked_whole` is torn if any column is damaged; another part only if a column that is read is.
        """
        tables: dict[str, pa.Table] = {}
        for stem, path in self.parts[kind].items():
            try:
                tables[stem] = read_table(path, columns, is_checked_whole=stem in checked_whole)
            except TornPartError as error:
                self.report(error.kind, path.name, f"{error}; {_REPAIRS.get(kind, _ANEW)}, the others are intact")
        return tables

    def report(self, kind: str, name: str, message: str) -> None:
        """Add a problem once."""
        problem = Problem(kind, name, message)
        if problem not in self.problems:
            self.problems.append(problem)


def take_snapshot(records: Path, *, footers: dict[str, tuple[str, ...]] | None = None) -> Snapshot:
    """Read every footer, so that torn and newer parts show at once. FileNotFoundError if a part vanishes meanwhile.

    `footers` caches what each part replaces between calls: parts never change.
    """
    footers = {} if footers is None else footers
    snapshot = Snapshot({kind: {} for kind in TABLES}, {}, {}, [], {})
    snapshot.set_aside = tuple(sorted(path.name for path in records.glob(f"{ASIDE}generations-*")))
    gone: dict[str, set[str]] = {kind: set() for kind in TABLES}
    for kind, stem, path in list_parts(records):
        try:
            if kind in TABLES:
                if path.name not in footers:
                    footers[path.name] = read_replaces(path)
                gone[kind].update(footers[path.name])
                snapshot.parts[kind][stem] = path
            else:
                _read_small(snapshot, kind, stem, path)
        except TornPartError as error:
            snapshot.report(
                error.kind, path.name, f"{error}; the others are intact, and running the command again repairs it"
            )
    # A merged part counts when it is committed; for tokens that is when its generations part is.
    for kind in TABLES:
        for stem in gone["generations" if kind == "tokens" else kind]:
            snapshot.parts[kind].pop(stem, None)
    for stem in set(snapshot.parts["tokens"]) - set(snapshot.parts["generations"]):
        del snapshot.parts["tokens"][stem]
    for stem in set(snapshot.parts["generations"]) - set(snapshot.parts["tokens"]):
        name = f"tokens-{stem}.parquet"
        snapshot.report("missing", name, f"{name} is missing or torn: no arrays per token for its generations")
    return snapshot


def read_cells(records: Path) -> dict[str, Cell]:
    """Return the cells of a folder by key; {} if it has no records. Reads again if another job merges parts meanwhile."""
    while records.is_dir():
        with suppress(FileNotFoundError):
            return take_snapshot(records).cells
    return {}


def _read_small(snapshot: Snapshot, kind: str, stem: str, path: Path) -> None:
    data = read_json(path)
    try:
        if kind == "cell":
            snapshot.cells[stem] = Cell.from_json(data)
        elif kind == "run":
            snapshot.runs[stem] = data
        elif kind == "failure":
            snapshot.failures.append(data | {"stem": stem})
        elif kind == "subset":
            snapshot.subsets[stem] = list(data["examples"])
        elif kind == "server":
            snapshot.servers.setdefault(data["run"], []).append(data["server"])
        elif kind == "drafter":
            snapshot.drafters.setdefault(data["run"], []).append(data["drafter"])
        elif kind == "force":
            for cell in data["cells"]:
                snapshot.epochs[cell] = max(snapshot.epochs.get(cell, 0), int(data["epoch"]))
                snapshot.forced_at[cell] = stem  # parts come in time order
            if (token := data.get("token")) is not None:  # earlier versions stored none
                snapshot.forced.setdefault(token, set()).update(data["cells"])
    except (KeyError, TypeError, ValueError) as error:
        raise TornPartError(f"{path.name} is not a whole {kind} file ({error})") from error
