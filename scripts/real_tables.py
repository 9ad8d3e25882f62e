"""results/real: the tables and figures of real pairs, from the records of their runs.

    python scripts/real_tables.py FOLDER [FOLDER …] [out=results/real]
    python scripts/real_tables.py [out=results/real]               # README.md again, from the committed tables

A FOLDER holds the records of one of `experiment=real-…`, finished or not. `out` gets a folder for each with summary.csv (a row a
cell), metrics.csv (every score), scores.parquet (scores and counts of each example by its row in the data set; no text),
decisions.csv (what to ship at margins of 5 and 2 points), equal_texts.csv and the plane of acceptance and quality. Folders are
called after the task, with -T and the temperature where it is above 0. README.md shows a row each, and tasks.svg a panel each.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import pandas as pd
from matplotlib.figure import Figure

import sdbench
from scripts.zoo_tables import remove_prints
from sdbench.metrics.columns import estimate_of, spread
from sdbench.metrics.export import metrics_of, metrics_table, write_scores
from sdbench.metrics.markup import markdown
from sdbench.metrics.recommend import Advice, decide, fastest
from sdbench.metrics.summary import summarise
from sdbench.metrics.text import format_interval
from sdbench.metrics.weigh import Weighed, weigh_sweeps
from sdbench.report.figures.planes import pareto
from sdbench.report.figures.style import BASELINES, BLUE, GREY, PAGE, SMALL, house_style, panels, save
from sdbench.report.sweep import sweeps_of
from sdbench.words import exit_on_mistake, parse_words

MARGINS = (5.0, 2.0)
MARKER = "<!-- made by scripts/real_tables.py from here on -->"
ORDER = ("humaneval", "mbpp", "gsm8k", "wmt", "xsum", "cnndm")
NUM_DRAFT = 5
HEAD = (
    "task",
    "n",
    "target alone",
    "draft alone",
    "lossless acceptance",
    "w = 0.7",
    *(f"safe within {m:g} points" for m in MARGINS),
)


def decision(weighed: Weighed, advice: Advice, summary: pd.DataFrame) -> dict[str, object]:
    """Return a row of decisions.csv: the setting that is safe and fastest, by the clock or else by the model, and what it costs."""
    safe = [test for test in advice.tests if test.is_safe(advice.margin)]
    best = next((test for test in safe if test.cell == advice.cell), None) or fastest(weighed, safe)
    row: dict[str, object] = {"margin": advice.margin, "kind": advice.kind, "text": advice.text}
    if best is None:
        return row
    cell = summary.set_index("cell").loc[best.cell]
    gain = weighed.gains.get(best.cell)
    sooner = None if gain is None else gain.sooner
    row |= {
        "setting": weighed.names[best.cell],
        "acceptance": cell["acceptance"],
        "change": best.change,
        "worst": best.worst,
    }
    row |= {"is_timed": gain is not None, "n": best.difference.n}
    if sooner is not None:
        row |= {**spread("sooner", sooner), "num_timed": sooner.n}
    return row


def write(run: Path, out: Path) -> None:
    """Write the tables and figures of a run's records."""
    results = sdbench.read(run)
    summary = summarise(results)
    task, temperature = summary["task"].iloc[0], summary["temperature"].max()
    folder = out / (f"{task}-T{temperature:g}" if temperature > 0 else str(task))
    folder.mkdir(parents=True, exist_ok=True)
    summary.to_csv(folder / "summary.csv", index=False, float_format="%.6g")
    write_scores(folder / "scores.parquet", results)
    scores = metrics_table(results, metrics_of(results))
    scores[["cell", "metric", "value", "low", "high", "n"]].to_csv(
        folder / "metrics.csv", index=False, float_format="%.6g"
    )
    (weighed,) = weigh_sweeps(results)
    rows = [decision(weighed, decide(weighed, margin), summary) for margin in MARGINS]
    pd.DataFrame(rows).to_csv(folder / "decisions.csv", index=False, float_format="%.4g")
    (sweep,) = sweeps_of([results], [summary])
    pd.DataFrame(map(asdict, sweep.equal_texts)).to_csv(folder / "equal_texts.csv", index=False)
    with house_style():
        figure = pareto(sweep)
        if figure is not None:
            save(figure, folder, "pareto")
    remove_prints(folder)


