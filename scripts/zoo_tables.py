"""results/zoo: every rule at its sweep on three embedded pairs, at T = 1 and T = 0.

    python scripts/zoo_tables.py [runs=llama-tiny/gsm8k-tiny,qwen-tiny/wmt-tiny] [temperatures=1,0] [n=200]
                                 [records=results] [out=results/zoo]
    python scripts/zoo_tables.py runs=none [out=results/zoo]      # rewrites figures and README from the committed csv files

Each run is `experiment=zoo` (T = 1) or `zoo-greedy` (T = 0) of one pair and task, timing included. Records are kept in `records`:
run the command again after an interruption, and only what is missing is decoded. `out` gets a folder for each run: a row per cell
(summary.csv), the fronts, whether time fell with acceptance, retentions, and figures. README.md has a table and a figure per run.
"""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

import sdbench
from sdbench.config import config_dir
from sdbench.metrics.columns import estimate_of
from sdbench.metrics.export import write_scores
from sdbench.metrics.markup import markdown
from sdbench.metrics.summary import summarise
from sdbench.metrics.text import format_interval, setting_of
from sdbench.report import frames
from sdbench.report.figures.planes import pareto, pareto_speed
from sdbench.report.figures.style import house_style, save
from sdbench.report.figures.theory import bound
from sdbench.report.sweep import sweeps_of
from sdbench.words import choose, exit_on_mistake, parse_words

EXPERIMENTS = {"1": "zoo", "0": "zoo-greedy"}
RUNS = "llama-tiny/gsm8k-tiny,qwen-tiny/wmt-tiny,gemma-tiny/humaneval-tiny"
DEFAULTS = {"runs": RUNS, "temperatures": "1,0", "n": "200", "records": "results", "out": "results/zoo"}
PLANES = {"pareto": pareto, "pareto_speed": pareto_speed, "bound": bound}
TABLES = {"front": frames.front, "order": frames.order, "retention": frames.retention}
MEASURES = ("acceptance", "tv", "bias", "quality", "difference", "speedup")
CELLS = ["verifier", "knob", "value", "knobs", "n", "is_lossless", "tokens_per_round", "num_timed", "also", "cell"]
CELLS[6:6] = [f"{name}{end}" for name in MEASURES for end in ("", "_low", "_high")]
MARGIN = 5  # points
NUM_COLOURED = 6
MARKER = "<!-- written by `python scripts/zoo_tables.py` from here on -->"
KEPT = 0.979  # an example of a retention that is quoted without an interval
NEAR = 0.01


def write(run: Path, folder: Path) -> None:
    """Write tables and figures of a run's records."""
    results = sdbench.read(run)
    summary = summarise(results)
    (sweep,) = sweeps_of([results], [summary])
    folder.mkdir(parents=True, exist_ok=True)
    summary[CELLS].to_csv(folder / "summary.csv", index=False, float_format="%.6g")
    write_scores(folder / "scores.parquet", results)
    for name, make in TABLES.items():
        make(sweep).to_csv(folder / f"{name}.csv", index=False, float_format="%.6g")
    with house_style():
        for name, draw in PLANES.items():
            figure = draw(sweep)
            if figure is not None:
                save(figure, folder, name)
    remove_prints(folder)


def points_of(summary: pd.DataFrame) -> int:
    """Return the factor that turns a score into points: files have shares on 0-1 and BLEU on 0-100."""
    return 100 if summary["quality"].max() <= 1 else 1


def with_strict_ends(summary: pd.DataFrame) -> pd.DataFrame:
    """Add a copy of the lossless row for each rule whose strict setting it is, under that rule's name, as "ensemble w=1"."""
    lossless = summary[summary["also"].notna()]
    names = lossless["also"].astype(str).str.extract(r"^(?P<verifier>\S+) (?P<knob>\w+)=(?P<value>[\d.]+)$")
    return pd.concat([summary, lossless.assign(**names.astype({"value": float}))], ignore_index=True)


