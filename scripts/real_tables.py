"""results/real: the tables and figures of real pairs, from the records of their runs.

    python scripts/real_tables.py FOLDER [FOLDER …] [out=results/real] [add=false]
    python scripts/real_tables.py [out=results/real]               # rewrites README.md from the committed tables

A FOLDER holds the records of one pair and task, of one or several of `experiment=real-…`, finished or not. `out` gets folders
called [MODEL-]TASK[-FORM][-T1][-PART] (real_parts.py): the sweep of w, and as parts `rules`, `lengths`, `drafters`, `prices` and,
of records called …-latency, `latency`. Files are
summary.csv (a row per cell), metrics.csv (every score), scores.parquet (scores and counts by an example's row in the data set, no
text) and, at T = 0, equal_texts.csv; for drafters also drafters.csv, if the run noted shared tokens or counts; for a sweep of w
also decisions.csv (what to ship at margins of 5 and 2 points) and the plane of acceptance and quality. With add=true, rows of
cells that the records do not hold stay in the part. README.md has a row for each sweep and for each other setting, tasks.svg a
panel per sweep, and ranks.svg the order of drafters under each rule.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import pandas as pd
from matplotlib.figure import Figure

import sdbench
from scripts.drafter_tables import add_prices, draw_ranks, orders_of
from scripts.real_parts import NUM_DRAFT, OF_DRAFTERS, RealFolder, divide, own_draft
from scripts.zoo_tables import remove_prints
from sdbench.metrics.columns import estimate_of, spread
from sdbench.metrics.export import metrics_of, metrics_table, write_scores
from sdbench.metrics.markup import markdown
from sdbench.metrics.recommend import Advice, decide, fastest
from sdbench.metrics.stats import Estimate
from sdbench.metrics.summary import summarise
from sdbench.metrics.text import format_interval, setting_of
from sdbench.metrics.weigh import Weighed, weigh_sweeps
from sdbench.records import Results
from sdbench.report.figures.planes import pareto
from sdbench.report.figures.style import BASELINES, BLUE, GREY, PAGE, SMALL, house_style, panels, save
from sdbench.report.sweep import sweeps_of
from sdbench.words import exit_on_mistake, parse_words

MARGINS = (5.0, 2.0)
MARKER = "<!-- written by `python scripts/real_tables.py` from here on -->"
HEAD = (
    "task",
    "n",
    "target alone",
    "draft alone",
    "lossless acceptance",
    "w = 0.7",
    *(f"safe within {m:g} points" for m in MARGINS),
)
HEAD_OF_SETTINGS = ("task", "setting", "n", "acceptance", "drafted per round", "tokens per round", "quality", "loss")
HEAD_OF_PRICES = ("task", "drafter", "texts", "tokens per round", "price of a drafted token", "speed-up", "modelled")
HEAD_OF_LATENCY = ("task", "setting", "texts", "tokens per round", "speed-up", "with the prompt", "an answer")
OF_CELLS = ("summary.csv", "metrics.csv", "scores.parquet")
SHARED, COUNTED = ("shared_tokens", "target_tokens"), ("blocks", "offered", "lost", "text_s")  # of drafters.csv
HEADINGS = {
    "rules": "Other rules",
    "lengths": "Draft lengths",
    "drafters": "Drafters",
    "prices": "Prices of drafters",
    "latency": "Latency at batch 1",
}
BASELINE_NAMES = {
    "target": "target alone",
    "generate": "transformers' generate",
    "assisted": "transformers' assisted generate",
}

PRICES = """\
Losslessly, at batch 1. The price is the median time of a drafted token over that of a target call on one token; the speed-up
is tokens per second of decoding over those of the target alone in the same pass; modelled: from the prices of calls, and from
what was drafted and kept.

"""
LATENCY = """\
One text at a time, all settings in turn in one pass. The speed-up is tokens per second of decoding over those of the target
alone, by this engine or by transformers, whichever is faster; with the prompt: of whole answers, prompts included; an answer:
the typical ratio of the times in which one answer is decoded, which settings may make longer or shorter.

