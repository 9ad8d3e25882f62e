"""The paper's figures, as far as records exist: measured points with intervals, published ones hollow, with no lines between them.

A panel without records says so and names the command that would create them. All numbers are in points of 100.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scripts.paper.cells import (
    FINETUNED,
    LEARNED,
    LENGTHS,
    SEED,
    TEXTS,
    TITLES,
    WS,
    Exhibit,
    ExhibitRow,
    command_of,
    find,
    pairs_of,
    rows_of,
    task_of,
)
from scripts.paper.numbers import doubtful
from scripts.paper.tables import published_of
from sdbench.metrics.columns import WEIGHT
from sdbench.report.figures.marks import bars
from sdbench.report.figures.style import BLUE, GREEN, GREY, INK, ORANGE, PAGE, PURPLE, RED, SKY, panels

SOURCE_COLOURS = {"readme": PURPLE, "logs": GREEN, "issue": ORANGE, "digest": SKY}
METHOD_MARKS = {"sd": "D", "sd-finetuned": "s", "static": "o", "diversed": "*", "target": "_", "draft": "v"}
HEAD = "head trained on "
BARS = {"linewidth": 0.8, "alpha": 0.55}
RAMP = {None: INK, 0.9: "#08306b", 0.7: "#2171b5", 0.5: "#4a98c9", 0.3: "#94c4df"}
TRAINED = {  # the shapes of the published marks, but filled
    LEARNED: (METHOD_MARKS["diversed"], RED, "learned head"),
    FINETUNED: (METHOD_MARKS["sd-finetuned"], GREEN, "lossless, finetuned draft"),
}
HEAD_COLOURS = {None: RED, "gsm8k": RED, "cnndm": "#7f2f00"}  # a head's colour, by the task it was trained on
MEASURED: str = TEXTS["legends"]["measured"]
HEIGHT = 1.95
TITLE_PAD = 9  # points: room for a command below a title
Configs = Mapping[str, Mapping[str, Any]]  # pair -> its configuration, which names a pair without a file
WIDTHS = {"panel": 34, "legend": 120}  # characters per line of a command
ACROSS = {  # labels of measures; the label of quality depends on the task
    "acceptance": "acceptance, %",
    "block_acceptance": "block acceptance, %",
    "tokens_per_round": "tokens a round",
    "quality": "",
}


def curve(exhibit: Exhibit, cells: pd.DataFrame, published: pd.DataFrame, configs: Configs) -> Figure:
    """Draw quality against acceptance, with a row per pair and a column per task; published points are in their pair's panel."""
    pairs, cells = pairs_of(exhibit, cells), in_percent(cells)
    figure, axes = panels(len(exhibit.tasks), len(pairs), width=PAGE, height=HEIGHT)
    table = published_of(exhibit, published)
    for axis, (model, task) in zip(axes, [(model, task) for model in pairs for task in exhibit.tasks], strict=True):
        sweep, name = sweep_over_w(cells, exhibit, model, task), task_of(cells, model, task)
        axis.set_title(f"{model}, {name}", pad=TITLE_PAD)
        draw_plane(axis, cells, exhibit, model, task)
        draw_published(axis, table[(table["model"] == model) & (table["task"] == task)], "acceptance", "quality")
        if sweep.empty:
            write_missing(axis, command_of(exhibit, model, name, configs.get(model, {})))
        axis.set(xlabel="acceptance, %" if model == pairs[-1] else "", ylabel=TITLES[task][1])
        widen(axis, least_x=30)
    text = f"T = {exhibit.temperature:g}, {exhibit.num_drafts[0]} drafted tokens a round. {MEASURED}"
    legend(figure, axes, [text], table)
    return figure


def sweep_over_w(cells: pd.DataFrame, exhibit: Exhibit, model: str, task: str) -> pd.DataFrame:
    """Return the static ensemble's cells of a panel along w."""
    cells = cells[(cells["model"] == model) & (cells["base"] == task) & (cells["verifier"] == "ensemble")]
    cells = cells[(cells["temperature"] == exhibit.temperature) & cells["num_draft"].isin(exhibit.num_drafts)]
    return cells.sort_values(["num_draft", WEIGHT])


