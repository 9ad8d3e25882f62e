"""Figures, tables and one page from records: a pure function of them, without a model and without torch.

    python -m sdbench.report results/NAME [results/OTHER …] [margin=POINTS] [speed=TIMES] [out=FOLDER]

`worked_out` reads the records and asks `metrics` for every number and decision; `write` makes the tables, `figures/` and
`report.html` of it; `build` does both. The same records give the same bytes: nothing here knows the time.
"""

from sdbench.report.build import WorkedOut, build, worked_out, write

__all__ = ["WorkedOut", "build", "worked_out", "write"]
