"""Digests of files of weights, computed once and cached."""

import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from huggingface_hub import constants

from sdbench.files import digest_of, digest_of_file, write_whole

CACHE = Path(constants.HF_HOME, "sdbench", "gguf", "hashes")
OF_HUB = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")  # the hash of a small file in git, or the SHA-256 of any other
LARGE = 2**20  # bytes; smaller files are hashed each time
LONG = 2**30  # bytes that take seconds to hash
GIB = 2**30


def digest_once(path: Path) -> str:
    """Return a file's SHA-256: the hub's own if the file is in its cache, else computed once per state of the file."""
    real = path.resolve()
    if len(digest := hash_of_hub(real)) == 64:
        return digest
    if real.stat().st_size < LARGE:
        return digest_of_file(real, digits=64)
    kept = _note_of(real)
    if not kept.is_file():
        digest = digest_of_file(real, digits=64)
        with suppress(OSError):  # without a writable cache it is computed again
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_whole(kept, digest)
        return digest
    return kept.read_text()


def hash_of_hub(path: Path) -> str:
    """Return the hash by which the cache of the hub names a file; empty for a file outside it, whatever its folder is called."""
    real = path.resolve()
    return real.name if real.parent.name == "blobs" and OF_HUB.fullmatch(real.name) else ""


def is_digest_known(path: Path) -> bool:
    """Return whether `digest_once` can answer without reading much."""
    real = path.resolve()
    return bool(hash_of_hub(real)) or real.stat().st_size < LARGE or _note_of(real).is_file()


def announce_hashing(id: str, paths: Sequence[Path]) -> None:
    """Print one line if hashing a model's files takes long."""
    size = sum(path.stat().st_size for path in paths if not is_digest_known(path))
    if size >= LONG:
        print(f"sdbench: hashing {size / GIB:.1f} GiB of {id}, once: the hashes are kept", file=sys.stderr, flush=True)


def state_of(path: Path) -> str:
    """Return a hash of a file's path, inode, size and times, for which the file is not read.

    The time of modification alone is not enough: rsync and tar set it to that of another file.
    """
    real = path.resolve()
    state = real.stat()
    return digest_of(f"{real} {state.st_ino} {state.st_size} {state.st_mtime_ns} {state.st_ctime_ns}")


def _note_of(path: Path) -> Path:
    return CACHE / state_of(path)
