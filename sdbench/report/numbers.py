"""Every number that the figures and tables of a report show, sweep by sweep. Worked out once, drawn and written later."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import pandas as pd

from sdbench.metrics import acceptance, divergence, pareto, quality, theory
from sdbench.metrics.cells import BASELINES, table_of
from sdbench.metrics.stats import Estimate
from sdbench.records import Results

PLANES = {"acceptance": "acceptance", "speedup": "speed-up"}  # column of the summary: word of the tables
RESAMPLES = 2_000  # of what is drawn rather than quoted


@dataclass(frozen=True)
class Sweep:
    """One pair, task and temperature of one folder, asked one thing. `cells`: its rows of the summary, with `curve`."""

    results: Results
    cells: pd.DataFrame
    suffix: str  # of its figures' file names; "" where the report has one sweep
    references: Sequence[Results]  # where the target's greedy text may be

    @property
    def metric(self) -> str:
        return str(self.cells["metric"].iloc[0])

    @property
    def title(self) -> str:
        first = self.cells.iloc[0]
        return f"{first['model']} on {first['task']}, T = {first['temperature']:g}"

    @property
    def swept(self) -> pd.DataFrame:
        return self.cells[~self.cells["verifier"].isin(BASELINES)]

    def baseline(self, verifier: str) -> pd.DataFrame:
        return self.cells[self.cells["verifier"] == verifier]

    def own(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows of a frame that belong to this sweep's cells."""
        return frame[frame["cell"].isin(self.cells["cell"])]

    @cached_property
    def curves(self) -> Mapping[str, pd.DataFrame]:
        """{name: cells along w} of every rule, draft length and set of other options."""
        return {str(name): part.sort_values("w") for name, part in self.swept.groupby("curve", sort=False)}

    @cached_property
    def joints(self) -> Mapping[str, pareto.Joint]:
        """{column: bootstrap of all cells that have it and a quality}."""
        found = {}
        for rate in PLANES:
            names = ("generate", "target", "draft") if rate == "acceptance" else ("generate",)
            known = self.cells[self.cells[rate].notna() & self.cells["quality"].notna()]
            keys = known.loc[~known["verifier"].isin(names), "cell"].tolist()
            if keys:
                found[rate] = pareto.joint(self.results, keys, rate=rate, resamples=RESAMPLES)
        return found

    @cached_property
    def fronts(self) -> Mapping[str, pareto.Front]:
        return {rate: pareto.front_of(joint) for rate, joint in self.joints.items()}

    @cached_property
    def volumes(self) -> Mapping[tuple[str, str], Estimate]:
        """{(column, curve or "all"): hypervolume above (0, 0)}."""
        found = {(rate, "all"): front.hypervolume for rate, front in self.fronts.items()}
        for rate, joint in self.joints.items():
            for name, keys in self._curves_in(joint).items():
                found[rate, name] = pareto.volume_of(joint.of(keys))
        return found

    @cached_property
    def gains(self) -> Mapping[tuple[str, str, str], Mapping[str, Estimate]]:
        """{(column, first curve, second curve): area between them, and mean gain at equal speed or acceptance}."""
        found = {}
        for rate, joint in self.joints.items():
            for (first, a), (second, b) in combinations(self._curves_in(joint).items(), 2):
                if len(a) > 1 and len(b) > 1:
                    found[rate, first, second] = pareto.gain(joint, a, b)
        return found

    def _curves_in(self, joint: pareto.Joint) -> dict[str, list[str]]:
        held = {name: [key for key in cells["cell"] if key in joint.cells] for name, cells in self.curves.items()}
        return {name: keys for name, keys in held.items() if keys}

    @cached_property
    def positions(self) -> pd.DataFrame:
        return acceptance.by_position(self.own(self.results.rounds), resamples=RESAMPLES)

    @cached_property
    def laws(self) -> pd.DataFrame:
        return theory.laws(self.cells)

    @cached_property
    def predicted(self) -> pd.DataFrame:
        return self.own(theory.predicted(self.results))

    @cached_property
    def divergence(self) -> pd.DataFrame:
        return self.own(divergence.against_greedy(self.results, self.references))

    @cached_property
    def followed(self) -> pd.DataFrame:
        return divergence.follow(self.divergence, resamples=RESAMPLES)


def sweeps(results: Sequence[Results], summaries: Sequence[pd.DataFrame]) -> list[Sweep]:
    """Every sweep of every folder, in the order given."""
    found = []
    for one, summary in zip(results, summaries, strict=True):
        keys = summary["cell"].map(table_of(one.cells)["sweep"])
        found += [(one, cells, keys[cells.index[0]]) for _, cells in summary.groupby(keys, sort=False)]
    names = suffixes([(one.name, str(key)) for one, _, key in found])
    return [
        Sweep(one, shown(cells.assign(curve=curve_names(cells))), name, results)
        for (one, cells, _), name in zip(found, names, strict=True)
    ]


def shown(cells: pd.DataFrame) -> pd.DataFrame:
    """Accuracies in percent, as they are drawn."""
    scale = quality.points_of(str(cells["metric"].iloc[0]))
    names = [name for name in cells if name.startswith(("quality", "difference", "detectable"))]
    return cells.assign(**{name: cells[name] / scale for name in names})


def suffixes(sweeps: Sequence[tuple[str, str]]) -> list[str]:
    """What tells the files of each (folder, sweep) from the others': pair and task, then T, then the folder, a number."""
    if len(sweeps) == 1:
        return [""]
    labels = [json.loads(key)[:3] for _, key in sweeps]
    names = [f"{model}-{task}" for model, task, _ in labels]
    if len({temperature for *_, temperature in labels}) > 1:
        names = [f"{name}-T{temperature:g}" for name, (*_, temperature) in zip(names, labels, strict=True)]
    if len(set(names)) < len(names):
        names = [f"{folder}-{name}" for (folder, _), name in zip(sweeps, names, strict=True)]
    twins = [names[:place].count(name) for place, name in enumerate(names)]
    return [f"{name}-{twin + 1}" if twin else name for name, twin in zip(names, twins, strict=True)]


def curve_names(cells: pd.DataFrame) -> list[str]:
    """The rule, and of the draft length and the other options what differs inside the sweep; "" for a baseline."""
    swept = cells[~cells["verifier"].isin(BASELINES)]
    has_rules, has_lengths = swept["verifier"].nunique() > 1, swept["num_draft"].nunique() > 1
    options = [set(text.split(", ")) for text in swept["knobs"]]
    common = set.intersection(*options) if options else set()
    found = []
    for cell in cells.to_dict("records"):
        if cell["verifier"] in BASELINES:
            found.append("")
            continue
        own = [option for option in str(cell["knobs"]).split(", ") if option and option not in common]
        parts = [str(cell["verifier"])] if has_rules or not (has_lengths or own) else []
        found.append(", ".join([*parts, *own, *([f"K = {cell['num_draft']}"] if has_lengths else [])]))
    return found
