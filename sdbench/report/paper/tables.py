"""Tables 1–3 of the paper as we can fill them: rule × task × acceptance and quality, in Markdown, LaTeX and CSV.

Two parts that are never joined: what was measured here, and what was published, whose acceptance rates nobody defines. A
setting without records is a dash; `missing` has the command for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from sdbench.metrics.markup import booktabs, escaped, markdown, tex_line
from sdbench.report.paper.cells import FINETUNED, LEARNED, TITLES, Exhibit, Line, find, lines_of, named, pairs_of
from sdbench.report.paper.published import METHODS, SOURCES, doubtful

ABSENT = "–"
RULES = {
    "target": "target alone",
    "draft": "draft alone",
    "lossless": "SD (lossless)",
    FINETUNED: "SD, finetuned draft",
    LEARNED: "DIVERSED (learned head)",
}
DAGGER = "†"


MEASURES = ("acceptance", "block_acceptance", "speedup", "speedup_over_lossless", "quality", "difference")
SCALES = {"acceptance": 100, "block_acceptance": 100}
DIGITS = {"speedup": 2, "speedup_over_lossless": 2}
HEAD = ("acceptance", "block", "speed-up", "over lossless")
QUALITY = MEASURES.index("quality")
CHANGE = "vs lossless"


@dataclass(frozen=True, slots=True)
class Entry:
    """One row: its pair, what is in it, and a text for each of MEASURES of each task."""

    pair: str
    rule: str
    cells: Sequence[tuple[str, ...]]
    is_published: bool = False


def measured_lines(asked: Exhibit, cells: pd.DataFrame) -> list[Entry]:
    """What we have, pair by pair, after rows that say of which task under which protocol, and of how many examples and seeds."""
    entries = []
    for model in pairs_of(asked, cells):
        kept = {line: [find(cells, asked, model, task, line) for task in asked.tasks] for line in lines_of(asked)}
        if all(cell is None for row in kept.values() for cell in row):
            entries.append(Entry(model, "not measured yet", [(ABSENT,) * len(MEASURES)] * len(asked.tasks)))
            continue
        runs = [_run(asked, cells, model, kept, place) for place in range(len(asked.tasks))]
        entries += [Entry(model, name, [_first(run[name]) for run in runs]) for name in runs[0]]
        entries += [Entry(model, rule_name(line), list(map(_texts, row))) for line, row in kept.items()]
    return entries


def _first(text: str) -> tuple[str, ...]:
    """A text in the first of a task's columns."""
    return (text, *[""] * (len(MEASURES) - 1))


def _run(asked: Exhibit, cells: pd.DataFrame, model: str, kept: dict, index: int) -> dict[str, str]:
    """Task, protocol, and the range of n and of seeds of a task's columns."""
    rows = [row[index] for row in kept.values() if row[index] is not None]
    if not rows:
        return {"task, protocol": named(cells, model, asked.tasks[index]), "n, seeds": ABSENT}
    ranges = []
    for name in ("n", "num_seeds"):
        sizes = sorted({int(row[name]) for row in rows})
        ranges.append("–".join(map(str, dict.fromkeys((sizes[0], sizes[-1])))))
    seeds = "1 seed" if ranges[1] == "1" else f"{ranges[1]} seeds"
    return {"task, protocol": f"{rows[0]['task']}, {rows[0]['protocol']}", "n, seeds": f"n = {ranges[0]}, {seeds}"}


def _texts(cell: pd.Series | None) -> tuple[str, ...]:
    if cell is None:
        return (ABSENT,) * len(MEASURES)
    return tuple(_text(cell, name) for name in MEASURES)


def _text(cell: pd.Series, name: str) -> str:
    """Value [low, high]; of several seeds also how far they lie apart; nothing where a model alone has no such number."""
    scale, digits = SCALES.get(name, 1), DIGITS.get(name, 1)
    value, low, high = (scale * float(cell[f"{name}{end}"]) for end in ("", "_low", "_high"))
    if value != value:
        return ""
    sign = "+" if name == "difference" else ""
    text = f"{value:{sign}.{digits}f}"
    text += f" [{low:{sign}.{digits}f}, {high:{sign}.{digits}f}]" if low == low else ""
    is_spread = name == "quality" and cell["num_seeds"] > 1
    return text + (f" seeds {cell['seed_low']:.1f}–{cell['seed_high']:.1f}" if is_spread else "")


def rule_name(line: Line) -> str:
    if line.trained is not None:
        return f"DIVERSED, head trained on {line.trained}"
    return RULES[line.rule] if line.w is None else f"ensemble, w = {line.w:g}"


def published_lines(asked: Exhibit, rows: pd.DataFrame) -> list[Entry]:
    """The paper's own rows of this table, by pair, method and head."""
    own = rows[(rows["source"] == "readme") & (rows["place"] == asked.title)]
    entries = []
    for (model, method), group in own.groupby(["model", "method"], sort=False):
        heads = [""] if method != "diversed" or asked.name != "table3" else list(dict.fromkeys(group["note"]))
        for head in heads:
            part = group[group["note"] == head] if head else group
            texts = tuple(_published(part[part["task"] == task]) for task in asked.tasks)
            entries.append(Entry(str(model), f"DIVERSED, {head}" if head else METHODS[str(method)], texts, True))
    return entries


