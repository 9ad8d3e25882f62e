"""results/zoo: every rule at its sweep on an embedded pair, T = 1 and T = 0, on the three planes.

    python scripts/zoo_tables.py [runs=llama-tiny/gsm8k-tiny,qwen-tiny/wmt-tiny] [temperatures=1,0] [n=200]
                                 [records=results] [out=results/zoo]

Each run is `experiment=zoo` (T = 1) or `zoo-greedy` (T = 0) of one pair and task, timing included; records stay in `records`: run
it again after an interruption, and only what is missing is decoded. `out` gets what is committed: a folder for each run with its
cells, the front of both planes, whether time fell with acceptance, retentions, and the planes as figures; README.md puts all side
by side.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import pandas as pd

import sdbench
from sdbench.metrics.markup import markdown
from sdbench.metrics.summary import summarise
from sdbench.report import frames
from sdbench.report.figures.planes import pareto, pareto_speed
from sdbench.report.figures.style import save, styled
from sdbench.report.figures.theory import bound
from sdbench.report.sweep import sweeps_of
from sdbench.words import chosen, parsed, reading

EXPERIMENTS = {"1": "zoo", "0": "zoo-greedy"}
RUNS = "llama-tiny/gsm8k-tiny,qwen-tiny/wmt-tiny,gemma-tiny/humaneval-tiny"
DEFAULTS = {"runs": RUNS, "temperatures": "1,0", "n": "200", "records": "results", "out": "results/zoo"}
PLANES = {"pareto": pareto, "pareto_speed": pareto_speed, "bound": bound}
TABLES = {"front": frames.front, "order": frames.order, "retention": frames.retention}
MEASURES = ("acceptance", "tv", "bias", "quality", "difference", "speedup")
CELLS = ["verifier", "knobs", "n", "is_lossless", "tokens_per_round", "num_timed", "cell"]
CELLS[4:4] = [f"{name}{end}" for name in MEASURES for end in ("", "_low", "_high")]
SURE = 0.5  # chance of being on the front from which a setting is named
KEPT = 0.979  # a retention of the kind that is quoted without an interval
NEAR = 0.01


def write(run: Path, folder: Path) -> None:
    """Tables and figures of a run's records."""
    results = sdbench.read(run)
    summary = summarise(results)
    (sweep,) = sweeps_of([results], [summary])
    folder.mkdir(parents=True, exist_ok=True)
    summary[CELLS].to_csv(folder / "summary.csv", index=False, float_format="%.6g")
    for name, make in TABLES.items():
        make(sweep).to_csv(folder / f"{name}.csv", index=False, float_format="%.6g")
    with styled():
        for name, draw in PLANES.items():
            figure = draw(sweep)
            if figure is not None:
                save(figure, folder, name)
    for path in [*folder.glob("*.pdf"), *folder.glob("*.png")]:
        path.unlink()


def side_by_side(folder: Path) -> str:
    """README.md: fronts, orders and retentions of every run."""
    runs = sorted(path.parent for path in folder.glob("*/front.csv"))
    parts = ["# The zoo", "", (__doc__ or "").split("\n\n")[0], ""]
    orders = {run.name: pd.read_csv(run / "order.csv").set_index("curve")["monotone"] for run in runs}
    for run in runs:
        front = pd.read_csv(run / "front.csv")
        parts += [f"## {run.name}", ""]
        for plane, points in front[front["probability"] >= SURE].groupby("plane"):
            named = [
                f"{row['verifier']}{'' if pd.isna(row['knob']) else ' {knob}={value}'.format(**row)} ({row['probability']:.2f})"
                for row in points.sort_values("x").to_dict("records")
            ]
            parts += [f"On the front of {plane} and quality, with its chance: {'; '.join(named)}.", ""]
        kept = pd.read_csv(run / "retention.csv")
        close = kept[(kept["retention"] - KEPT).abs() <= NEAR]
        told = ", ".join(f"{int(close[f'is_told_at_{n}'].sum())} at n = {n}" for n in (30, 100, 250))
        parts += [
            f"Settings that kept {KEPT - NEAR:.1%} to {KEPT + NEAR:.1%}: {len(close)}; told from lossless: {told}.",
            "",
        ]
    rules = sorted({rule for one in orders.values() for rule in one.index})
    rows = [[rule, *(str(one.get(rule, "")) for one in orders.values())] for rule in rules]
    parts += ["## Does time fall as acceptance rises?", "", markdown(["rule", *orders], rows)]
    return "\n".join(parts)


def main(words: Sequence[str]) -> int:
    with reading("zoo_tables", __doc__, words):
        options = DEFAULTS | dict(parsed(words, DEFAULTS).options)
        temperatures = chosen("temperatures", options["temperatures"], EXPERIMENTS)
    records, out = Path(options["records"]), Path(options["out"])
    for run in options["runs"].split(","):
        pair, _, task = run.partition("/")
        for temperature in temperatures:
            own = [f"experiment={EXPERIMENTS[temperature]}", f"model={pair}", f"task={task}", f"n={options['n']}"]
            name = f"{pair}-{task}-T{temperature}"
            words = ["-m", *own, f"results={records}", f"name=zoo-{name}", "report=off"]
            code = subprocess.run([sys.executable, "-m", "sdbench", *words], check=False).returncode
            if code:
                return code
            write(records / f"zoo-{name}", out / name)
            (out / "README.md").write_text(side_by_side(out))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
