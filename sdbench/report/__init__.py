"""Figures, tables and one page, computed from records only, without a model and without torch.

    python -m sdbench.report results/NAME [results/OTHER …] [margin=POINTS] [speed=TIMES] [out=FOLDER]

`worked_out` reads the records and gets every number and decision from `metrics`; `write` turns them into the tables, `figures/`
and `report.html`; `build` does both. The same records give the same bytes: no file contains the time.
"""

from sdbench.report.build import WorkedOut, build, worked_out, write

__all__ = ["WorkedOut", "build", "worked_out", "write"]
