"""results/drafters/speeds.md: the price of a draft, and the speed-up of every drafter at several batch sizes.

    python scripts/drafter_speeds.py [batches=1,8,32] [task=gsm8k-tiny] [temperature=0] [n=32] [repeats=2] [records=results]
                                     [out=results/drafters]

For each batch size a latency pass of `experiment=drafters` with llama-tiny, in the three parts of drafter_tables.py; the target
alone is timed in each of them. Nothing else may run on the machine. Records stay in `records`: after an interruption the same
command continues. `out` gets speeds.csv, a row per drafter, rule and batch size; speeds.svg; and speeds.md.
"""

import sys
from collections.abc import Sequence
from itertools import product
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
MEASURES = ("tokens_per_round", "speedup", "speedup_modelled")
COLUMNS = ["task", "temperature", "batch_size", "drafter", "verifier", "num_timed"]
COLUMNS += [f"{name}{end}" for name in MEASURES for end in ("", "_low", "_high")] + ["draft_ms", "draft_price"]


def draw(table: pd.DataFrame) -> Figure:
    """Draw a panel for each rule: the speed-up of each drafter over the batch size."""
    batches = sorted(table["batch_size"].unique())
    figure, axes = panels(len(RULES), width=PAGE, height=2.6, sharey=True)
    looks = [
        (CYCLE[i % len(CYCLE)], MARKS[(i + i // len(CYCLE)) % len(MARKS)]) for i in range(table["drafter"].nunique())
    ]
    keys = []
    for axis, rule in zip(axes, RULES, strict=True):
        of_rule = table[table["verifier"] == rule]
        axis.axhline(1, color="0.5", linewidth=0.8)
        axis.set(title=rule, xlabel="batch size")
        axis.set_xticks(range(len(batches)), [f"{size:g}" for size in batches])
        for (colour, mark), (drafter, rows) in zip(looks, of_rule.groupby("drafter", sort=False), strict=True):
            rows = rows.set_index("batch_size").reindex(batches)
            axis.plot(range(len(batches)), rows["speedup"], f"{mark}-", color=colour, markersize=4, linewidth=1)
            axis.vlines(range(len(batches)), rows["speedup_low"], rows["speedup_high"], color=colour, linewidth=0.8)
            keys += [key(str(drafter), colour, mark)] if rule == RULES[0] else []
    axes[0].set_ylabel("speed-up over the target alone")
    legend_below(figure, keys, -(-len(keys) // 2))
    settle(figure)
    return figure


def line_of(rows: pd.DataFrame, batches: Sequence[int]) -> list[str]:
    """Return the line of one drafter and rule: its tokens per round, then price and speed-up at each batch size."""
    rows = rows.set_index("batch_size")
    first = rows.iloc[0]
    prices = [f"{rows.at[size, 'draft_price']:.0%}" for size in batches]
    speeds = [shown(rows.loc[size], "speedup", 2) for size in batches]
    return [first["drafter"], first["verifier"], shown(first, "tokens_per_round", 2), *prices, *speeds]


def stops_of(table: pd.DataFrame, batches: Sequence[int]) -> list[str]:
    """Return for each rule the drafters whose speed-up is above 1 with certainty at each batch size, the fastest first."""
    lines = []
    for rule, size in product(RULES, batches):
        rows = table[(table["verifier"] == rule) & (table["batch_size"] == size)].sort_values(
            "speedup", ascending=False
        )
        faster, slower = rows[rows["speedup_low"] > 1], rows[rows["speedup_high"] < 1]
        lines.append([rule, f"{size:g}", *(", ".join(part["drafter"]) or "none" for part in (faster, slower))])
    return lines


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
            f"llama-tiny on {task}, T = {temperature:g}, {table['num_timed'].min():g} texts. The price is the median time of a",
            "drafted token over that of a target call on one token, both at the same batch size. The speed-up is tokens per",
            "second of decoding over those of the target alone in the same pass and at the same batch size, with a 95 % interval",
            "over texts. [README.md](README.md) has the quality of each setting. Written by `python scripts/drafter_speeds.py`.",
            "",
            "![Speed-ups of drafters by batch size](speeds.svg)",
            "",
            markdown(["rule", "batch", "faster than the target alone for sure", "slower for sure"], stops_of(table, batches)),
            markdown(heads, lines),
        ]
    )  # fmt: skip


def main(words: Sequence[str]) -> int:
    with exit_on_mistake("drafter_speeds", __doc__, words):
        options = DEFAULTS | dict(parse_words(words, DEFAULTS).options)
    task, records, out = options["task"], Path(options["records"]), Path(options["out"])
    frames = []
    for batch_size, part in product(map(int, options["batches"].split(",")), PARTS):
        choice = [f"temperature={options['temperature']}", f"n={options['n']}", *PARTS[part]]
        timing = [f"timing.{name}={options[name]}" for name in ("repeats",)]
        timing += [f"timing.batch_size={batch_size}", f"timing.examples={options['n']}"]
        results = run(f"T{options['temperature']}-batch-{batch_size}", part, task, records, *choice, *timing)
        frames.append(rows_of(results, part).assign(batch_size=batch_size).reindex(columns=COLUMNS))
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
