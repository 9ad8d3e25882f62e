"""The tables in results/vllm: the native engine and vLLM with sdbench's plug-in, on the same prompts with the same pair.

    python scripts/vllm_tables.py python=.venv-vllm/bin/python [pair=llama-tiny] [tasks=gsm8k-tiny,wmt-tiny]
                                  [temperatures=0,1] [n=500] [samples=1] [runs=results/vllm-runs] [out=results/vllm]

`samples` is the number of texts per prompt at temperature 1; if the records hold more, all are used. Both engines decode each task
at each temperature: the target alone, the draft alone, the lossless rule, and the ensemble at five w (`greedy=mixture`, as in the
earlier tables). Records are kept in `runs`: run the command again after an interruption, and only what is missing is decoded. `out`
gets the files to commit: summary.csv of each run, and comparison.csv with a row for each cell and measure: both values, and the
difference vLLM − native with its 95 % interval, by example. If a measure has a margin, `is_equivalent` tells whether two one-sided
tests at 5 % place the difference within it. A server's first token comes from its prefill, while the native engine drafts it, so
`acceptance_behind_first` leaves the first token out of both. At temperature 0 `equal_texts` has the number of texts that both
decoded (`native`) and the number of equal texts (`vllm`), in the cells without random draws.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pandas as pd

from scripts.vllm_cpu import SERVER, interpreter
from sdbench.embedded import GRAMMARS, PAIRS
from sdbench.metrics import quality
from sdbench.metrics.cells import metric_of, table_of
from sdbench.metrics.columns import spread
from sdbench.metrics.stats import Array, Estimate, statistic_interval
from sdbench.metrics.summary import summarise
from sdbench.records import Results, read
from sdbench.words import choose, exit_on_mistake, parse_words

OURS_INSIDE = ("engine=vllm", "engine.plugin=true")
SWEEP = ("w=[1,0.9,0.7,0.5,0.2]", "verifier.greedy=mixture")
RATES = {  # measure: numerator, denominator
    "acceptance": ("accepted", "examined"),
    "block_acceptance": ("accepted", "drafted"),
    "tokens_per_round": ("tokens", "rounds"),
}
MARGINS = {"acceptance": 0.03, "acceptance_behind_first": 0.03}  # differences up to which engines count as equivalent
MARGIN = 6.0  # of quality, in points of 100
TOST = 0.9  # two one-sided tests at 5 % pass if the interval at 90 % lies within the margin
DEFAULTS = {
    "python": "",
    "pair": "llama-tiny",
    "tasks": "gsm8k-tiny,wmt-tiny",
    "temperatures": "0,1",
    "n": "500",
    "samples": "1",
    "runs": "results/vllm-runs",
    "out": "results/vllm",
}


def rate(frame: pd.DataFrame, over: str, under: str) -> pd.DataFrame:
    """Return numerator and denominator by example [n,2]."""
    return frame.groupby("example", sort=True)[[over, under]].sum().astype("float64")


def gap(first: pd.DataFrame, second: pd.DataFrame, most: float, *, level: float) -> Estimate:
    """Return the second ratio of sums minus the first, over the examples that both have; no ratio is above `most`."""
    both = first.index.intersection(second.index)

    def statistic(sums: Array) -> Array:
        return sums[:, 2] / sums[:, 3] - sums[:, 0] / sums[:, 1]

    rows = np.concatenate([first.loc[both], second.loc[both]], 1)
    return statistic_interval(rows, statistic, level=level, bounds=(-most, most))


def behind_first(rounds: pd.DataFrame) -> pd.DataFrame:
    """Return the rounds without the first token of each text."""
    is_first = (rounds["round"] == rounds["round"].min()).astype(int)
    left = {name: (rounds[name] - is_first).clip(lower=0) for name in ("examined", "accepted")}
    return rounds.assign(**left)


def row_of(measure: str, values: Sequence[float], gaps: Sequence[Estimate], margin: float | None) -> dict[str, Any]:
    """Return a line of the table. `gaps` has the same difference at two levels: 95 %, and that of the equivalence test."""
    wide, narrow = gaps
    is_equal = None if margin is None else bool(-margin < narrow.low and narrow.high < margin)
    row = {"measure": measure, "native": values[0], "vllm": values[1], **spread("difference", wide)}
    return {**row, "n": wide.n, "margin": margin, "is_equivalent": is_equal}


def rates(frames: Sequence[pd.DataFrame], rounds: Sequence[pd.DataFrame]) -> list[dict[str, Any]]:
    """Return acceptance and tokens per round, then the acceptance of each slot where it was examined."""
    num_draft = int(max(one["drafted"].max() for one in rounds))
    pairs = [(name, [rate(one, over, under) for one in frames]) for name, (over, under) in RATES.items()]
    pairs.append(("acceptance_behind_first", [rate(behind_first(one), "accepted", "examined") for one in rounds]))
    for slot in range(1, num_draft + 1):
        seen = [one.assign(kept=one["accepted"] >= slot, seen=one["examined"] >= slot) for one in rounds]
        pairs.append((f"acceptance_slot_{slot}", [rate(one, "kept", "seen") for one in seen]))
    rows = []
    for name, sums in pairs:
        most = num_draft + 1 if name == "tokens_per_round" else 1
        values = [float(over / under) for over, under in (one.sum().to_numpy() for one in sums)]
        rows.append(
            row_of(
                name, values, [gap(sums[0], sums[1], most, level=level) for level in (0.95, TOST)], MARGINS.get(name)
            )
        )
    return rows


def judged(cells: Sequence[pd.DataFrame], keys: Sequence[str], frames: Sequence[pd.DataFrame]) -> dict[str, Any]:
    """Return the task's headline metric."""
    metric = metric_of(cells[0], keys[0])
    rows = [quality.rows_of(one.dropna(subset=[metric.name]), metric) for one in frames]
    values = [quality.quality(one, metric).value for one in rows]
    gaps = [quality.difference(rows[1], rows[0], metric, level=level) for level in (0.95, TOST)]
    margin = None if metric.point is None else MARGIN * metric.point
    return {**row_of(metric.name, values, gaps, margin), "measure": f"quality ({metric.name})"}


