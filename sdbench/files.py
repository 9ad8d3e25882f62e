"""Atomic writes, JSON lines, and digests of files, texts and plain data."""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

DIGITS = 20  # hex digits: 80 bits, so a collision among a million has odds of about 1e-12


@contextlib.contextmanager
def replace_on_success(path: Path, part: Path | None = None) -> Iterator[Path]:
    """Yield a temporary path next to `path`, for a file or a folder. It is renamed to `path` at the end, or removed after an
    error.

    The name is unique, because jobs that share a folder, even on several hosts, may write the same file; `part` overrides it.
    """
    part = part or path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.part")
    try:
        yield part
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            shutil.rmtree(part) if part.is_dir() else part.unlink()
        raise


def write_whole(path: Path, data: bytes | str, *, part: Path | None = None, sync: bool = False) -> Path:
    """Write `data` to `path` atomically. `sync`: flush it to the disk, so that it survives a power failure."""
    with replace_on_success(path, part) as temporary, open(temporary, "wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    if sync:
        _sync_folder(path.parent)
    return path


def read_json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each JSON object of a file with its position for messages; empty lines are skipped. ValueError for an invalid line."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            where = f"{path} line {number}"
            if not line.strip():
                continue
            try:
                text = line.decode("utf-8-sig").strip()
                row = json.loads(text)
            except UnicodeDecodeError as error:
                raise ValueError(f"{where} is not UTF-8 text: {error}") from None
            except (ValueError, RecursionError) as error:  # a number of 5,000 digits raises no JSONDecodeError
                fault = (
                    f"{error.msg} at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else error
                )
                raise ValueError(f"{where} is not JSON: {fault}") from None
            if not isinstance(row, dict):
                raise ValueError(f"{where} must be a JSON object, got {text[:60]}")
            yield where, row


def sync_files(folder: Path) -> None:
    """Write the files below a folder to the disk, then the folder: once renamed, it is whole also after a power failure."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "r+b") as file:
                os.fsync(file.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems refuse to sync a folder
            os.fsync(fd)
    finally:
        os.close(fd)


def digest_of(*pieces: str | bytes, digits: int = DIGITS) -> str:
    """Return the SHA-256 of the concatenated pieces, in hex."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece.encode() if isinstance(piece, str) else piece)
    return digest.hexdigest()[:digits]


def digest_of_data(data: Any) -> str:
    """Return the SHA-256 of plain data, independent of the order of keys."""
    return digest_of(json.dumps(data, sort_keys=True, default=str))


def digest_of_file(path: Path, *, digits: int = DIGITS) -> str:
    """Return the SHA-256 of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:digits]


def digest_of_path(path: Path, *, without: Collection[str] = ()) -> str:
    """Return the SHA-256 of a file's content, or of the names and contents of all files below a folder except the patterns
    `without`.
    """
    if path.is_file():
        return digest_of_file(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    names = {file: file.relative_to(path).as_posix() for file in files}
    kept = (file for file in files if not any(fnmatchcase(names[file], pattern) for pattern in without))
    return digest_of(*(f"{names[file]} {digest_of_file(file)}\n" for file in kept))
