"""Rows of data sets: a local jsonl file, the sets that ship inside, or the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def load_rows(
    id: str, config: str | None, split: str, revision: str | None = None, data: str | Path | None = None
) -> list[dict[str, Any]]:
    """The rows of one split, in order, in the data set's own schema."""
    if data is not None:
        return _local(Path(data))
    if id.startswith("embedded:"):
        from sdbench import embedded

        return list(embedded.rows(id.removeprefix("embedded:"), split, 500))
    import datasets

    return list(datasets.load_dataset(id, config, split=split, revision=revision))  # type: ignore[arg-type]


def _local(path: Path) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} line {number} is not JSON: {error}") from None
    return rows