def settings_within(summary: pd.DataFrame, margin: float = MARGIN) -> pd.DataFrame:
    """Return for each rule, best first, the setting with most tokens per round whose interval excludes a loss of the margin."""
    points = points_of(summary)
    rules = with_strict_ends(summary[~summary["verifier"].isin(["target", "draft", "generate"])])
    for column in ("difference", "difference_low", "difference_high"):
        rules[column] = rules[column].fillna(0.0) * points  # lossless, with which the others are compared
    rules = rules[rules["difference_low"] > -margin]
    return rules.sort_values(["tokens_per_round", "verifier"], ascending=[False, True]).drop_duplicates("verifier")


def source_of(rule: str) -> str:
    """Return the paper or program that the first line of the rule's YAML file names."""
    path = config_dir() / "verifier" / f"{'exact' if rule == 'lossless' else rule}.yaml"
    source = re.search(r"arXiv:(\d{4}\.\d{5})|TensorRT-LLM|SGLang|vLLM|control", path.read_text().splitlines()[0])
    if source is None:
        return "–"
    number = source.group(1)
    return source.group() if number is None else f"[{number}](https://arxiv.org/abs/{number})"


def interval_of(row: pd.Series, name: str, digits: int) -> str:
    return format_interval(estimate_of(row.to_dict(), name), digits) or "–"


def table_of(summary: pd.DataFrame) -> str:
    """Return a row for each rule that has a setting within the margin, and the names of the other rules."""
    best = settings_within(summary)
    loss = best.assign(loss=-best["difference"], loss_low=-best["difference_high"], loss_high=-best["difference_low"])
    rows = [
        [
            row["verifier"],
            source_of(row["verifier"]),
            setting_of(row).replace("=", " = ") or "–",
            f"{row['acceptance']:.3f}",
            f"{row['tokens_per_round']:.2f}",
            interval_of(row, "speedup", 2),
            interval_of(row, "loss", 1),
        ]
        for _, row in loss.iterrows()
    ]
    columns = ["rule", "source", "setting", "acceptance", "tokens per round", "speed-up", "loss (points)"]
    without = sorted(set(summary["verifier"]) - set(best["verifier"]) - {"target", "draft", "generate"})
    last = f"No setting within {MARGIN} points: {', '.join(without)}." if without else ""
    return f"{markdown(columns, rows).rstrip()}\n\n{last}".rstrip()


def draw_rules(summary: pd.DataFrame, title: str) -> Figure:
    """Draw each rule as a curve of difference over tokens per round: the best in colour, the static ensemble in black."""
    points = points_of(summary)
    best = [rule for rule in settings_within(summary)["verifier"] if rule not in ("lossless", "ensemble")][
        :NUM_COLOURED
    ]
    colours = {"ensemble": "black"} | {rule: f"C{i}" for i, rule in enumerate(best)}
    figure, axes = plt.subplots(figsize=(7.2, 4))
    ends = []
    for rule, rows in with_strict_ends(summary).dropna(subset="value").groupby("verifier"):
        curve = rows.sort_values("value")
        x, y = curve["tokens_per_round"], curve["difference"].fillna(0) * points
        is_named = rule in colours
        colour = colours.get(rule, "0.8")
        axes.plot(x, y, "o-", color=colour, ms=3, lw=1.6 if is_named else 0.8, zorder=3 if is_named else 1)
        if is_named:
            end = x.argmax()
            ends.append((y.iloc[end], x.iloc[end], rule, colour))
    axes.axhline(-MARGIN, color="0.4", lw=0.8, ls=":")
    low, high = axes.get_ylim()
    height = high
    for y, x, rule, colour in sorted(ends, reverse=True):
        height = min(y, height - (high - low) / 18)  # names are placed below each other
        arrow = {"arrowstyle": "-", "color": colour, "lw": 0.6}
        label = {
            "xytext": (1.02, height),
            "textcoords": axes.get_yaxis_transform(),
            "va": "center",
            "arrowprops": arrow,
        }
        axes.annotate(rule, (x, y), color=colour, **label)
    axes.text(1.02, low, "other rules", color="0.6", transform=axes.get_yaxis_transform())
    axes.set(xlabel="tokens per round", ylabel="difference from lossless (points)", title=title)
    return figure


