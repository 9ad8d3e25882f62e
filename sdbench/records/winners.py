"""Which stored row counts for a generation if several exist."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sdbench.records.schema import KEY, generations_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from sdbench.records.keys import Cell


def texts_of_others(cells: Mapping[str, Cell]) -> dict[str, str]:
    """Return {cell: lossless cell} for older cells that share the texts of a lossless one and are no longer planned."""
    marked = {key: cell.same_as for key, cell in cells.items() if cell.same_as}
    return marked | {key: cell.key for cell in cells.values() for key in cell.also if key in cells}


def winning_rows(tables: dict[str, pa.Table], with_tokens: set[str], same_as: Mapping[str, str]) -> pa.Table:
    """Return one row per (cell, example, sample), sorted. Of several, the newest epoch wins, then a row of the cell itself before
    one of a cell with the same texts, then a row with tokens, then the first written. `stem` and `row` give its position.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    def with_origin(table: pa.Table, stem: str) -> pa.Table:
        table = table.append_column("stem", pa.repeat(pa.scalar(stem), len(table)))
        table = table.append_column("row", pa.array(range(len(table)), pa.int64()))
        return table.append_column("rank", pa.repeat(pa.scalar(int(stem not in with_tokens)), len(table)))

    def copy_of(cell: str, key: str) -> pa.Table:
        rows = table.filter(pc.equal(table["cell"], cell))
        ranks = pc.add(rows["rank"], 2)
        rows = rows.set_column(rows.column_names.index("rank"), "rank", ranks)
        return rows.set_column(rows.column_names.index("cell"), "cell", pa.repeat(pa.scalar(key), len(rows)))

    parts = [with_origin(part, stem) for stem, part in tables.items()]
    table = pa.concat_tables([with_origin(generations_schema([]).empty_table(), ""), *parts], promote_options="default")
    table = pa.concat_tables([table, *(copy_of(cell, key) for key, cell in same_as.items())])
    order = [*((name, "ascending") for name in KEY), ("epoch", "descending")]
    table = table.sort_by([*order, ("rank", "ascending"), ("stem", "ascending"), ("row", "ascending")])
    is_first = ~table.select(list(KEY)).to_pandas().duplicated()
    base = generations_schema([]).names  # the rest by name, so that the order of parts does not matter
    others = sorted(set(table.column_names) - {*base, "rank", "stem", "row"})
    return table.filter(pa.array(is_first)).select([*base, *others, "stem", "row"])
