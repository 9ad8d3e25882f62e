"""Tables 1–3 of the paper as far as our records fill them: rule × task × acceptance and quality, in Markdown, LaTeX and CSV.

Two parts that are never joined: what was measured here, and what was published, whose acceptance rates are not defined. A
setting without records is a dash; `missing` has the command for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from sdbench.metrics.columns import estimate_of
from sdbench.metrics.markup import booktabs, escape_latex, markdown, tex_line
from sdbench.metrics.text import format_interval
from sdbench.report.paper.cells import (
    FINETUNED,
    LEARNED,
    TITLES,
    Exhibit,
    ExhibitRow,
    find,
    pairs_of,
    rows_of,
    task_of,
)
from sdbench.report.paper.published import METHODS, SOURCES, doubtful

ABSENT, DAGGER = "–", "†"
RULES = {
    "target": "target alone",
    "draft": "draft alone",
    "lossless": "SD (lossless)",
    FINETUNED: "SD, finetuned draft",
    LEARNED: "DIVERSED (learned head)",
}
MEASURES = {  # column: heading, scale, digits; quality and difference are headed by the task
    "acceptance": ("acceptance", 100, 1),
    "block_acceptance": ("block", 100, 1),
    "speedup": ("speed-up", 1, 2),
    "speedup_over_lossless": ("over lossless", 1, 2),
    "quality": ("", 1, 1),
    "difference": ("vs lossless", 1, 1),
}
QUALITY = list(MEASURES).index("quality")


@dataclass(frozen=True, slots=True)
class Entry:
    """A row: its pair, what is in it, and a text for each of MEASURES of each task."""

    pair: str
    rule: str
    cells: Sequence[tuple[str, ...]]
    is_published: bool = False


def measured_entries(exhibit: Exhibit, cells: pd.DataFrame) -> list[Entry]:
    """Return what was measured pair by pair, after rows with the task and protocol, and with the number of examples and seeds."""
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
    """Return task and protocol, and the range of n and of seeds of a task's columns."""
    if not column:
        return {"task, protocol": task, "n, seeds": ABSENT}
    n, seeds = (
        "–".join(map(str, dict.fromkeys((min(sizes), max(sizes)))))
        for sizes in ([int(cell[name]) for cell in column] for name in ("n", "num_seeds"))
    )
    counts = f"n = {n}, {seeds} seed{'' if seeds == '1' else 's'}"
    return {"task, protocol": f"{column[0]['task']}, {column[0]['protocol']}", "n, seeds": counts}


def _texts(cell: pd.Series | None) -> tuple[str, ...]:
    return tuple(ABSENT if cell is None else _text(cell, name) for name in MEASURES)


def _text(cell: pd.Series, name: str) -> str:
    """Return value [low, high]; of several seeds also how far they lie apart; "" where a model alone has no such number."""
    _, scale, digits = MEASURES[name]
    text = format_interval(estimate_of(cell, name), digits, scale=scale, is_signed=name == "difference")
    is_spread = text and name == "quality" and cell["num_seeds"] > 1
    return text + (f" seeds {cell['seed_low']:.1f}–{cell['seed_high']:.1f}" if is_spread else "")


def rule_name(row: ExhibitRow) -> str:
    """Return the row's name in a table."""
    if row.trained is not None:
        return f"DIVERSED, head trained on {row.trained}"
    return RULES[row.rule] if row.w is None else f"{row.rule} w={row.w:g}"


def published_entries(exhibit: Exhibit, rows: pd.DataFrame) -> list[Entry]:
    """Return the paper's own rows of this table, by pair, method and head."""
    table = rows[(rows["source"] == "readme") & (rows["place"] == exhibit.title)]
    entries = []
    for (model, method), group in table.groupby(["model", "method"], sort=False):
        heads = [""] if method != "diversed" or exhibit.name != "table3" else list(dict.fromkeys(group["note"]))
        for head in heads:
            part = group[group["note"] == head] if head else group
            texts = tuple(_published_cells(part[part["task"] == task]) for task in exhibit.tasks)
            entries.append(Entry(str(model), f"DIVERSED, {head}" if head else METHODS[str(method)], texts, True))
    return entries


def _published_cells(row: pd.DataFrame) -> tuple[str, ...]:
    """Return rate and quality under the columns they might belong to."""
    if row.empty:
        return ("",) * len(MEASURES)
    rate, quality = float(row["acceptance"].iloc[0]), float(row["quality"].iloc[0])
    texts = {"acceptance": f"{100 * rate:.1f}{DAGGER}", "quality": f"{quality:g}"}
    return tuple(texts.get(name, "") for name in MEASURES)


