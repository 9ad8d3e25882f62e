"""The Pareto front of cells in two coordinates that are both better when larger, and how sure it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from sdbench.metrics import quality
from sdbench.metrics.acceptance import RATES
from sdbench.metrics.stats import NAN, Estimate, resampled
from sdbench.metrics.summary import metric_of
from sdbench.records import Results

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Front:
    """`points`: a row a cell with x, y, is_on_front, probability; the hypervolume above the corner."""

    points: pd.DataFrame
    hypervolume: Estimate
    corner: tuple[float, float]


def non_dominated(x: ArrayLike, y: ArrayLike) -> NDArray[np.bool_]:
    """[..., C]: no other cell is at least as good in both and better in one."""
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    as_good = (a[..., None, :] >= a[..., :, None]) & (b[..., None, :] >= b[..., :, None])
    better = (a[..., None, :] > a[..., :, None]) | (b[..., None, :] > b[..., :, None])
    return np.logical_not(np.any(as_good & better, axis=-1))


def hypervolume(x: ArrayLike, y: ArrayLike, corner: tuple[float, float] = (0.0, 0.0)) -> Array:
    """[...]: the area that the cells [..., C] dominate above the corner."""
    a = np.maximum(np.asarray(x, dtype=np.float64) - corner[0], 0)
    b = np.maximum(np.asarray(y, dtype=np.float64) - corner[1], 0)
    order = np.argsort(-a, axis=-1, kind="stable")
    a, b = np.take_along_axis(a, order, -1), np.take_along_axis(b, order, -1)
    height = np.maximum.accumulate(b, axis=-1)
    width = a - np.concatenate([a[..., 1:], np.zeros((*a.shape[:-1], 1))], -1)
    return (width * height).sum(-1)


def area_between(first: tuple[ArrayLike, ArrayLike], second: tuple[ArrayLike, ArrayLike]) -> float:
    """∫ (first's y − second's y) dx over the x both curves cover, straight lines between; NaN without overlap."""
    curves = [np.array(sorted(zip(np.asarray(x), np.asarray(y), strict=True))) for x, y in (first, second)]
    low, high = max(c[0, 0] for c in curves), min(c[-1, 0] for c in curves)
    if not low < high:
        return NAN
    grid = np.unique(np.concatenate([[low, high], *(c[(c[:, 0] > low) & (c[:, 0] < high), 0] for c in curves)]))
    gap = np.interp(grid, curves[0][:, 0], curves[0][:, 1]) - np.interp(grid, curves[1][:, 0], curves[1][:, 1])
    return float(np.trapezoid(gap, grid))


def front(
    results: Results,
    cells: Sequence[str],
    *,
    rate: str = "acceptance",
    corner: tuple[float, float] = (0.0, 0.0),
    resamples: int = 2_000,
    seed: int = 0,
    level: float = 0.95,
) -> Front:
    """Cells of one pair and task in the plane of a rate and the task's quality; one draw of examples serves all."""
    table = results.cells.set_index("cell")
    parts = {key: part for key, part in results.generations.groupby("cell", sort=True) if key in set(cells)}
    keys = [key for key in cells if key in parts]
    if not keys:
        raise ValueError("none of these cells has generations")
    examples = sorted(set.intersection(*(set(part["example"]) for part in parts.values())))
    x, y = _coordinates(table, parts, keys, examples, RATES[rate], None)
    draws = _coordinates(table, parts, keys, examples, RATES[rate], (resamples, seed))
    points = pd.DataFrame({"cell": keys, "x": x[0], "y": y[0], "is_on_front": non_dominated(x[0], y[0])})
    points["probability"] = np.concatenate([non_dominated(a, b) for a, b in _chunks(*draws)]).mean(0)
    volumes = hypervolume(*draws, corner)
    low, high = np.quantile(volumes, [(1 - level) / 2, (1 + level) / 2])
    value = float(hypervolume(x, y, corner)[0])
    return Front(points, Estimate(value, float(low), float(high), len(examples)), corner)


def _chunks(x: Array, y: Array, size: int = 500) -> list[tuple[Array, Array]]:
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]


def _coordinates(
    table: pd.DataFrame,
    parts: Mapping[str, pd.DataFrame],
    keys: Sequence[str],
    examples: Sequence[str],
    columns: tuple[str, str],
    draws: tuple[int, int] | None,
) -> tuple[Array, Array]:
    """[R,C] of both coordinates; R is 1 without draws."""
    xs, ys = [], []
    for key in keys:
        counts = parts[key].groupby("example")[list(dict.fromkeys(columns))].sum().loc[examples]
        rows = np.asarray(quality.rows_of(parts[key], metric_of(table, key)).loc[examples], dtype=np.float64)
        values = rows.reshape(len(examples), -1)
        stacked = np.concatenate(
            [counts[columns[0]].to_numpy()[:, None], counts[columns[1]].to_numpy()[:, None], values], 1
        )
        sums = resampled(stacked, resamples=draws[0], seed=draws[1]) if draws else stacked.sum(0, keepdims=True)
        xs.append(sums[:, 0] / sums[:, 1])
        ys.append(sums[:, 2] / len(examples) if rows.ndim == 1 else quality.CORPUS[metric_of(table, key)](sums[:, 2:]))
    return np.stack(xs, 1), np.stack(ys, 1)