def draw_plane(axis: Axes, cells: pd.DataFrame, exhibit: Exhibit, model: str, task: str) -> None:
    """Draw our curve with intervals, including lossless, the trained settings, and the models alone as horizontal lines."""
    x, y = "acceptance", "quality"
    sweep = sweep_over_w(cells, exhibit, model, task)
    lossless = find(cells, exhibit, model, task, ExhibitRow("lossless", None, exhibit.num_drafts[0]))
    bars(axis, sweep, x, y, BLUE, **BARS)
    if len(sweep):
        ends = [] if lossless is None or (sweep[WEIGHT] == 1).any() else [lossless.to_frame().T]
        line = pd.concat([sweep, *ends])  # the lossless end of the ensemble
        axis.plot(line[x].astype(float), line[y].astype(float), "-", color=BLUE, zorder=3)
        axis.plot(sweep[x], sweep[y], "o", color=BLUE, label="static ensemble", zorder=3)
    for index, (w, *at) in enumerate(sweep[[WEIGHT, x, y]].itertuples(index=False)):
        if w != 1 or lossless is None:
            name = f"{w:g}" if index else f"w = {w:g}"
            axis.annotate(name, (at[0], at[1]), (3, 4), textcoords="offset points", color=BLUE, size=5.5)
    if lossless is not None:
        draw_row(axis, lossless, x, y, INK, "D", "lossless")
    for row in rows_of(exhibit):
        cell = find(cells, exhibit, model, task, row) if row.rule in TRAINED else None
        if cell is not None:
            mark, colour, name = TRAINED[row.rule]
            colour = HEAD_COLOURS[row.trained] if row.rule == LEARNED else colour
            draw_row(axis, cell, x, y, colour, mark, f"{name}, trained on {row.trained}" if row.trained else name)
    for name, style in (("target", "--"), ("draft", ":")):
        alone = find(cells, exhibit, model, task, ExhibitRow(name, None, 0))
        if alone is not None:
            look: dict[str, Any] = {"color": GREY, "linewidth": 0.8, "linestyle": style, "zorder": 1}
            axis.axhline(float(alone[y]), label=f"{name} alone", **look)  # a model alone has no acceptance


def draft_length(cells: pd.DataFrame, published: pd.DataFrame, configs: Configs) -> Figure:
    """Draw acceptance per examined position and per drafted token, tokens per round, and quality against the draft length."""
    pairs, cells = pairs_of(LENGTHS, cells), in_percent(cells)
    measured = {(model, task): measured_lengths(cells, model, task) for model in pairs for task in LENGTHS.tasks}
    measured = {slot: frame for slot, frame in measured.items() if len(frame)}
    figure, axes = panels(len(ACROSS), len(measured) + 1, width=PAGE, height=1.45)
    rows = [axes[start : start + len(ACROSS)] for start in range(0, len(axes), len(ACROSS))]
    for row, ((model, task), frame) in zip(rows, measured.items(), strict=False):
        for axis, name in zip(row, ACROSS, strict=True):
            draw_against_length(axis, frame, name)
            axis.set_ylabel(ACROSS[name] or TITLES[task][1])
        row[0].set_title(f"{model}, {task_of(cells, model, task)}", pad=TITLE_PAD)
    logs = draw_logs(rows[-1], published)
    empty = [model for model in pairs if model not in {model for model, _ in measured}]
    tasks = {model: ",".join(task_of(cells, model, task) for task in LENGTHS.tasks) for model in empty}
    commands = [command_of(LENGTHS, model, tasks[model], configs.get(model, {})) for model in empty]
    missing = [wrap(f"Not measured: {command}", WIDTHS["legend"]) for command in commands]
    text = [f"T = {LENGTHS.temperature:g}. {MEASURED}", *missing]
    legend(figure, axes, text, logs)
    return figure


def measured_lengths(cells: pd.DataFrame, model: str, task: str) -> pd.DataFrame:
    """Return a pair's cells of a task; none unless a rule was measured at two or more draft lengths."""
    cells = cells[(cells["model"] == model) & (cells["base"] == task) & (cells["temperature"] == LENGTHS.temperature)]
    rules = cells[cells["verifier"].isin(["lossless", "ensemble"])]
    lengths = rules.groupby(["verifier", WEIGHT], dropna=False)["num_draft"].nunique()
    return cells if (lengths > 1).any() else cells.iloc[:0]


