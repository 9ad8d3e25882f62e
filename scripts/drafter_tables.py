"""results/drafters: every drafter with the lossless rule and two lenient ones, on three tiny tasks at T = 0 and T = 1.

    python scripts/drafter_tables.py [tasks=gsm8k-tiny,cnndm-tiny] [temperatures=0,1] [parts=shipped,foreign,int8] [n=200]
                                     [timing=off] [records=results] [out=results/drafters]
    python scripts/drafter_tables.py drafters=block tasks=gsm8k-tiny n=100  # only these, without parts=
    python scripts/drafter_tables.py parts=lengths,quantised,trained tasks=gsm8k-tiny n=100     # drafter_variants.py
    python scripts/drafter_tables.py tasks=none [out=results/drafters]      # rewrites README and figure from summary.csv

Each run is `experiment=drafters` of one task and temperature, in three parts: `shipped`, every drafter that can run with
llama-tiny, and retrieval from solved examples of the task's train split; `foreign`, the drafters for a draft with another
tokenizer, using qwen-tiny's; `int8`, the draft model with weights in int8. drafter_variants.py has further parts, which can be
named whole or by single variants: `lengths`, `quantised` and `trained`, whose drafts are trained if they are not in `records`.
Records are kept in `records`: run the command again after an interruption, or after adding a drafter, and only what is missing is
decoded. `out` gets summary.csv with a row per drafter and rule of each run, in which rows of other runs are kept; ranks.svg, which
compares the order of drafters under lossless and lenient rules; and README.md with tables.
"""

import subprocess
import sys
from collections.abc import Sequence
from itertools import combinations, product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import sdbench
from scripts.drafter_headlines import HEADLINES
from scripts.drafter_variants import HEADINGS, VARIANTS, Variant, variants_of
from scripts.zoo_tables import remove_prints
from sdbench.metrics import speed
from sdbench.metrics.columns import estimate_of
from sdbench.metrics.markup import markdown
from sdbench.metrics.summary import summarise
from sdbench.metrics.text import format_interval
from sdbench.records import Results
from sdbench.report.figures.marks import legend_below, looks_of
from sdbench.report.figures.style import PAGE, house_style, panels, save, settle
from sdbench.words import choose, exit_on_mistake, parse_words

DEFAULTS = {
    "tasks": "gsm8k-tiny,cnndm-tiny,humaneval-tiny",
    "temperatures": "0,1",
    "parts": "shipped,foreign,int8",
    "drafters": "all",
    "n": "200",
    "timing": "on",
    "records": "results",
    "out": "results/drafters",
}
EXPERIMENT = ("-m", "experiment=drafters")
FOREIGN = ("intersection", "universal")
PARTS = {
    "shipped": ("drafter=all", "drafter.retrieval.corpus={corpus}"),
    "foreign": ("model.draft=embedded:qwen-tiny/draft", f"drafter=[{','.join(FOREIGN)}]"),
    "int8": ("model.draft_quantization=int8", "drafter=model"),
}
NUM_SOLVED = 500  # examples of the corpus
MEASURES = (
    "acceptance",
    "tokens_per_round",
    "drafted_per_round",
    "speedup",
    "speedup_modelled",
    "quality",
    "difference",
)
COLUMNS = ["task", "temperature", "drafter", "verifier", "n", "num_timed"]
COLUMNS += [f"{name}{end}" for name in MEASURES for end in ("", "_low", "_high")] + ["draft_ms", "draft_price", "cell"]
RULES = ("lossless", "ensemble", "typical")
LABELS = ("lossless", "w = 0.7", "typical")
REVERSED = "order reversed, intervals do not overlap"
PANELS = 3  # panels in a row of the figure
MARKER = "<!-- written by `python scripts/drafter_tables.py` from here on -->"
SPEEDS = (
    "The price of a draft and the speed-up over the target alone are those of separate passes at batch 1, over fewer texts: "
    "[speeds.md](speeds.md). A table without these columns is of a task and temperature that were not timed."
)
HEAD = [
    "drafter",
    "rule",
    "n",
    "acceptance",
    "drafted per round",
    "tokens per round",
    "price of a draft",
    "speed-up",
    "quality",
    "loss",
]


def write_corpus(task: str, path: Path) -> Path:
    """Write solved examples of the task's train split; return the file."""
    source = sdbench.tasks.load(task, split="train", n=NUM_SOLVED)
    rows = [source.fields(example.row) for example in source.examples()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join("\n".join(map(str, fields.values())) for fields in rows))
    return path


