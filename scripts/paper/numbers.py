"""The numbers of the paper's tasks in the records: a row per setting, in points of 100, all seeds of a setting together.

Seeds are treated as samples: an example's score is its mean over the seeds, and the interval is by example. The smallest and the
largest quality of a single seed are also given. The rows of a pair, task and temperature agree in everything that the paper's
settings do not vary (prompts, sampling, models, numerics, engine): `_column_of` selects these records, and others have no row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from scripts.paper.cells import FINETUNED, HERE, LABELS, METRICS, base_of, distillation_of, labels_of, only_distilled
from sdbench.metrics import acceptance, quality, speed
from sdbench.metrics.cells import NUMERICS, scores_of, settings_of, table_of
from sdbench.metrics.columns import WEIGHT, spread, spread_names
from sdbench.metrics.gain import Passes, lossless_settings
from sdbench.metrics.server import server_key
from sdbench.metrics.stats import Estimate
from sdbench.records import Results, asked_of
from sdbench.types import Metric

RATES = ("acceptance", "block_acceptance", "tokens_per_round")
SPEEDS = ("speedup", "speedup_over_lossless")
COLUMN = ["model", "base", "temperature"]  # the labels of a table's column
ORDER = ["model", "task", "temperature", "verifier", "trained", "num_draft", WEIGHT]
TRAINING = ("trained_at", "loss")  # of a learned head or a finetuned draft
COLUMNS = [*LABELS, "options", *TRAINING, "cell", "n", *spread_names((*RATES, "quality", "difference", *SPEEDS))]
COLUMNS += ["num_seeds", "seed_low", "seed_high"]
PUBLISHED_NUMBERS = ("temperature", WEIGHT, "num_draft", "acceptance", "quality", "rougeL", "tokens_per_s")
PUBLISHED_NUMBERS += ("max_new_tokens", "n")


class _SeedRun(NamedTuple):
    """A setting of one seed in one folder. `setting` is equal for all its seeds; `facts` are what a column holds fixed."""

    results: Results
    cells: pd.DataFrame
    cell: pd.Series
    labels: Mapping[str, Any]
    metric: Metric
    part: pd.DataFrame
    setting: tuple[Any, ...]
    facts: Mapping[str, Any]

    @property
    def n(self) -> int:
        return int(self.part["example"].nunique())

    def of(self, names: Sequence[str]) -> tuple[Any, ...]:
        """Return its labels of these names; None for NaN, so that equal labels are equal tuples."""
        return tuple(None if (value := self.labels[name]) != value else value for name in names)


Setting = Sequence[_SeedRun]  # a setting with a run for each of its seeds


def measure_cells(results: Sequence[Results], **options: Any) -> pd.DataFrame:
    """Return a row for each setting of a task that the paper has: rates on 0–1, quality in points of 100, with intervals."""
    seeds: dict[tuple[Any, ...], dict[object, _SeedRun]] = {}
    for run in (run for folder in results for run in _runs_of(folder)):
        runs, seed = seeds.setdefault(run.setting, {}), (run.cell["content"] or {}).get("seed")
        if seed not in runs or run.n > runs[seed].n:
            runs[seed] = run
    columns: dict[tuple[Any, ...], list[Setting]] = {}
    for setting in (list(runs.values()) for runs in seeds.values()):
        columns.setdefault(setting[0].of(COLUMN), []).append(setting)
    lines = [line for settings in columns.values() for line in _lines_of(_column_of(settings), options)]
    return pd.DataFrame(lines, columns=COLUMNS).sort_values(ORDER, ignore_index=True)


def _column_of(settings: Sequence[Setting]) -> list[Setting]:
    """Return the settings that can be in one column; the first of them decides the facts in which all agree.

    For the first, the paper's own prompt is preferred, then sampling without top-k and top-p, then a rule that drafts, since it
    involves both models, then the most texts. Ties are broken by the key, so that equal records give equal tables.
    """
    agreeing = [[other for other in settings if _agree(setting[0].facts, other[0].facts)] for setting in settings]

    def rank(index: int) -> tuple[Any, ...]:
        first, texts = settings[index][0], sum(_size_of(setting) for setting in agreeing[index])
        is_warped = (first.facts["top_k"], first.facts["top_p"]) != (None, None)
        return first.labels["protocol"] != "diversed", is_warped, -len(first.facts), -texts, first.cell.name

    best = min(range(len(settings)), key=rank)
    return [settings[best], *(setting for setting in agreeing[best] if setting is not settings[best])]


def _agree(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Return whether two cells agree in all facts that both have; the target alone, for example, has none about a draft."""
    return all(first[name] == second[name] for name in first.keys() & second.keys())


def _size_of(setting: Setting) -> int:
    """Return the number of examples of a setting."""
    return int(_together(setting)["example"].nunique())


