"""The numbers of the paper's tasks in the records: a row per setting, in points of 100, all seeds of a setting together.

Seeds are samples: an example's score is its mean over them, and the interval is by example. The smallest and the largest quality
of a seed are given too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from scripts.paper.cells import FINETUNED, HERE, LABELS, METRICS, base_of, distillation_of, labels_of, only_distilled
from sdbench.metrics import acceptance, quality, speed
from sdbench.metrics.cells import scores_of, table_of
from sdbench.metrics.columns import WEIGHT, spread, spread_names
from sdbench.metrics.gain import Passes, lossless_settings
from sdbench.metrics.stats import Estimate
from sdbench.records import Results, asked_of
from sdbench.types import Metric

RATES = ("acceptance", "block_acceptance", "tokens_per_round")
SPEEDS = ("speedup", "speedup_over_lossless")
ORDER = ["model", "task", "temperature", "verifier", "trained", "num_draft", WEIGHT]
TRAINING = ("trained_at", "loss")  # of a learned head or a finetuned draft
COLUMNS = [*LABELS, *TRAINING, "cell", "n", *spread_names((*RATES, "quality", "difference", *SPEEDS))]
COLUMNS += ["num_seeds", "seed_low", "seed_high"]
PUBLISHED_NUMBERS = ("temperature", WEIGHT, "num_draft", "acceptance", "quality", "rougeL", "tokens_per_s")
PUBLISHED_NUMBERS += ("max_new_tokens", "n")


class _SeedRun(NamedTuple):
    """A setting of one seed in one folder. `setting` is equal for its seeds; `sweep` is what it shares with its lossless one."""

    results: Results
    cells: pd.DataFrame
    cell: pd.Series
    labels: Mapping[str, Any]
    metric: Metric
    part: pd.DataFrame
    setting: tuple[Any, ...]
    sweep: tuple[Any, ...]

    @property
    def n(self) -> int:
        return int(self.part["example"].nunique())


def measure_cells(results: Sequence[Results], **options: Any) -> pd.DataFrame:
    """Return a row for each setting of a task that the paper has: rates on 0–1, quality in points of 100, with intervals."""
    seeds: dict[tuple[Any, ...], dict[object, _SeedRun]] = {}
    for run in (run for folder in results for run in _runs_of(folder)):
        runs, seed = seeds.setdefault(run.setting, {}), (run.cell["content"] or {}).get("seed")
        if seed not in runs or run.n > runs[seed].n:
            runs[seed] = run
    pooled = {setting: list(runs.values()) for setting, runs in seeds.items()}
    rows = {setting: quality.rows_of(_together(runs), runs[0].metric) for setting, runs in pooled.items()}
    lossless = {runs[0].sweep: setting for setting, runs in pooled.items() if runs[0].labels["verifier"] == "lossless"}
    lines = []
    for setting, runs in pooled.items():
        first, base = runs[0], lossless.get(runs[0].sweep)
        numbers = _numbers(runs, rows[setting], None if base in (None, setting) else rows[base], options)  # type: ignore[index]
        lines.append({**first.labels, "cell": first.cell.name, **numbers, **_speeds(first, options)})
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
        name, labels, distilled = METRICS.get(base_of(str(cell["task"]))), labels_of(cell), distillation_of(cell)
        if labels is None or (labels["model"] in others and distilled is None) or name is None or name not in part:
            continue
        prompts = str(cell["asked"])
        if distilled is not None:  # a finetuned draft's pair is prompted under its own name
            prompts = asked_of(labels["model"], cell["task"], cell["protocol"], cell["content"])
        trained = (cell["content"] or {}).get("heads"), None if distilled is None else cell["checkpoint_draft"]
        known = {label: None if value != value else value for label, value in labels.items()}
        sweep = *(labels[label] for label in ("model", "task", "protocol", "num_draft", "temperature")), prompts
        (metric,) = scores_of(cell.to_dict(), [name])
        scored, setting = part.dropna(subset=[name]), (*known.values(), prompts, str(trained))
        runs.append(_SeedRun(results, cells, cell, labels, metric, scored, setting, sweep))
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
    if base is not None and len(quality.shared_rows(rows, base)[0]):
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
    speeds = speed.speeds(timings[timings["model"] == run.cell["model"]], **options).get(str(run.cell.name))
    row = {} if speeds is None else spread("speedup", speeds["speedup"])
    if run.labels["verifier"] == FINETUNED:  # its pass holds no lossless setting of the pair's own draft
        return row
    same = run.cells[run.cells["sweep"] == run.cell["sweep"]]
    passes = Passes.of(timings)
    best = passes.best_of(lossless_settings(same), str(run.cell.name))
    over = None if best is None else passes.ratio(str(run.cell.name), best)
    return row | ({} if over is None or math.isnan(over.value) else spread("speedup_over_lossless", over))


def read_published() -> pd.DataFrame:
    """Return a row a published number: acceptance on 0–1, quality in points of 100, NaN or "" where nothing was said.

    Numbers are shown beside ours and never joined to ours: nobody says what their "acceptance rate" counts. Where each comes from
    and what is doubtful about it stands in published/README.md.
    """
    frame = pd.read_csv(HERE / "published" / "diversed.csv", dtype="str", keep_default_na=False)
    return frame.assign(**{name: pd.to_numeric(frame[name]) for name in PUBLISHED_NUMBERS})


def doubtful(frame: pd.DataFrame, doubt: str) -> pd.Series:
    """Return which published rows carry this doubt."""
    return frame["doubts"].str.split().map(lambda doubts: doubt in doubts)
