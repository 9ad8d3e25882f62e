"""Sweeps of one task that differ only in the length of their prompts (`task.length`, `task.pad_to`), as one table."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from sdbench.metrics.cells import differing, draft_facts, settings_of, side_of, task_options_of
from sdbench.metrics.columns import WEIGHT
from sdbench.metrics.server import server_key
from sdbench.metrics.speed import FIRST_TOKEN
from sdbench.report.sweep import Sweep

SETTING = [
    "verifier",
    WEIGHT,
    "knob",
    "value",
    "knobs",
    "drafter",
    "num_draft",
    "draft_variant",
]  # what identifies a curve over all lengths
RATES = ("acceptance", "quality", "ms_per_token", "tokens_per_round", "speedup", *FIRST_TOKEN)


@dataclass(frozen=True)
class InputLengths:
    """`table` has one row per setting and length, with `input_tokens` (mean), `label`, `cell` and RATES with intervals; `quality`
    is as stored.
    """

    sweeps: tuple[Sweep, ...]
    table: pd.DataFrame

    @property
    def suffix(self) -> str:
        """The suffix of its file, which distinguishes pairs and tasks."""
        first = self.sweeps[0]
        return f"{first.model}-{first.task}-T{first.temperature:g}"


def input_lengths(sweeps: Sequence[Sweep]) -> list[InputLengths]:
    """Return each group of sweeps that differ only in the length of their prompts and in their drafts, with two lengths or more.

    Of two measurements of a setting at one length the one with more texts counts.
    """
    groups: dict[str, list[Sweep]] = defaultdict(list)
    for sweep in sweeps:
        groups[_all_but_length(sweep)].append(sweep)
    return [_lengths_of(group) for group in groups.values() if len({sweep.padded_to for sweep in group}) > 1]


def _all_but_length(sweep: Sweep) -> str:
    first = sweep.cells.iloc[0].to_dict()
    options = {name: value for name, value in task_options_of(first).items() if name != "padded to"}
    settings = {name: value for name, value in settings_of(first).items() if name != "max_new_tokens"}
    sides = (side_of(cell, "target") for cell in sweep.cells.to_dict("records"))
    models = [sweep.model, next(filter(None, sides), None), server_key(first)]
    return json.dumps([*models, sweep.temperature, sweep.task, options, settings], default=str)


def _drafting_facts(cell: Mapping[Any, Any]) -> dict[str, Any]:
    """Return what decides the drafts of a cell; {} if it does not draft."""
    content = cell["content"] or {}
    drafter, server = content.get("drafter"), content.get("engine") or {}
    options = drafter if isinstance(drafter, Mapping) else {}
    speculative = {f"speculative.{name}": value for name, value in (server.get("speculative") or {}).items()}
    return draft_facts(cell) | {f"drafter.{name}": value for name, value in options.items()} | speculative


def _draft_variants(table: pd.DataFrame, cells: pd.DataFrame) -> pd.Series:
    """Return, for each row, the facts of its draft in which rows of the same setting differ, as text."""
    facts = [_drafting_facts(cells.loc[key].to_dict()) for key in table["cell"]]
    known = [name for name in SETTING if name != "draft_variant"]
    settings = [{str(row)} for row in table[known].itertuples(index=False, name=None)]
    return pd.Series(differing(facts, settings), index=table.index, dtype=object)


def _lengths_of(sweeps: Sequence[Sweep]) -> InputLengths:
    tables = []
    for sweep in sweeps:
        tokens = sweep.select(sweep.results.generations).groupby("cell")["prompt_tokens"].mean()
        # Seconds per token are 1 / tokens per second, so the ends of the interval are swapped.
        times = {
            f"ms_per_token{end}": 1000 / sweep.points[f"tokens_per_s{other}"].astype("float64")
            for end, other in (("", ""), ("_low", "_high"), ("_high", "_low"))
        }
        # All cells of a sweep read the same prompts; one that is only timed, such as plain generate, has no texts.
        lengths = sweep.points["cell"].map(tokens).fillna(tokens.mean())
        stored = {
            f"quality{end}": sweep.points["cell"].map(sweep.rows[f"quality{end}"]) for end in ("", "_low", "_high")
        }
        tables.append(sweep.points.assign(**times, **stored, input_tokens=lengths))
    table = pd.concat(tables, ignore_index=True)
    names = [f"{name}{end}" for name in RATES for end in ("", "_low", "_high")]
    first = ["model", "task", "temperature", "label", *SETTING, "padded_to"]
    padded = [sweep.padded_to for sweep, part in zip(sweeps, tables, strict=True) for _ in range(len(part))]
    cells = pd.concat([sweep.cells for sweep in sweeps])
    variants = _draft_variants(table, cells[~cells.index.duplicated()])
    is_shared = table.groupby("label")["drafter"].transform("nunique") > 1  # folders of one drafter do not name it
    parts = table["label"].astype(str), table["drafter"].astype(object).where(is_shared, ""), variants
    labels = [" ".join(filter(None, words)) for words in zip(*parts, strict=True)]
    table = table.assign(padded_to=padded, draft_variant=variants, label=labels)
    table = table[[*first, "input_tokens", "n", "metric", *names, "cell"]]
    most = table.sort_values("n", ascending=False, kind="stable").drop_duplicates([*SETTING, "padded_to"])
    table = table[table.index.isin(most.index)]
    return InputLengths(tuple(sweeps), table.sort_values("input_tokens", kind="stable").reset_index(drop=True))
