"""Folders of the cache of GGUF files: each is written once and whole, also for several processes and after a power failure."""

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sdbench.config import ConfigError
from sdbench.files import replace_on_success, sync_files
from sdbench.lm.stored import count_weights

DAY_S = 86_400


def write_once(folder: Path, write: Callable[[Path], None]) -> Path:
    """Return a folder of the cache; if it is missing, `write` fills it atomically."""
    _remove_old_parts(folder.parent)
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            with replace_on_success(folder) as part:
                part.mkdir(exist_ok=True)
                write(part)
                sync_files(part)
        except OSError:
            if not folder.is_dir():  # otherwise another process was faster
                raise
    return folder


def is_whole(folder: Path) -> bool:
    """Return whether the file of weights in a folder has the length that its header states."""
    try:
        return count_weights(folder) is not None
    except ConfigError:
        return False


def remove_folder(folder: Path) -> None:
    """Remove a folder of the cache. It is renamed first: other processes see it whole or not at all."""
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    with suppress(FileNotFoundError):  # another process was faster
        os.replace(folder, part)
        shutil.rmtree(part)


def _remove_old_parts(folder: Path) -> None:
    """Remove what processes that were killed while they wrote have left behind, over a day ago."""
    for part in folder.glob(".*.part"):
        with suppress(OSError):
            if max(path.stat().st_mtime for path in (part, *part.rglob("*"))) < time.time() - DAY_S:
                shutil.rmtree(part)