def draw_against_length(axis: Axes, cells: pd.DataFrame, name: str) -> None:
    """Draw a measure of a pair and task, with a line per setting: lossless, and each w of the tables."""
    lines = {None: cells[cells["verifier"] == "lossless"]}
    lines |= {w: cells[(cells["verifier"] == "ensemble") & (cells[WEIGHT] == w)] for w in WS}
    for w, line in lines.items():
        if len(line):
            line = line.sort_values("num_draft")
            bars(axis, line, "num_draft", name, RAMP[w], **BARS)
            mark, label = ("D-", "lossless") if w is None else ("o-", f"w = {w:g}")
            axis.plot(line["num_draft"], line[name], mark, color=RAMP[w], markersize=3.5, label=label)
    lengths = sorted(set(cells.loc[cells["num_draft"] > 0, "num_draft"]))
    axis.set(xlabel="tokens drafted", xticks=lengths)


def draw_logs(row: list[Axes], published: pd.DataFrame) -> pd.DataFrame:
    """Draw the published sweep over the draft length: Llama 8B with the 3B draft on CNN/DM, greedy."""
    logs = published[
        (published["source"] == "logs") & (published["model"] == "llama-3b") & (published["task"] == "cnndm")
    ]
    logs = logs[logs["method"] == "sd"]
    row[0].set_title("llama-3b, cnndm, T = 0: published alone", pad=TITLE_PAD)
    for axis, name, label in ((row[0], "acceptance", "rate, undefined, %"), (row[-1], "quality", "ROUGE-2")):
        draw_published(axis, logs, "num_draft", name)
        axis.set(ylabel=label, xlabel="tokens drafted")
    row[0].margins(0.08, 0.12)
    widen(row[-1])
    for axis in row[1:-1]:
        axis.set_axis_off()
    return logs


def seed(cells: pd.DataFrame, published: pd.DataFrame, configs: Configs) -> Figure:
    """Draw CNN/DM at T = 0: acceptance and ROUGE-2 against w, and one against the other, with the published points."""
    pairs, cells, (task,) = pairs_of(SEED, cells), in_percent(cells), SEED.tasks
    figure, axes = panels(3, len(pairs), width=PAGE, height=HEIGHT)
    rows = published[published["source"].isin(["issue", "logs"]) & (published["task"] == task)]
    rows = rows[rows["method"].isin(["sd", "static"]) & rows["num_draft"].isin([5]) | (rows["source"] == "issue")]
    for index, model in enumerate(pairs):
        left, middle, right = axes[3 * index : 3 * index + 3]
        sweep, name = sweep_over_w(cells, SEED, model, task), task_of(cells, model, task)
        theirs = rows[rows["model"] == model]
        left.set_title(f"{model}, {name}", pad=TITLE_PAD)
        for axis, measure in ((left, "acceptance"), (middle, "quality")):
            bars(axis, sweep, WEIGHT, measure, BLUE, **BARS)
            if len(sweep):
                axis.plot(sweep[WEIGHT], sweep[measure], "o-", color=BLUE, zorder=3)
            draw_published(axis, theirs, WEIGHT, measure)
            axis.set(xlabel="w, the weight of the target", xlim=(-0.04, 1.04))
        draw_plane(right, cells, SEED, model, task)
        draw_published(right, theirs, "acceptance", "quality")
        left.set_ylabel("acceptance, %")
        middle.set_ylabel(TITLES[task][1])
        right.set(xlabel="acceptance, %", ylabel=TITLES[task][1])
        widen(middle)
        widen(right)
        if sweep.empty:
            write_missing(left, command_of(SEED, model, name, configs.get(model, {})))
    text = [f"T = 0, 5 drafted tokens a round. {MEASURED}", TEXTS["legends"]["logits"]]
    legend(figure, axes, text, rows)
    return figure


def in_percent(cells: pd.DataFrame) -> pd.DataFrame:
    """Return measured or published rows with their rates in percent, as the figures show them."""
    rates = [name for name in cells if str(name).startswith(("acceptance", "block_acceptance"))]
    return cells.assign(**{str(name): 100 * cells[name] for name in rates})


