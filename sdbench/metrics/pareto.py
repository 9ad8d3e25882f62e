"""Pareto fronts of cells in two coordinates, larger being better in both, and their uncertainty.

A quality of which less is better has its sign reversed.

`Resampled` is one bootstrap of all cells of a sweep together: an example (for speeds with all its repeats) is drawn for every
cell at once, so that what is computed from it (membership of the front, hypervolumes, areas) is paired.

The hypervolume of measured cells is too large, because it takes the luckiest cells for the best, and its bootstrap has the same
error. So its estimated bias is subtracted, and its limits are the hypervolumes of a band around all cells together.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from sdbench.metrics import quality, speed
from sdbench.metrics.acceptance import RATES
from sdbench.metrics.cells import metric_of
from sdbench.metrics.stats import NAN, Array, Estimate, bootstrap_sums
from sdbench.records import Results
from sdbench.types import Metric

RESAMPLES = 2_000
CURVES_MOST = 500  # resamples of an area, which is computed curve by curve


@dataclass(frozen=True, slots=True)
class Front:
    """`points`: a row per cell with x, y, is_on_front, probability; the hypervolume above the corner, and the bias subtracted."""

    points: pd.DataFrame
    hypervolume: Estimate
    corner: tuple[float, float]
    bias: float


@dataclass(frozen=True, slots=True)
class Resampled:
    """Coordinates of C cells: measured x and y [C], and in R resamples xs and ys [R,C]. `sizes` has the number of examples of each
    cell; for a speed it is the smaller of the numbers of examples with a quality and of timed units.
    """

    cells: tuple[str, ...]
    x: Array
    y: Array
    xs: Array
    ys: Array
    sizes: tuple[int, ...]

    @property
    def n(self) -> int:
        """The fewest examples that a coordinate rests on."""
        return min(self.sizes)

    def of(self, cells: Sequence[str]) -> "Resampled":
        """Return these cells only, in this order, in the same resamples."""
        places = [self.cells.index(cell) for cell in cells]
        sizes = tuple(self.sizes[index] for index in places)
        return Resampled(tuple(cells), self.x[places], self.y[places], self.xs[:, places], self.ys[:, places], sizes)


def non_dominated(x: ArrayLike, y: ArrayLike) -> NDArray[np.bool_]:
    """Return [..., C]: whether no other cell is at least as good in both coordinates and better in one."""
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    as_good = (a[..., None, :] >= a[..., :, None]) & (b[..., None, :] >= b[..., :, None])
    better = (a[..., None, :] > a[..., :, None]) | (b[..., None, :] > b[..., :, None])
    return np.logical_not(np.any(as_good & better, axis=-1))


def hypervolume(x: ArrayLike, y: ArrayLike, corner: tuple[float, float] = (0.0, 0.0)) -> Array:
    """Return [...]: the area that the cells [..., C] dominate above the corner."""
    a = np.maximum(np.asarray(x, dtype=np.float64) - corner[0], 0)
    b = np.maximum(np.asarray(y, dtype=np.float64) - corner[1], 0)
    order = np.argsort(-a, axis=-1, kind="stable")
    a, b = np.take_along_axis(a, order, -1), np.take_along_axis(b, order, -1)
    height = np.maximum.accumulate(b, axis=-1)
    width = a - np.concatenate([a[..., 1:], np.zeros((*a.shape[:-1], 1))], -1)
    return (width * height).sum(-1)


def _gap(first: tuple[ArrayLike, ArrayLike], second: tuple[ArrayLike, ArrayLike]) -> tuple[float, float]:
    """Return ∫ (first's y − second's y) dx over the x that both curves cover, and its width; NaN without overlap."""
    curves = []
    for x, y in (first, second):
        a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
        order = np.lexsort((b, a))
        curves.append((a[order], b[order]))
    (x, y), (u, v) = curves
    low, high = max(x[0], u[0]), min(x[-1], u[-1])
    if not low < high:
        return NAN, NAN
    grid = np.unique(np.concatenate([[low, high], x[(x > low) & (x < high)], u[(u > low) & (u < high)]]))
    return float(np.trapezoid(np.interp(grid, x, y) - np.interp(grid, u, v), grid)), float(high - low)


def joint(
    results: Results, cells: Sequence[str], *, rate: str = "acceptance", resamples: int = RESAMPLES, seed: int = 0
) -> Resampled:
    """Resample the cells of one pair and task in the plane of a rate, or of "speedup", and the task's quality.

    Rates and qualities use the same draws of examples; speeds use separate draws of the examples of each latency pass, with all
    their repeats.
    """
    table = results.cells.set_index("cell")
    parts = {str(key): part for key, part in results.generations.groupby("cell", sort=True) if key in set(cells)}
    timed = speed.against_baseline(results.timings) if rate == "speedup" else parts
    keys = [key for key in cells if key in parts and len(timed.get(key, ()))]
    if not keys:
        what = "generations and times" if rate == "speedup" else "generations"
        raise ValueError(f"none of these cells has {what}")
    keys, examples = _of_shared_examples({key: set(parts[key]["example"]) for key in keys})
    rows = {key: quality.rows_of(parts[key], metric_of(table, key)).loc[examples] for key in keys}
    y, ys = zip(*(_qualities(rows[key], metric_of(table, key), resamples, seed) for key in keys), strict=True)
    sizes = [len(examples)] * len(keys)
    if rate == "speedup":
        x, xs = _speedups({key: timed[key] for key in keys}, resamples, seed)
        sizes = [min(len(examples), timed[key]["example"].nunique()) for key in keys]
    else:
        x, xs = _rates({key: parts[key] for key in keys}, examples, RATES[rate], resamples, seed)
    return Resampled(tuple(keys), x, np.array(y), xs, np.stack(ys, 1), tuple(sizes))


def _of_shared_examples(examples: Mapping[str, set[str]]) -> tuple[list[str], list[str]]:
    """Return cells and the examples that all of them have, chosen so that the most texts count: a setting with few texts, such as
    one that was just added, is left out instead of reducing all others to its examples.
    """
    order = sorted(examples, key=lambda key: -len(examples[key]))
    shared = list(accumulate((examples[key] for key in order), set.__and__))
    last = max(range(len(order)), key=lambda index: (index + 1) * len(shared[index]))
    kept = set(order[: last + 1])
    return [key for key in examples if key in kept], sorted(shared[last])


def _qualities(rows: quality.Rows, metric: Metric, resamples: int, seed: int) -> tuple[float, Array]:
    values, sign = np.asarray(rows, dtype=np.float64).reshape(len(rows), -1), quality.sign_of(metric)
    sums = bootstrap_sums(values, resamples=resamples, seed=seed)
    drawn = sums[:, 0] / len(values) if rows.ndim == 1 else quality.corpus_of(metric)(sums)
    return sign * quality.score_of(rows, metric), sign * drawn


def _rates(
    parts: Mapping[str, pd.DataFrame], examples: Sequence[str], columns: tuple[str, str], resamples: int, seed: int
) -> tuple[Array, Array]:
    sums = (part.groupby("example")[list(columns)].sum().loc[examples] for part in parts.values())
    counts = np.concatenate([of_cell.to_numpy(dtype=np.float64) for of_cell in sums], axis=1)  # [n,2C]
    return _ratios(counts.sum(0)), _ratios(bootstrap_sums(counts, resamples=resamples, seed=seed))


def _speedups(pairs: Mapping[str, pd.DataFrame], resamples: int, seed: int) -> tuple[Array, Array]:
    """Resample the examples of each pass for its cells together; cells that were timed on other examples have other draws.

    Where the units of several passes are resampled together, a resample may contain none of a cell.
    """
    names = ["decoded_tokens", "decode_s", "decoded_tokens_base", "decode_s_base"]
    groups: defaultdict[tuple[Any, ...], dict[str, Array]] = defaultdict(dict)
    for cell, pair in pairs.items():
        frame = pair.groupby(["pass_id", "example"], sort=True)[names].sum()
        groups[tuple(frame.index)][cell] = frame.to_numpy(np.float64)
    ratios: dict[str, Array] = {}  # the measured one, then those of the resamples
    for cells in groups.values():
        sums = np.concatenate(list(cells.values()), 1)
        draws = bootstrap_sums(sums, resamples=resamples, seed=seed + 1)  # different draws from those of the qualities
        rates = _ratios(
            np.concatenate([sums.sum(0, keepdims=True), draws])
        )  # tokens per second of cell and baseline, in turn
        ratios |= dict(zip(cells, (rates[:, ::2] / rates[:, 1::2]).T, strict=True))
    together = np.stack([ratios[cell] for cell in pairs], 1)
    return together[0], together[1:]


def _ratios(sums: Array) -> Array:
    """Return ratios of [..., 2C] numerators and denominators in turn; 0 over 0 is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = sums[..., ::2] / sums[..., 1::2]
    return np.where(np.isfinite(ratios), ratios, 0.0)


