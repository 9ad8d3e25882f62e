"""Which stored row answers for a generation, where several do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sdbench.records.schema import generations_schema

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


def winning_rows(tables: dict[str, pa.Table], with_tokens: set[str], same_as: Mapping[str, str]) -> pa.Table:
    """One row a (cell, example, sample), sorted: the newest epoch, then a cell's own before those of the cell that it is the
    same as, then one with its tokens, then the first written.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    stems = list(tables)
    sizes = [len(tables[stem]) for stem in stems]
    stem_of = np.repeat(np.arange(len(stems)), sizes)
    row_of = np.concatenate([np.arange(size) for size in sizes]) if sizes else np.arange(0)
    table = pa.concat_tables([generations_schema([]).empty_table(), *tables.values()], promote_options="default")
    is_copy = np.zeros(len(table), dtype=bool)
    for key, original in same_as.items():
        rows = np.flatnonzero(pc.equal(table["cell"], original).to_numpy())
        copies = table.take(pa.array(rows))
        names = pa.array([key] * len(rows), table.schema.field("cell").type)
        table = pa.concat_tables([table, copies.set_column(table.column_names.index("cell"), "cell", names)])
        stem_of, row_of = np.append(stem_of, stem_of[rows]), np.append(row_of, row_of[rows])
        is_copy = np.append(is_copy, np.ones(len(rows), dtype=bool))
    cell, example, sample = _ranks(table["cell"]), _ranks(table["example"]), table["sample"].to_numpy()
    bare = np.array([stem not in with_tokens for stem in stems], dtype=bool)[stem_of]
    order = np.lexsort((row_of, stem_of, bare, is_copy, -table["epoch"].to_numpy(), sample, example, cell))
    keys = np.stack([cell, example, sample])[:, order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    order = order[first]
    names = pa.DictionaryArray.from_arrays(pa.array(stem_of[order], pa.int32()), pa.array(stems, pa.string()))
    base = generations_schema([]).names  # the rest by name, so that the order of parts does not show
    table = table.take(pa.array(order)).select([*base, *sorted(set(table.column_names) - set(base))])
    return table.append_column("stem", names).append_column("row", pa.array(row_of[order]))


def _ranks(column: pa.ChunkedArray) -> np.ndarray:
    """Each value's place among the sorted distinct values, [N]."""
    import numpy as np

    encoded = column.combine_chunks().dictionary_encode()
    order = np.argsort(np.array(encoded.dictionary.to_pylist(), dtype=object), kind="stable")
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(len(order))
    return ranks[np.asarray(encoded.indices)]
