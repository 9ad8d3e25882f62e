"""The paper's figures as we can fill them: our points with intervals, published ones hollow, by source, joined to nothing of ours.

A panel without records says so and names the command that would fill it. All numbers in points of 100.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sdbench.metrics.legacy import WEIGHT
from sdbench.report.figures.style import BLUE, GREEN, INK, PAGE, RED, panels
from sdbench.report.paper.cells import (
    FINETUNED,
    LEARNED,
    LENGTHS,
    SEED,
    TITLES,
    WS,
    Exhibit,
    Line,
    command_of,
    find,
    lines_of,
    named,
    pairs_of,
)
from sdbench.report.paper.marks import METHOD_MARKS, bars, legend, level, panel_title, theirs, unfilled, widen

RAMP = {None: INK, 0.9: "#08306b", 0.7: "#2171b5", 0.5: "#4a98c9", 0.3: "#94c4df"}
TRAINED = {  # the published marks' shapes, filled
    LEARNED: (METHOD_MARKS["diversed"], RED, "learned head"),
    FINETUNED: (METHOD_MARKS["sd-finetuned"], GREEN, "lossless, finetuned draft"),
}
HEAD_COLOURS = {None: RED, "gsm8k": RED, "cnndm": "#7f2f00"}  # a head's colour, by the task it was trained on
MEASURED = "Filled marks: measured by sdbench, with 95 % intervals by example; acceptance: accepted / examined (block: / drafted)."
HEIGHT = 1.95


def curve(asked: Exhibit, cells: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """Quality against acceptance, a row a pair and a column a task, published points in their own pair's panel."""
    pairs = pairs_of(asked, cells)
    figure, axes = panels(len(asked.tasks), len(pairs), width=PAGE, height=HEIGHT)
    table = published[(published["source"] == "readme") & (published["place"] == asked.title)]
    places = [(model, task) for model in pairs for task in asked.tasks]
    for axis, (model, task) in zip(axes, places, strict=True):
        own = swept(cells, asked, model, task)
        panel_title(axis, f"{model}, {named(cells, model, task)}")
        plane(axis, cells, own, asked, model, task)
        theirs(axis, table[(table["model"] == model) & (table["task"] == task)], "acceptance", "quality")
        if own.empty:
            unfilled(axis, command_of(asked, model, named(cells, model, task), {}))
        axis.set(xlabel="acceptance, %" if model == pairs[-1] else "", ylabel=TITLES[task][1])
        widen(axis, least_x=30)
    legend(figure, axes, f"T = {asked.temperature:g}, {asked.num_drafts[0]} drafted tokens a round. {MEASURED}", table)
    return figure


def swept(cells: pd.DataFrame, asked: Exhibit, model: str, task: str) -> pd.DataFrame:
    """The static ensemble's cells of one panel along w."""
    own = cells[(cells["model"] == model) & (cells["base"] == task) & (cells["verifier"] == "ensemble")]
    own = own[(own["temperature"] == asked.temperature) & own["num_draft"].isin(asked.num_drafts)]
    return own.sort_values(["num_draft", WEIGHT])


def plane(axis: Axes, cells: pd.DataFrame, own: pd.DataFrame, asked: Exhibit, model: str, task: str) -> None:
    """Our curve with bars both ways, lossless on it, the models alone as lines across."""
    lossless = find(cells, asked, model, task, Line("lossless", None, asked.num_drafts[0]))
    bars(axis, own, "acceptance", "quality", BLUE, x_scale=100)
    if len(own):
        ends = [] if lossless is None or (own[WEIGHT] == 1).any() else [lossless.to_frame().T]
        line = pd.concat([own, *ends])  # the strict end of the ensemble is lossless
        axis.plot(100 * line["acceptance"].astype(float), line["quality"].astype(float), "-", color=BLUE, zorder=3)
        axis.plot(100 * own["acceptance"], own["quality"], "o", color=BLUE, label="static ensemble", zorder=3)
    for place, (w, x, y) in enumerate(own[[WEIGHT, "acceptance", "quality"]].itertuples(index=False)):
        if w != 1 or lossless is None:
            name = f"w = {w:g}" if place == 0 else f"{w:g}"
            axis.annotate(name, (100 * x, y), (3, 4), textcoords="offset points", color=BLUE, size=5.5)
    if lossless is not None:
        bars(axis, lossless.to_frame().T, "acceptance", "quality", INK, x_scale=100)
        at = 100 * lossless["acceptance"], lossless["quality"]
        axis.plot(*at, "D", color=INK, linestyle="", label="lossless", zorder=4)
    for line in lines_of(asked):
        cell = find(cells, asked, model, task, line) if line.rule in TRAINED else None
        if cell is not None:
            mark, colour, name = TRAINED[line.rule]
            colour = HEAD_COLOURS[line.trained] if line.rule == LEARNED else colour
            name += f", trained on {line.trained}" if line.trained else ""
            bars(axis, cell.to_frame().T, "acceptance", "quality", colour, x_scale=100)
            at = 100 * cell["acceptance"], cell["quality"]
            size = 7 if mark == "*" else 4.5
            axis.plot(*at, mark, color=colour, linestyle="", markersize=size, label=name, zorder=4)
    for name, style in (("target", "--"), ("draft", ":")):
        alone = find(cells, asked, model, task, Line(name, None, 0))
        if alone is not None:
            level(axis, float(alone["quality"]), f"{name} alone", style)