def row_of(folder: Path) -> list[str]:
    """Return the row of a task in README.md's table."""
    summary, decisions = pd.read_csv(folder / "summary.csv"), pd.read_csv(folder / "decisions.csv")
    points = 100 if summary["quality"].max() <= 1 else 1
    is_weight = (summary["verifier"] == "ensemble") & (summary["w"] == 0.7)
    shown = [
        "; ".join(format_interval(estimate_of(row, column), digits, scale=scale) for row in rows.to_dict("records"))
        or "–"
        for rows, column, digits, scale in (
            (summary[summary["verifier"] == "target"], "quality", 1, points),
            (summary[summary["verifier"] == "draft"], "quality", 1, points),
            (summary[summary["verifier"] == "lossless"], "acceptance", 3, 1),
            (summary[is_weight], "acceptance", 3, 1),
        )
    ]
    answers = []
    for row in decisions.to_dict("records"):
        if pd.isna(row.get("setting")):
            answers.append("none shown to be safe")
            continue
        sooner = format_interval(estimate_of(row, "sooner"), 2)
        time = f"an answer {sooner} × sooner" if sooner else "not timed"
        answers.append(f"{row['setting']}: {row['change']:+.1f} (at worst {row['worst']:.1f}), {time}")
    return [title_of(folder), str(int(summary["n"].max())), *shown, *answers]


def draw_tasks(folders: Sequence[Path]) -> Figure:
    """Draw a panel a task: how the score of each w differs from lossless decoding, against acceptance."""
    columns = min(3, len(folders))
    figure, axes = panels(columns, -(-len(folders) // columns), width=PAGE, height=2.2)
    for axis, folder in zip(axes, folders, strict=False):
        summary = pd.read_csv(folder / "summary.csv")
        points = 100 if summary["quality"].max() <= 1 else 1
        swept = summary[(summary["verifier"] == "ensemble") & (summary["num_draft"] == NUM_DRAFT)].sort_values(
            "acceptance"
        )
        lossless = summary[(summary["verifier"] == "lossless") & (summary["num_draft"] == NUM_DRAFT)]
        change, low, high = (points * swept[f"difference{end}"] for end in ("", "_low", "_high"))
        axis.errorbar(swept["acceptance"], change, [change - low, high - change], color=BLUE, marker="o", markersize=3)
        for number, (x, y, w) in enumerate(zip(swept["acceptance"], change, swept["w"], strict=True)):
            axis.annotate(f"{w:g}", (x, y), (3, -9 if number % 2 else 3), textcoords="offset points", fontsize=SMALL)
        mark, colour = BASELINES["lossless"]
        axis.plot(lossless["acceptance"], [0], mark, color=colour, markersize=4)
        axis.axhline(0, color=GREY, linewidth=0.6)
        axis.set(title=title_of(folder), xlabel="acceptance", ylabel="points against lossless")
    for axis in axes[len(folders) :]:
        axis.set_visible(False)
    return figure


def title_of(folder: Path) -> str:
    """Return the task of a folder, with its temperature where that is above 0."""
    task, _, temperature = folder.name.partition("-T")
    return f"{task}, T = {temperature}" if temperature else task


def redraw(out: Path) -> None:
    """Write the table of README.md and the figure of all tasks from the committed files."""
    folders = sorted(
        (path.parent for path in out.glob("*/decisions.csv")),
        key=lambda folder: ("-T" in folder.name, ORDER.index(folder.name.partition("-T")[0])),
    )
    with house_style():
        save(draw_tasks(folders), out, "tasks")
    remove_prints(out)
    rows = [row_of(folder) for folder in folders]
    readme = out / "README.md"
    above = readme.read_text().partition(MARKER)[0] if readme.exists() else "# Real pairs\n\n"
    readme.write_text(f"{above}{MARKER}\n\n{markdown(HEAD, rows, num_left=1)}")


def main(words: Sequence[str]) -> int:
    with exit_on_mistake("real_tables", __doc__, words):
        given = parse_words(words, {"out": "results/real"})
    out = Path(given.options.get("out", "results/real"))
    out.mkdir(parents=True, exist_ok=True)
    for run in map(Path, given.paths):
        write(run, out)
    redraw(out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
