"""The writer of a results folder: open, add cells, append, claim, force, compact."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sdbench.records import parts
from sdbench.records.claims import BEAT_S, EXPIRE_S, Claims
from sdbench.records.compact import compact, set_aside, small_parts
from sdbench.records.keys import Cell, GenerationKey, unit_of
from sdbench.records.measured import (
    PLAIN,
    CallRecord,
    LoadRecord,
    OpenLoadRecord,
    PartingRecord,
    PooledRecord,
    TimingRecord,
    plain_table,
)
from sdbench.records.parts import StoreError, cannot_write, commit_json, commit_table, new_stem
from sdbench.records.planned import subset_key
from sdbench.records.schema import GenerationRecord, examples_table, generation_tables, vocabulary_table
from sdbench.records.snapshot import Snapshot, take_snapshot

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
COMPACT_AT = 64  # small parts of a kind that this job writes before it merges them


class Store:
    """One job's access to one results folder. Create it with `Store.open`; use it in a `with`, or `close` it."""

    def __init__(self, folder: Path, run: str, claims: Claims) -> None:
        self.folder, self.run, self.claims = folder, run, claims
        self.records = folder / "records"
        # Contents of the parts read so far. Parts never change, so each is read once.
        self._held: dict[GenerationKey, int] = {}  # epochs
        self._seen: set[str] = set()
        self._footers: dict[str, tuple[str, ...]] = {}
        self._epochs: dict[str, int] = {}
        self._outstanding: dict[str, set[GenerationKey]] = {}  # claimed unit -> its generations not yet written
        self._given_up: set[tuple[str, str | None]] = set()  # (cell, example or None for all) that failed in this job
        self._stems: dict[str, list[str]] = {kind: [] for kind in ("generations", *PLAIN)}

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        *,
        config: Mapping[str, Any] | None = None,
        provenance: Mapping[str, Any] | None = None,
        beat_s: float = BEAT_S,
        expire_s: float = EXPIRE_S,
    ) -> Store:
        """Create or extend a results folder. StoreError if it cannot be written, SchemaError if it is newer."""
        folder = Path(folder)
        try:
            (folder / "records").mkdir(parents=True, exist_ok=True)
            claims = Claims(folder / "claims", beat_s=beat_s, expire_s=expire_s)
        except OSError as error:
            raise StoreError(cannot_write(folder, error)) from error
        store = cls(folder, new_stem(), claims)
        try:
            claims.sweep(store.records, parts.TMP_PREFIX)
            store._epochs = store._snapshot().epochs
            entry = {"run": store.run, "provenance": dict(provenance or {}), "config": dict(config or {})}
            store._commit_json(f"run-{store.run}", entry)
            commit_json(folder / "config.json", dict(config or {}), owner=claims.job)
        except BaseException:
            claims.close()
            raise
        return store

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release all claims."""
        self.claims.close()

    def add_cells(self, cells: Iterable[Cell]) -> None:
        """Write one file per cell before its first record. An existing file is kept unless it is torn or lacks a setting of `also`.

        All cells with the same prompts get what the task of the new cells declares about its metrics.
        """
        try:
            with self.claims.hold("cells"):  # another job may extend `also` of the same cell
                self._add_cells(cells)
        except OSError as error:
            raise StoreError(cannot_write(self.claims.folder, error)) from error

    def _add_cells(self, cells: Iterable[Cell]) -> None:
        known = self._snapshot().cells
        declared: dict[str, Cell] = {}
        for cell in cells:
            declared[cell.asked] = cell
            also = known[cell.key].also if cell.key in known else {}
            if cell.key not in known or set(cell.also) - set(also):
                self._commit_json(f"cell-{cell.key}", replace(cell, also={**also, **cell.also}).to_json())
                known.pop(cell.key, None)
        for held in known.values():
            new = declared.get(held.asked, held)
            if (held.metric, held.metrics) != (new.metric, new.metrics):
                self._commit_json(f"cell-{held.key}", replace(held, metric=new.metric, metrics=new.metrics).to_json())

    def add_vocabulary(self, model: str, key: str, texts: Callable[[], Sequence[str]]) -> None:
        """Write the text of each token id of a model, once; `key` identifies its tokenizer, `texts` is called if that is new."""
        digest = parts.safe_name(f"{model}\n{key}")
        earlier = next(self.records.glob(f"vocabulary-*-{digest}.parquet"), None)
        path = earlier or self._path("vocabulary", f"{new_stem().partition('-')[0]}-{digest}")
        if path in self._snapshot().parts["vocabulary"].values():
            return
        commit_table(path, vocabulary_table(model, texts()), owner=self.claims.job)

    def add_examples(self, asked: str, ids: Iterable[str], texts: Callable[[str], tuple[str, str]]) -> None:
        """Write prompt and reference of each example, once; `texts` is called for those that are new to `asked`."""
        held = self.prompts(asked)
        new = {example: texts(example) for example in ids if example not in held}
        if new:
            commit_table(self._path("examples", new_stem()), examples_table(asked, new), owner=self.claims.job)

    def add_subset(self, examples: Sequence[str]) -> None:
        """Write the ids of the examples that a run planned, once for each subset."""
        if (key := subset_key(examples)) not in self._snapshot().subsets:
            self._commit_json(f"subset-{key}", {"examples": list(examples)})

    def prompts(self, asked: str) -> dict[str, str]:
        """Return example -> its stored prompt, for the cells of `asked`."""
        tables = self._snapshot().tables("examples", ["asked", "example", "prompt"]).values()
        return {row["example"]: row["prompt"] for part in tables for row in part.to_pylist() if row["asked"] == asked}

    def append_generations(self, records: Sequence[GenerationRecord]) -> None:
        """Write one part. When this returns, the records are permanent and their claims are released."""
        if not records:
            return
        generations, tokens = generation_tables(records, epochs=self._epochs, run=self.run)
        stem = new_stem()
        commit_table(self._path("tokens", stem), tokens, owner=self.claims.job)
        commit_table(self._path("generations", stem), generations, owner=self.claims.job)
        keys = {(record.cell, record.example, record.sample) for record in records}
        self._seen.add(stem)
        self._held |= {key: self._epochs.get(key[0], 0) for key in keys}
        self._release(keys)
        self._merge_if_many("generations", stem)

    def append(
        self, records: Sequence[TimingRecord | CallRecord | LoadRecord | OpenLoadRecord | PooledRecord | PartingRecord]
    ) -> None:
        """Write one part of records of one kind, one of PLAIN."""
        if records:
            stem = new_stem()
            kind = next(kind for kind, record_type in PLAIN.items() if isinstance(records[0], record_type))
            commit_table(self._path(kind, stem), plain_table(records, kind, run=self.run), owner=self.claims.job)
            self._merge_if_many(kind, stem)

    def add_server(self, facts: Mapping[str, Any]) -> None:
        """Record facts about a server of this run; readers get them as part of the run's provenance."""
        self._commit_json(f"server-{new_stem()}", {"run": self.run, "server": dict(facts)})

    def add_drafter(self, facts: Mapping[str, Any]) -> None:
        """Record what a drafter of this run has read from the weights; readers get it as part of the run's provenance."""
        self._commit_json(f"drafter-{new_stem()}", {"run": self.run, "drafter": dict(facts)})

    def append_failure(self, cell: str, message: str, *, example: str | None = None) -> None:
        """Record a failure, which counts until a later run has written a text of the same cell (and example).

        This job gives up the example (or the whole cell): it neither waits for it nor claims it again.
        """
        if self._is_given_up(cell, example):
            return
        self._given_up.add((cell, example))
        self._release({key for keys in self._outstanding.values() for key in keys if self._is_given_up(*key[:2])})
        self._commit_json(
            f"failure-{new_stem()}", {"cell": cell, "example": example, "message": message, "run": self.run}
        )

    def held(self) -> set[GenerationKey]:
        """Return (cell, example, sample) of every finished generation except those that `force` requested again."""
        for stem, table in self._look(self._new_generations).items():
            columns = (table[name].to_pylist() for name in ("cell", "example", "sample", "epoch"))
            for cell, example, sample, epoch in zip(*columns, strict=True):
                key = (cell, example, sample)
                self._held[key] = max(epoch, self._held.get(key, 0))
            self._seen.add(stem)
        return {key for key, epoch in self._held.items() if epoch >= self._epochs.get(key[0], 0)}

    def force(self, cells: Iterable[str], *, token: str | None = None) -> None:
        """Request `cells` again: what is held stays readable until its successor is written, and counts as missing. Cells that a
        job with the same `token` has requested, in parallel or before a requeue, are not requested a second time.
        """
        try:
            with self.claims.hold("force"):
                snapshot = self._snapshot()
                if wanted := sorted(set(cells) - snapshot.forced.get(token, set())):
                    request = {"cells": wanted, "epoch": 1 + max(snapshot.epochs.get(cell, 0) for cell in wanted)}
                    self._commit_json(f"force-{new_stem()}", {**request, "run": self.run, "token": token})
        except OSError as error:
            raise StoreError(cannot_write(self.claims.folder, error)) from error
        self._epochs = self._snapshot().epochs

    def epoch_of(self, cell: str) -> int:
        """Return how often `force` has requested a cell again."""
        return self._epochs.get(cell, 0)

    def take(self, items: Iterable[GenerationKey]) -> list[GenerationKey]:
        """Claim items; return those that this job holds and that are still missing. A claim ends when its records are written."""
        items = list(items)
        units: dict[str, set[GenerationKey]] = {}
        for item in items:
            units.setdefault(unit_of(item), set()).add(item)
        try:
            won = self.claims.take_all(units)
        except OSError as error:
            raise StoreError(cannot_write(self.claims.folder, error)) from error
        held = self.held()  # after the claim: another job may have finished it in between
        taken: list[GenerationKey] = []
        done: list[str] = []
        for unit in won:
            left = {item for item in units[unit] - held if not self._is_given_up(*item[:2])}
            if not left:
                done.append(unit)
                continue
            self._outstanding.setdefault(unit, set()).update(left)
            taken += left
        self.claims.release(*done)
        return sorted(taken, key={item: n for n, item in enumerate(items)}.__getitem__)

    def left_to_others(self, items: Iterable[GenerationKey]) -> list[GenerationKey]:
        """Return those of `items` that are missing and neither claimed nor given up by this job, so are another job's."""
        held = self.held()
        left = [item for item in items if item not in held and unit_of(item) not in self._outstanding]
        return [item for item in left if not self._is_given_up(*item[:2])]

    def compact(self) -> list[str]:
        """Merge the small parts of every kind and set torn ones aside, returning their names. Only one job at a time does it."""
        if not self.claims.take("compact"):
            return []
        try:
            torn = self._look(lambda snapshot: set_aside(snapshot, self.records, whole=self._seen))
            snapshot = self._snapshot()
            for kind in self._stems:
                compact(snapshot, self.records, kind, small_parts(snapshot, kind), owner=self.claims.job)
            self.claims.sweep(self.records, parts.TMP_PREFIX)  # jobs of other machines are known to be dead only by now
            return torn
        finally:
            self.claims.release("compact")

    def _is_given_up(self, cell: str, example: str | None) -> bool:
        return bool({(cell, None), (cell, example)} & self._given_up)

    def _merge_if_many(self, kind: str, stem: str) -> None:
        self._stems[kind].append(stem)
        if len(self._stems[kind]) >= COMPACT_AT:
            merged = compact(self._snapshot(), self.records, kind, self._stems[kind], owner=self.claims.job)
            self._stems[kind] = []
            self._seen.update(merged)

    def _release(self, done: set[GenerationKey]) -> None:
        for unit in {unit_of(key) for key in done} & set(self._outstanding):
            self._outstanding[unit] -= done
        finished = [unit for unit, left in self._outstanding.items() if not left]
        self._outstanding = {unit: left for unit, left in self._outstanding.items() if left}
        self.claims.release(*finished)

    def _new_generations(self, snapshot: Snapshot) -> dict[str, pa.Table]:
        """Return the parts that `held` has not seen. A generation without its tokens counts as missing and is computed again; so
        does one in a part with a damaged column of any kind, which readers drop.
        """
        self._epochs = snapshot.epochs  # another process may have requested cells again
        for stem in set(snapshot.parts["generations"]) - (set(snapshot.parts["tokens"]) - self._seen):
            del snapshot.parts["generations"][stem]
        new = set(snapshot.parts["generations"])
        return snapshot.tables("generations", ["cell", "example", "sample", "epoch"], checked_whole=new)

    def _snapshot(self) -> Snapshot:
        return self._look(lambda snapshot: snapshot)

    def _look(self, read: Callable[[Snapshot], T]) -> T:
        """Take a snapshot of the folder as `read` does; repeats it if another job merges parts meanwhile."""
        while self.records.is_dir():
            with suppress(FileNotFoundError):
                return read(take_snapshot(self.records, footers=self._footers))
        raise StoreError(f"cannot write records in {self.records}: the folder is gone")

    def _commit_json(self, name: str, data: Mapping[str, Any]) -> None:
        commit_json(self.records / f"{name}.json", data, owner=self.claims.job)

    def _path(self, kind: str, stem: str) -> Path:
        return self.records / f"{kind}-{stem}.parquet"