def _lines_of(column: Sequence[Setting], options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a line for each row of a column. Of several settings that differ in training or version, one trained at this
    temperature is preferred, then the one with more examples.
    """

    def rank(setting: Setting) -> tuple[Any, ...]:
        labels = setting[0].labels
        return labels["trained_at"] != labels["temperature"], -_size_of(setting), setting[0].cell.name

    shown: dict[tuple[Any, ...], Setting] = {}
    for setting in sorted(column, key=rank):
        shown.setdefault(setting[0].of(ORDER), setting)
    rows = {row: quality.rows_of(_together(setting), setting[0].metric) for row, setting in shown.items()}
    lossless = {runs[0].labels["num_draft"]: row for row, runs in shown.items() if _rule_of(runs) == "lossless"}
    lines, about = [], _options_of(column[0][0].cell.to_dict())
    for row, runs in shown.items():
        first, base = runs[0], lossless.get(runs[0].labels["num_draft"])
        numbers = _numbers(runs, rows[row], None if base in (None, row) else rows[base], options)  # type: ignore[index]
        lines.append({**first.labels, "options": about, "cell": first.cell.name, **numbers, **_speeds(first, options)})
    return lines


def _rule_of(setting: Setting) -> str:
    return str(setting[0].labels["verifier"])


def _options_of(cell: Mapping[Any, Any]) -> str:
    """Return as text how the cells of a column were sampled, stored and run, as far as the records tell."""
    settings, engine = settings_of(cell), ((cell["content"] or {}).get("engine") or {}).get("name")
    warpers = [f"{name}={settings[name]:g}" for name in ("top_k", "top_p") if settings[name] is not None]
    return ", ".join(filter(None, [*warpers, settings["dtype"], settings["weights"], engine and f"engine={engine}"]))


def _runs_of(results: Results) -> list[_SeedRun]:
    """Return the settings of the paper's tasks and rules."""
    cells = table_of(results.cells)
    runs, others = [], only_distilled(cells)
    for key, part in results.generations.groupby("cell", sort=True):
        cell = cells.loc[str(key)]
        name, labels, distilled = METRICS.get(base_of(str(cell["task"]))), labels_of(cell), distillation_of(cell)
        if labels is None or (labels["model"] in others and distilled is None) or name is None or name not in part:
            continue
        (metric,) = scores_of(cell.to_dict(), [name])
        run = _SeedRun(results, cells, cell, labels, metric, part.dropna(subset=[name]), (), _facts_of(cell, labels))
        runs.append(run._replace(setting=(*run.of(list(labels)), *_identity_of(cell), str(run.facts["prompts"]))))
    return runs


def _facts_of(cell: pd.Series, labels: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts in which the cells of a column agree: prompts, sampling, engine, and the weights and numerics of each model
    that a cell reads. The weights of a finetuned draft are left out, because it replaces the pair's own.
    """
    content, distilled = cell["content"] or {}, distillation_of(cell)
    facts = {"task": labels["task"], "protocol": labels["protocol"], "prompts": str(cell["asked"])}
    if distilled is not None:  # a finetuned draft's pair is prompted under its own name
        facts["prompts"] = asked_of(labels["model"], cell["task"], cell["protocol"], content)
    facts |= {"top_k": content.get("top_k"), "top_p": content.get("top_p"), "server": server_key(cell.to_dict())}
    facts |= {"law": str(cell["law"]).rpartition("/")[2]}
    for role in ("target", "draft"):
        if isinstance(checkpoint := cell.get(f"checkpoint_{role}"), str):
            facts |= {f"{role}_{name}": content.get(f"{role}_{name}") for name in NUMERICS}
            if role == "target" or distilled is None:
                facts[role] = [checkpoint, content.get(f"{role}_settings")]
    if content.get("drafter") is not None:
        facts["drafter"] = (content.get("versions") or {}).get("drafter")
        facts["speculative"] = (content.get("engine") or {}).get("speculative")
    return facts


def _identity_of(cell: pd.Series) -> list[str]:
    """Return as text what decides the texts of a cell besides its labels and its seed."""
    content = {name: value for name, value in (cell["content"] or {}).items() if name != "seed"}
    checkpoints = [
        cell.get(f"checkpoint_{role}") for role in ("target", "draft")
    ]  # NaN or None for a model that a cell does not read
    known = [checkpoint if isinstance(checkpoint, str) else "" for checkpoint in checkpoints]
    return [str(cell["law"]), *known, json.dumps(content, sort_keys=True, default=str)]


def _together(runs: Setting) -> pd.DataFrame:
    """Return the generations of all seeds."""
    return pd.concat([run.part for run in runs], ignore_index=True) if len(runs) > 1 else runs[0].part


def _numbers(
    runs: Setting, rows: quality.Rows, base: quality.Rows | None, options: Mapping[str, Any]
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
    """Return a row per published number: acceptance on 0–1, quality in points of 100, NaN or "" if nothing was published.

    They are shown next to our numbers but never combined with them, because their "acceptance rate" is not defined. See
    published/README.md for the source of each number and the doubts about it.
    """
    frame = pd.read_csv(HERE / "published" / "diversed.csv", dtype="str", keep_default_na=False)
    return frame.assign(**{name: pd.to_numeric(frame[name]) for name in PUBLISHED_NUMBERS})


def doubtful(frame: pd.DataFrame, doubt: str) -> pd.Series:
    """Return which published rows carry this doubt."""
    return frame["doubts"].str.split().map(lambda doubts: doubt in doubts)
