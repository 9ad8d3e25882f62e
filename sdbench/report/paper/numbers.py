"""What the records hold of the paper's tasks: one row a setting, in points of 100, seeds of one setting put together.

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
from sdbench.metrics.columns import spread, spread_names
from sdbench.metrics.gain import Passes, lossless_settings
from sdbench.metrics.legacy import WEIGHT
from sdbench.metrics.stats import Estimate
from sdbench.records import Results, asked_of
from sdbench.report.paper.cells import FINETUNED, LABELS, METRICS, base_of, distilled, labels_of, strangers
from sdbench.types import Metric

RATES = ("acceptance", "block_acceptance", "tokens_per_round")
SPEEDS = ("speedup", "speedup_over_lossless")
ORDER = ["model", "task", "temperature", "verifier", "trained", "num_draft", WEIGHT]
TRAINING = ("trained_at", "loss")  # of a learned head or a finetuned draft
COLUMNS = [*LABELS, *TRAINING, "cell", "n", *spread_names((*RATES, "quality", "difference", *SPEEDS))]
COLUMNS += ["num_seeds", "seed_low", "seed_high"]


@dataclass(frozen=True)
class _Setting:
    """One setting of one seed in one folder."""

    results: Results
    cells: pd.DataFrame
    key: str
    labels: Mapping[str, Any]
    metric: Metric
    part: pd.DataFrame

    @property
    def n(self) -> int:
        return int(self.part["example"].nunique())

    @property
    def asked(self) -> str:
        """Equal for settings whose models were shown the same; a finetuned draft's pair is asked under its own name."""
        cell = self.cells.loc[self.key]
        return (
            asked_of(self.labels["model"], cell["task"], cell["protocol"], cell["content"])
            if distilled(cell)
            else str(cell["asked"])
        )

    @property
    def place(self) -> tuple[Any, ...]:
        """Equal for the seeds of one setting."""
        cell = self.cells.loc[self.key]
        trained = (cell["content"] or {}).get("heads"), cell["checkpoint_draft"] if distilled(cell) else None
        labels = {name: None if value != value else value for name, value in self.labels.items()}
        return (*labels.values(), self.asked, str(trained))

    @property
    def seed(self) -> object:
        return (self.cells.at[self.key, "content"] or {}).get("seed")


def measured(results: Sequence[Results], **options: Any) -> pd.DataFrame:
    """One row a setting of a task that the paper has: rates on 0–1, quality in points of 100, each with its interval."""
    seeds: dict[tuple[Any, ...], dict[object, _Setting]] = {}
    for one in (setting for each in results for setting in _settings(each)):
        own = seeds.setdefault(one.place, {})
        if one.seed not in own or one.n > own[one.seed].n:
            own[one.seed] = one
    pooled = {place: list(own.values()) for place, own in seeds.items()}
    rows = {place: quality.rows_of(_together(own), own[0].metric) for place, own in pooled.items()}
    lossless = {_sweep(own[0]): place for place, own in pooled.items() if own[0].labels["verifier"] == "lossless"}
    lines = []
    for place, own in pooled.items():
        first, base = own[0], lossless.get(_sweep(own[0]))
        numbers = _numbers(own, rows[place], None if base in (None, place) else rows[base], options)  # type: ignore[index]
        lines.append({**first.labels, "cell": first.key, **numbers, **_speeds(first, options)})
    frame = pd.DataFrame(lines, columns=COLUMNS)
    # The paper's own prompt first, then what was trained at this temperature, then more examples; the key settles the rest, so
    # that equal records give equal tables.
    frame = frame.assign(_own=frame["protocol"] != "diversed", _n=-frame["n"].astype("float64"))
    frame = frame.assign(_away=frame["trained_at"].astype("float64") != frame["temperature"])
    frame = frame.sort_values([*ORDER, "_own", "_away", "_n", "cell"], ignore_index=True)
    frame = frame.drop(columns=["_own", "_away", "_n"])
    return frame.drop_duplicates(ORDER, ignore_index=True)


def _settings(results: Results) -> list[_Setting]:
    """Those of the paper's tasks and rules."""
    cells = table_of(results.cells)
    settings, others = [], strangers(cells)
    for key, part in results.generations.groupby("cell", sort=True):
        cell = cells.loc[str(key)]
        name = METRICS.get(base_of(str(cell["task"])))
        labels = labels_of(cell)
        if labels is None or (labels["model"] in others and distilled(cell) is None):
            continue
        if name is not None and name in part:
            (metric,) = scores_of(cell.to_dict(), [name])
            settings.append(_Setting(results, cells, str(key), labels, metric, part.dropna(subset=[name])))
    return settings


def _sweep(one: _Setting) -> tuple[Any, ...]:
    """What a setting shares with the lossless one that it is held against."""
    labels = one.labels
    names = ("model", "task", "protocol", "num_draft", "temperature")
    return (*(labels[name] for name in names), one.asked)


def _together(own: Sequence[_Setting]) -> pd.DataFrame:
    """The generations of all seeds."""
    return pd.concat([one.part for one in own], ignore_index=True) if len(own) > 1 else own[0].part


def _numbers(
    own: Sequence[_Setting], rows: quality.Rows, base: quality.Rows | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    metric, part = own[0].metric, _together(own)
    rates = acceptance.rates(part, **options)
    estimates = {name: rates[name] for name in RATES}
    estimates["quality"] = shown(quality.quality(rows, metric, **options), metric)
    if base is not None and len(quality.shared(rows, base)[0]):
        estimates["difference"] = shown(quality.difference(rows, base, metric, **options), metric)
    row: dict[str, Any] = {"n": estimates["quality"].n, "num_seeds": len(own)}
    for name, one in estimates.items():
        row |= spread(name, one)
    if len(own) > 1:
        alone = [quality.quality(quality.rows_of(one.part, metric), metric, **options).value for one in own]
        row |= {"seed_low": metric.scale * min(alone), "seed_high": metric.scale * max(alone)}
    return row


def shown(one: Estimate, metric: Metric) -> Estimate:
    """Shares as per cent."""
    return Estimate(metric.scale * one.value, metric.scale * one.low, metric.scale * one.high, one.n)


def _speeds(one: _Setting, options: Mapping[str, Any]) -> dict[str, float]:
    """Measured speed over the target alone, and over the best lossless setting of the same pass."""
    timings = one.results.timings
    own = speed.speeds(timings[timings["model"] == one.cells.at[one.key, "model"]], **options).get(one.key)
    row = {} if own is None else spread("speedup", own["speedup"])
    if one.labels["verifier"] == FINETUNED:  # its pass holds no lossless setting of the pair's own draft
        return row
    same = one.cells[one.cells["sweep"] == one.cells.at[one.key, "sweep"]]
    passes = Passes.of(timings)
    best = passes.best_of(lossless_settings(same), one.key)
    over = None if best is None else passes.ratio(one.key, best)
    return row | ({} if over is None or math.isnan(over.value) else spread("speedup_over_lossless", over))