def write_missing(axis: Axes, command: str) -> None:
    """Write above a panel the command that creates its records; inside the panel it would cover the published points."""
    written = f"not measured: \\\n {wrap(command, WIDTHS['panel'])}"
    axis.set_title(axis.get_title(loc="left"), loc="left", pad=5 + 7.5 * (written.count("\n") + 1))
    look: dict[str, Any] = {"va": "bottom", "color": GREY, "size": 6, "family": "DejaVu Sans Mono"}
    text = axis.text(0, 1.02, written, transform=axis.transAxes, **look)
    text.set_in_layout(False)  # it has room in the title's pad, and its width must not shrink the panels


def wrap(command: str, width: int) -> str:
    """Return a command broken into lines in a form that a shell accepts."""
    return " \\\n ".join(textwrap.wrap(command, width, break_long_words=False, break_on_hyphens=False))


def draw_row(axis: Axes, cell: pd.Series, x: str, y: str, colour: str, mark: str, name: str) -> None:
    """Draw a measured setting: a filled mark with its intervals."""
    bars(axis, cell.to_frame().T.infer_objects(), x, y, colour, **BARS)
    size = 7 if mark == "*" else 4.5
    axis.plot(cell[x], cell[y], mark, color=colour, linestyle="", markersize=size, label=name, zorder=4)


def widen(axis: Axes, *, least_x: float = 0) -> None:
    """Widen an axis to a quarter of the values' size, so that a small difference looks small, but not beyond 0 and 100."""
    if not axis.has_data():
        axis.set(xticks=[], yticks=[])
        return
    low, high = axis.get_ylim()
    room = max(0.25 * (abs(low) + abs(high)) / 2 - (high - low), 0.15 * (high - low)) / 2
    edge = 0.04 * (high - low + 2 * room)  # so that a mark at 0 or 100 is not cut
    axis.set_ylim(max(low - room, -edge), min(high + room, 100 + edge))
    left, right = axis.get_xlim()
    room = max(least_x - (right - left), 0) / 2
    axis.set_xlim(left - room, right + room)


def draw_published(axis: Axes, rows: pd.DataFrame, x: str, y: str) -> None:
    """Draw published points hollow and coloured by source, without broken runs; a source's own sweep over a knob is dotted."""
    rows = in_percent(rows[~doubtful(rows, "broken") & rows[x].notna() & rows[y].notna()])
    for (source, method), part in rows.groupby(["source", "method"], sort=True):
        part = part.sort_values([WEIGHT, x])
        colour, mark = SOURCE_COLOURS[str(source)], METHOD_MARKS[str(method)]
        look: dict[str, Any] = {"marker": mark, "color": colour, "mfc": "none", "linewidth": 0.8, "zorder": 2}
        look |= {"linestyle": ":" if len(part) > 2 else "", "markersize": 6 if mark == "*" else 4.5}
        axis.plot(
            part[x],
            part[y],
            label=f"published: {TEXTS['methods'][str(method)]}, {TEXTS['sources'][str(source)]}",
            **look,
        )
        for at_x, at_y, text in zip(part[x], part[y], part["note"], strict=True):
            if text.startswith(HEAD):
                look = {"textcoords": "offset points", "size": 5.5, "ha": "right", "va": "center", "color": colour}
                axis.annotate(f"head: {text.removeprefix(HEAD)}", (at_x, at_y), (-5, 0), **look)


def legend(figure: Figure, axes: Sequence[Axes], lines: Sequence[str], published: pd.DataFrame) -> None:
    """Write below the panels what is measured, what is published and why they are kept apart; then list each mark once."""
    handles: dict[str, Any] = {}
    for handle, name in (pair for axis in axes for pair in zip(*axis.get_legend_handles_labels(), strict=True)):
        handles.setdefault(name, handle)
    ordered = sorted(handles, key=lambda name: name.startswith("published"))
    text = "\n".join([*lines, *([TEXTS["legends"]["published"].strip()] if len(published) else [])])
    figure.set_layout_engine("constrained")  # leaves room for what is outside the panels
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 0.11 * (text.count("\n") + 1) + 0.13 * -(-len(ordered) // 2))
    look: dict[str, Any] = {"ncols": 2, "fontsize": 6, "title": text, "title_fontsize": 6, "alignment": "left"}
    box = figure.legend([handles[name] for name in ordered], ordered, loc="outside lower left", **look)
    box.get_title().set_color(GREY)
