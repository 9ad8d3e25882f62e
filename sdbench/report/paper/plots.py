"""The paper's figures as far as our records fill them: our points with intervals, published ones hollow and joined to none of ours.

A panel without records says so and names the command that would fill it. All numbers in points of 100.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sdbench.metrics.columns import WEIGHT
from sdbench.report.figures.marks import bars
from sdbench.report.figures.style import BLUE, GREEN, INK, PAGE, RED, panels
from sdbench.report.paper.cells import (
    FINETUNED,
    LEARNED,
    LENGTHS,
    SEED,
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
from sdbench.report.paper.marks import (
    BARS,
    METHOD_MARKS,
    draw_level,
    draw_published,
    draw_row,
    in_percent,
    legend,
    widen,
    write_missing,
    write_title,
)

RAMP = {None: INK, 0.9: "#08306b", 0.7: "#2171b5", 0.5: "#4a98c9", 0.3: "#94c4df"}
TRAINED = {  # the published marks' shapes, filled
    LEARNED: (METHOD_MARKS["diversed"], RED, "learned head"),
    FINETUNED: (METHOD_MARKS["sd-finetuned"], GREEN, "lossless, finetuned draft"),
}
HEAD_COLOURS = {None: RED, "gsm8k": RED, "cnndm": "#7f2f00"}  # a head's colour, by the task it was trained on
MEASURED = "Filled marks: measured by sdbench, with 95 % intervals by example; acceptance: accepted / examined (block: / drafted)."
HEIGHT = 1.95
ACROSS = {
    "acceptance": "acceptance, %",
    "block_acceptance": "block acceptance, %",
    "tokens_per_round": "tokens a round",
}
ACROSS |= {"quality": ""}  # by task


def curve(exhibit: Exhibit, cells: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """Draw quality against acceptance, a row a pair and a column a task, published points in their own pair's panel."""
    pairs, cells = pairs_of(exhibit, cells), in_percent(cells)
    figure, axes = panels(len(exhibit.tasks), len(pairs), width=PAGE, height=HEIGHT)
    table = published[(published["source"] == "readme") & (published["place"] == exhibit.title)]
    for axis, (model, task) in zip(axes, [(model, task) for model in pairs for task in exhibit.tasks], strict=True):
        sweep, name = sweep_over_w(cells, exhibit, model, task), task_of(cells, model, task)
        write_title(axis, f"{model}, {name}")
        draw_plane(axis, cells, exhibit, model, task)
        draw_published(axis, table[(table["model"] == model) & (table["task"] == task)], "acceptance", "quality")
        if sweep.empty:
            write_missing(axis, command_of(exhibit, model, name, {}))
        axis.set(xlabel="acceptance, %" if model == pairs[-1] else "", ylabel=TITLES[task][1])
        widen(axis, least_x=30)
    legend(
        figure, axes, f"T = {exhibit.temperature:g}, {exhibit.num_drafts[0]} drafted tokens a round. {MEASURED}", table
    )
    return figure


def sweep_over_w(cells: pd.DataFrame, exhibit: Exhibit, model: str, task: str) -> pd.DataFrame:
    """Return the static ensemble's cells of a panel along w."""
    cells = cells[(cells["model"] == model) & (cells["base"] == task) & (cells["verifier"] == "ensemble")]
    cells = cells[(cells["temperature"] == exhibit.temperature) & cells["num_draft"].isin(exhibit.num_drafts)]
    return cells.sort_values(["num_draft", WEIGHT])


def draw_plane(axis: Axes, cells: pd.DataFrame, exhibit: Exhibit, model: str, task: str) -> None:
    """Draw our curve with intervals, lossless on it, what was trained, and the models alone as lines across."""
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
            draw_level(axis, float(alone[y]), f"{name} alone", style)


def draft_length(cells: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """Draw acceptance per examined position and per drafted token, tokens a round and quality against the draft length."""
    pairs, cells = pairs_of(LENGTHS, cells), in_percent(cells)
    measured = {(model, task): measured_lengths(cells, model, task) for model in pairs for task in LENGTHS.tasks}
    measured = {slot: frame for slot, frame in measured.items() if len(frame)}
    figure, axes = panels(len(ACROSS), len(measured) + 1, width=PAGE, height=1.45)
    rows = [axes[start : start + len(ACROSS)] for start in range(0, len(axes), len(ACROSS))]
    for row, ((model, task), frame) in zip(rows, measured.items(), strict=False):
        for axis, name in zip(row, ACROSS, strict=True):
            draw_against_length(axis, frame, name)
            axis.set_ylabel(ACROSS[name] or TITLES[task][1])
        write_title(row[0], f"{model}, {task_of(cells, model, task)}")
    logs = draw_logs(rows[-1], published)
    empty = [model for model in pairs if model not in {model for model, _ in measured}]
    commands = [f"python -m sdbench experiment={LENGTHS.experiment} model={model}" for model in empty]
    text = [f"T = {LENGTHS.temperature:g}. {MEASURED}", *(f"Not measured: {command}" for command in commands)]
    legend(figure, axes, "\n".join(text), logs)
    return figure


def measured_lengths(cells: pd.DataFrame, model: str, task: str) -> pd.DataFrame:
    """Return a pair's cells of a task; none where no rule was measured at two draft lengths or more."""
    cells = cells[(cells["model"] == model) & (cells["base"] == task) & (cells["temperature"] == LENGTHS.temperature)]
    rules = cells[cells["verifier"].isin(["lossless", "ensemble"])]
    lengths = rules.groupby(["verifier", WEIGHT], dropna=False)["num_draft"].nunique()
    return cells if (lengths > 1).any() else cells.iloc[:0]


def draw_against_length(axis: Axes, cells: pd.DataFrame, name: str) -> None:
    """Draw a measure of a pair and task: a line a setting, lossless and the tables' w."""
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
    write_title(row[0], "llama-3b, cnndm, T = 0: published alone")
    for axis, name, label in ((row[0], "acceptance", "rate, undefined, %"), (row[-1], "quality", "ROUGE-2")):
        draw_published(axis, logs, "num_draft", name)
        axis.set(ylabel=label, xlabel="tokens drafted")
    row[0].margins(0.08, 0.12)
    widen(row[-1])
    for axis in row[1:-1]:
        axis.set_axis_off()
    return logs


def seed(cells: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """Draw CNN/DM at T = 0: acceptance and ROUGE-2 against w, and one against the other, beside what was published."""
    pairs, cells, (task,) = pairs_of(SEED, cells), in_percent(cells), SEED.tasks
    figure, axes = panels(3, len(pairs), width=PAGE, height=HEIGHT)
    rows = published[published["source"].isin(["issue", "logs"]) & (published["task"] == task)]
    rows = rows[rows["method"].isin(["sd", "static"]) & rows["num_draft"].isin([5]) | (rows["source"] == "issue")]
    for index, model in enumerate(pairs):
        left, middle, right = axes[3 * index : 3 * index + 3]
        sweep, name = sweep_over_w(cells, SEED, model, task), task_of(cells, model, task)
        theirs = rows[rows["model"] == model]
        write_title(left, f"{model}, {name}")
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
            write_missing(left, command_of(SEED, model, name, {}))
    logit = "Their logs mix logits where the paper, transformers and sdbench mix probabilities."
    legend(figure, axes, f"T = 0, 5 drafted tokens a round. {MEASURED}\n{logit}", rows)
    return figure
