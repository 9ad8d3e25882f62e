"""Immutable parts: written to a temporary name, synced and renamed; read completely or reported as torn."""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdbench.errors import first_line
from sdbench.files import digest_of, write_whole

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = 1  # raise it when an older reader would misread new files; a reader accepts every number up to its own
_META_SCHEMA, _META_REPLACES = b"sdbench.schema", b"sdbench.replaces"
TMP_PREFIX = ".tmp-"
ASIDE = ".torn-"  # prefix of a file that is no longer a part but is kept for inspection


class StoreError(Exception):
    """Records cannot be written; what was written before is intact.

    It ends a run. It has no base class in common with the failures of a cell or a scorer, so it is not handled as one of them.
    """


class SchemaError(ValueError):
    """Records of a newer sdbench."""


class TornPartError(ValueError):
    """One part that cannot be read; the others can. `kind`: "torn", or "unread" if it only failed this time."""

    kind = "torn"


class UnreadPartError(TornPartError):
    """A system call failed or memory was too small, so the file itself may be intact."""

    kind = "unread"


_clock_lock = threading.Lock()
_last_ns = 0


def new_stem() -> str:
    """Return UTC time to the microsecond with 48 random bits; strictly increasing within a process."""
    global _last_ns
    with _clock_lock:
        _last_ns = max(time.time_ns(), _last_ns + 1000)
        now = _last_ns
    whole = datetime.fromtimestamp(now // 1_000_000_000, UTC).strftime("%Y%m%dT%H%M%S")
    return f"{whole}.{now // 1000 % 1_000_000:06d}-{secrets.token_hex(6)}"


def safe_name(text: str) -> str:
    """Return a hash of `text` as a part of a file name, so that any text is allowed."""
    return digest_of(text, digits=24)


def commit(path: Path, data: bytes, *, owner: str = "") -> None:
    """Write `data` to `path` atomically: temporary file, fsync, rename, fsync of the folder."""
    tmp = path.with_name(f"{TMP_PREFIX}{owner}-{secrets.token_hex(6)}")
    try:
        write_whole(path, data, part=tmp, sync=True)
    except OSError as error:
        raise StoreError(cannot_write(path.parent, error)) from error


def cannot_write(folder: Path, error: OSError) -> str:
    """Return the message of a StoreError for a full disk, a folder without write permission, or any other failure."""
    reason = error.strerror or str(error)
    return (
        f"cannot write records in {folder}: {reason[:1].lower() + reason[1:]}; records written before are intact, and "
        f"the same command goes on from them once there is room and permission (results= names another place)"
    )


def commit_json(path: Path, data: Mapping[str, Any], *, owner: str = "") -> None:
    """Write one JSON object that contains the schema number."""
    text = json.dumps({"schema": SCHEMA, **data}, ensure_ascii=False, indent=1, default=str)
    commit(path, text.encode() + b"\n", owner=owner)


def commit_table(path: Path, table: pa.Table, *, replaces: tuple[str, ...] = (), owner: str = "") -> None:
    """Write one Parquet part with page checksums; `replaces` names the stems that it replaces."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = table.replace_schema_metadata({_META_SCHEMA: str(SCHEMA), _META_REPLACES: json.dumps(replaces)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    commit(path, sink.getvalue().to_pybytes(), owner=owner)


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON part. TornPartError if it is incomplete, SchemaError if it is newer."""
    with _check_readable(path, ValueError, KeyError, TypeError):
        data = json.loads(path.read_bytes())
        version = int(data["schema"])
    _refuse_newer(path, version)
    return data


def read_table(path: Path, columns: list[str] | None = None, *, is_checked_whole: bool = False) -> pa.Table:
    """Read those of `columns` that a Parquet part has. TornPartError if it is incomplete, SchemaError if it is newer.

    Checksums are those of the columns that are read; with `is_checked_whole` of all.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _check_readable(path, pa.ArrowException), pq.ParquetFile(path, page_checksum_verification=True) as file:
        _refuse_newer(path, _version(file.schema_arrow))
        here = None if columns is None else [name for name in columns if name in file.schema_arrow.names]
        if here is not None and is_checked_whole:
            return file.read(use_threads=True).select(here)
        return file.read(columns=here, use_threads=True)


def read_replaces(path: Path) -> tuple[str, ...]:
    """Return the stems that this part replaces; reads the footer only."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _check_readable(path, pa.ArrowException):
        schema = pq.read_schema(path)
    _refuse_newer(path, _version(schema))
    return tuple(json.loads((schema.metadata or {}).get(_META_REPLACES, b"[]")))


@contextmanager
def _check_readable(path: Path, *errors: type[Exception]) -> Iterator[None]:
    """Raise TornPartError for an OSError or any of `errors`; a missing file stays a FileNotFoundError."""
    try:
        yield
    except (FileNotFoundError, SchemaError):
        raise
    except (OSError, *errors) as error:
        is_of_disk = isinstance(error, OSError) and error.errno is not None  # errors of pyarrow itself have no number
        kind = UnreadPartError if is_of_disk or isinstance(error, MemoryError) else TornPartError
        raise kind(f"{path.name} cannot be read ({first_line(error)})") from error


def _version(schema: pa.Schema) -> int:
    return int((schema.metadata or {}).get(_META_SCHEMA, b"0"))


def _refuse_newer(path: Path, version: int) -> None:
    if version > SCHEMA:
        raise SchemaError(
            f"{path} was written by a newer sdbench (records schema {version}, this one reads up to {SCHEMA}): "
            f"upgrade sdbench to read it"
        )


def list_parts(folder: Path) -> Iterator[tuple[str, str, Path]]:
    """Return (kind, stem, path) of every part by name, so in time order within a kind, without temporary files."""
    for name in sorted(_names(folder)):
        kind, dash, rest = name.partition("-")
        stem, dot, suffix = rest.rpartition(".")
        path = folder / name
        is_part = dash and dot and suffix in ("json", "parquet")
        # a broken link would look like a part that has just been merged, forever
        if is_part and not (path.is_symlink() and not path.exists()):
            yield kind, stem, path


def _names(folder: Path) -> set[str]:
    """List a folder. A listing is not atomic: it can miss both a new merged part and the old parts that it replaced.

    A file that existed during a whole listing is missing from the next only if it was merged; then list again.
    """
    before, now = _listing(folder), _listing(folder)
    while not before <= now:
        before, now = now, _listing(folder)
    return now


def _listing(folder: Path) -> set[str]:
    return {name for name in os.listdir(folder) if not name.startswith(".")}