def draft_length(cells: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """Acceptance per examined position and per drafted token, tokens a round and quality against the draft length."""
    pairs = pairs_of(LENGTHS, cells)
    rows = [(model, task) for model in pairs for task in LENGTHS.tasks if has_lengths(cells, model, task)]
    empty = [model for model in pairs if model not in {model for model, _ in rows}]
    figure, axes = panels(len(AXES), len(rows) + 1, width=PAGE, height=1.45)
    lines = [axes[start : start + len(AXES)] for start in range(0, len(axes), len(AXES))]
    for row, (model, task) in zip(lines, rows, strict=False):
        for axis, name in zip(row, AXES, strict=True):
            against_length(axis, cells, model, task, name)
        panel_title(row[0], f"{model}, {named(cells, model, task)}")
    logs = logged(lines[-1], published)
    commands = [f"python -m sdbench experiment={LENGTHS.experiment} model={model}" for model in empty]
    text = [f"T = {LENGTHS.temperature:g}. {MEASURED}", *(f"Not measured: {command}" for command in commands)]
    legend(figure, axes, "\n".join(text), logs)
    return figure


def has_lengths(cells: pd.DataFrame, model: str, task: str) -> bool:
    """Whether a rule was measured at two draft lengths or more."""
    own = cells[(cells["model"] == model) & (cells["base"] == task) & (cells["temperature"] == LENGTHS.temperature)]
    own = own[own["verifier"].isin(["lossless", "ensemble"])]
    return bool(len(own)) and bool((own.groupby(["verifier", WEIGHT], dropna=False)["num_draft"].nunique() > 1).any())


AXES = {
    "acceptance": ("acceptance, %", 100),
    "block_acceptance": ("block acceptance, %", 100),
    "tokens_per_round": ("tokens a round", 1),
    "quality": ("", 1),
}


def against_length(axis: Axes, cells: pd.DataFrame, model: str, task: str, name: str) -> None:
    """One measure of one pair and task: a line a setting, lossless and the tables' w, or those that there are."""
    own = cells[(cells["model"] == model) & (cells["base"] == task) & (cells["temperature"] == LENGTHS.temperature)]
    label, scale = AXES[name]
    for w in (None, *WS):
        line = (
            own[own["verifier"] == "lossless"]
            if w is None
            else own[(own["verifier"] == "ensemble") & (own[WEIGHT] == w)]
        )
        if line.empty:
            continue
        line = line.sort_values("num_draft")
        colour = RAMP[w]
        bars(axis, line, "num_draft", name, colour, y_scale=scale)
        mark = "D-" if w is None else "o-"
        said = "lossless" if w is None else f"w = {w:g}"
        axis.plot(line["num_draft"], scale * line[name], mark, color=colour, markersize=3.5, label=said)
    lengths = sorted(set(own.loc[own["num_draft"] > 0, "num_draft"]))
    axis.set(ylabel=label or TITLES[task][1], xlabel="tokens drafted", xticks=lengths)


def logged(row: list[Axes], published: pd.DataFrame) -> pd.DataFrame:
    """The one published sweep over the draft length: Llama 8B with the 3B draft on CNN/DM, greedy."""
    own = published[
        (published["source"] == "logs") & (published["model"] == "llama-3b") & (published["task"] == "cnndm")
    ]
    own = own[own["method"] == "sd"]
    panel_title(row[0], "llama-3b, cnndm, T = 0: published alone")
    theirs(row[0], own, "num_draft", "acceptance")
    theirs(row[-1], own, "num_draft", "quality")
    row[0].set(ylabel="rate, undefined, %", xlabel="tokens drafted")
    row[-1].set(ylabel="ROUGE-2", xlabel="tokens drafted")
    row[0].margins(0.08, 0.12)
    widen(row[-1])
    for axis in row[1:-1]:
        axis.set_axis_off()
    return own


def seed(cells: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """CNN/DM at T = 0: acceptance and ROUGE-2 against w, and one against the other, beside what was published of it."""
    pairs = pairs_of(SEED, cells)
    (task,) = SEED.tasks
    figure, axes = panels(3, len(pairs), width=PAGE, height=HEIGHT)
    rows = published[published["source"].isin(["issue", "logs"]) & (published["task"] == task)]
    rows = rows[rows["method"].isin(["sd", "static"]) & rows["num_draft"].isin([5]) | (rows["source"] == "issue")]
    for place, model in enumerate(pairs):
        left, middle, right = axes[3 * place : 3 * place + 3]
        own, named_task = swept(cells, SEED, model, task), named(cells, model, task)
        panel_title(left, f"{model}, {named_task}")
        for axis, name, scale in ((left, "acceptance", 100), (middle, "quality", 1)):
            bars(axis, own, WEIGHT, name, BLUE, y_scale=scale)
            if len(own):
                axis.plot(own[WEIGHT], scale * own[name], "o-", color=BLUE, zorder=3)
            theirs(axis, rows[rows["model"] == model], WEIGHT, name)
            axis.set(xlabel="w, the weight of the target", xlim=(-0.04, 1.04))
        plane(right, cells, own, SEED, model, task)
        theirs(right, rows[rows["model"] == model], "acceptance", "quality")
        left.set_ylabel("acceptance, %")
        middle.set_ylabel(TITLES[task][1])
        right.set(xlabel="acceptance, %", ylabel=TITLES[task][1])
        widen(middle)
        widen(right)
        if own.empty:
            unfilled(left, command_of(SEED, model, named_task, {}))
    logit = "Their logs mix logits where the paper, transformers and sdbench mix probabilities."
    legend(figure, axes, f"T = 0, 5 drafted tokens a round. {MEASURED}\n{logit}", rows)
    return figure
