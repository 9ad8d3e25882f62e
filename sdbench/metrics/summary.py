"""One row per cell: acceptance, quality, speed, differences from lossless, with intervals. Empty means not measured."""

from typing import Any

import pandas as pd

from sdbench.metrics import acceptance, quality, speed
from sdbench.metrics.cells import BASELINES, VARIED, metric_of, reference, settings_of, table_of
from sdbench.metrics.columns import WEIGHT, spread, spread_names
from sdbench.metrics.degenerate import degenerate
from sdbench.metrics.gain import Passes, lossless_settings
from sdbench.metrics.knobs import format_value
from sdbench.metrics.stats import affordable, detectable, holm, mean_interval
from sdbench.metrics.text import also_of, sort_cells
from sdbench.records import Results
from sdbench.types import Metric

LABELS = ("model", "task", "verifier", WEIGHT, "knob", "value", "drafter", "num_draft", "temperature")
LEADING = [*LABELS, "n"]
FLAGS = ("is_truncated", "is_empty", "is_extraction_failed", "is_prompt_cut")
RATES_OF_FLAGS = tuple(f"{flag.removeprefix('is_')}_rate" for flag in FLAGS)
SECONDS = (*speed.FIRST_TOKEN, "round_p50_s", "round_p90_s", "round_p99_s", "draft_s", "verify_s", "rest_s", "split_s")
PAIRED = ("difference", "difference_from_target")
WITH_INTERVALS = (
    *acceptance.RATES,
    *("quality", *PAIRED),
    *("tokens_per_s", "speedup", "speedup_median", "speedup_over_lossless", "speedup_end_to_end", "speedup_modelled"),
    "time_ratio",
    *(*SECONDS, "mean_tokens", "repeated_4grams", "loop_rate", *RATES_OF_FLAGS),
)
TESTS = tuple(f"{name}{end}" for end in ("", "_from_target") for name in ("p_value", "p_holm", "detectable"))
# For a cell with texts whose rounds the server did not report; `pooled_texts` is the number of texts behind the others.
POOLED = ("pooled_block_acceptance", "pooled_tokens_per_step", "pooled_from", "pooled_texts")
COUNTS = ("num_generations", *(f"{name}_n" for name in PAIRED), "num_timed", "num_split")
PLAIN = (*POOLED, "metric", "protocol", *VARIED, "is_lossless", *TESTS, *COUNTS, "knobs", "also", "cell")


def summarise(results: Results, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0) -> pd.DataFrame:
    """Return the frame of summary.csv: by model, task and temperature, then in reading order."""
    cells, generations = table_of(results.cells), results.generations
    resamples = affordable(generations["example"].nunique(), resamples)
    options: dict[str, Any] = {"level": level, "resamples": resamples, "seed": seed}
    parts = {str(cell): part for cell, part in generations.groupby("cell", sort=True)}
    rows = {
        key: quality.rows_of(part.dropna(subset=[metric.name]), metric)
        for key, part in parts.items()
        if (metric := metric_of(cells, key)).name in part
    }
    pooled = {str(cell): part for cell, part in results.pooled.groupby("cell", sort=True)}
    repetition = {str(cell): part for cell, part in degenerate(results).groupby("cell", sort=True)}
    timed, passes = speed.speeds(results.timings, **options), Passes.of(results.timings)
    seconds = [speed.splits(results.timings, **options), speed.percentiles(results.timings, level=level)]
    lines = []
    for key in sorted({*parts, *timed} & set(cells.index)):
        cell = cells.loc[key]
        row: dict[str, Any] = {name: cell[name] for name in (*LABELS, "metric", "knobs")}
        row |= {
            "is_lossless": bool(cell["is_lossless"]),
            "protocol": cell["protocol"],
            **settings_of(cell),
            "also": also_of(cell["also"]) or None,
            "cell": key,
        }
        if key in parts:
            row |= _counts_and_rates(parts[key], str(cell["law"]), speed.prices_of(results, parts[key]), options)
        if key in pooled and not _has_rounds(parts.get(key)):
            row |= _pooled_sums(pooled[key])
        if key in repetition:
            row |= _repetition(repetition[key], options)
        if key in rows:
            row |= _quality_columns(key, cells, rows, options)
        for name, estimate in timed.get(key, {}).items():
            row |= spread(name, estimate)
        if key in timed:
            row["num_timed"] = timed[key]["speedup"].n
            row |= _over_lossless(key, cells, passes, level)
        for name, estimate in (item for table in seconds for item in table.get(key, {}).items()):
            row |= spread(name, estimate) | ({"num_split": estimate.n} if name == "split_s" else {})
        lines.append(row)
    frame = pd.DataFrame(lines, columns=[*LEADING, *spread_names(WITH_INTERVALS), *PLAIN])
    sweep = frame["cell"].map(cells["sweep"])
    for end in ("", "_from_target"):  # lossless rules are not tested, so not part of the family
        tested = frame[f"p_value{end}"].astype("float64").mask(frame["is_lossless"].astype(bool))
        frame[f"p_holm{end}"] = tested.groupby(sweep, group_keys=False).transform(holm)
    frame["knob"] = frame["knob"].replace("", None)
    frame["value"] = _of_one_type(frame["value"])
    ranked = frame.assign(rank=frame["cell"].map(cells["rank"]))
    return sort_cells(ranked, ("model", "task", "temperature")).drop(columns="rank").reset_index(drop=True)


