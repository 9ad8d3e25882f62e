"""results/drafters/speeds.md: the price of a draft, and the speed-up of every drafter at several batch sizes.

    python scripts/drafter_speeds.py [batches=1,8,32] [task=gsm8k-tiny,…] [temperature=0] [n=32] [repeats=2] [records=results]
                                     [out=results/drafters]

At batch 1 this is a latency pass of `experiment=drafters` with llama-tiny, in the three parts of drafter_tables.py. At larger
batches only the drafters that run with the pair are timed, with the lossless rule alone, because steps are captured for each
drafter, rule and number of rows. The target alone is timed in each pass. At larger batches there are at least four batches, because
intervals are over batches. Nothing else may run on the machine. Records are kept in `records`: after an interruption the same
command continues. `out` gets speeds.csv with a row for each drafter, rule and batch size, speeds.svg, and speeds.md. Rows of other
tasks, temperatures and batch sizes in speeds.csv are kept, so that passes can run one after another.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from scripts.drafter_tables import DEFAULTS as TABLES
from scripts.drafter_tables import PARTS, RULES, rows_of, run, shown
from scripts.zoo_tables import remove_prints
from sdbench.metrics.markup import markdown
from sdbench.report.figures.marks import legend_below, looks_of
from sdbench.report.figures.style import PAGE, house_style, panels, save, settle
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
BATCHES = 4  # least number of batches at each batch size
PANELS = 3  # most panels in a row of the figure
LOSSLESS = ("model=llama-tiny", "verifier=exact")
MEASURES = ("tokens_per_round", "speedup", "speedup_modelled")
PASS = ["task", "temperature", "batch_size"]  # what all rows of a pass share
COLUMNS = [*PASS, "drafter", "verifier", "num_timed"]
COLUMNS += [f"{name}{end}" for name in MEASURES for end in ("", "_low", "_high")] + ["draft_ms", "draft_price"]


def merge(path: Path, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a table, with those of the same passes (task, temperature and batch size) replaced by these."""
    if path.exists():
        held = pd.read_csv(path)
        new = set(rows[PASS].itertuples(index=False, name=None))
        rows = pd.concat([held[[key not in new for key in held[PASS].itertuples(index=False, name=None)]], rows])
    tasks = list(dict.fromkeys([*TABLES["tasks"].split(","), *rows["task"]]))
    return rows.sort_values(PASS, key=lambda column: column.map(tasks.index) if column.name == "task" else column)