def front_of(joint: Resampled, *, corner: tuple[float, float] = (0.0, 0.0), level: float = 0.95) -> Front:
    """Return the front, the share of resamples in which each cell is on it, and the hypervolume."""
    points = pd.DataFrame({"cell": joint.cells, "x": joint.x, "y": joint.y})
    points["is_on_front"] = non_dominated(joint.x, joint.y)
    shares = np.concatenate([non_dominated(a, b) for a, b in _chunks(joint.xs, joint.ys)]).mean(0)
    points["probability"] = shares if joint.n > 1 else NAN
    return Front(points, volume_of(joint, corner=corner, level=level), corner, bias_of_volume(joint, corner=corner))


def volume_of(joint: Resampled, *, corner: tuple[float, float] = (0.0, 0.0), level: float = 0.95) -> Estimate:
    """Return the hypervolume minus its bias; its limits have at least this level, and more for more cells.

    A hypervolume grows with every coordinate. So if all true coordinates lie in a band around the measured ones, whose width
    comes from the furthest of them in the resamples, the true hypervolume lies between those of the band's two edges.
    """
    value = float(hypervolume(joint.x, joint.y, corner))
    if joint.n < 2 or not len(joint.xs):
        return Estimate(value, NAN, NAN, joint.n)
    errors = np.concatenate([joint.xs.std(0), joint.ys.std(0)])
    away = np.concatenate([joint.xs - joint.x, joint.ys - joint.y], 1) / np.where(errors > 0, errors, 1.0)
    below, above = (np.quantile(side.max(1), (1 + level) / 2) * errors for side in (away, -away))
    size = len(joint.x)
    low = float(hypervolume(joint.x - below[:size], joint.y - below[size:], corner))
    high = float(hypervolume(joint.x + above[:size], joint.y + above[size:], corner))
    return Estimate(min(max(value - bias_of_volume(joint, corner=corner), low), high), low, high, joint.n)


