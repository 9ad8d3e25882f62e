"""The data of the figures as tables, with the labels of their cells."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import pandas as pd

from sdbench.metrics import pareto, published_claims, quality
from sdbench.metrics.cells import reference
from sdbench.metrics.columns import WEIGHT, spread
from sdbench.metrics.recommend import Recommendation
from sdbench.report.inputs import input_lengths
from sdbench.report.sweep import PLANES, Sweep

LABELS = ["model", "task", "temperature", "verifier", WEIGHT, "knob", "value", "drafter", "num_draft"]


def front(sweep: Sweep) -> pd.DataFrame:
    """Return the position of each cell in both planes, in the metric's own scale, and its probability of being on the front.

    Cells that share too few examples with the others have neither a probability nor a place on the front or off it.
    """
    parts = []
    for rate, area in sweep.fronts.items():
        others = sweep.rows.loc[sweep.unjudged_of(rate), [rate, "quality"]].set_axis(["x", "y"], axis=1)
        points = [area.points, others.reset_index(names="cell")] if len(others) else [area.points]
        parts.append(pd.concat(points, ignore_index=True).assign(plane=PLANES[rate]))
    return with_labels(sweep, pd.concat(parts)) if parts else pd.DataFrame()


def volume(sweep: Sweep) -> pd.DataFrame:
    """Return hypervolumes of all cells and of each curve, from acceptance (or speed) 0 and the worst possible score.

    `bias` was subtracted: the luckiest of several settings looks better than it is.
    """
    joints = {} if sweep.worst is None else sweep.joints
    areas = [(rate, "all", sweep.fronts[rate].hypervolume, sweep.fronts[rate].bias) for rate in joints]
    for rate, joint in joints.items():
        for name, keys in sweep.curves_in(joint).items():
            curve, corner = joint.of(keys), sweep.corner
            area, bias = pareto.volume_of(curve, corner=corner), pareto.bias_of_volume(curve, corner=corner)
            areas.append((rate, name, area, bias))
    rows = [
        {"plane": PLANES[rate], "curve": name, **spread("value", area), "bias": bias, "n": area.n}
        for rate, name, area, bias in areas
    ]
    return with_heading(sweep, rows)


def areas(sweep: Sweep) -> pd.DataFrame:
    """Return the area between two curves, and the mean gain of the first over the second at equal acceptance or speed-up."""
    rows = [
        {"plane": PLANES[rate], "first": a, "second": b, "measure": name, **spread("value", area), "n": area.n}
        for rate, joint in sweep.joints.items()
        for (a, first), (b, second) in combinations(sweep.curves_in(joint).items(), 2)
        if len(first) > 1 and len(second) > 1
        for name, area in pareto.gain(joint, first, second).items()
    ]
    return with_heading(sweep, rows)


def order(sweep: Sweep) -> pd.DataFrame:
    """Return for each curve with a lossless end whether higher acceptance was also less time, as measured."""
    joint, rows = sweep.joints.get("speedup"), []
    if joint is None:
        return pd.DataFrame()
    for name, points in sweep.curves.items():
        keys = [key for key in pd.concat([sweep.strict_end(name), points])["cell"] if key in joint.cells]
        if len(keys) > 1:
            outcome = published_claims.check_monotone(joint.of(keys), sweep.rows["acceptance"].to_dict())
            labels = {end: sweep.cells["label"].get(outcome[end], "") for end in ("slower", "faster")}
            rows.append({"curve": name, "timed": len(keys), **outcome, **labels})
    return with_heading(sweep, rows)


def retention(sweep: Sweep) -> pd.DataFrame:
    """Return the quality of each setting over lossless, and how many examples would show the difference; none if less is better."""
    if sweep.metric.best == "low":
        return pd.DataFrame()
    known = sweep.rows[sweep.rows["difference"].notna() & (sweep.rows["verifier"] != "lossless")]
    lossless = pd.Series({key: reference(sweep.cells, str(key), "lossless") for key in known.index}, dtype=object)
    same_length = lossless.map(sweep.cells["num_draft"]) == known["num_draft"]
    if not same_length.any():
        return pd.DataFrame()
    pairs = _shared_with(sweep, lossless[same_length])
    pairs = pairs[pairs["strict"] > 0]
    rows = known.loc[pairs.index].assign(n=pairs["n"], strict=pairs["strict"])
    return with_labels(sweep, published_claims.retention_of(rows).reset_index(names="cell"))


def _shared_with(sweep: Sweep, lossless: pd.Series) -> pd.DataFrame:
    """Return for each cell how many examples it shares with its lossless cell, `n`, and the score of lossless on them, `strict`."""
    metric, generations = sweep.metric, sweep.results.generations
    used = generations[generations["cell"].isin({*lossless, *lossless.index})].dropna(subset=[metric.name])
    scores = {str(key): quality.rows_of(part, metric) for key, part in used.groupby("cell", sort=True)}
    bases = [quality.shared_rows(scores[str(key)], scores[base])[1] for key, base in lossless.items()]
    columns = {"n": list(map(len, bases)), "strict": [quality.score_of(base, metric) for base in bases]}
    return pd.DataFrame(columns, index=lossless.index)


FRAMES: Mapping[str, Callable[[Sweep], pd.DataFrame]] = {
    "front": front,
    "volume": volume,
    "areas": areas,
    "order": order,
    "retention": retention,
    "positions": lambda sweep: with_labels(sweep, sweep.positions),
    "load": lambda sweep: with_labels(sweep, sweep.load),
    "open_load": lambda sweep: with_labels(sweep, sweep.open_load),
    "laws": lambda sweep: sweep.laws,
    "predicted": lambda sweep: sweep.predicted,
    "divergence": lambda sweep: with_labels(sweep, sweep.followed),
}


def frames(sweeps: Sequence[Sweep], advice: Sequence[Recommendation]) -> dict[str, pd.DataFrame]:
    """Return every table that has rows, by its file name below tables/."""
    tables = {}
    for name, make in FRAMES.items():
        parts = [part for part in map(make, sweeps) if len(part)]
        if parts:
            tables[name] = pd.concat(parts, ignore_index=True)
    lengths = [group.table for group in input_lengths(sweeps)]
    tables |= {"inputs": pd.concat(lengths, ignore_index=True)} if lengths else {}
    tests = recommendation(advice)
    return tables | ({"recommendation": tests} if len(tests) else {})


def recommendation(advice: Sequence[Recommendation]) -> pd.DataFrame:
    """Return each non-inferiority test in order, in points; `worst` is the one-sided limit at its level.

    `excess` is the largest excess of looping or failing texts over those of lossless, and `excess_kind` its kind; it too must be
    within the margin.
    """
    rows = [
        {
            "model": each.model,
            "task": each.task,
            "sweep": weighed.title,
            "name": weighed.names.get(test.cell),
            "verifier": test.verifier,
            "setting": test.setting,
            "num_draft": test.num_draft,
            "margin": each.margin,
            "change": test.change,
            "worst": test.worst,
            "loops": test.loops,
            "excess": test.excess[0] if test.excesses else None,
            "excess_kind": test.excess[1] if test.excesses else None,
            "n": test.difference.n,
            "is_passed": test.is_safe(each.margin),
            "is_recommended": test.cell == each.cell,
            "cell": test.cell,
        }
        for folder in advice
        for each, weighed in zip(folder.advices, folder.weighed, strict=True)
        for test in each.tests
    ]
    return pd.DataFrame(rows)


def with_labels(sweep: Sweep, frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame by cell with its labels first, in the order of the summary."""
    joined = sweep.rows.reset_index()[["cell", *LABELS]].merge(frame, on="cell", how="inner")
    return joined[[*LABELS, *(name for name in joined if name not in ("cell", *LABELS)), "cell"]]


def with_heading(sweep: Sweep, rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows about a whole sweep with its labels first."""
    head = {"model": sweep.model, "task": sweep.task, "temperature": sweep.temperature}
    frame = pd.DataFrame([{**head, **row} for row in rows])
    return frame.rename(columns={"value_low": "low", "value_high": "high"})