"""


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


def facts_of_drafters(results: Results) -> pd.DataFrame:
    """Return a row a drafter of which jobs noted tokens in common with the draft, or counts, which are summed over jobs: what an
    interrupted job decoded in vain is among them.
    """
    rows: dict[str, dict[str, float]] = {}
    for provenance in results.provenance.values():
        for entry in provenance.get("drafters", []):
            row = rows.setdefault(entry["name"], {})
            row |= {name: entry[name] for name in SHARED if name in entry}
            counts = {name: count for name, count in entry.get("counts", {}).items() if name in COUNTED}
            row |= {name: row.get(name, 0) + count for name, count in counts.items()}
    facts = [{"drafter": name, **row} for name, row in sorted(rows.items()) if row]
    return pd.DataFrame(facts).reindex(columns=["drafter", *SHARED, *COUNTED])


def write(run: Path, out: Path, *, is_added: bool = False) -> None:
    """Write the tables and figures of a run's records, part by part."""
    for place, results in divide(sdbench.read(run)):
        folder = out / place.name
        if is_added and not place.part:
            raise ValueError(f"add=true cannot join {place.name}: settings to ship are chosen among those of one run")
        held = {path: read_table(path) for name in OF_CELLS if (path := folder / name).exists() and is_added}
        write_part(place, results, folder)
        for path, rows in held.items():
            write_table(path, join(rows, read_table(path)))


def read_table(path: Path) -> pd.DataFrame:
    return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)


def write_table(path: Path, rows: pd.DataFrame) -> None:
    if path.suffix == ".parquet":
        rows.to_parquet(path, index=False, compression="zstd")
    else:
        rows.to_csv(path, index=False, float_format="%.6g")


