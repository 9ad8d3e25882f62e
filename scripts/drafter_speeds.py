"""results/drafters/speeds.md: the price of a draft, and the speed-up of every drafter at several batch sizes.

    python scripts/drafter_speeds.py [batches=1,8,32] [task=gsm8k-tiny] [temperature=0] [n=32] [repeats=2] [records=results]
                                     [out=results/drafters]

At batch 1 a latency pass of `experiment=drafters` with llama-tiny, in the three parts of drafter_tables.py; at larger ones of the
drafters that run with the pair, with the lossless rule alone: steps are captured for each drafter, rule and number of rows. The
target alone is timed in each pass. At larger batches there are at least four batches, for intervals are over batches. Nothing else
may run on the machine. Records stay in `records`: after an interruption the same command continues. `out` gets speeds.csv, a row
for each drafter, rule and batch size; speeds.svg; and speeds.md.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import pandas as pd
from matplotlib.figure import Figure

from scripts.drafter_tables import PARTS, RULES, rows_of, run, shown
from scripts.zoo_tables import remove_prints
from sdbench.metrics.markup import markdown
from sdbench.report.figures.marks import key, legend_below
from sdbench.report.figures.style import CYCLE, MARKS, PAGE, house_style, panels, save, settle
from sdbench.words import exit_on_mistake, parse_words

DEFAULTS = {
    "batches": "1,8,32",
    "task": "gsm8k-tiny",
    "temperature": "0",
    "n": "32",
    "repeats": "2",
    "records": "results",
    "out": "results/drafters",
}
BATCHES = 4  # of texts at each batch size, at least
LOSSLESS = ("model=llama-tiny", "verifier=exact")
MEASURES = ("tokens_per_round", "speedup", "speedup_modelled")
COLUMNS = ["task", "temperature", "batch_size", "drafter", "verifier", "num_timed"]
COLUMNS += [f"{name}{end}" for name in MEASURES for end in ("", "_low", "_high")] + ["draft_ms", "draft_price"]


def draw(table: pd.DataFrame) -> Figure:
    """Draw the speed-up of each drafter: by rule at the smallest batch, and by batch size, if there are several, losslessly."""
    sizes = table["batch_size"].unique()
    parts = [(table[table["batch_size"] == sizes[0]], "verifier", f"batch size {sizes[0]}")]
    if len(sizes) > 1:
        parts += [(table[table["verifier"] == RULES[0]], "batch_size", f"{RULES[0]}, by batch size")]
    figure, axes = panels(len(parts), width=PAGE, height=2.8, sharey=True)
    slots = range(table["drafter"].nunique())
    looks = [(CYCLE[i % len(CYCLE)], MARKS[(i + i // len(CYCLE)) % len(MARKS)]) for i in slots]
    looks_of = dict(zip(dict.fromkeys(table["drafter"]), looks, strict=True))
    for axis, (rows, column, title) in zip(axes, parts, strict=True):
        values = list(dict.fromkeys(rows[column]))
        axis.axhline(1, color="0.5", linewidth=0.8)
        axis.set_title(title)
        axis.set_xticks(range(len(values)), [str(value) for value in values])
        for number, (drafter, own) in enumerate(rows.groupby("drafter", sort=False)):
            colour, mark = looks_of[drafter]
            own = own.set_index(column).reindex(values)
            x = [slot + 0.04 * (number - len(slots) / 2) for slot in range(len(values))]
            axis.plot(x, own["speedup"], f"{mark}-", color=colour, markersize=4, linewidth=1)
            axis.vlines(x, own["speedup_low"], own["speedup_high"], color=colour, linewidth=0.8)
    axes[0].set_ylabel("speed-up over the target alone")
    keys = [key(str(drafter), colour, mark) for drafter, (colour, mark) in looks_of.items()]
    legend_below(figure, keys, -(-len(keys) // 2))
    settle(figure)
    return figure


def line_of(rows: pd.DataFrame, batches: Sequence[int]) -> list[str]:
    """Return the line of one drafter and rule: its tokens per round, then price and speed-up at each batch size."""
    first, rows = rows.iloc[0], rows.set_index("batch_size").reindex(batches)
    prices = ["–" if price != price else f"{price:.0%}" for price in rows["draft_price"]]
    speeds = [shown(row, "speedup", 2) for _, row in rows.iterrows()]
    return [first["drafter"], first["verifier"], shown(first, "tokens_per_round", 2), *prices, *speeds]


def order_of(table: pd.DataFrame) -> list[list[str]]:
    """Return for each rule and batch size the drafters that are surely faster than the target alone, and surely slower."""
    lines = []
    for (rule, size), rows in table.groupby(["verifier", "batch_size"], sort=False):
        rows = rows.sort_values("speedup", ascending=False)
        parts = rows[rows["speedup_low"] > 1], rows[rows["speedup_high"] < 1]
        lines.append([str(rule), str(size), *(", ".join(part["drafter"]) or "none" for part in parts)])
    return lines


def sizes_of(table: pd.DataFrame) -> str:
    """Such as "32 texts, 4 batches of 8"."""
    counts = table.groupby("batch_size")["num_timed"].max()
    return ", ".join(f"{n:g} texts" if size == 1 else f"{n:g} batches of {size:g}" for size, n in counts.items())


def text_of(table: pd.DataFrame) -> str:
    batches = sorted(table["batch_size"].unique())
    task, temperature = table["task"].iloc[0], table["temperature"].iloc[0]
    heads = ["drafter", "rule", "tokens per round"]
    heads += [f"price at batch {size:g}" for size in batches] + [f"speed-up at batch {size:g}" for size in batches]
    lines = [line_of(rows, batches) for _, rows in table.groupby(["verifier", "drafter"], sort=False)]
    return "\n".join(
        [
            "# Prices and speed-ups of drafters by batch size",
            "",
            f"llama-tiny on {task}, T = {temperature:g}, {sizes_of(table)}. The price is the median time of a",
            "drafted token over that of a target call on one token, both at the same batch size. The speed-up is tokens per",
            "second of decoding over those of the target alone in the same pass and at the same batch size, with a 95 % interval",
            "over texts, or over batches of texts, which does not include how machines differ. [README.md](README.md) has the",
            "quality of each setting. Written by `python scripts/drafter_speeds.py`.",
            "",
            "![Speed-ups of drafters by batch size](speeds.svg)",
            "",
            markdown(["rule", "batch", "faster than the target alone for sure", "slower for sure"], order_of(table)),
            markdown(heads, lines),
        ]
    )  # fmt: skip


def main(words: Sequence[str]) -> int:
    with exit_on_mistake("drafter_speeds", __doc__, words):
        options = DEFAULTS | dict(parse_words(words, DEFAULTS).options)
    task, records, out = options["task"], Path(options["records"]), Path(options["out"])
    frames = []
    for batch_size in map(int, options["batches"].split(",")):
        count = max(int(options["n"]), BATCHES * batch_size) if batch_size > 1 else int(options["n"])
        timing = [f"timing.batch_size={batch_size}", f"timing.examples={count}", f"timing.repeats={options['repeats']}"]
        choice = [f"temperature={options['temperature']}", f"n={count}", *timing]
        name = f"T{options['temperature']}-batch-{batch_size}"
        if batch_size == 1:
            parts = {part: run(name, part, task, records, *words, *choice) for part, words in PARTS.items()}
        else:
            parts = {"shipped": run(name, "shipped", task, records, *PARTS["shipped"], *choice, base=LOSSLESS)}
        rows = [rows_of(results, part) for part, results in parts.items()]
        frames += [part.assign(batch_size=batch_size).reindex(columns=COLUMNS) for part in rows]
    table = pd.concat(frames)
    out.mkdir(parents=True, exist_ok=True)
    table.to_csv(out / "speeds.csv", index=False, float_format="%.6g")
    with house_style():
        save(draw(table), out, "speeds")
    remove_prints(out)
    (out / "speeds.md").write_text(text_of(table))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
