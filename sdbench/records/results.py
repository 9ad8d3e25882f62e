"""The reader: `read(folder)` returns pandas frames without duplicates, with knobs joined and problems listed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdbench.records.keys import frame_of_cells
from sdbench.records.measured import PLAIN, plain_table
from sdbench.records.planned import missing_of_newest
from sdbench.records.problems import add_problems
from sdbench.records.schema import ARRAYS, KEY, LABELS, column_name, examples_table, tokens_schema
from sdbench.records.snapshot import Problem, take_snapshot
from sdbench.records.winners import texts_of_others, winning_rows

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

TIMING_KEY = ("pass_id", "machine", "cell", "example", "repeat", "is_split")
ROUND_COLUMNS = ("round_drafted", "round_examined", "round_accepted")
TOKEN_COLUMNS = (*KEY, *ARRAYS)
ARRIVALS = ("rate", "ramp", "trace")  # options of timing by which requests arrive at a rate


def read(path: str | os.PathLike[str]) -> Results:
    """Read the records below results/<name>/. ValueError if there are none, SchemaError if a newer sdbench wrote them."""
    folder = Path(path)
    while (folder / "records").is_dir():
        try:
            return Results(folder)
        except FileNotFoundError:  # a running job has just merged parts: read again
            continue
    raise ValueError(f"{folder} is not a results folder: it has no records/ in it")


class Results:
    """What a folder held when it was read. Frames are cached; change a copy, not the frame.

    `.generations` one row per generation · `.rounds` one row per round · `.tokens` one row per generation, arrays in lists ·
    `.timings` · `.calls` · `.cells` one row per cell, key in `cell` · `.vocabulary` {model: the text of each token id} ·
    `.examples` one row per example: prompt, reference · `.provenance` {run: what ran} · `.config` the last run's resolved
    configuration · `.problems` torn parts, failures, unfinished `force`
    """

    def __init__(self, folder: Path) -> None:
        self.path, self.name = folder, folder.resolve().name
        self._snapshot = take_snapshot(folder / "records")
        self._tables = {kind: self._snapshot.tables(kind) for kind in ("generations", *PLAIN)}
        self.forced_at = self._snapshot.forced_at  # cell -> stem of the newest `force`; it begins with the time
        self._same_as = texts_of_others(self._snapshot.cells)
        self._rows = winning_rows(self._tables["generations"], set(self._snapshot.parts["tokens"]), self._same_as)

    @classmethod
    def of_frames(cls, name: str, **frames: Any) -> Results:
        """Return results that consist of these frames, for several folders together."""
        results = cls.__new__(cls)
        results.__dict__ |= {"name": name, **frames}
        return results

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Torn or missing parts, failures that no later run has corrected, cells whose `force` is unfinished."""
        add_problems(self._snapshot, self._rows)
        return tuple(self._snapshot.problems)

    @cached_property
    def provenance(self) -> dict[str, dict[str, Any]]:
        """One entry per run, by time: versions, commit, checkpoints, device, load, sandbox, what w means."""
        servers = {run: {"servers": facts} for run, facts in self._snapshot.servers.items()}
        drafters = {run: {"drafters": facts} for run, facts in self._snapshot.drafters.items()}
        return {
            run: data["provenance"] | servers.get(run, {}) | drafters.get(run, {})
            for run, data in sorted(self._snapshot.runs.items())
        }

    @cached_property
    def configs(self) -> dict[str, dict[str, Any]]:
        """One entry per run, by time: its resolved configuration and the command."""
        return {run: data["config"] for run, data in sorted(self._snapshot.runs.items())}

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved configuration of the last run."""
        return next(reversed(self.configs.values()), {})

    @cached_property
    def runs_of_cells(self) -> pd.DataFrame:
        """The runs that decoded or timed each cell, in columns `cell`, `run`, `is_timed` and `pass_id`, NaN if not timed."""
        import pandas as pd

        timed = [self._rows_of_kind(kind)[["cell", "run", "pass_id"]] for kind in ("timings", "loads", "open_loads")]
        decoded = self._rows.select(["cell", "run"]).to_pandas().drop_duplicates()
        return pd.concat([decoded.assign(is_timed=False), pd.concat(timed).drop_duplicates().assign(is_timed=True)])

    def timed_config_of(self, cells: Sequence[str]) -> dict[str, Any]:
        """The configuration of the last run that timed any of these cells, else of their last run, else of the last."""
        known = self.runs_of_cells[self.runs_of_cells["cell"].isin(cells)]
        sets = ({*runs} & {*self.configs} for runs in (known["run"][known["is_timed"]], known["run"], self.configs))
        configs = [self.configs[run] for run in sorted(next(filter(None, sets), ()), reverse=True)] or [{}]
        return next((config for config in configs if isinstance(config.get("timing"), dict)), configs[0])

    def open_config_of(self, cells: Sequence[str]) -> dict[str, Any]:
        """The configuration of the last run that planned any of these cells and whose requests arrived at a rate, or {}."""
        planned = {run: (facts.get("planned") or {}).get("cells", cells) for run, facts in self.provenance.items()}
        runs = [run for run, keys in planned.items() if keys is cells or set(keys) & set(cells)]  # or names no cells
        timed = ((self.configs[run], self.configs[run].get("timing")) for run in reversed(runs))
        return next((c for c, timing in timed if isinstance(timing, dict) and any(map(timing.get, ARRIVALS))), {})

    @cached_property
    def cells(self) -> pd.DataFrame:
        """One row per cell: `cell` (key), labels, protocol, law, metric, is_lossless, `knob_*`, `checkpoint_*`.

        `metrics` and `axes` are lists of plain data, as the cell stores them.
        """
        return frame_of_cells([cell for _, cell in sorted(self._snapshot.cells.items())])

    @cached_property
    def generations(self) -> pd.DataFrame:
        """One row per generation: key, labels, counts, sums, text, then a column for each score, statistic and flag."""
        table = self._rows
        stored = [name for name in table.column_names if name not in ("stem", "row", "epoch", "run", *KEY)]
        frame = table.select([*KEY, *stored]).to_pandas()
        flags = {name: "boolean" for name in stored if name.startswith("flag.") and frame[name].isna().any()}
        frame = frame.astype(flags)
        frame.columns = [column_name(name) for name in frame.columns]
        return self._with_labels(frame)

    def held(self) -> set[tuple[str, str, int]]:
        """Return (cell, example, sample) of every generation as in `Store.held`: without those that `force` requested again, and
        without those whose part of tokens is missing or torn, which are decoded again.

        Generations of a cell that shares the texts of another cell count for the other cell.
        """
        rows = zip(_keys(self._rows), *(self._rows[name].to_pylist() for name in ("epoch", "stem")), strict=True)
        wanted, with_tokens = self._snapshot.epochs, self._snapshot.parts["tokens"]
        return {
            key
            for key, epoch, stem in rows
            if epoch >= wanted.get(key[0], 0) and stem in with_tokens and key[0] not in self._same_as
        }

    def num_missing(self) -> int | None:
        """How many texts of the newest command are not held; None if its plan is not recorded."""
        return missing_of_newest(self._snapshot, self.held())

    @cached_property
    def scores(self) -> tuple[str, ...]:
        """The columns of `.generations` that are scores of a task."""
        return tuple(name.removeprefix("score.") for name in self._rows.column_names if name.startswith("score."))

    @cached_property
    def ids(self) -> pd.DataFrame:
        """One row per generation: key, ids [T]; a fast part of `.tokens` without measures."""
        return self._token_rows([*KEY, "ids"]).to_pandas()

    @cached_property
    def epochs(self) -> pd.DataFrame:
        """One row per generation: key, and how often `force` had requested its cell when it was decoded (`epoch`)."""
        return self._rows.select([*KEY, "epoch"]).to_pandas()

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """One row per round: cell, example, sample, round, drafted, examined, accepted."""
        import numpy as np
        import pandas as pd
        import pyarrow as pa
        import pyarrow.compute as pc

        table = self._token_rows([*KEY, *ROUND_COLUMNS])
        num_rounds = pc.call_function("list_value_length", [table["round_drafted"]])
        lengths = num_rounds.fill_null(0).to_numpy()  # no list: an engine that does not report rounds
        rows = np.repeat(np.arange(len(lengths)), lengths)
        columns: dict[str, Any] = {name: table[name].take(pa.array(rows)).to_pandas() for name in KEY}
        columns["round"] = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        for name in ROUND_COLUMNS:
            columns[name.removeprefix("round_")] = table[name].combine_chunks().flatten().to_numpy().astype("int64")
        return pd.DataFrame(columns)

    @cached_property
    def tokens(self) -> pd.DataFrame:
        """One row per generation: arrays ids, origin [T], draft_ids, p, q [D], tv, expected, bias [E]; None where off."""
        return self._token_rows(list(TOKEN_COLUMNS)).to_pandas()

    @cached_property
    def timings(self) -> pd.DataFrame:
        """One row per timing of an example, with the labels of its cell."""
        return self._with_labels(self._plain("timings", TIMING_KEY))

    @cached_property
    def calls(self) -> pd.DataFrame:
        """One row per measured cost of a call: pass_id, machine, model, kind, drafter ("" if unknown), tokens, seconds."""
        calls = self._rows_of_kind("calls")  # a run that continues a pass measures its calls anew, over the whole pass
        calls = calls[calls["run"] == calls.groupby(["pass_id", "machine"])["run"].transform("max")]
        calls = calls.drop_duplicates(["pass_id", "machine", "model", "kind", "drafter", "tokens"], ignore_index=True)
        return calls.drop(columns="run")

    @cached_property
    def loads(self) -> pd.DataFrame:
        """One row per request of a closed loop, with the labels of its cell."""
        return self._with_labels(self._plain("loads", (*TIMING_KEY[:5], "concurrency", "cycle")))

    @cached_property
    def open_loads(self) -> pd.DataFrame:
        """One row per request of an open loop, with the labels of its cell."""
        return self._with_labels(self._plain("open_loads", (*TIMING_KEY[:3], "schedule", "repeat", "request")))

    @cached_property
    def pooled(self) -> pd.DataFrame:
        """One row per block of texts whose rounds a server did not report, with the labels of its cell.

        Blocks from before the newest `force` of a cell are left out as soon as one of its texts is new.
        """
        frame = self._plain("pooled", ("cell", "block"))
        of_texts = frame["cell"].map(self.epochs.groupby("cell")["epoch"].max()).fillna(0)
        newest = frame.groupby("cell")["epoch"].transform("max").clip(lower=of_texts)
        return self._with_labels(frame[frame["epoch"] == newest].reset_index(drop=True))

    @cached_property
    def partings(self) -> pd.DataFrame:
        """One row per lossless text at T = 0 that counts and differs from the target's: token, margin, explained, epoch, labels."""
        frame = self._plain("partings", (*KEY, "token", "epoch"))
        return self._with_labels(frame.merge(self.epochs, on=[*KEY, "epoch"]))

    @cached_property
    def vocabulary(self) -> dict[str, list[str]]:
        """model -> the text of each id of its tokenizer, to show ids without the tokenizer; the newest if it changed."""
        tables = self._snapshot.tables("vocabulary").values()
        return {str(table["model"][0]): table["text"].to_pylist() for table in tables if len(table)}

    @cached_property
    def examples(self) -> pd.DataFrame:
        """One row per example: `asked` (equal for the cells that share it), example, prompt, reference."""
        import pyarrow as pa

        empty = examples_table("", {})
        table = pa.concat_tables([empty, *self._snapshot.tables("examples").values()], promote_options="default")
        return table.to_pandas().drop_duplicates(["asked", "example"], ignore_index=True)

    def export(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write every frame as one Parquet file; returns the paths."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        names = ("cells", "generations", "rounds", "tokens", "examples", *PLAIN)
        for path in (paths := [target / f"{name}.parquet" for name in names]):
            frame = getattr(self, path.stem)
            nested = {
                column: frame[column].map(str) for column in ("content", "metrics", "axes", "also") if column in frame
            }
            frame.assign(**nested).to_parquet(path, index=False)
        return paths

    def _token_rows(self, columns: list[str]) -> pa.Table:
        """Read these columns of the tokens parts in the order of `.generations`, without rows that have no tokens."""
        import numpy as np
        import pyarrow as pa

        try:
            parts = self._snapshot.tables("tokens", columns)
        except FileNotFoundError:  # merged since, perhaps with others that were not there yet
            now = read(self.path)._token_rows(columns)
            row_of = {key: row for row, key in enumerate(_keys(now))}
            return now.take(pa.array([row_of[key] for key in _keys(self._rows) if key in row_of], pa.int64()))
        if not parts:
            return tokens_schema().empty_table().select(columns)
        starts = dict(zip(parts, np.cumsum([0, *(len(table) for table in parts.values())]), strict=False))
        stems, rows = self._rows["stem"].to_pylist(), self._rows["row"].to_numpy()
        index = [starts[stem] + row for stem, row in zip(stems, rows, strict=True) if stem in starts]
        table = pa.concat_tables(parts.values(), promote_options="default").take(pa.array(index, pa.int64()))
        cells = self._rows["cell"].filter(pa.array([stem in starts for stem in stems], pa.bool_()))
        return table.set_column(table.column_names.index("cell"), "cell", cells)

    def _plain(self, kind: str, key: Sequence[str]) -> pd.DataFrame:
        return self._rows_of_kind(kind).drop_duplicates(list(key), ignore_index=True).drop(columns="run")

    def _rows_of_kind(self, kind: str) -> pd.DataFrame:
        """Return the rows of all parts of a kind, in the order of writing."""
        import pyarrow as pa

        empty = plain_table([], kind, run="")
        table = pa.concat_tables([empty, *self._tables[kind].values()], promote_options="permissive")
        unknown = {"bool": False, "string": "", "epoch": 0, "first_tokens": 0}
        for index, column in enumerate(table.schema):  # records from before a flag, a name or a count existed
            if (name := column.name if column.name in unknown else str(column.type)) in unknown:
                table = table.set_column(index, column.name, table[column.name].fill_null(unknown[name]))
        return table.to_pandas()

    def _with_labels(self, frame: pd.DataFrame) -> pd.DataFrame:
        labels = self.cells[["cell", *LABELS]]
        joined = frame[["cell"]].merge(labels, on="cell", how="left")[list(LABELS)]
        for index, name in enumerate(LABELS, start=1):
            frame.insert(index, name, joined[name].to_numpy() if joined[name].dtype.kind in "if" else joined[name])
        return frame


def _keys(table: pa.Table) -> list[tuple[str, str, int]]:
    return list(zip(*(table[name].to_pylist() for name in KEY), strict=True))