def join(held: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of both; of a cell that is in both, the new ones."""
    return pd.concat([held[~held["cell"].isin(new["cell"])], new])


def write_part(place: RealFolder, results: Results, folder: Path) -> None:
    """Write one folder of results/real."""
    summary = summarise(results)
    folder.mkdir(parents=True, exist_ok=True)
    if place.part in OF_DRAFTERS and (own := own_draft(results)):
        summary["drafter"] = summary["drafter"].replace("model", own)
    if place.part == "prices":
        add_prices(summary, results)
    summary.to_csv(folder / "summary.csv", index=False, float_format="%.6g")
    write_scores(folder / "scores.parquet", results)
    scores = metrics_table(results, metrics_of(results))
    scores[["cell", "metric", "value", "low", "high", "n"]].to_csv(
        folder / "metrics.csv", index=False, float_format="%.6g"
    )
    (sweep,) = sweeps_of([results], [summary])
    if sweep.equal_texts:
        pd.DataFrame(map(asdict, sweep.equal_texts)).to_csv(folder / "equal_texts.csv", index=False)
    facts = facts_of_drafters(results)
    if place.part == "drafters" and len(facts):
        facts.to_csv(folder / "drafters.csv", index=False, float_format="%.6g")
    if place.part:
        return
    (weighed,) = weigh_sweeps(results)
    rows = [decision(weighed, decide(weighed, margin), summary) for margin in MARGINS]
    pd.DataFrame(rows).to_csv(folder / "decisions.csv", index=False, float_format="%.4g")
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
    return [RealFolder.of(folder.name).title, str(int(summary["n"].max())), *shown, *answers]


def rows_of_settings(folder: Path) -> list[list[str]]:
    """Return a row of README.md for each setting that drafts; the loss is against lossless decoding that drafts alike."""
    summary, place = pd.read_csv(folder / "summary.csv"), RealFolder.of(folder.name)
    points = 100 if summary["quality"].max() <= 1 else 1
    lines = []
    for row in summary[summary["num_draft"] > 0].to_dict("records"):
        words = [row["verifier"], setting_of(row)]
        words += [f"K={row['num_draft']:g}"] if place.part == "lengths" else []
        words += [row["drafter"]] if place.part == "drafters" else []
        change = estimate_of(row, "difference")
        loss = Estimate(-change.value, -change.high, -change.low, change.n)
        measures = (("acceptance", 3), ("drafted_per_round", 2), ("tokens_per_round", 2))
        shown = [format_interval(estimate_of(row, name), digits) or "–" for name, digits in measures]
        shown += [format_interval(estimate_of(row, "quality"), 1, scale=points) or "–"]
        shown += [format_interval(loss, 1, scale=points) or "–"]
        lines.append([place.title, " ".join(filter(None, words)), f"{row['n']:g}", *shown])
    return lines


def rows_of_prices(folder: Path) -> list[list[str]]:
    """Return a row of README.md for each drafter that was timed, losslessly, the fastest first."""
    summary, place = pd.read_csv(folder / "summary.csv"), RealFolder.of(folder.name)
    summary = summary[summary["verifier"] == "lossless"].sort_values("speedup", ascending=False)
    lines = []
    for row in summary.to_dict("records"):
        measures = ("tokens_per_round", "speedup", "speedup_modelled")
        tokens, clock, model = (format_interval(estimate_of(row, name), 2) or "–" for name in measures)
        price = f"{row['draft_price']:.1%} of a target call"
        lines.append([place.title, row["drafter"], f"{row['num_timed']:g}", tokens, price, clock, model])
    return lines


def rows_of_latency(folder: Path) -> list[list[str]]:
    """Return a row of README.md for each setting that was timed, by draft length."""
    summary, place = pd.read_csv(folder / "summary.csv"), RealFolder.of(folder.name)
    summary = summary[summary["num_timed"].notna()].fillna({"num_draft": 0}).sort_values("num_draft", kind="stable")
    lines = []
    for row in summary.to_dict("records"):
        words = [row["verifier"], setting_of(row), f"K={row['num_draft']:g}"]
        name = BASELINE_NAMES.get(str(row["verifier"])) or " ".join(filter(None, words))
        measures = ("tokens_per_round", "speedup", "speedup_end_to_end", "time_ratio")
        tokens, *times = (format_interval(estimate_of(row, measure), 2) or "–" for measure in measures)
        tokens = tokens if row["num_draft"] else "–"
        lines.append([place.title, name, f"{row['num_timed']:g}", tokens, *times])
    return lines


TABLES = {"prices": (rows_of_prices, HEAD_OF_PRICES), "latency": (rows_of_latency, HEAD_OF_LATENCY)}


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
        axis.set(title=RealFolder.of(folder.name).title, xlabel="acceptance", ylabel="points against lossless")
    for axis in axes[len(folders) :]:
        axis.set_visible(False)
    return figure


def redraw(out: Path) -> None:
    """Write the tables of README.md and the figure of all sweeps of w from the committed files."""
    folders = [path.parent for path in out.glob("*/summary.csv")]
    folders.sort(key=lambda folder: RealFolder.of(folder.name).place)
    parts = {part: [path for path in folders if RealFolder.of(path.name).part == part] for part in ("", *HEADINGS)}
    if parts[""]:
        with house_style():
            save(draw_tasks(parts[""]), out, "tasks")
        remove_prints(out)
    ranks = ""
    if parts["drafters"]:
        titles = {path: RealFolder.of(path.name).title for path in parts["drafters"]}
        summary = pd.concat(pd.read_csv(path / "summary.csv").assign(task=title) for path, title in titles.items())
        summary = summary[summary["drafter"].notna()]
        with house_style():
            save(draw_ranks(summary), out, "ranks")
        remove_prints(out)
        ranks = f"![Drafters under a lossless and two lenient rules](ranks.svg)\n\n{orders_of(summary)}\n\n"
    tables = []
    for heading, is_sampled in (("T = 0", False), ("T = 1", True)):
        chosen = [path for path in parts[""] if bool(RealFolder.of(path.name).temperature) == is_sampled]
        tables += [(heading, markdown(HEAD, [row_of(path) for path in chosen], num_left=1))] if chosen else []
    for part, heading in HEADINGS.items():
        shown, head = TABLES.get(part, (rows_of_settings, HEAD_OF_SETTINGS))
        rows = [row for path in parts[part] for row in shown(path)]
        table = markdown(head, rows, num_left=2)
        before = {"drafters": ranks, "prices": PRICES, "latency": LATENCY}.get(part, "")
        tables += [(heading, before + table)] if rows else []
    readme = out / "README.md"
    above = readme.read_text().partition(MARKER)[0] if readme.exists() else "# Real pairs\n\n"
    readme.write_text(f"{above}{MARKER}\n\n" + "\n".join(f"## {heading}\n\n{table}" for heading, table in tables))


def main(words: Sequence[str]) -> int:
    with exit_on_mistake("real_tables", __doc__, words):
        given = parse_words(words, {"out": "results/real", "add": "false"})
        if (add := given.options.get("add", "false")) not in ("true", "false"):
            raise ValueError(f"add must be true or false, got {add}")
        out = Path(given.options.get("out", "results/real"))
        out.mkdir(parents=True, exist_ok=True)
        for run in map(Path, given.paths):
            write(run, out, is_added=add == "true")
    redraw(out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
