"""results/real/README.md and its figures, from the committed tables that real_tables.py writes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from scripts.drafter_tables import draw_ranks, orders_of
from scripts.real_parts import MARGINS, NUM_DRAFT, RealFolder
from scripts.zoo_tables import remove_prints
from sdbench.metrics.columns import estimate_of
from sdbench.metrics.markup import markdown
from sdbench.metrics.stats import Estimate, rates_interval
from sdbench.metrics.text import format_interval, setting_of
from sdbench.report.figures.style import BASELINES, BLUE, GREY, PAGE, SMALL, house_style, panels, save

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
HEAD_OF_LATENCY = (
    "task",
    "setting",
    "texts",
    "tokens per round",
    "speed-up",
    "speed-up over lossless",
    "with the prompt",
    "an answer",
    "all answers sooner than lossless",
)
HEADINGS = {
    "rules": "Other rules",
    "packed-rules": "Other rules, with packed weights",
    "learned": "A learned weight",
    "lengths": "Draft lengths",
    "drafters": "Drafters",
    "prices": "Prices of drafters",
    "latency": "Latency at batch 1",
    "assisted": "Lossless decoding and transformers' assisted generate",
    "packed": "Latency at batch 1 with packed weights",
    "float32": "Latency at batch 1 in float32, on a CPU with AVX2 alone",
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
alone, by this engine or by transformers, whichever is faster; speed-up over lossless: the same over those of the fastest lossless
setting of the pass (on WMT the one with K = 1); with the prompt: of whole answers, prompts included; an answer: the typical ratio
of the times in which one answer is decoded, which settings may make longer or shorter; all answers sooner than lossless: the
seconds of all answers, with their prompts, of lossless decoding with as many drafts over those of the setting. Where the text
compares a setting with lossless decoding, "times as fast" is the speed-up over lossless and "times as soon" the last column.

"""
ASSISTED = """\
A pass like those of latency, with columns as above. Both draft with the same model and as many tokens a round, and read the
prompt in their first round. WMT was timed so in its pass of latency, with one draft.

"""
PACKED = """\
A pass like those of latency, with `model.packed=true`: this engine multiplies by packed copies of the weights, transformers by the
weights as they are. Here too, compare assisted generation with the prompt. GSM8K and CNN/DM were timed on another processor than
the other tasks: an AMD EPYC that multiplies bfloat16 by AVX-512, where they had AMX.

"""
FLOAT32 = """\
A pass like those of packed weights (`model.packed=true`), on a processor without instructions for bfloat16, which is an order of
magnitude slower there: an AMD EPYC with AVX2, two threads. It has lossless decoding, both weights and typical acceptance, and
both of transformers' loops, whose weights are not packed, in one pass.

"""
LEARNED = """\
`diversed`: the ensemble whose weight w at a position is read from the target's entropy there, by a head that was trained on
other rows ([wmt-head](wmt-head)); the offset is added to the logit of w.

"""
# Part -> the parts that its sentence about all tasks pools: passes without further options, or with the same ones.
POOLED = {"assisted": ("assisted", "latency"), "packed": ("packed",), "float32": ("float32",)}
BEFORE = {
    "learned": LEARNED,
    "prices": PRICES,
    "latency": LATENCY,
    "assisted": ASSISTED,
    "packed": PACKED,
    "float32": FLOAT32,
}


def row_of(folder: Path) -> list[str]:
    """Return the row of a task in README.md's table; times are from its latency part if that has the setting."""
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
    answers, latencies = [], latencies_of(folder)
    for row in decisions.to_dict("records"):
        if pd.isna(row.get("setting")):
            answers.append("none shown to be safe")
            continue
        sooner = latencies.get(row["setting"]) or format_interval(estimate_of(row, "sooner"), 2)
        time = f"{sooner} × per answer" if sooner else "not timed"
        answers.append(f"{row['setting']}: {row['change']:+.1f} (at worst {row['worst']:.1f}), {time}")
    return [RealFolder.of(folder.name).title, str(int(summary["n"].max())), *shown, *answers]


def rows_of_settings(folder: Path) -> list[list[str]]:
    """Return a row of README.md for each setting that drafts; the loss is relative to lossless decoding with the same drafting."""
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
    """Return a row of README.md for each drafter that was timed with the lossless rule, the fastest first."""
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
        name = BASELINE_NAMES.get(str(row["verifier"])) or timed_name(row)
        measures = ("speedup", "speedup_over_lossless", "speedup_end_to_end", "time_ratio", "sooner")
        speed, over, *times = (format_interval(estimate_of(row, measure), 2) or "–" for measure in measures)
        tokens = format_interval(estimate_of(row, "tokens_per_round"), 2) if row["num_draft"] else ""
        over = over if row["num_draft"] and row["verifier"] != "lossless" else "–"
        lines.append([place.title, name, f"{row['num_timed']:g}", tokens or "–", speed, over, *times])
    return lines


def timed_name(row: Mapping[str, Any]) -> str:
    """Return the name of a setting as in decisions.csv, such as "ensemble w=0.7 K=5"."""
    return " ".join(filter(None, [row["verifier"], setting_of(row), f"K={row['num_draft']:g}"]))


def latencies_of(folder: Path) -> dict[str, str]:
    """Return how much sooner an answer comes with each setting in the task's latency part."""
    path = folder.with_name(f"{folder.name}-latency") / "summary.csv"
    rows = pd.read_csv(path).to_dict("records") if path.exists() else []
    return {timed_name(row): format_interval(estimate_of(row, "sooner"), 2) for row in rows}


TABLES = {
    "prices": (rows_of_prices, HEAD_OF_PRICES),
    "latency": (rows_of_latency, HEAD_OF_LATENCY),
    "assisted": (rows_of_latency, HEAD_OF_LATENCY),
    "packed": (rows_of_latency, HEAD_OF_LATENCY),
    "float32": (rows_of_latency, HEAD_OF_LATENCY),
}


def pooled_over_assisted(folders: Sequence[Path]) -> str:
    """Return a sentence: how much sooner answers of lossless decoding come than those of assisted generate with as many drafts, on
    all tasks together.
    """
    pairs = []
    for folder in folders:
        times = pd.read_csv(folder / "times.csv")
        seconds = times.pivot_table(index=["num_draft", "example"], columns="verifier", values="seconds")
        both = seconds.reindex(columns=["assisted", "lossless"]).dropna()
        pairs += [both] if len(both) else []
    if len(pairs) < 2:
        return ""
    ratio = rates_interval(pd.concat(pairs).to_numpy(dtype="float64"), (1, -1))
    return (
        f"On {len(pairs)} tasks together, {ratio.n} texts, answers of lossless decoding come {format_interval(ratio, 3)} "
        "times as soon as\nthose of assisted `generate`: the seconds of all answers, with their prompts, of the one over those of "
        "the other.\n\n"
    )


def draw_tasks(folders: Sequence[Path]) -> Figure:
    """Draw a panel per task: the difference in score of each w from lossless decoding, against acceptance."""
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
    folders.sort(key=lambda folder: RealFolder.of(folder.name).order)
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
        before = ranks if part == "drafters" else BEFORE.get(part, "")
        timed = [path for pooled in POOLED.get(part, ()) for path in parts[pooled] if (path / "times.csv").exists()]
        before += pooled_over_assisted(timed)
        tables += [(heading, before + table)] if rows else []
    readme = out / "README.md"
    above = readme.read_text().partition(MARKER)[0] if readme.exists() else "# Real pairs\n\n"
    readme.write_text(f"{above}{MARKER}\n\n" + "\n".join(f"## {heading}\n\n{table}" for heading, table in tables))
