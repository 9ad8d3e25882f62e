"""Pool cells that differ only in seed: their texts are further samples of the same examples, so that one verdict uses all of
them.

The unit of every interval is the example, whose texts are averaged first: other seeds are not new examples.
"""

import json
from collections.abc import Sequence

import pandas as pd

from sdbench.metrics.cells import sweep_of
from sdbench.records import Results

# Columns that do not distinguish settings.
NAMES = ("cell", "content", "metric", "metrics", "axes", "same_as", "also")


def pool_seeds(folders: Sequence[Results]) -> Results | None:
    """Return the sweeps of these folders that were run with several seeds, pooled as one; None if there are none.

    Texts that are in two folders with the same seed count once.
    """

    def together(name: str) -> pd.DataFrame:
        return pd.concat([getattr(folder, name) for folder in folders], ignore_index=True)

    cells = together("cells").drop_duplicates("cell", ignore_index=True)
    seeds = cells["content"].map(lambda content: content.get("seed"))
    cells = cells.assign(content=[{**content, "seed": None} for content in cells["content"]])
    sweeps, settings = sweep_of(cells), pd.Series([_setting(row) for row in cells.to_dict("records")], cells.index)
    chosen = sweeps.isin(sweeps[seeds.groupby(settings).transform("nunique") > 1])
    if not chosen.any():
        return None
    first = cells["cell"].groupby(settings).transform("first")
    key_of = dict(zip(cells["cell"][chosen], first[chosen], strict=True))

    def pool(name: str) -> pd.DataFrame:
        frame = together(name)
        frame = frame[frame["cell"].isin(list(key_of))]
        if "sample" not in frame:
            return frame.assign(cell=frame["cell"].map(key_of))
        frame = frame.drop_duplicates(["cell", "example", "sample"])
        frame = frame.assign(cell=frame["cell"].map(key_of))
        return frame.assign(sample=frame.groupby(["cell", "example"]).cumcount())

    return Results.of_frames(
        f"seeds {', '.join(str(seed) for seed in sorted(set(seeds[chosen].dropna())))} pooled",
        config=folders[-1].config,
        configs=dict(sorted(run for folder in folders for run in folder.configs.items())),
        cells=cells[chosen & (cells["cell"] == first)],
        calls=together("calls"),
        **{name: pool(name) for name in ("generations", "ids", "timings", "runs_of_cells")},
    )


def _setting(cell: dict) -> str:
    """Return what identifies a cell except its seed; missing columns are ignored."""
    facts = {name: value for name, value in cell.items() if name not in NAMES and value is not None and value == value}
    return json.dumps([facts, cell["content"]], sort_keys=True, default=str)
