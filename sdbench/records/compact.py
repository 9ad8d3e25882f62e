"""Maintenance of the parts: merge small ones and set torn ones aside, safe against kills and concurrent readers.

The footer of a merged part names the stems that it replaces; from its rename on these no longer count. Only then are they
deleted, oldest first, so a merged part outlives what it replaced. After a kill there may be files that no longer count, but no
record is missing.
"""

import contextlib
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from sdbench.records.parts import ASIDE, TornPartError, commit_table, new_stem, read_table
from sdbench.records.snapshot import Snapshot

MIN_PARTS = 2
LARGE_BYTES = 64 * 2**20  # larger parts are not merged, so that a long sweep is not rewritten again and again
KEY = ["cell", "example", "sample"]


def small_parts(snapshot: Snapshot, kind: str) -> list[str]:
    """Return the stems of the parts of a kind that are small enough to be merged."""
    return [stem for stem, path in snapshot.parts[kind].items() if _size(path) < LARGE_BYTES]


def _size(path: Path) -> int:
    """Bytes of a part, including its tokens; 0 if it has been merged meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        tokens = path.with_name(path.name.replace("generations-", "tokens-"))
        return path.stat().st_size + (tokens.stat().st_size if tokens != path else 0)
    return 0


def compact(snapshot: Snapshot, records: Path, kind: str, stems: Sequence[str], *, owner: str) -> list[str]:
    """Merge these parts of one kind (generations with their tokens); returns the new stems, if any."""
    import pyarrow as pa

    kinds = ("tokens", "generations") if kind == "generations" else (kind,)
    tables: dict[str, list[pa.Table]] = {name: [] for name in kinds}
    replaced: list[str] = []
    for stem in stems:
        try:
            whole = {name: read_table(snapshot.parts[name][stem]) for name in kinds}
        except (TornPartError, FileNotFoundError, KeyError):
            continue  # leave a torn part, or one without its tokens: readers report it
        replaced.append(stem)
        for name in kinds:
            tables[name].append(whole[name])
    if len(replaced) < MIN_PARTS:
        return []
    # Order within a folder decides which duplicate wins: the merged part takes the time of its first part.
    stem = f"{replaced[0].partition('-')[0]}-{new_stem().partition('-')[2]}"
    for name in kinds:  # generations last: their rename is the commit
        merged = pa.concat_tables(tables[name], promote_options="permissive")
        commit_table(records / f"{name}-{stem}.parquet", merged, replaces=tuple(replaced), owner=owner)
    for old in replaced:
        for name in reversed(kinds):
            with contextlib.suppress(FileNotFoundError):
                (records / f"{name}-{old}.parquet").unlink()
    return [stem]


def set_aside(snapshot: Snapshot, records: Path, *, whole: Collection[str]) -> list[str]:
    """Rename torn parts, and generations without their tokens where others exist; returns their names.

    The stems in `whole` are parts of which all columns are known to be intact.
    """
    tables = snapshot.tables("generations", KEY, checked_whole=set(snapshot.parts["generations"]) - set(whole))
    names = [problem.name for problem in snapshot.problems if problem.kind == "torn"]
    keys = {stem: set(zip(*(table[name].to_pylist() for name in KEY), strict=True)) for stem, table in tables.items()}
    complete = set().union(*(keys[stem] for stem in keys if stem in snapshot.parts["tokens"]))
    names += [
        f"generations-{stem}.parquet"
        for stem in keys
        if stem not in snapshot.parts["tokens"] and keys[stem] <= complete
    ]
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.replace(records / name, records / f"{ASIDE}{name}")
    return names
