"""Dead parts: what can be read no more is set aside when its records are there again, so that it is found and repaired once."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from sdbench.records.snapshot import Snapshot

KEY = ["cell", "example", "sample"]
ASIDE = ".torn-"  # before the name: no part any more, and still there to be looked at


def set_aside(snapshot: Snapshot, records: Path) -> list[str]:
    """Torn parts go out of sight, and generations without their tokens go where others have come; the names."""
    tables = snapshot.tables("generations", KEY)
    names = [problem.name for problem in snapshot.problems if problem.kind == "torn"]
    keys = {stem: set(zip(*(table[name].to_pylist() for name in KEY), strict=True)) for stem, table in tables.items()}
    whole = set().union(*(keys[stem] for stem in keys if stem in snapshot.parts["tokens"]))
    names += [
        f"generations-{stem}.parquet" for stem in keys if stem not in snapshot.parts["tokens"] and keys[stem] <= whole
    ]
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.replace(records / name, records / f"{ASIDE}{name}")
    return names
