"""Rows of a data set: grammars that ship inside, a local file, or one split from the hub and nothing beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdbench import embedded
from sdbench.config import ConfigError, nearest, show
from sdbench.files import digest_of
from sdbench.hub import fetch, is_offline

INSIDE = "embedded:"


@dataclass(frozen=True, slots=True)
class Loaded:
    """The rows of a split, and the commit of the data set on the hub; None for a file and for what ships inside."""

    rows: list[dict[str, Any]]
    commit: str | None = None


def load_rows(
    id: str, config: str | None, split: str, *, revision: str | None = None, data: str | None = None
) -> list[dict[str, Any]]:
    """All rows in the data set's order."""
    return load(id, config, split, revision=revision, data=data).rows


def load(id: str, config: str | None, split: str, *, revision: str | None = None, data: str | None = None) -> Loaded:
    """Of the file `data` where it is given, of `embedded:NAME`, or of a hub id."""
    if data is not None:
        return Loaded(read_rows(Path(data)))
    if id.startswith(INSIDE):
        return Loaded(embedded.rows(id.removeprefix(INSIDE), split))
    return fetch(lambda: _from_hub(id, config, split, revision), id, kind="dataset", revision=revision)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """A JSON-lines file, one object a line (empty lines are skipped), or a Parquet file."""
    if not path.is_file():
        raise ConfigError(f"task.data={path} is not a file")
    if path.suffix == ".parquet":
        import pyarrow.parquet

        return pyarrow.parquet.read_table(path).to_pylist()
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"task.data={path}: line {number} is not JSON ({error})") from error
        if not isinstance(row, dict):
            raise ConfigError(f"task.data={path}: line {number} must be a JSON object, got {show(line)}")
        rows.append(row)
    if not rows:
        raise ConfigError(f"task.data={path} has no rows")
    return rows


def by_id(
    rows: Sequence[Mapping[str, Any]], needed: Sequence[str], task: str, where: str
) -> dict[str, Mapping[str, Any]]:
    """Rows that have the columns a task needs, by their own id or, where they have none, by their number."""
    for number, row in enumerate(rows):
        missing = [field for field in needed if field not in row]
        if missing:
            raise ValueError(f"row {number} of {where} has no field {missing[0]!r}: {task} needs {', '.join(needed)}")
    key = next((key for key in ("task_id", "id") if rows and all(key in row for row in rows)), None)
    keyed = {str(number if key is None else row[key]): row for number, row in enumerate(rows)}
    if len(keyed) < len(rows):
        raise ValueError(f"{where} has {len(rows) - len(keyed)} rows whose {key} occurs twice")
    return keyed


def rows_hash(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Of rows by their id, so that a changed data file shows."""
    return digest_of(*(json.dumps([*item], sort_keys=True, default=str) for item in rows.items()), digits=16)


def _from_hub(id: str, config: str | None, split: str, revision: str | None) -> Loaded:
    """Resolves the data set's configuration, downloads the files of one split, and reads those with `datasets`.

    Without the hub `datasets` cannot resolve a data set of which only one split was downloaded: a note in the cache can.
    """
    import datasets
    from huggingface_hub import constants, hf_hub_download

    datasets.disable_progress_bars()
    note = Path(constants.HF_HUB_CACHE, f"datasets--{id.replace('/', '--')}", "sdbench")
    note /= f"{config or 'default'}-{split}-{revision or 'main'}.json"
    if is_offline():
        if not note.is_file():
            raise FileNotFoundError(f"{note} is not there")
        source = json.loads(note.read_text())
    else:
        source = _resolve(id, config, split, revision)
    options = {"repo_type": "dataset", "revision": source["commit"]}
    files = [hf_hub_download(id, name, **options) for name in source["files"]]
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps(source))
    rows = datasets.load_dataset(source["format"], data_files={split: files}, split=split)  # type: ignore[arg-type]
    return Loaded(list(rows), source["commit"])  # type: ignore[arg-type]


def _resolve(id: str, config: str | None, split: str, revision: str | None) -> dict[str, Any]:
    """The format of the rows, the commit, and the files of the split, as the data set's own card says."""
    import datasets

    try:
        builder = datasets.load_dataset_builder(id, config, revision=revision)
    except ValueError as error:
        if "BuilderConfig" in str(error) or "Config name" in str(error):
            raise ConfigError(f"{id}: {show(' '.join(str(error).split()))}") from error
        raise
    splits = builder.config.data_files or {}
    if split not in splits:
        raise ConfigError(f"{id} has no split {show(split)} {nearest(split, splits)}")
    places = [url.removeprefix(f"hf://datasets/{id}@").partition("/") for url in splits[split]]
    return {"format": builder.name, "commit": places[0][0], "files": [name for _, _, name in places]}