def train(variant: Variant, records: Path) -> None:
    """Train the draft of a variant, if it needs one that does not exist yet."""
    draft = records / "drafts" / variant.folder
    if variant.training and not draft.exists():
        words = ["-m", "sdbench.train", *variant.training, f"out={draft}"]
        subprocess.run([sys.executable, *words], check=True)


def run(name: str, part: str, task: str, records: Path, *words: str, base: Sequence[str] = EXPERIMENT) -> Results:
    """Return the records of `experiment=drafters`, or another `base`, on one task; only what is missing is decoded and timed."""
    corpus = write_corpus(task, records / "corpora" / f"{task}.txt") if part == "shipped" else None
    end = (VARIANTS[part].records if part in VARIANTS else "") or part
    slug = "".join(letter if letter.isalnum() else " " for letter in end).split()
    folder = "-".join([f"drafters-llama-tiny-{task}-{name}", *(slug if part != "shipped" else ())])
    choice = [f"task={task}", *words, f"results={records}", f"name={folder}", "report=off"]
    command = [word.format(corpus=corpus) for word in (*base, *choice)]
    code = subprocess.run([sys.executable, "-m", "sdbench", *command], check=False).returncode
    if code:
        sys.exit(code)
    return sdbench.read(records / folder)


def rows_of(results: Results, part: str) -> pd.DataFrame:
    """Return a row per drafter and rule of a run, with the price of a drafted token in milliseconds and in calls of the target."""
    summary = summarise(results)
    summary = summary[summary["drafter"].notna()].copy()
    if part == "shipped":  # these take the pair's own draft, too, and say nothing then
        summary = summary[~summary["drafter"].isin(FOREIGN)]
    if part == "int8":
        summary["drafter"] += " (int8)"
    if part in VARIANTS:
        contents = results.cells.set_index("cell")["content"]
        summary = summary[[VARIANTS[part].has_cell(contents[cell]["drafter"]) for cell in summary["cell"]]]
        summary = summary.assign(drafter=part)
    add_prices(summary, results)
    return summary.reindex(columns=COLUMNS)


def add_prices(summary: pd.DataFrame, results: Results) -> None:
    """Add what a drafted token costs: `draft_ms`, and `draft_price` in calls of the target on one token."""
    parts = {str(key): part for key, part in results.generations.groupby("cell")}
    for index, cell in summary["cell"].items():
        seconds = speed.prices_of(results, parts[cell]).groupby("kind")["seconds"].median()
        if {"draft", "target"} <= set(seconds.index):
            summary.loc[index, ["draft_ms", "draft_price"]] = (
                1e3 * seconds["draft"],
                seconds["draft"] / seconds["target"],
            )


def add_speeds(summary: pd.DataFrame, path: Path) -> bool:
    """Fill in prices and speed-ups that a summary lacks, from the rows at batch 1 in the table of drafter_speeds.py; return whether
    that table has any for these runs.
    """
    if not path.exists():
        return False
    names, columns = ["task", "temperature", "drafter", "verifier"], ["draft_ms", "draft_price", "num_timed"]
    columns += [f"speedup{end}" for end in ("", "_low", "_high")]
    speeds = pd.read_csv(path).query("batch_size == 1").astype({"temperature": float}).set_index(names)[columns]
    cells = pd.MultiIndex.from_frame(summary[names].astype({"temperature": float}))
    timed = speeds.reindex(cells).set_axis(summary.index)
    untimed = summary["speedup"].isna() & timed["speedup"].notna()
    summary.loc[untimed, columns] = timed[untimed]
    return bool(untimed.any())


def shown(row: pd.Series, name: str, digits: int, scale: float = 1) -> str:
    """Return a measure with its interval; a modelled speed-up is prefixed with ~."""
    text = format_interval(estimate_of(row.to_dict(), name), digits, scale=scale)
    modelled = row.get(f"{name}_modelled")
    return text or ("–" if modelled is None or modelled != modelled else f"~{modelled:.{digits}f}")


def table_of(run: pd.DataFrame) -> str:
    """Return a table with a row per drafter and rule, without columns in which nothing was measured. The loss is in points,
    relative to lossless with the same drafter.
    """
    points = 100 if run["quality"].max() <= 1 else 1
    losses = {"difference": "difference", "difference_low": "difference_high", "difference_high": "difference_low"}
    lines = []
    for _, row in run.iterrows():
        loss = pd.Series({name: -row[end] for name, end in losses.items()} | {"n": row["n"]})
        is_priced = row["draft_ms"] == row["draft_ms"]
        price = f"{row['draft_ms']:.3g} ms, {row['draft_price']:.0%} of a target call" if is_priced else "–"
        lines.append(
            [
                row["drafter"],
                row["verifier"],
                f"{row['n']:g}",
                *(shown(row, name, 3 - (name != "acceptance")) for name in ("acceptance", "drafted_per_round", "tokens_per_round")),
                price,
                shown(row, "speedup", 2),
                shown(row, "quality", 1, points),
                "" if row["verifier"] == "lossless" else shown(loss, "difference", 1, points),
            ]
        )  # fmt: skip
    measured = [column for column, cells in enumerate(zip(*lines, strict=True)) if set(cells) - {"", "–"}]
    return markdown([HEAD[i] for i in measured], [[line[i] for i in measured] for line in lines]).rstrip()


