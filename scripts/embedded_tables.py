"""The tables in results/embedded: the tiny pairs on the tiny tasks, all 500 test rows, greedy and at T = 1.

    python scripts/embedded_tables.py [pairs=llama-tiny,qwen-tiny] [tasks=cnndm-tiny] [parts=quality] [n=500] [texts=16]
                                      [runs=results/tables] [out=results/embedded]

The part `quality` decodes the sweep at T = 0 (PAIR-TASK-greedy) and at T = 1 (PAIR-TASK) without timing; `speed` times `texts`
examples with two to five drafted tokens: lossless and w = 0.7 at T = 0 (PAIR-TASK-speed), lossless at T = 1
(PAIR-TASK-speed-sampled). For `speed`, the machine must have no other load, except for another pair on another core. Records are
kept in `runs`: run the command again after an interruption, and only what is missing is decoded. `out` gets the files to commit:
`summary.csv`; `metrics.csv` with every score of each cell; and the plane of acceptance and quality at T = 0 in `pareto.svg`.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import sdbench
from sdbench.embedded import GRAMMARS, PAIRS
from sdbench.metrics.export import metrics_of, metrics_table, write_scores
from sdbench.metrics.summary import summarise
from sdbench.report.figures.planes import pareto
from sdbench.report.figures.style import house_style, save
from sdbench.report.sweep import sweeps_of
from sdbench.words import choose, exit_on_mistake, parse_words

SWEEP = "w=[1,0.95,0.9,0.85,0.8,0.7,0.6,0.5,0.4,0.3,0.2,0.1,0]"
SMOOTH = "w=[1,0.95,0.9,0.8,0.7,0.5,0.2,0]"  # enough where there is no knee
TIMED = ("num_draft=[2,3,4,5]", "n={texts}", "timing.cells=8", "timing.examples={texts}")
PARTS = {
    "quality": {
        "-greedy": ("temperature=0", SWEEP, "timing=off", "n={n}"),
        "": ("temperature=1", SMOOTH, "timing=off", "n={n}"),
    },
    "speed": {
        "-speed": ("temperature=0", "w=[1,0.7]", *TIMED),
        "-speed-sampled": ("temperature=1", "w=[1]", *TIMED),
    },
}
DEFAULTS = {
    "pairs": ",".join(PAIRS),
    "tasks": ",".join(GRAMMARS),
    "parts": ",".join(PARTS),
    "n": "500",
    "texts": "16",
    "runs": "results/tables",
    "out": "results/embedded",
}


def write(run: Path, folder: Path) -> None:
    """Write the tables of a run's records."""
    results = sdbench.read(run)
    folder.mkdir(parents=True, exist_ok=True)
    summary = summarise(results)
    summary.to_csv(folder / "summary.csv", index=False)
    write_scores(folder / "scores.parquet", results)
    scores = metrics_table(results, metrics_of(results))
    scores[["cell", "metric", "value", "low", "high", "n"]].to_csv(folder / "metrics.csv", index=False)
    if folder.name.endswith("-greedy"):
        (sweep,) = sweeps_of([results], [summary])
        with house_style(), tempfile.TemporaryDirectory() as scratch:
            figure = pareto(sweep)
            assert figure is not None, "a sweep has a plane"
            save(figure, Path(scratch), "pareto")
            shutil.copy(Path(scratch) / "pareto.svg", folder)


def main(words: Sequence[str]) -> int:
    with exit_on_mistake("embedded_tables", __doc__, words):
        options = DEFAULTS | dict(parse_words(words, DEFAULTS).options)
        pairs, tasks, parts = (
            choose(option, options[option], DEFAULTS[option].split(",")) for option in ("pairs", "tasks", "parts")
        )
    runs, out = Path(options["runs"]), Path(options["out"])
    for pair, task, part in ((pair, task, part) for part in parts for pair in pairs for task in tasks):
        for ending, settings in PARTS[part].items():
            name = f"{pair}-{task}{ending}"
            own = [f"model={pair}", f"task={task}", f"results={runs}", f"name={name}", "report=off"]
            own += [word.format(**options) for word in settings]
            code = subprocess.run([sys.executable, "-m", "sdbench", *own], check=False).returncode
            if code:
                return code
            write(runs / name, out / name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