def bias_of_volume(joint: Resampled, *, corner: tuple[float, float] = (0.0, 0.0)) -> float:
    """Estimate how much resamples overrate the hypervolume of the cells they are drawn from; the estimate tends to be too small."""
    if joint.n < 2 or not len(joint.xs):
        return NAN
    return float(hypervolume(joint.xs, joint.ys, corner).mean() - hypervolume(joint.x, joint.y, corner))


def gain(joint: Resampled, first: Sequence[str], second: Sequence[str], *, level: float = 0.95) -> dict[str, Estimate]:
    """Return `area` between two curves of cells, and `gain`: first's y over second's at equal x, averaged over the overlap."""
    a, b = joint.of(first), joint.of(second)
    n = min(a.n, b.n)
    value = np.array(_gap((a.x, a.y), (b.x, b.y)))
    rows = range(min(len(joint.xs), CURVES_MOST))
    draws = np.array([_gap((a.xs[r], a.ys[r]), (b.xs[r], b.ys[r])) for r in rows])
    draws = draws[np.isfinite(draws).all(1)]
    return {
        "area": _percentiles(float(value[0]), draws[:, 0], level, n),
        "gain": _percentiles(float(value[0] / value[1]), draws[:, 0] / draws[:, 1], level, n),
    }


def _percentiles(value: float, draws: Array, level: float, n: int) -> Estimate:
    if n < 2 or not len(draws) or np.isnan(value):
        return Estimate(value, NAN, NAN, n)
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(value, float(low), float(high), n)


def _chunks(x: Array, y: Array, size: int = 500) -> Iterator[tuple[Array, Array]]:
    return ((x[i : i + size], y[i : i + size]) for i in range(0, len(x), size))