def text_of(folder: Path) -> str:
    """Return the text after MARKER in README.md: a figure and a table of each run, then counts over all runs."""
    parts = []
    runs = sorted(path.parent for path in folder.glob("*/summary.csv"))
    for run in runs:
        parts += [
            f"## {title_of(run)}",
            "",
            f"![Difference from lossless over tokens a round]({run.name}/rules.svg)",
            "",
        ]
        parts += [table_of(pd.read_csv(run / "summary.csv")), ""]
    curves = pd.concat(pd.read_csv(run / "order.csv") for run in runs)
    is_alike = (curves["pairs"] == 0) & (curves["timed"] > 1)  # older tables call these "one point" too
    orders = curves["monotone"].mask(is_alike, "acceptances alike").value_counts()
    counted = ", ".join(f"{answer}: {orders[answer]}" for answer in sorted(orders.index))
    kept = pd.concat(pd.read_csv(run / "retention.csv") for run in runs)
    close = kept[(kept["retention"] - KEPT).abs() <= NEAR]
    seen = ", ".join(f"{int(close[f'is_told_at_{n}'].sum())} at n = {n}" for n in (30, 100, 250))
    return "\n".join(
        [
            *parts,
            "## Counts over all runs",
            "",
            f"Does time fall wherever a rule's acceptance rises? Curves by answer: {counted} (`order.csv`).",
            "",
            f"Settings that kept {KEPT - NEAR:.1%} to {KEPT + NEAR:.1%} of the lossless quality: {len(close)}. "
            f"Distinguishable from lossless: {seen} (`retention.csv`).",
            "",
        ]
    )


def title_of(run: Path) -> str:
    name, _, temperature = run.name.rpartition("-T")
    pair, model, task = name.split("-", 2)
    return f"{pair}-{model}, {task}, T = {temperature}"


def redraw(folder: Path) -> None:
    """Write the figures of rules and the generated part of README.md from the csv files."""
    for path in folder.glob("*/summary.csv"):
        with house_style():
            save(draw_rules(pd.read_csv(path), title_of(path.parent)), path.parent, "rules")
        remove_prints(path.parent)
    readme = folder / "README.md"
    above = readme.read_text().partition(MARKER)[0] if readme.exists() else "# Every rule on three pairs\n\n"
    readme.write_text(f"{above}{MARKER}\n\n{text_of(folder)}")


def remove_prints(folder: Path) -> None:
    for path in [*folder.glob("*.pdf"), *folder.glob("*.png")]:
        path.unlink()


def main(words: Sequence[str]) -> int:
    with exit_on_mistake("zoo_tables", __doc__, words):
        options = DEFAULTS | dict(parse_words(words, DEFAULTS).options)
        temperatures = choose("temperatures", options["temperatures"], EXPERIMENTS)
    records, out = Path(options["records"]), Path(options["out"])
    for run in options["runs"].split(",") if options["runs"] != "none" else ():
        pair, _, task = run.partition("/")
        for temperature in temperatures:
            choice = [f"experiment={EXPERIMENTS[temperature]}", f"model={pair}", f"task={task}", f"n={options['n']}"]
            name = f"{pair}-{task}-T{temperature}"
            words = ["-m", *choice, f"results={records}", f"name=zoo-{name}", "report=off"]
            code = subprocess.run([sys.executable, "-m", "sdbench", *words], check=False).returncode
            if code:
                return code
            write(records / f"zoo-{name}", out / name)
    redraw(out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
