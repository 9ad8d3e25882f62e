"""Rows of a data set: from a grammar in this package, a local file, or one split on the hub (no other split is downloaded)."""

import json
import warnings
from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from sdbench import embedded
from sdbench.config import ConfigError, nearest, show
from sdbench.files import digest_of, read_json_lines
from sdbench.hub import fetch, is_offline
from sdbench.tasks.protocol import Protocol

INSIDE = "embedded:"

Row = Mapping[str, Any]


def from_protocol() -> Any:
    """The default of an option that the protocol decides; `DataTask` resolves it."""
    return field(default=None)


@dataclass(kw_only=True)
class DataRows(ABC):
    """The rows of one split by id, and the selected subset, read at first use."""

    name: str
    dataset: str = ""  # of the hub; not needed with `data`
    dataset_config: str | None = None
    split: str = from_protocol()
    revision: str | None = None
    data: str | None = None
    protocol: str = from_protocol()  # the default is the first
    n: int | None = None
    seed: int | None = 42

    PROTOCOLS: ClassVar[Mapping[str, Protocol]]
    FIELDS: ClassVar[tuple[str, ...]] = ()  # required columns; by default the reference and those that the prompt names
    reference: ClassVar[str] = "answer"  # the column of the right answer

    @property
    def rules(self) -> Protocol:
        """The protocol's texts and limits."""
        return self.PROTOCOLS[self.protocol]

    @cached_property
    def rows(self) -> dict[str, Row]:
        """Every row of the split by id, in the data set's order."""
        return self._by_id(self._loaded.rows, self.data or self.dataset)

    @cached_property
    def _loaded(self) -> "Loaded":
        return load(self.dataset, self.dataset_config, self.split, revision=self.revision, data=self.data)

    @property
    def dataset_commit(self) -> str | None:
        """The commit at which the rows were read; None unless they come from the hub."""
        return self._loaded.commit

    def _lack_of(self, row: Row) -> str | None:
        """Return what an evaluated row or a shot lacks, as the end of a sentence, or None. A null field counts as missing."""
        needed = self.FIELDS or (*(name for name in self.rules.asked_fields if name != "answer"), self.reference)
        missing = next((name for name in needed if row.get(name) is None), None)
        return None if missing is None else f"has no field {missing!r}: {self.name} needs {', '.join(needed)}"

    def _by_id(self, rows: Sequence[Row], where: str) -> dict[str, Row]:
        """Rows by their `task_id` or `id` or, where they have none, by their number; a row that lacks something is refused."""
        for number, row in enumerate(rows):
            if lack := self._lack_of(row):
                raise ValueError(f"row {number} of {where} {lack}")
        key = next((key for key in ("task_id", "id") if rows and all(key in row for row in rows)), None)
        keyed = {str(number if key is None else row[key]): row for number, row in enumerate(rows)}
        if len(keyed) < len(rows):
            raise ValueError(f"{where} has {len(rows) - len(keyed)} rows whose {key} occurs twice")
        return keyed

    @cached_property
    def ids(self) -> list[str]:
        """The ids of the subset: all in order, or the first n in the order of `datasets.shuffle(seed)`."""
        ids = list(self.rows)
        if self.n is None:
            return ids
        if self.n > len(ids):
            # A higher stacklevel would name a line of functools.
            warnings.warn(f"{self.name} has {len(ids)} rows, fewer than n={self.n}: all are taken", stacklevel=1)
        if self.seed is not None:
            import numpy

            ids = [ids[i] for i in numpy.random.default_rng(self.seed).permutation(len(ids))]
        return ids[: self.n]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The rows of a split, and the commit of the data set on the hub; None for a file and for rows from a grammar."""

    rows: list[dict[str, Any]]
    commit: str | None = None


def load(id: str, config: str | None, split: str, *, revision: str | None = None, data: str | None = None) -> Loaded:
    """Return all rows in the data set's order: of the file `data` if it is given, of `embedded:NAME`, or of a hub id."""
    if data is not None:
        return Loaded(read_rows(Path(data)))
    if id.startswith(INSIDE):
        return Loaded(embedded.rows(id.removeprefix(INSIDE), split))
    return fetch(lambda: _from_hub(id, config, split, revision), id, kind="dataset", revision=revision)


def read_even_rows(path: Path, option: str = "task.data") -> list[dict[str, Any]]:
    """Read rows that all have the same fields; a ConfigError if one lacks a field, for which others would show None."""
    rows = read_rows(path, option)
    names = {name: None for row in rows for name in row}
    for number, row in enumerate(rows):
        if missing := next((name for name in names if name not in row), None):
            raise ConfigError(
                f"row {number} of {path} has no field {missing!r}, which other rows have: give it, or null"
            )
    return rows


def read_rows(path: Path, option: str = "task.data") -> list[dict[str, Any]]:
    """Read a JSON-lines file, one object a line (empty lines are skipped), or a Parquet file; `option` is what named it."""
    if not path.is_file():
        raise ConfigError(f"{option}={path} is not a file")
    if path.suffix == ".parquet":
        import pyarrow.parquet

        rows = pyarrow.parquet.read_table(path).to_pylist()
    else:
        try:
            rows = [row for _, row in read_json_lines(path)]
        except ValueError as error:
            raise ConfigError(f"{option}={error}") from None
    if not rows:
        raise ConfigError(f"{option}={path} has no rows")
    return rows


def rows_hash(rows: Mapping[str, Row]) -> str:
    """Return a hash of rows by id, which changes when a data file does."""
    return digest_of(*(json.dumps([*item], sort_keys=True, default=str) for item in rows.items()), digits=16)


def row_hash(row: Row) -> str:
    """Return a hash of a row's columns and values."""
    return digest_of(json.dumps(row, sort_keys=True, default=str), digits=10)


def _from_hub(id: str, config: str | None, split: str, revision: str | None) -> Loaded:
    """Resolve the data set's configuration, download the files of one split, and read those with `datasets`.

    A note in the cache keeps the result: offline, `datasets` cannot resolve a data set of which only one split was downloaded.
    """
    import datasets
    from huggingface_hub import constants, hf_hub_download

    datasets.disable_progress_bars()
    note = Path(constants.HF_HUB_CACHE, f"datasets--{id.replace('/', '--')}", "sdbench")
    note /= f"{config or 'default'}-{split}-{revision or 'main'}.json"
    if is_offline():
        if not note.is_file():
            raise FileNotFoundError(f"{note} does not exist")
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
    """Return the format of the rows, the commit, and the files of the split, from the data set's card."""
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
    urls = [url.removeprefix(f"hf://datasets/{id}@").partition("/") for url in splits[split]]
    return {"format": builder.name, "commit": urls[0][0], "files": [name for _, _, name in urls]}
