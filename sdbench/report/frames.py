"""The tables beside the figures: what each figure draws, as numbers, with the labels of its cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from sdbench.metrics import folklore
from sdbench.metrics.columns import spread
from sdbench.metrics.legacy import WEIGHT
from sdbench.metrics.recommend import Recommendation
from sdbench.report.sweep import PLANES, Sweep

LABELS = ["model", "task", "temperature", "verifier", WEIGHT, "knob", "value", "num_draft"]


def front(sweep: Sweep) -> pd.DataFrame:
    """Each cell's place in both planes, in the metric's own scale, and its chance of being on the front."""
    points = [area.points.assign(plane=PLANES[rate]) for rate, area in sweep.fronts.items()]
    return labelled(sweep, pd.concat(points)) if points else pd.DataFrame()


def volume(sweep: Sweep) -> pd.DataFrame:
    """Hypervolumes of all cells and of each curve, from no acceptance (or speed) and the worst score there can be.

    `bias` was taken off: the luckiest of several settings looks better than it is.
    """
    rows = [
        {"plane": PLANES[rate], "curve": curve, **spread("value", area), "bias": bias, "n": area.n}
        for (rate, curve), (area, bias) in sweep.volumes.items()
    ]
    return headed(sweep, rows)


def areas(sweep: Sweep) -> pd.DataFrame:
    """Area between two curves, and the mean gain of the first over the second at equal acceptance or speed-up."""
    rows = [
        {
            "plane": PLANES[rate],
            "first": first,
            "second": second,
            "measure": name,
            **spread("value", estimate),
            "n": estimate.n,
        }
        for (rate, first, second), measures in sweep.gains.items()
        for name, estimate in measures.items()
    ]
    return headed(sweep, rows)


def order(sweep: Sweep) -> pd.DataFrame:
    """Of each curve with its strict end: whether more acceptance was less time, as measured."""
    joint, rows = sweep.joints.get("speedup"), []
    if joint is None:
        return pd.DataFrame()
    for name, points in sweep.curves.items():
        own = pd.concat([sweep.strict_end(name), points])["cell"]
        keys = [key for key in own if key in joint.cells]
        if len(keys) > 1:
            found = folklore.order(joint.of(keys), sweep.rows["acceptance"].to_dict())
            labels = {end: sweep.cells["label"].get(found[end], "") for end in ("slower", "faster")}
            rows.append({"curve": name, "timed": len(keys), **found, **labels})
    return headed(sweep, rows)


def retention(sweep: Sweep) -> pd.DataFrame:
    """Quality of each setting over lossless, and how many examples would have told it from that."""
    lossless = sweep.baseline("lossless").set_index("num_draft")["cell"]
    known = sweep.rows[sweep.rows["difference"].notna() & sweep.rows["num_draft"].isin(lossless.index)]
    parts = [
        folklore.retention(own, float(sweep.rows.loc[lossless[length], "quality"]))
        for length, own in known[known["verifier"] != "lossless"].groupby("num_draft")
        if sweep.rows.loc[lossless[length], "quality"] > 0
    ]
    return labelled(sweep, pd.concat(parts).reset_index(names="cell")) if parts else pd.DataFrame()


def positions(sweep: Sweep) -> pd.DataFrame:
    return labelled(sweep, sweep.positions)


def load(sweep: Sweep) -> pd.DataFrame:
    return labelled(sweep, sweep.load)


def laws(sweep: Sweep) -> pd.DataFrame:
    return sweep.laws


def predicted(sweep: Sweep) -> pd.DataFrame:
    return sweep.predicted


def divergence(sweep: Sweep) -> pd.DataFrame:
    return labelled(sweep, sweep.followed)


FRAMES: Mapping[str, Callable[[Sweep], pd.DataFrame]] = {
    "front": front,
    "volume": volume,
    "areas": areas,
    "order": order,
    "retention": retention,
    "positions": positions,
    "load": load,
    "laws": laws,
    "predicted": predicted,
    "divergence": divergence,
}


def frames(sweeps: Sequence[Sweep], advice: Sequence[Recommendation]) -> dict[str, pd.DataFrame]:
    """Every table that has rows, by the name of its file below tables/."""
    tables = {}
    for name, make in FRAMES.items():
        parts = [part for part in map(make, sweeps) if len(part)]
        if parts:
            tables[name] = pd.concat(parts, ignore_index=True)
    tests = recommendation(advice)
    return tables | ({"recommendation": tests} if len(tests) else {})


def recommendation(advice: Sequence[Recommendation]) -> pd.DataFrame:
    """Each test of non-inferiority in the order it was made, in points; `worst` is the one-sided limit at the level tested."""
    rows: list[dict[str, Any]] = []
    for one in advice:
        for each in one.advices:
            for test in each.tests:
                labels = {"model": each.model, "task": each.task, "verifier": test.verifier, "setting": test.setting}
                labels |= {"num_draft": test.num_draft, "margin": each.margin}
                change = {"change": test.change, "worst": test.worst, "loops": test.loops, "n": test.difference.n}
                outcome = {"is_passed": test.is_safe(each.margin), "is_recommended": test.cell == each.cell}
                rows.append(labels | change | outcome | {"cell": test.cell})
    return pd.DataFrame(rows)


def labelled(sweep: Sweep, frame: pd.DataFrame) -> pd.DataFrame:
    """A frame by cell with its labels in front, in the order of the summary."""
    labels = sweep.rows.reset_index()[["cell", *LABELS]]
    joined = labels.merge(frame, on="cell", how="inner")
    return joined[[*LABELS, *(name for name in joined if name not in ("cell", *LABELS)), "cell"]]


def headed(sweep: Sweep, rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Rows about a whole sweep, with its labels in front."""
    head = {"model": sweep.model, "task": sweep.task, "temperature": sweep.temperature}
    frame = pd.DataFrame([{**head, **row} for row in rows])
    return frame.rename(columns={"value_low": "low", "value_high": "high"})