def runs_of(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the rows of each task and temperature, with a name such as "gsm8k-tiny, T = 0"."""
    runs = table.groupby(["task", "temperature"], sort=False)
    return [(f"{task}, T = {temperature:g}", rows) for (task, temperature), rows in runs]


def parts_of(table: pd.DataFrame) -> list[tuple[str, str, pd.DataFrame]]:
    """Return the panels as (title, column along x, rows): first each run by rule, at its smallest batch; then each run with several
    batch sizes by batch size, for the lossless rule.
    """
    rules, sizes = [], []
    for name, rows in runs_of(table):
        smallest = rows["batch_size"].min()
        rules.append((f"{name}\nbatch size {smallest:g}", "verifier", rows[rows["batch_size"] == smallest]))
        if rows["batch_size"].nunique() > 1:
            lossless = rows[rows["verifier"] == RULES[0]]
            sizes.append((f"{name}\n{RULES[0]}, by batch size", "batch_size", lossless))
    return rules + sizes


def draw(table: pd.DataFrame) -> Figure:
    """Draw the speed-up of each drafter: a panel by rule for each run, and one by batch size for each run with several sizes."""
    parts = parts_of(table)
    columns = 2 if len(parts) == 4 else min(len(parts), PANELS)
    figure, axes = panels(columns, -(-len(parts) // columns), width=PAGE, height=2.6, sharey=True)
    looks = looks_of(dict.fromkeys(table["drafter"]))
    for axis, (title, column, rows) in zip(axes, parts, strict=False):
        values = list(dict.fromkeys(rows[column]))
        axis.axhline(1, color="0.5", linewidth=0.8)
        axis.set_title(title)
        axis.set_xticks(range(len(values)), [str(value) for value in values])
        for number, (drafter, line) in enumerate(rows.groupby("drafter", sort=False)):
            look = looks[str(drafter)]
            line = line.set_index(column).reindex(values)
            x = [slot + 0.04 * (number - len(looks) / 2) for slot in range(len(values))]
            axis.plot(x, line["speedup"], **look, markersize=4, linewidth=1)
            axis.vlines(x, line["speedup_low"], line["speedup_high"], color=look["color"], linewidth=0.8)
    for axis in axes[len(parts) :]:
        figure.delaxes(axis)
    for axis in axes[: len(parts) : columns]:
        axis.set_ylabel("speed-up over the target alone")
    keys = [Line2D([], [], label=name, **look) for name, look in looks.items()]
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
    """Return for each rule and batch size the drafters that are proven faster than the target alone, and those proven slower."""
    lines = []
    for (rule, size), rows in table.groupby(["verifier", "batch_size"], sort=False):
        rows = rows.sort_values("speedup", ascending=False)
        parts = rows[rows["speedup_low"] > 1], rows[rows["speedup_high"] < 1]
        lines.append([str(rule), str(size), *(", ".join(part["drafter"]) or "none" for part in parts)])
    return lines


def sizes_of(table: pd.DataFrame) -> str:
    """Return the number of texts and batches, such as "32 texts, 4 batches of 8"."""
    counts = table.groupby("batch_size")["num_timed"].max()
    return ", ".join(f"{n:g} texts" if size == 1 else f"{n:g} batches of {size:g}" for size, n in counts.items())


def tables_of(run: pd.DataFrame) -> list[str]:
    """Return the tables of a task and temperature: which drafters are faster, then prices and speed-ups by batch size."""
    batches = sorted(run["batch_size"].unique())
    heads = ["drafter", "rule", "tokens per round"]
    heads += [f"price at batch {size:g}" for size in batches] + [f"speed-up at batch {size:g}" for size in batches]
    lines = [line_of(rows, batches) for _, rows in run.groupby(["verifier", "drafter"], sort=False)]
    return [
        markdown(
            ["rule", "batch", "shown to be faster than the target alone (95 %)", "shown to be slower (95 %)"],
            order_of(run),
        ),
        markdown(heads, lines),
    ]


def text_of(table: pd.DataFrame) -> str:
    runs = runs_of(table)
    return "\n".join(
        [
            "# Prices and speed-ups of drafters by batch size",
            "",
            f"llama-tiny on {'; '.join(f'{name}, {sizes_of(rows)}' for name, rows in runs)}. The price is the median time of a",
            "drafted token over that of a target call on one token, both at the same batch size. The speed-up is tokens per",
            "second of decoding over those of the target alone in the same pass and at the same batch size, with a 95 % interval",
            "over texts, or over batches of texts, which does not include how machines differ. [README.md](README.md) has the",
            "quality of each setting. Written by `python scripts/drafter_speeds.py`.",
            "",
            "![Speed-ups of drafters by batch size](speeds.svg)",
            *(line for name, rows in runs for line in ("", f"## {name}", "", *tables_of(rows))),
        ]
    )  # fmt: skip


def time_pass(task: str, batch_size: int, options: Mapping[str, str]) -> pd.DataFrame:
    """Return the rows of one task at one batch size; only what the records do not have is timed."""
    count = max(int(options["n"]), BATCHES * batch_size) if batch_size > 1 else int(options["n"])
    timing = [f"timing.batch_size={batch_size}", f"timing.examples={count}", f"timing.repeats={options['repeats']}"]
    choice = [f"temperature={options['temperature']}", f"n={count}", *timing]
    name, records = f"T{options['temperature']}-batch-{batch_size}", Path(options["records"])
    if batch_size == 1:
        parts = {part: run(name, part, task, records, *words, *choice) for part, words in PARTS.items()}
    else:
        parts = {"shipped": run(name, "shipped", task, records, *PARTS["shipped"], *choice, base=LOSSLESS)}
    rows = pd.concat([rows_of(results, part) for part, results in parts.items()])
    return rows.assign(batch_size=batch_size).reindex(columns=COLUMNS)


def write(table: pd.DataFrame, out: Path) -> None:
    """Write the table, its figure and its page."""
    out.mkdir(parents=True, exist_ok=True)
    table.to_csv(out / "speeds.csv", index=False, float_format="%.6g")
    with house_style():
        save(draw(table), out, "speeds")
    remove_prints(out)
    (out / "speeds.md").write_text(text_of(table))


def main(words: Sequence[str]) -> int:
    with exit_on_mistake("drafter_speeds", __doc__, words):
        options = DEFAULTS | dict(parse_words(words, DEFAULTS).options)
    out = Path(options["out"])
    for task in options["task"].split(","):
        for batch_size in map(int, options["batches"].split(",")):
            write(merge(out / "speeds.csv", time_pass(task, batch_size, options)), out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
