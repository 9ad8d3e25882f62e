"""Tables 1–3 of the paper as we can fill them: rule × task × acceptance and quality, in Markdown, LaTeX and CSV.

Two parts that are never joined: what was measured here, and what was published, whose acceptance rates nobody defines. A
setting without records is a dash; `missing` has the command for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from sdbench.report.paper_cells import TITLES, Asked, find, lines_of, named, pairs_of
from sdbench.report.published import METHODS, SOURCES, doubtful

ABSENT = "–"
RULES = {"target": "target alone", "draft": "draft alone", "lossless": "SD (lossless)"}
HEAD = ("acceptance", "block")
DAGGER = "†"


@dataclass(frozen=True, slots=True)
class Line:
    """One row: its pair, what is in it, and three texts a task (acceptance, block acceptance, quality)."""

    pair: str
    rule: str
    cells: Sequence[tuple[str, str, str]]
    is_published: bool = False


def measured_lines(asked: Asked, cells: pd.DataFrame) -> list[Line]:
    """What we have, pair by pair, after a row that says on how many examples of what; one row for a pair without any."""
    found = []
    for model in pairs_of(asked, cells):
        kept = {line: [find(cells, asked, model, task, line) for task in asked.tasks] for line in lines_of(asked)}
        if all(cell is None for row in kept.values() for cell in row):
            found.append(Line(model, "not measured yet", [(ABSENT, ABSENT, ABSENT)] * len(asked.tasks)))
            continue
        runs = tuple(_run(asked, cells, model, kept, place) for place in range(len(asked.tasks)))
        found.append(Line(model, "task, protocol, n", runs))
        found += [Line(model, rule_name(line[0], line[1]), tuple(map(_texts, row))) for line, row in kept.items()]
    return found


def _run(asked: Asked, cells: pd.DataFrame, model: str, kept: dict, index: int) -> tuple[str, str, str]:
    """Task, protocol and the range of n of a block's column."""
    rows = [row[index] for row in kept.values() if row[index] is not None]
    if not rows:
        return named(cells, model, asked.tasks[index]), "", ABSENT
    sizes = sorted({int(row["n"]) for row in rows})
    return str(rows[0]["task"]), str(rows[0]["protocol"]), "–".join(map(str, dict.fromkeys((sizes[0], sizes[-1]))))


def _texts(cell: pd.Series | None) -> tuple[str, str, str]:
    if cell is None:
        return ABSENT, ABSENT, ABSENT
    return _text(cell, "acceptance", 100), _text(cell, "block_acceptance", 100), _text(cell, "quality", 1)


def _text(cell: pd.Series, name: str, scale: float) -> str:
    """Value ± the longer side of its interval; nothing where a model alone accepts nothing."""
    value, low, high = (scale * float(cell[f"{name}{end}"]) for end in ("", "_low", "_high"))
    if value != value:
        return ""
    return f"{value:.1f}" + (f" ± {max(value - low, high - value):.1f}" if low == low else "")


def rule_name(rule: str, w: float | None) -> str:
    return RULES.get(rule, f"ensemble, w = {w:g}" if w is not None else rule)


def published_lines(asked: Asked, rows: pd.DataFrame) -> list[Line]:
    """The paper's own rows of this table, by pair, method and head."""
    own = rows[(rows["source"] == "readme") & (rows["place"] == asked.title)]
    found = []
    for (model, method), group in own.groupby(["model", "method"], sort=False):
        heads = [""] if method != "diversed" or asked.name != "table3" else list(dict.fromkeys(group["note"]))
        for head in heads:
            part = group[group["note"] == head] if head else group
            texts = tuple(_published(part[part["task"] == task]) for task in asked.tasks)
            found.append(Line(str(model), f"DIVERSED, {head}" if head else METHODS[str(method)], texts, True))
    return found


def _published(row: pd.DataFrame) -> tuple[str, str, str]:
    if row.empty:
        return "", "", ""
    rate, quality = float(row["acceptance"].iloc[0]), float(row["quality"].iloc[0])
    return f"{100 * rate:.1f}{DAGGER}", "", f"{quality:g}"