def _published(row: pd.DataFrame) -> tuple[str, ...]:
    """Rate and quality under the columns they might belong to."""
    if row.empty:
        return ("",) * len(MEASURES)
    rate, quality = float(row["acceptance"].iloc[0]), float(row["quality"].iloc[0])
    texts = {"acceptance": f"{100 * rate:.1f}{DAGGER}", "quality": f"{quality:g}"}
    return tuple(texts.get(name, "") for name in MEASURES)


def notes(asked: Exhibit, rows: pd.DataFrame, cells: pd.DataFrame) -> list[str]:
    """What a reader must know to read the table."""
    own = rows[(rows["source"] == "readme") & (rows["place"] == asked.title)]
    said = [
        f"Measured at T = {asked.temperature:g} with {asked.num_drafts[0]} drafted tokens a round; w is the weight of the target. "
        "Acceptance: accepted / examined; block: accepted / drafted; quality in points of 100. "
        "Speed-up: measured, over the target alone; over lossless: over the fastest lossless setting of the same pass; "
        "vs lossless: quality minus lossless's, paired by example. In brackets: 95 % intervals by example; of several seeds also "
        f"the least and the largest of their qualities. {ABSENT} is not measured.",
        f"{DAGGER} Published ({SOURCES['readme']}): the acceptance rate is not defined there, and stands apart from ours. "
        "No draft length, number of examples or interval is given.",
    ]
    said += [text for text in [trainings(asked, cells)] if text]
    if len(own) and doubtful(own, "caption").any():
        said.append(
            "The published caption prints T = 0.1 and a finetuned draft, yet its GSM8K values equal Table 1's at T = 1.0."
        )
    return said


def trainings(asked: Exhibit, cells: pd.DataFrame) -> str:
    """How the heads and the drafts of its rows were trained; "" without one."""
    rows = [
        find(cells, asked, model, task, line)
        for model in pairs_of(asked, cells)
        for task in asked.tasks
        for line in lines_of(asked)
        if line.rule in (LEARNED, FINETUNED)
    ]
    parts = {
        f"{'head' if row['verifier'] == LEARNED else 'draft'} of {row['model']} on {row['trained']}: T = {row['trained_at']:g}"
        + (f", {row['loss']}" if row["loss"] else "")
        for row in rows
        if row is not None
    }
    return f"Trained at: {'; '.join(sorted(parts))}." if parts else ""


def to_markdown(asked: Exhibit, measured: Sequence[Entry], published: Sequence[Entry]) -> str:
    """Two tables: ours with a column a measure and task, theirs with two a task."""
    ours = [
        name for task in asked.tasks for name in (f"{TITLES[task][0]} {HEAD[0]}", *HEAD[1:], TITLES[task][1], CHANGE)
    ]
    theirs = [name for task in asked.tasks for name in (f"{TITLES[task][0]} rate{DAGGER}", TITLES[task][1])]
    parts = [_grid(["pair", "measured here", *ours], measured, lambda cell: list(cell))]
    parts.append(_grid(["pair", "published", *theirs], published, lambda cell: [cell[0], cell[QUALITY]]))
    return "\n".join(parts)


def _grid(head: list[str], lines: Sequence[Entry], pick: Callable[[tuple[str, ...]], list[str]]) -> str:
    rows = [[line.pair, line.rule, *(text for cell in line.cells for text in pick(cell))] for line in lines]
    return markdown(head, rows, num_left=2)


def to_latex(asked: Exhibit, measured: Sequence[Entry], published: Sequence[Entry]) -> str:
    """One booktabs tabular; a published rate spans both of our columns, since nobody knows which of them it is."""
    each = len(MEASURES)
    width = 2 + each * len(asked.tasks)
    titles = [rf"\multicolumn{{{each}}}{{c}}{{{TITLES[task][0]}}}" for task in asked.tasks]
    rules = " ".join(rf"\cmidrule(lr){{{3 + each * i}-{2 + each * (i + 1)}}}" for i in range(len(asked.tasks)))
    names = [name for task in asked.tasks for name in (*HEAD, TITLES[task][1], CHANGE)]
    head = [tex_line(["", "", *titles]), rules, tex_line(["pair", "rule", *names])]
    lines: list[str] = []
    for title, part in (("Measured by sdbench", measured), ("Published, acceptance not defined", published)):
        lines += [r"\midrule", rf"\multicolumn{{{width}}}{{l}}{{\textit{{{title}}}}} \\"]
        lines += [_latex_row(line, part[i - 1].pair if i else "") for i, line in enumerate(part)]
    return "% needs \\usepackage{booktabs}\n" + booktabs("ll" + "r" * each * len(asked.tasks), head, lines)


def _latex_row(line: Entry, above: str) -> str:
    cells = [
        text
        for cell in line.cells
        for text in (
            (rf"\multicolumn{{2}}{{c}}{{{escaped(cell[0])}}}", *map(escaped, cell[2:]))
            if line.is_published
            else map(escaped, cell)
        )
    ]
    start = r"\addlinespace" + "\n" if above and line.pair != above else ""
    return start + tex_line([escaped(line.pair) if line.pair != above else "", escaped(line.rule), *cells])


def long_form(asked: Exhibit, cells: pd.DataFrame) -> pd.DataFrame:
    """Every measured setting of the table's pairs, tasks and temperature with both limits of each interval."""
    own = cells[cells["base"].isin(asked.tasks) & (cells["temperature"] == asked.temperature)]
    own = own[own["num_draft"].isin([0, *asked.num_drafts])]
    return own.drop(columns=["base"]).reset_index(drop=True)