def notes(exhibit: Exhibit, rows: pd.DataFrame, cells: pd.DataFrame) -> list[str]:
    """Return what a reader must know to read the table."""
    table = rows[(rows["source"] == "readme") & (rows["place"] == exhibit.title)]
    texts = [
        f"Measured at T = {exhibit.temperature:g} with {exhibit.num_drafts[0]} drafted tokens a round; w weights the target. "
        "Acceptance: accepted / examined; block: accepted / drafted; quality in points of 100. "
        "Speed-up: measured, over the target alone; over lossless: over the fastest lossless setting of the same pass; "
        "vs lossless: quality minus lossless's, paired by example. In brackets: 95 % intervals by example; of several seeds also "
        f"the least and the largest of their qualities. {ABSENT} is not measured.",
        f"{DAGGER} Published ({SOURCES['readme']}): the acceptance rate is not defined there, and stands apart from ours. "
        "No draft length, number of examples or interval is given.",
    ]
    texts += filter(None, [trainings(exhibit, cells)])
    if len(table) and doubtful(table, "caption").any():
        texts.append(
            "The published caption prints T = 0.1 and a finetuned draft, yet its GSM8K values equal Table 1's at T = 1.0."
        )
    return texts


def trainings(exhibit: Exhibit, cells: pd.DataFrame) -> str:
    """Return how the heads and the drafts of its rows were trained; "" without any."""
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
    return f"Trained at: {'; '.join(sorted(parts))}." if parts else ""


def to_markdown(exhibit: Exhibit, measured: Sequence[Entry], published: Sequence[Entry]) -> str:
    """Return two tables: ours with a column a measure and task, theirs with two a task."""
    heads = {task: _heads(task) for task in exhibit.tasks}
    ours = [name for task in heads for name in (f"{TITLES[task][0]} {heads[task][0]}", *heads[task][1:])]
    theirs = [name for task in heads for name in (f"{TITLES[task][0]} rate{DAGGER}", TITLES[task][1])]
    parts = [_grid(["pair", "measured here", *ours], measured, lambda cell: list(cell))]
    parts.append(_grid(["pair", "published", *theirs], published, lambda cell: [cell[0], cell[QUALITY]]))
    return "\n".join(parts)


def _heads(task: str) -> list[str]:
    """Return the headings of a task's columns."""
    return [heading or TITLES[task][1] for heading, *_ in MEASURES.values()]


def _grid(head: list[str], lines: Sequence[Entry], pick: Callable[[tuple[str, ...]], list[str]]) -> str:
    rows = [[line.pair, line.rule, *(text for cell in line.cells for text in pick(cell))] for line in lines]
    return markdown(head, rows, num_left=2)


def to_latex(exhibit: Exhibit, measured: Sequence[Entry], published: Sequence[Entry]) -> str:
    """Return a booktabs tabular; a published rate spans both of our columns, since it is not known which of them it is."""
    each = len(MEASURES)
    tasks, width = exhibit.tasks, 2 + each * len(exhibit.tasks)
    titles = [rf"\multicolumn{{{each}}}{{c}}{{{TITLES[task][0]}}}" for task in tasks]
    rules = " ".join(rf"\cmidrule(lr){{{3 + each * i}-{2 + each * (i + 1)}}}" for i in range(len(tasks)))
    names = [name for task in tasks for name in _heads(task)]
    head = [tex_line(["", "", *titles]), rules, tex_line(["pair", "rule", *names])]
    lines: list[str] = []
    for title, part in (("Measured by sdbench", measured), ("Published, acceptance not defined", published)):
        lines += [r"\midrule", rf"\multicolumn{{{width}}}{{l}}{{\textit{{{title}}}}} \\"]
        lines += [_latex_row(line, part[i - 1].pair if i else "") for i, line in enumerate(part)]
    return "% needs \\usepackage{booktabs}\n" + booktabs("ll" + "r" * each * len(tasks), head, lines)


def _latex_row(line: Entry, above: str) -> str:
    cells = [
        text
        for cell in line.cells
        for text in (
            (rf"\multicolumn{{2}}{{c}}{{{escape_latex(cell[0])}}}", *map(escape_latex, cell[2:]))
            if line.is_published
            else map(escape_latex, cell)
        )
    ]
    start = r"\addlinespace" + "\n" if above and line.pair != above else ""
    return start + tex_line([escape_latex(line.pair) if line.pair != above else "", escape_latex(line.rule), *cells])


def long_form(exhibit: Exhibit, cells: pd.DataFrame) -> pd.DataFrame:
    """Return every measured setting of the table's pairs, tasks and temperature with both limits of each interval."""
    cells = cells[cells["base"].isin(exhibit.tasks) & (cells["temperature"] == exhibit.temperature)]
    cells = cells[cells["num_draft"].isin([0, *exhibit.num_drafts])]
    return cells.drop(columns=["base"]).reset_index(drop=True)