def equal_texts(frames: Sequence[pd.DataFrame]) -> dict[str, Any]:
    """Return the number of texts that both decoded, and how many of them are equal."""
    first, second = (one.set_index(["example", "sample"])["text"] for one in frames)
    both = first.index.intersection(second.index)
    num_equal = int((first.loc[both] == second.loc[both]).sum())
    return {"measure": "equal_texts", "native": len(both), "vllm": num_equal, "n": len(both)}


def settings_of(table: pd.DataFrame) -> list[tuple[dict[str, Any], str]]:
    """Return the labels of each setting with its cell; the lossless cell is also listed as w = 1 of the ensemble."""
    settings = []
    for key, row in table.iterrows():
        labels = {name: row[name] for name in ("verifier", "w", "num_draft", "temperature")}
        also = [{**labels, "verifier": other["verifier"], "w": float(other["w"])} for other in row["also"]]
        settings += [(each, str(key)) for each in (labels, *also)]
    return settings


def compare(native: Results, vllm: Results) -> pd.DataFrame:
    """Return a row for each measure of each cell that both runs have."""
    tables = [table_of(one.cells) for one in (native, vllm)]
    settings = [settings_of(table) for table in tables]
    keyed = [{tuple(map(str, labels.values())): key for labels, key in known} for known in settings]
    labels_of = {tuple(map(str, labels.values())): labels for labels, _ in settings[1]}
    rows = []
    for name in sorted(set(keyed[0]) & set(keyed[1])):
        keys = [one[name] for one in keyed]
        results = list(zip((native, vllm), keys, strict=True))
        frames = [one.generations.query("cell == @key") for one, key in results]
        cell = labels_of[name]
        own = []
        if cell["num_draft"]:
            own += rates(frames, [one.rounds.query("cell == @key") for one, key in results])
        own.append(judged(tables, keys, frames))
        if not cell["temperature"] and (cell["verifier"] != "ensemble" or cell["w"] == 1):
            own.append(equal_texts(frames))
        rows += [{**cell, **row} for row in own]
    return pd.DataFrame(rows)


def decode(name: str, n: str, runs: Path, *words: str) -> Results:
    """Decode what a run's records lack, and return them; an error of the run ends this script."""
    own = [f"n={n}", f"results={runs}", f"name={name}", "timing=off", "report=off"]
    subprocess.run([sys.executable, "-m", "sdbench", *own, *words], check=True)
    return read(runs / name)


def main(words: Sequence[str]) -> int:
    with exit_on_mistake("vllm_tables", __doc__, words):
        options = DEFAULTS | dict(parse_words(words, DEFAULTS).options)
        (pair,) = choose("pair", options["pair"], PAIRS)
        tasks = choose("tasks", options["tasks"], list(GRAMMARS))
        temperatures = choose("temperatures", options["temperatures"], ("0", "1"))
        python = interpreter(options)
    runs, out, n = Path(options["runs"]), Path(options["out"]), options["n"]
    frames = []
    try:
        for task in tasks:
            for temperature in temperatures:
                samples = options["samples"] if temperature != "0" else "1"
                asked = (f"model={pair}", f"task={task}", f"temperature={temperature}", f"samples={samples}", *SWEEP)
                name = f"{pair}-{task}-T{temperature}"
                native = decode(f"{name}-native", n, runs, *asked)
                vllm = decode(f"{name}-vllm", n, runs, *asked, *OURS_INSIDE, *SERVER, f"engine.python={python}")
                for engine, results in (("native", native), ("vllm", vllm)):
                    (out / f"{name}-{engine}").mkdir(parents=True, exist_ok=True)
                    summarise(results).to_csv(out / f"{name}-{engine}" / "summary.csv", index=False)
                frames.append(compare(native, vllm).assign(task=task))
    except subprocess.CalledProcessError as error:
        return error.returncode
    table = pd.concat(frames, ignore_index=True)
    table.insert(0, "task", table.pop("task"))
    table.to_csv(out / "comparison.csv", index=False, float_format="%.6g")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