def measure_of(summary: pd.DataFrame) -> tuple[str, str]:
    """Return the measure that ranks drafters, and its name: the modelled speed-up if all runs have it, else tokens per round."""
    if summary["speedup_modelled"].notna().all():
        return "speedup_modelled", "speed-up (modelled)"
    return "tokens_per_round", "tokens per round"


def order_of(run: pd.DataFrame, rule: str, measure: str) -> list[str]:
    """Return the drafters, the best under this rule first."""
    return run[run["verifier"] == rule].sort_values(measure, ascending=False)["drafter"].tolist()


def reversals(run: pd.DataFrame, rule: str, measure: str) -> list[str]:
    """Return pairs of drafters that this rule and lossless rank in opposite order, both with intervals that do not overlap."""
    above: dict[str, list[str]] = {}
    ends = {
        (row["verifier"], row["drafter"]): (row[f"{measure}_low"], row[f"{measure}_high"]) for _, row in run.iterrows()
    }
    ranked = [drafter for drafter in order_of(run, "lossless", measure) if (rule, drafter) in ends]
    for a, b in combinations(ranked, 2):
        if ends["lossless", a][0] > ends["lossless", b][1] and ends[rule, b][0] > ends[rule, a][1]:
            above.setdefault(a, []).append(b)
    return [f"{', '.join(winners)} above {loser}" for loser, winners in above.items()]


