"""A sweep: the cells of one pair, task and temperature of one folder that share prompts and settings, and all numbers of its
figures.

`sweeps_of` returns all sweeps of a report. Numbers are computed at first use, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from sdbench.metrics import acceptance, divergence, pareto, quality, speed, theory
from sdbench.metrics.cells import BASELINES, STRICTEST, drafts_of, metrics_of, table_of, task_options_of
from sdbench.metrics.export import Metrics
from sdbench.metrics.knobs import strict_value
from sdbench.metrics.load import load_table
from sdbench.metrics.open_load import open_load_table
from sdbench.metrics.text import curve_names, names_of, sort_cells
from sdbench.metrics.titles import suffixes, titles
from sdbench.records import Results
from sdbench.types import Metric

PLANES = {"acceptance": "acceptance", "speedup": "speed-up"}  # column of the summary: its name in the tables
MOST_NAMED = 6  # curves of one figure, as many as there are colours
RESAMPLES = 2_000  # for figures


@dataclass(frozen=True)
class Sweep:
    """`cells` are indexed by key, in reading order, with `label`, `curve` and `x`; `rows` are their rows of the summary.

    `scores` returns every score of each cell, including the headline metric. `suffix` ends the names of its figures' files, ""
    if the report has one sweep; `references` are the folders that may hold the target's greedy text.
    """

    results: Results
    title: str
    suffix: str
    model: str
    task: str
    temperature: float
    cells: pd.DataFrame
    rows: pd.DataFrame
    references: Sequence[Results] = ()
    scores: Callable[[], Metrics] = dict

    @property
    def metric(self) -> Metric:
        """The headline metric."""
        first = self.cells.iloc[0].to_dict()
        return metrics_of(first)[str(first["metric"])]

    @property
    def padded_to(self) -> int | None:
        """The number of tokens to which task.length or task.pad_to padded the prompts; None: not padded."""
        return task_options_of(self.cells.iloc[0].to_dict())["padded to"]

    def file_name(self, name: str) -> str:
        """Return the stem of a figure's file."""
        return f"{name}-{self.suffix}" if self.suffix else name

    @cached_property
    def points(self) -> pd.DataFrame:
        """The rows as they are drawn: shares in per cent, with `label`, `curve`, `x`, `rank` and `equals` of the cells."""
        names = [str(name) for name in self.rows if str(name).startswith(("quality", "difference", "detectable"))]
        scaled = self.rows.assign(**{name: self.rows[name] * self.metric.scale for name in names})
        more = self.cells.loc[scaled.index, ["knob", "value", "label", "short", "curve", "x", "rank", "equals"]]
        plain = scaled.drop(columns=["knob", "value"])  # the summary has them as one type, for other tools
        return plain.assign(cell=scaled.index).join(more).reset_index(drop=True)

    @property
    def swept(self) -> pd.DataFrame:
        return self.points[~self.points["verifier"].isin(BASELINES)]

    def baseline(self, verifier: str) -> pd.DataFrame:
        return self.points[self.points["verifier"] == verifier]

    def select(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of a frame that belong to this sweep's cells."""
        return frame[frame["cell"].isin(self.cells.index)]

    @cached_property
    def curves(self) -> Mapping[str, pd.DataFrame]:
        """{name: points along the knob} of every rule, drafter, draft length and set of other options."""
        return {str(name): part.sort_values("x") for name, part in self.swept.groupby("curve", sort=False)}

    @cached_property
    def leading(self) -> tuple[str, ...]:
        """The curves that figures name: all of them, or as many as there are colours. Then they are those likeliest to be on a
        front, or the first ones if there is no plane, as for a server that reports neither rounds nor times.
        """
        if len(self.curves) <= MOST_NAMED or not self.fronts:
            return tuple(self.curves)[:MOST_NAMED]
        points = pd.concat([front.points for front in self.fronts.values()])
        chance = points.groupby("cell")["probability"].max()
        best = pd.Series({name: chance.reindex(cells["cell"]).max() for name, cells in self.curves.items()})
        first = set(best.sort_values(ascending=False, kind="stable").index[:MOST_NAMED])
        return tuple(name for name in self.curves if name in first)

    def strict_end(self, name: str) -> pd.DataFrame:
        """Return the lossless point where a curve ends, at its lossless value: one row, or none if the curve contains it.

        Only a rule whose strictest value is declared lossless has one.
        """
        curve, lossless = self.curves[name], self.baseline("lossless")
        first = curve.iloc[0]
        if first["equals"] not in STRICTEST or (curve["rank"] == 0).any():
            return lossless.iloc[:0]
        x = strict_value(curve["x"], curve["rank"])
        same = (lossless["num_draft"] == first["num_draft"]) & (lossless["drafter"] == first["drafter"])
        end = lossless[same].iloc[:1]
        if x is None and len(end):
            x = strict_end_in(self.cells.at[end["cell"].iloc[0], "also"], first)
        return end.assign(x=np.nan if x is None else x, curve=name)

    @cached_property
    def answer_times(self) -> pd.DataFrame:
        """By cell: seconds from the prompt to the end of an answer in the newest latency pass, median and 95th percentile."""
        timings, names = self.select(speed.latest_pass(self.results.timings)), ["answer_p50_s", "answer_p95_s"]
        seconds = (timings["prefill_s"] + timings["decode_s"]).groupby([timings["cell"], timings["example"]]).mean()
        by_cell = seconds.groupby(level="cell")
        return pd.DataFrame({name: by_cell.quantile(q) for name, q in zip(names, (0.5, 0.95), strict=True)})

    @property
    def belonging(self) -> list[str]:
        """The cells of this sweep only: the draft alone may belong to other targets too, which were run elsewhere."""
        return list(self.cells.index[self.cells["verifier"] != "draft"])

    @property
    def batch_size(self) -> int | None:
        """Texts that were timed together; None if no run's configuration has it."""
        timing = self.results.timed_config_of(self.belonging).get("timing")
        return int(timing.get("batch_size", 1)) if isinstance(timing, Mapping) else None

    @cached_property
    def load(self) -> pd.DataFrame:
        """Speed by cell and number of concurrent requests to a server."""
        return load_table(self.select(self.results.loads))

    @property
    def slo(self) -> Mapping[str, float]:
        """Seconds within which a request is good, by name, from the last run that planned any of these cells and whose requests
        arrived at a rate. Such a run may have measured nothing new: changed bounds need no measurement.
        """
        config = self.results.open_config_of(self.belonging)
        return dict((config.get("timing") or {}).get("slo") or {})

    @cached_property
    def open_load(self) -> pd.DataFrame:
        """Latency, goodput and throughput by cell and arrival rate at a server."""
        loads = self.select(self.results.open_loads)
        # Names with the options in which drafters differ.
        return open_load_table(loads.assign(drafter=loads["cell"].map(self.cells["drafter"])), self.slo)

    @cached_property
    def placed(self) -> Mapping[str, list[str]]:
        """{column: cells that have it and a quality, which is their place in a plane}."""
        by_rate = {}
        for rate in PLANES:
            names = ("generate", "assisted", "target", "draft") if rate == "acceptance" else ("generate", "assisted")
            known = self.rows[self.rows[rate].notna() & self.rows["quality"].notna()]
            by_rate[rate] = known.index[~known["verifier"].isin(names)].tolist()
        return by_rate

    @cached_property
    def joints(self) -> Mapping[str, pareto.Resampled]:
        """{column: bootstrap of the cells in this plane that share enough examples}."""
        known = {rate: keys for rate, keys in self.placed.items() if keys}
        return {rate: pareto.joint(self.results, keys, rate=rate, resamples=RESAMPLES) for rate, keys in known.items()}

    def unjudged_of(self, rate: str) -> list[str]:
        """Return the cells in a plane that share too few examples with the others to be judged by the front."""
        joint = self.joints.get(rate)
        return [key for key in self.placed[rate] if joint is None or key not in joint.cells]

    @property
    def worst(self) -> float | None:
        """The worst possible score; None if scores have no bound on that side."""
        return (self.metric.bounds or (None, None))[self.metric.best == "low"]

    @property
    def corner(self) -> tuple[float, float]:
        """The origin of hypervolumes: acceptance or speed 0, and the worst possible score."""
        return 0.0, quality.sign_of(self.metric) * (self.worst or 0.0)

    @cached_property
    def fronts(self) -> Mapping[str, pareto.Front]:
        """{column: front}; `y` of its points is in the unit of the stored scores."""
        fronts = {rate: pareto.front_of(joint, corner=self.corner) for rate, joint in self.joints.items()}
        sign = quality.sign_of(self.metric)
        return {rate: replace(f, points=f.points.assign(y=sign * f.points["y"])) for rate, f in fronts.items()}

    def curves_in(self, joint: pareto.Resampled) -> dict[str, list[str]]:
        """Return {curve: its cells that were resampled}."""
        keys = {name: [key for key in cells["cell"] if key in joint.cells] for name, cells in self.curves.items()}
        return {name: kept for name, kept in keys.items() if kept}

    @cached_property
    def positions(self) -> pd.DataFrame:
        return acceptance.by_position(self.select(self.results.rounds), resamples=RESAMPLES)

    @cached_property
    def laws(self) -> pd.DataFrame:
        return theory.laws(self.points)

    @cached_property
    def predicted(self) -> pd.DataFrame:
        return self.select(theory.predict(self.results))

    @cached_property
    def divergence(self) -> pd.DataFrame:
        return self.select(divergence.against_greedy(self.results, self.references))

    @cached_property
    def equal_texts(self) -> list[divergence.EqualTexts]:
        """At T = 0, for each lossless setting, how many texts equal the target's."""
        return divergence.equal_texts(self.results, self.cells)

    @cached_property
    def followed(self) -> pd.DataFrame:
        return divergence.follow(self.divergence, resamples=RESAMPLES)


def strict_end_in(also: Sequence[Mapping[str, Any]], setting: Mapping[Any, Any] | pd.Series) -> float | None:
    """Return the value of a setting's knob at which its rule is the lossless cell; None if it was not run or is not a number."""
    axes = [axis for labels in also if labels["verifier"] == setting["verifier"] for axis in labels["axes"]]
    values = [axis["value"] for axis in axes if axis["knob"] == setting["knob"] and axis["rank"] == 0]
    return next((float(value) for value in values if isinstance(value, int | float)), None)


def sweeps_of(
    results: Sequence[Results],
    summaries: Sequence[pd.DataFrame],
    metrics: Sequence[Callable[[], Metrics]] | None = None,
) -> list[Sweep]:
    """Return every sweep that has records, folder by folder; each folder comes with its summary and its scores."""
    sweeps = []
    for folder, summary, scores in zip(results, summaries, metrics or [dict] * len(results), strict=True):
        rows, cells = summary.set_index("cell"), table_of(folder.cells)
        known = cells[cells.index.isin(rows.index)]
        groups = [_with_drafts(known, group) for _, group in known.groupby("sweep", sort=True)]
        groups.sort(key=_place_of)
        for cells in map(in_reading_order, groups):
            model, task, temperature = cells[["model", "task", "temperature"]].iloc[0]
            labels = "", "", str(model), str(task), float(temperature)
            is_shared = known.loc[cells.index, "sweep"] != cells["sweep"]
            sweeps.append(
                Sweep(folder, *labels, cells, _without_comparisons(rows.loc[cells.index], is_shared), results, scores)
            )
    groups = [(sweep.results.name, sweep.cells) for sweep in sweeps]
    names = titles(groups), suffixes(groups)
    return [replace(sweep, title=title, suffix=end) for sweep, title, end in zip(sweeps, *names, strict=True)]


def _with_drafts(cells: pd.DataFrame, sweep: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of a sweep with those of the draft alone that belong to another target's sweep too."""
    drafts = drafts_of(cells, sweep)
    others = drafts[~drafts.index.isin(sweep.index)]
    return pd.concat([sweep, others.assign(sweep=sweep["sweep"].iloc[0])]) if len(others) else sweep


def _without_comparisons(rows: pd.DataFrame, is_shared: pd.Series) -> pd.DataFrame:
    """Return rows of the summary without the comparisons of shared cells, since those compare with the other target."""
    compared = [
        name for name in rows if str(name).startswith(("difference", "detectable", "p_", "speedup", "time_ratio"))
    ]
    return rows.mask(is_shared.to_numpy()[:, None] & rows.columns.isin(compared)) if is_shared.any() else rows


def _place_of(group: pd.DataFrame) -> tuple[Any, ...]:
    """Return the sort key of a folder's sweeps."""
    first = group.iloc[0]
    return (*first[["model", "task", "temperature", "protocol"]], task_options_of(first.to_dict())["padded to"] or 0)


def in_reading_order(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of a sweep in reading order, with names (`label`; `short` for little space), `curve` and `x`.

    `x` is a cell's position along its knob: its value, or its rank if the values are not numbers.
    """
    ordered = sort_cells(cells)
    labels = {"label": names_of(ordered), "short": names_of(ordered, is_short=True)}
    named = ordered.assign(**{column: ordered.index.astype(str).map(names) for column, names in labels.items()})
    return named.assign(curve=curve_names(ordered), x=coordinates(ordered))


def coordinates(cells: pd.DataFrame) -> pd.Series:
    """Return [C] float64 positions along each cell's knob; NaN for cells without an ordered one."""
    is_number = cells["value"].map(lambda value: isinstance(value, int | float) and not isinstance(value, bool))
    words = set(cells.loc[cells["rank"].notna() & ~is_number, "knob"])
    by_rank = cells["knob"].isin(words) | ~is_number
    x = cells["value"].where(~by_rank, cells["rank"]).astype("float64")
    return x.where(cells["rank"].notna())
