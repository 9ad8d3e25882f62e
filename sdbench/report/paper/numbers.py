"""What the records hold of the paper's tasks: a row a setting, in points of 100, seeds of a setting put together.

Seeds are samples: an example's score is its mean over them, and the interval is by example. How far the seeds lie apart by
themselves stands beside it, as the least and the largest of their qualities.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from sdbench.metrics import acceptance, quality, speed
from sdbench.metrics.cells import scores_of, table_of
from sdbench.metrics.columns import WEIGHT, spread, spread_names
from sdbench.metrics.gain import Passes, lossless_settings
from sdbench.metrics.stats import Estimate
from sdbench.records import Results, asked_of
from sdbench.report.paper.cells import FINETUNED, LABELS, METRICS, base_of, distillation_of, labels_of, only_distilled
from sdbench.types import Metric

RATES = ("acceptance", "block_acceptance", "tokens_per_round")
SPEEDS = ("speedup", "speedup_over_lossless")
ORDER = ["model", "task", "temperature", "verifier", "trained", "num_draft", WEIGHT]
TRAINING = ("trained_at", "loss")  # of a learned head or a finetuned draft
COLUMNS = [*LABELS, *TRAINING, "cell", "n", *spread_names((*RATES, "quality", "difference", *SPEEDS))]
COLUMNS += ["num_seeds", "seed_low", "seed_high"]


@dataclass(frozen=True)
class _SeedRun:
    """A setting of one seed in one folder."""

    results: Results
    cells: pd.DataFrame
    key: str
    labels: Mapping[str, Any]
    metric: Metric
    part: pd.DataFrame

    @property
    def cell(self) -> pd.Series:
        return self.cells.loc[self.key]

    @property
    def n(self) -> int:
        return int(self.part["example"].nunique())

    @property
    def prompts(self) -> str:
        """Equal for settings with the same prompts; a finetuned draft's pair is prompted under its own name."""
        cell = self.cell
        if distillation_of(cell) is None:
            return str(cell["asked"])
        return asked_of(self.labels["model"], cell["task"], cell["protocol"], cell["content"])

    @property
    def setting(self) -> tuple[Any, ...]:
        """Equal for the seeds of a setting."""
        cell = self.cell
        trained = (cell["content"] or {}).get("heads"), cell["checkpoint_draft"] if distillation_of(cell) else None
        labels = {name: None if value != value else value for name, value in self.labels.items()}
        return (*labels.values(), self.prompts, str(trained))

    @property
    def sweep(self) -> tuple[Any, ...]:
        """What a setting shares with the lossless one that it is compared with."""
        names = ("model", "task", "protocol", "num_draft", "temperature")
        return (*(self.labels[name] for name in names), self.prompts)

    @property
    def seed(self) -> object:
        return (self.cell["content"] or {}).get("seed")


def measured(results: Sequence[Results], **options: Any) -> pd.DataFrame:
    """Return a row for each setting of a task that the paper has: rates on 0–1, quality in points of 100, with intervals."""
    seeds: dict[tuple[Any, ...], dict[object, _SeedRun]] = {}
    for run in (run for folder in results for run in _runs_of(folder)):
        runs = seeds.setdefault(run.setting, {})
        if run.seed not in runs or run.n > runs[run.seed].n:
            runs[run.seed] = run
    pooled = {setting: list(runs.values()) for setting, runs in seeds.items()}
    rows = {setting: quality.rows_of(_together(runs), runs[0].metric) for setting, runs in pooled.items()}
    lossless = {runs[0].sweep: setting for setting, runs in pooled.items() if runs[0].labels["verifier"] == "lossless"}
    lines = []
    for setting, runs in pooled.items():
        first, base = runs[0], lossless.get(runs[0].sweep)
        numbers = _numbers(runs, rows[setting], None if base in (None, setting) else rows[base], options)  # type: ignore[index]
        lines.append({**first.labels, "cell": first.key, **numbers, **_speeds(first, options)})
    frame = pd.DataFrame(lines, columns=COLUMNS)
    # The paper's own prompt first, then what was trained at this temperature, then more examples; the key settles the rest, so
    # that equal records give equal tables.
    frame = frame.assign(_own=frame["protocol"] != "diversed", _n=-frame["n"].astype("float64"))
    frame = frame.assign(_away=frame["trained_at"].astype("float64") != frame["temperature"])
    frame = frame.sort_values([*ORDER, "_own", "_away", "_n", "cell"], ignore_index=True)
    return frame[COLUMNS].drop_duplicates(ORDER, ignore_index=True)


def _runs_of(results: Results) -> list[_SeedRun]:
    """Return the settings of the paper's tasks and rules."""
    cells = table_of(results.cells)
    runs, others = [], only_distilled(cells)
    for key, part in results.generations.groupby("cell", sort=True):
        cell = cells.loc[str(key)]
        name, labels = METRICS.get(base_of(str(cell["task"]))), labels_of(cell)
        if labels is None or (labels["model"] in others and distillation_of(cell) is None):
            continue
        if name is not None and name in part:
            (metric,) = scores_of(cell.to_dict(), [name])
            runs.append(_SeedRun(results, cells, str(key), labels, metric, part.dropna(subset=[name])))
    return runs


def _together(runs: Sequence[_SeedRun]) -> pd.DataFrame:
    """Return the generations of all seeds."""
    return pd.concat([run.part for run in runs], ignore_index=True) if len(runs) > 1 else runs[0].part


def _numbers(
    runs: Sequence[_SeedRun], rows: quality.Rows, base: quality.Rows | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    metric, part = runs[0].metric, _together(runs)
    rates = acceptance.rates(part, **options)
    estimates = {name: rates[name] for name in RATES}
    estimates["quality"] = in_points(quality.quality(rows, metric, **options), metric)
    if base is not None and len(quality.shared(rows, base)[0]):
        estimates["difference"] = in_points(quality.difference(rows, base, metric, **options), metric)
    row: dict[str, Any] = {"n": estimates["quality"].n, "num_seeds": len(runs)}
    for name, estimate in estimates.items():
        row |= spread(name, estimate)
    if len(runs) > 1:
        alone = [quality.quality(quality.rows_of(run.part, metric), metric, **options).value for run in runs]
        row |= {"seed_low": metric.scale * min(alone), "seed_high": metric.scale * max(alone)}
    return row


def in_points(estimate: Estimate, metric: Metric) -> Estimate:
    """Return shares as percent."""
    value, low, high = (metric.scale * number for number in (estimate.value, estimate.low, estimate.high))
    return Estimate(value, low, high, estimate.n)


def _speeds(run: _SeedRun, options: Mapping[str, Any]) -> dict[str, float]:
    """Return measured speed over the target alone, and over the best lossless setting of the same pass."""
    timings = run.results.timings
    speeds = speed.speeds(timings[timings["model"] == run.cell["model"]], **options).get(run.key)
    row = {} if speeds is None else spread("speedup", speeds["speedup"])
    if run.labels["verifier"] == FINETUNED:  # its pass holds no lossless setting of the pair's own draft
        return row
    same = run.cells[run.cells["sweep"] == run.cell["sweep"]]
    passes = Passes.of(timings)
    best = passes.best_of(lossless_settings(same), run.key)
    over = None if best is None else passes.ratio(run.key, best)
    return row | ({} if over is None or math.isnan(over.value) else spread("speedup_over_lossless", over))
