"""Figures, tables and one page from records: a pure function of them, without a model and without torch.

    python -m sdbench.report results/NAME [results/OTHER …]

`build` reads, asks `metrics` for the numbers, and writes the tables, `figures/` and `report.html` beside the records.
The same records give the same bytes: nothing here knows the time.
"""

from sdbench.report.build import build

__all__ = ["build"]