def draw_ranks(summary: pd.DataFrame) -> Figure:
    """Draw a panel for each run: each drafter as a line over the rules. Lines cross where leniency ranks drafters differently."""
    measure, label = measure_of(summary)
    tasks, temperatures = (list(dict.fromkeys(summary[name])) for name in ("task", "temperature"))
    slots = [(temperature, task) for temperature in temperatures for task in tasks]
    columns = min(len(tasks), PANELS)
    figure, axes = panels(columns, -(-len(slots) // columns), width=PAGE, height=2.2, sharex=True)
    looks = looks_of(dict.fromkeys(summary["drafter"]))
    for axis, (temperature, task) in zip(axes, slots, strict=False):
        run = summary[(summary["task"] == task) & (summary["temperature"] == temperature)]
        axis.set_title(f"{task}\nT = {temperature:g}, " + (f"n = {run['n'].min():g}" if len(run) else "not run"))
        for number, (drafter, rows) in enumerate(run.groupby("drafter", sort=False)):
            look = looks[str(drafter)]
            rows = rows.set_index("verifier").reindex(RULES)
            x = [slot + 0.05 * (number - (run["drafter"].nunique() - 1) / 2) for slot in range(len(RULES))]
            axis.plot(x, rows[measure], **look, markersize=4, linewidth=1)
            axis.vlines(x, rows[f"{measure}_low"], rows[f"{measure}_high"], color=look["color"], linewidth=0.8)
        axis.set_xticks(range(len(RULES)), LABELS)
    for axis in axes[len(slots) :]:
        axis.set_visible(False)
    for axis in axes[len(slots) - columns : len(slots)]:
        axis.tick_params(labelbottom=True)
    for axis in axes[::columns]:
        axis.set_ylabel(label)
    legend_below(figure, [Line2D([], [], label=name, **look) for name, look in looks.items()], -(-len(looks) // 2))
    settle(figure)
    return figure


def orders_of(summary: pd.DataFrame) -> str:
    """Return a sentence and a table: the drafters of each run in the order of each rule, and those whose order changes."""
    measure, label = measure_of(summary)
    lines = []
    for (task, temperature), run in summary.groupby(["task", "temperature"], sort=False):
        orders = [" > ".join(order_of(run, rule, measure)) for rule in RULES]
        certain = [f"{rule}: {'; '.join(pairs)}" for rule in RULES[1:] if (pairs := reversals(run, rule, measure))]
        lines.append([f"{task}, T = {temperature:g}", *orders, ". ".join(certain) or "none"])
    what = "the best first, and the pairs that a lenient rule ranks the other way round with intervals that do not overlap:"
    return f"Drafters by {label}, {what}\n\n{markdown(['run', *RULES, REVERSED], lines).rstrip()}"


def text_of(summary: pd.DataFrame, speeds: str = "") -> str:
    """Return the text after MARKER in README.md; `speeds`: a sentence on where speeds are from, if they are not of these runs."""
    parts = ["![Drafters under a lossless and two lenient rules](ranks.svg)", "", orders_of(ranked(summary)), ""]
    drafters = dict.fromkeys(
        [*summary["drafter"], *variants_of(["trained"])]
    )  # the trained variants also have separate pages
    drafters = [name for name in drafters if name in HEADLINES or name not in VARIANTS]
    rows = [[name, *HEADLINES.get(name, ("–", "–"))] for name in drafters]
    parts += [markdown(["drafter", "its source reports", "why the numbers here differ"], rows).rstrip(), ""]
    parts += [speeds, ""] if speeds else []
    for (task, temperature), run in ranked(summary).groupby(["task", "temperature"], sort=False):
        parts += [f"## {task}, T = {temperature:g}", "", table_of(run), ""]
    for part, heading in HEADINGS.items():
        rows_of_part = summary[summary["drafter"].isin(variants_of([part]))]
        for (task, temperature), run in rows_of_part.groupby(["task", "temperature"], sort=False):
            parts += [f"## {heading}: {task}, T = {temperature:g}", "", table_of(run), ""]
    return "\n".join(parts)


def ranked(summary: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of drafters that are compared with each other, without those that have separate tables."""
    return summary[~summary["drafter"].isin(variants_of(list(HEADINGS)))]


def merge(path: Path, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a summary, with those of the same run and drafter replaced by these."""
    if not path.exists():
        return rows
    names, held = ["task", "temperature", "drafter"], pd.read_csv(path)
    new = set(rows[names].itertuples(index=False, name=None))
    return pd.concat([held[[key not in new for key in held[names].itertuples(index=False, name=None)]], rows])


def redraw(out: Path) -> None:
    """Write the figure and the generated part of README.md from summary.csv."""
    summary, readme = pd.read_csv(out / "summary.csv"), out / "README.md"
    speeds = SPEEDS if add_speeds(summary, out / "speeds.csv") else ""
    with house_style():
        save(draw_ranks(ranked(summary)), out, "ranks")
    remove_prints(out)
    above = readme.read_text().partition(MARKER)[0] if readme.exists() else "# Drafters\n\n"
    readme.write_text(f"{above}{MARKER}\n\n{text_of(summary, speeds)}")


def refuse_names(drafters: Sequence[str], *, has_parts: bool) -> None:
    """Raise a ValueError for drafters= with parts=, or with a drafter that does not take the pair's own draft."""
    if has_parts:
        raise ValueError(
            "drafters= runs these drafters with the pair's own draft, and no parts: remove parts= or drafters="
        )
    if foreign := [name for name in drafters if name in FOREIGN]:
        raise ValueError(f"drafters={foreign[0]} takes a draft of another tokenizer: give parts=foreign instead")


def main(words: Sequence[str]) -> int:
    with exit_on_mistake("drafter_tables", __doc__, words):
        given_options = parse_words(words, DEFAULTS).options
        options = DEFAULTS | dict(given_options)
        known = [*PARTS, *HEADINGS, "trained", *VARIANTS]
        parts = choose("parts", options["parts"], known)
        (timing,) = choose("timing", options["timing"], ("on", "off"))
        if options["drafters"] != "all":
            refuse_names(options["drafters"].split(","), has_parts="parts" in given_options)
    out, records, frames = Path(options["out"]), Path(options["records"]), []
    tasks = options["tasks"].split(",") if options["tasks"] != "none" else []
    is_whole = options["drafters"] == "all"
    given = [f"drafter=[{options['drafters']}]"]
    given += ["drafter.retrieval.corpus={corpus}"] if "retrieval" in options["drafters"].split(",") else []
    variants = variants_of(parts)
    parts = [*(part for part in parts if part in PARTS), *variants] if is_whole else ["shipped"]
    for variant in variants.values():
        train(variant, records)
    for task, temperature, part in product(tasks, options["temperatures"].split(","), parts):
        if part in variants:
            given = ["drafter=model", *variants[part].words_in(records), *variants[part].measured]
        choice = [f"temperature={temperature}", f"n={options['n']}", *(PARTS.get(part, given) if is_whole else given)]
        choice += ["timing=off"] if timing == "off" else []
        frames.append(rows_of(run(f"T{temperature}", part, task, records, *choice), part))
    if frames:
        out.mkdir(parents=True, exist_ok=True)
        rows = merge(out / "summary.csv", pd.concat(frames))
        rows.to_csv(out / "summary.csv", index=False, float_format="%.6g")
    redraw(out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