def _of_one_type(values: pd.Series) -> pd.Series:
    """Return numbers if all values are numbers, otherwise all values as texts."""
    known = values.dropna()
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in known):
        return values.astype("float64")
    return values.map(lambda value: None if value is None or value != value else format_value(value))


def _repetition(part: pd.DataFrame, options: dict[str, Any]) -> dict[str, float]:
    """Return repeated 4-grams and loops of one cell, as shares of each example's texts."""
    means = part.groupby("example", sort=True)[["repeated", "is_loop"]].mean()
    row = spread("repeated_4grams", quality.quality(means["repeated"], Metric("repeated_4grams", "share"), **options))
    return row | spread("loop_rate", quality.quality(means["is_loop"], Metric("loop_rate", "share"), **options))


def _has_rounds(part: pd.DataFrame | None) -> bool:
    """Return whether the rounds of every text of a cell are known, so that pooled counts would add nothing."""
    return part is not None and bool(part["rounds"].notna().all())


def _pooled_sums(part: pd.DataFrame) -> dict[str, Any]:
    """Return sums over all texts of a cell, without an interval, since no example's part in them is known."""
    drafted, accepted, steps = (float(part[name].sum(skipna=False)) for name in ("drafted", "accepted", "steps"))
    values = (accepted / drafted if drafted else None, 1 + accepted / steps if steps else None)
    source = "+".join(sorted(set(part["source"])))
    return dict(zip(POOLED, (*values, source, int(part["texts"].sum())), strict=True))


def _over_lossless(key: str, cells: pd.DataFrame, passes: Passes, level: float) -> dict[str, float]:
    """Return the measured speed over the best lossless setting of the same pass; that setting itself is at 1."""
    same = cells[cells["sweep"] == cells.at[key, "sweep"]]
    best = passes.best_of(lossless_settings(same), key)
    over = None if best is None else passes.ratio(key, best, level=level)
    return {} if over is None else spread("speedup_over_lossless", over)


def _counts_and_rates(part: pd.DataFrame, law: str, calls: pd.DataFrame, options: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"n": part["example"].nunique(), "num_generations": len(part)}
    for name, estimate in acceptance.rates(part, law=law, **options).items():
        row |= spread(name, estimate)
    row |= spread("speedup_modelled", speed.modelled_speedup(part, calls, **options))
    whole = part.groupby("example", sort=True)
    row |= spread("mean_tokens", mean_interval(whole["tokens"].mean(), bounds=(0, None), **options))
    for flag, name in zip(FLAGS, RATES_OF_FLAGS, strict=True):
        if flag in part:
            shares = part[flag].astype("float64").groupby(part["example"], sort=True).mean().dropna()
            row |= spread(name, quality.quality(shares, Metric(name, "share"), **options))
    return row


def _quality_columns(key: str, cells: pd.DataFrame, rows: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    metric = metric_of(cells, key)
    row = spread("quality", quality.quality(rows[key], metric, **options))
    for name, verifier in zip(PAIRED, ("lossless", "target"), strict=True):
        base = reference(cells, key, verifier)
        if base is None or base == key or base not in rows or not len(quality.shared_rows(rows[key], rows[base])[0]):
            continue
        change = quality.difference(rows[key], rows[base], metric, **options)
        row |= spread(name, change) | {f"{name}_n": change.n}  # the other cell may have fewer examples
        end = name.removeprefix("difference")
        pair = [quality.influence(values, metric) for values in quality.shared_rows(rows[key], rows[base])]
        row[f"detectable{end}"] = detectable(*pair)
        if str(cells.at[key, "verifier"]) not in BASELINES:
            row[f"p_value{end}"] = quality.p_value(rows[key], rows[base], metric)
    return row
