"""Rows of a data set: grammars that ship inside, a local file, or one split from the hub and nothing beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sdbench import embedded
from sdbench.config import ConfigError, show
from sdbench.hub import fetch

INSIDE = "embedded:"


def load_rows(
    id: str, config: str | None, split: str, *, revision: str | None = None, data: str | None = None
) -> list[dict[str, Any]]:
    """All rows in the data set's order: of the file `data` where it is given, of `embedded:NAME`, or of a hub id."""
    if data is not None:
        return read_rows(Path(data))
    if id.startswith(INSIDE):
        return embedded.rows(id.removeprefix(INSIDE), split)
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


def _from_hub(id: str, config: str | None, split: str, revision: str | None) -> list[dict[str, Any]]:
    import datasets

    builder = datasets.load_dataset_builder(id, config, revision=revision)
    files = {split: builder.config.data_files[split]}
    return datasets.load_dataset(builder.name, data_files=files, split=split).to_list()
