"""Tables 1–3 of the paper, as far as records exist: rule × task × acceptance and quality, in Markdown, LaTeX and CSV.

There are two separate parts: the numbers measured here, and the published ones, whose acceptance rates are not defined. A setting
without records is shown as a dash; `missing` has its command. The templates are in templates/.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from scripts.paper.cells import (
    FINETUNED,
    HERE,
    LEARNED,
    TEXTS,
    TITLES,
    Exhibit,
    ExhibitRow,
    find,
    pairs_of,
    rows_of,
    task_of,
)
from scripts.paper.numbers import doubtful
from sdbench.metrics.columns import estimate_of
from sdbench.metrics.markup import escape_latex
from sdbench.metrics.text import format_interval
from sdbench.report.page import environment_of

ABSENT, DAGGER = "–", "†"
MEASURES = {  # column: heading, scale, digits; the heading of quality is the task's
    "acceptance": ("acceptance", 100, 1),
    "block_acceptance": ("block", 100, 1),
    "speedup": ("speed-up", 1, 2),
    "speedup_over_lossless": ("over lossless", 1, 2),
    "quality": ("", 1, 1),
    "difference": ("vs lossless", 1, 1),
}
TEMPLATES = environment_of(HERE / "templates", keep_trailing_newline=True)
TEMPLATES.filters["tex"] = escape_latex


class Entry(NamedTuple):
    """A row: its pair, its name, and a text for each of MEASURES of each task."""

    pair: str
    rule: str
    cells: Sequence[tuple[str, ...]]
    is_published: bool = False


def measured_entries(exhibit: Exhibit, cells: pd.DataFrame) -> list[Entry]:
    """Return what was measured, pair by pair; each pair begins with rows for task and protocol, and for examples and seeds."""
    entries = []
    for model in pairs_of(exhibit, cells):
        rows = {row: [find(cells, exhibit, model, task, row) for task in exhibit.tasks] for row in rows_of(exhibit)}
        columns = [[cell for cell in column if cell is not None] for column in zip(*rows.values(), strict=True)]
        if not any(columns):
            entries.append(Entry(model, "not measured yet", [(ABSENT,) * len(MEASURES)] * len(exhibit.tasks)))
            continue
        runs = [_run(column, task_of(cells, model, task)) for column, task in zip(columns, exhibit.tasks, strict=True)]
        blank = ("",) * (len(MEASURES) - 1)
        entries += [Entry(model, name, [(run[name], *blank) for run in runs]) for name in runs[0]]
        entries += [Entry(model, rule_name(row), list(map(_texts, line))) for row, line in rows.items()]
    return entries


def _run(column: Sequence[pd.Series], task: str) -> dict[str, str]:
    """Return task, protocol and options, and the range of n and of seeds of a task's columns."""
    if not column:
        return {"task, protocol": task, "n, seeds": ABSENT}
    n, seeds = (
        "–".join(map(str, dict.fromkeys((min(sizes), max(sizes)))))
        for sizes in ([int(cell[name]) for cell in column] for name in ("n", "num_seeds"))
    )
    counts = f"n = {n}, {seeds} seed{'' if seeds == '1' else 's'}"
    words = [str(column[0][name]) for name in ("task", "protocol", "options")]
    return {"task, protocol": ", ".join(filter(None, words)), "n, seeds": counts}


def _texts(cell: pd.Series | None) -> tuple[str, ...]:
    """Return value [low, high] of each measure, with the range of the seeds if there are several; "" if there is no value."""
    if cell is None:
        return (ABSENT,) * len(MEASURES)
    texts = {
        name: format_interval(estimate_of(cell, name), digits, scale=scale, is_signed=name == "difference")
        for name, (_, scale, digits) in MEASURES.items()
    }
    is_spread = texts["quality"] and cell["num_seeds"] > 1
    texts["quality"] += f" seeds {cell['seed_low']:.1f}–{cell['seed_high']:.1f}" if is_spread else ""
    return tuple(texts.values())


