"""For subprocesses of tests: python -m tests.records.disasters NAME FOLDER [argument]; each says what happened."""

import os
import resource
import sys
import time
from pathlib import Path

from sdbench.records import Store, StoreError
from tests.records.synthetic import Shape, cell

NOBODY = 65534
POINT = cell("llama-tiny", "gsm8k-tiny", "ensemble", w=0.5)


def small_files(folder: Path, limit: str) -> None:
    """A disk without room for a part: no file may grow beyond `limit` bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    fill(folder)


def fill(folder: Path, _: str = "") -> None:
    """Write records until it fails."""
    with Store.open(folder) as store:
        store.add_cells([POINT])
        shape = Shape(max_new_tokens=400)
        for i in range(10_000):
            store.append_generations([shape.decode(POINT, f"{i}")])
            print(i, flush=True)


def as_nobody(folder: Path, _: str = "") -> None:
    """Open a folder that may be read only; root, who may write everywhere, does it as nobody."""
    if not os.geteuid():
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    with Store.open(folder):
        print("opened", flush=True)


def hold(folder: Path, unit: str) -> None:
    """Claim a unit and work on it for ever."""
    with Store.open(folder, beat_s=0.05) as store:
        print(store.claims.take(unit), flush=True)
        time.sleep(600)


if __name__ == "__main__":
    try:
        {"small_files": small_files, "fill": fill, "as_nobody": as_nobody, "hold": hold}[sys.argv[1]](
            Path(sys.argv[2]), *sys.argv[3:]
        )
    except StoreError as error:
        sys.exit(f"StoreError: {error}")