def notes(asked: Asked, rows: pd.DataFrame) -> list[str]:
    """What a reader must know to read the table."""
    own = rows[(rows["source"] == "readme") & (rows["place"] == asked.title)]
    said = [
        f"Measured at T = {asked.temperature:g} with {asked.num_drafts[0]} drafted tokens a round; w is the weight of the target. "
        "Acceptance: accepted / examined; block: accepted / drafted; quality in points of 100. "
        f"± is the longer side of the 95 % interval by example; {ABSENT} is not measured.",
        f"{DAGGER} Published ({SOURCES['readme']}): the acceptance rate is not defined there, and stands apart from ours. "
        "No draft length, number of examples or interval is given.",
    ]
    if len(own) and doubtful(own, "caption").any():
        said.append(
            "The published caption prints T = 0.1 and a finetuned draft, yet its GSM8K values equal Table 1's at T = 1.0."
        )
    return said


def to_markdown(asked: Asked, measured: Sequence[Line], published: Sequence[Line]) -> str:
    """Two tables: ours with three columns a task, theirs with two."""
    ours = [name for task in asked.tasks for name in (f"{TITLES[task][0]} acceptance", "block", TITLES[task][1])]
    theirs = [name for task in asked.tasks for name in (f"{TITLES[task][0]} rate{DAGGER}", TITLES[task][1])]
    parts = [_grid(["pair", "measured here", *ours], measured, lambda cell: list(cell))]
    parts.append(_grid(["pair", "published", *theirs], published, lambda cell: [cell[0], cell[2]]))
    return "\n".join(parts)


def _grid(head: list[str], lines: Sequence[Line], pick: Callable[[tuple[str, str, str]], list[str]]) -> str:
    rows = [[line.pair, line.rule, *(text for cell in line.cells for text in pick(cell))] for line in lines]
    shown = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    shown.insert(1, "|---|---" + "|---:" * (len(head) - 2) + "|")
    return "\n".join(shown) + "\n"


def to_latex(asked: Asked, measured: Sequence[Line], published: Sequence[Line]) -> str:
    """One booktabs tabular; a published rate spans both of our columns, since nobody knows which of them it is."""
    width = 2 + 3 * len(asked.tasks)
    titles = [rf"\multicolumn{{3}}{{c}}{{{TITLES[task][0]}}}" for task in asked.tasks]
    rules = " ".join(rf"\cmidrule(lr){{{3 + 3 * i}-{5 + 3 * i}}}" for i in range(len(asked.tasks)))
    names = [name for task in asked.tasks for name in (*HEAD, TITLES[task][1])]
    lines = [
        "% needs \\usepackage{booktabs}",
        rf"\begin{{tabular}}{{ll{'rrr' * len(asked.tasks)}}}",
        r"\toprule",
        " & ".join(["", "", *titles]) + r" \\",
        rules,
        " & ".join(["pair", "rule", *names]) + r" \\",
    ]
    for title, part in (("Measured by sdbench", measured), ("Published, acceptance not defined", published)):
        lines += [r"\midrule", rf"\multicolumn{{{width}}}{{l}}{{\textit{{{title}}}}} \\"]
        lines += [_latex_row(line, part[i - 1].pair if i else "") for i, line in enumerate(part)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _latex_row(line: Line, above: str) -> str:
    cells = [
        text
        for cell in line.cells
        for text in ((rf"\multicolumn{{2}}{{c}}{{{cell[0]}}}", cell[2]) if line.is_published else cell)
    ]
    start = r"\addlinespace" + "\n" if above and line.pair != above else ""
    row = " & ".join([line.pair if line.pair != above else "", line.rule, *cells])
    return start + _escaped(row) + r" \\"


def _escaped(text: str) -> str:
    table = {"±": r"$\pm$", "–": "--", DAGGER: r"$^\dagger$", "%": r"\%", "_": r"\_", "#": r"\#"}
    return text.translate(str.maketrans(table))


def long_form(asked: Asked, cells: pd.DataFrame) -> pd.DataFrame:
    """Every measured setting of the table's pairs, tasks and temperature with both limits of each interval."""
    own = cells[cells["base"].isin(asked.tasks) & (cells["temperature"] == asked.temperature)]
    own = own[own["num_draft"].isin([0, *asked.num_drafts])]
    return own.drop(columns=["base"]).reset_index(drop=True)