def rule_name(row: ExhibitRow) -> str:
    """Return the row's name in a table."""
    if row.trained is not None:
        return f"DIVERSED, head trained on {row.trained}"
    return TEXTS["rules"][row.rule] if row.w is None else f"{row.rule} w={row.w:g}"


def published_of(exhibit: Exhibit, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the paper's own rows of this table."""
    return rows[(rows["source"] == "readme") & (rows["place"] == exhibit.title)]


def published_entries(exhibit: Exhibit, rows: pd.DataFrame) -> list[Entry]:
    """Return the paper's own rows of this table, by pair, method and head, with rates in the columns that they may belong to."""
    table, entries = published_of(exhibit, rows), []
    heads = table["note"].where((table["method"] == LEARNED) & (exhibit.name == "table3"), "")
    for (model, method, head), part in table.groupby([table["model"], table["method"], heads], sort=False):
        texts: dict[str, tuple[str, ...]] = dict.fromkeys(exhibit.tasks, ("",) * len(MEASURES))
        for row in part.to_dict("records"):
            shown = {"acceptance": f"{100 * row['acceptance']:.1f}{DAGGER}", "quality": f"{row['quality']:g}"}
            texts[row["task"]] = tuple(shown.get(name, "") for name in MEASURES)
        rule = f"DIVERSED, {head}" if head else TEXTS["methods"][str(method)]
        entries.append(Entry(str(model), rule, list(texts.values()), True))
    return entries


def notes(exhibit: Exhibit, rows: pd.DataFrame, cells: pd.DataFrame) -> str:
    """Return what a reader must know to read the table, in Markdown."""
    is_doubtful = bool(doubtful(published_of(exhibit, rows), "caption").any())
    shown: dict[str, Any] = {"temperature": exhibit.temperature, "num_draft": exhibit.num_drafts[0]}
    shown |= {"source": TEXTS["sources"]["readme"], "is_doubtful": is_doubtful}
    return TEMPLATES.get_template("notes.md.j2").render(trainings=trainings(exhibit, cells), **shown)


def trainings(exhibit: Exhibit, cells: pd.DataFrame) -> list[str]:
    """Return how the heads and the drafts of its rows were trained."""
    rows = [
        find(cells, exhibit, model, task, row)
        for model in pairs_of(exhibit, cells)
        for task in exhibit.tasks
        for row in rows_of(exhibit)
        if row.rule in (LEARNED, FINETUNED)
    ]
    parts = {
        f"{'head' if row['verifier'] == LEARNED else 'draft'} of {row['model']} on {row['trained']}: T = {row['trained_at']:g}"
        + (f", {row['loss']}" if row["loss"] else "")
        for row in rows
        if row is not None
    }
    return sorted(parts)


def render_table(form: str, exhibit: Exhibit, measured: Sequence[Entry], published: Sequence[Entry]) -> str:
    """Return both parts as "md" (ours with a column per measure and task, theirs with two per task) or "tex" (a booktabs tabular).

    In LaTeX a published rate spans both of our columns, because it is not known to which of them it belongs.
    """
    tasks = [TITLES[task] for task in exhibit.tasks]
    shown: dict[str, Any] = {"tasks": tasks, "measured": measured, "published": published}
    shown["heads"] = {task: [heading or task[1] for heading, *_ in MEASURES.values()] for task in tasks}
    shown |= {"size": len(MEASURES), "width": len(MEASURES) * len(tasks), "quality": list(MEASURES).index("quality")}
    return TEMPLATES.get_template(f"table.{form}.j2").render(shown)


def long_form(exhibit: Exhibit, cells: pd.DataFrame) -> pd.DataFrame:
    """Return every measured setting of the table's pairs, tasks and temperature with both limits of each interval."""
    cells = cells[cells["base"].isin(exhibit.tasks) & (cells["temperature"] == exhibit.temperature)]
    cells = cells[cells["num_draft"].isin([0, *exhibit.num_drafts])]
    return cells.drop(columns=["base"]).reset_index(drop=True)
