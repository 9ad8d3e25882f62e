"""Write the summary for other tools: CSV, Parquet, Markdown, LaTeX, the hub's model-index, lm-eval's results.json."""

import io
import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from sdbench.files import write_whole
from sdbench.metrics import quality
from sdbench.metrics.cells import metric_of, scores_of, table_of
from sdbench.metrics.columns import estimate_of, spread, spread_names
from sdbench.metrics.markup import booktabs, markdown, tex_row
from sdbench.metrics.needed import examples_needed
from sdbench.metrics.recommend import Advice, Recommendation
from sdbench.metrics.safety import Comparison
from sdbench.metrics.stats import Estimate
from sdbench.metrics.summary import LABELS
from sdbench.metrics.text import format_interval, names_of, options_of, setting_of
from sdbench.records import Results

Metrics = Mapping[str, Mapping[str, Estimate]]  # {cell: {metric: estimate}}
SHOWN = {
    "verifier": "rule",
    "setting": "setting",
    "num_draft": "K",
    "n": "n",
    "acceptance": "acceptance",
    "acceptance_expected": "expected",
    "tokens_per_round": "tokens/round",
    "quality": "quality",
    "difference": "vs lossless",
    "speedup": "speed-up",
    "speedup_over_lossless": "over lossless",
}
# Shown before these only if the rows differ in them.
SHARED = (
    "model",
    "task",
    "protocol",
    "temperature",
    "top_k",
    "top_p",
    "max_new_tokens",
    "seed",
    "dtype",
    "weights",
    "drafter",
)
WHOLE = ("num_draft", "n")
COUNTED = ("tokens", "rounds", "drafted", "examined", "accepted")
SCORES = ("cell", "example", "sample", "score", "stats", *COUNTED)
SPEEDS = ("speedup", "speedup_over_lossless")


def table(summary: pd.DataFrame) -> pd.DataFrame:
    """Return the most quoted columns as text with intervals; empty if not measured, ~ before a modelled speed-up.

    Before them come the columns that distinguish the rows, and a setting has those options in which settings of its rule differ.
    """
    options = options_of(summary.set_index("cell"))
    rows = [
        {**row, "setting": " ".join(filter(None, [setting_of(row), *options[row["cell"]]]))}
        for row in summary.assign(drafter=summary["drafter"].where(summary["num_draft"] > 0)).to_dict("records")
    ]
    distinct = [name for name in SHARED if len({_plain_text(row.get(name)) for row in rows} - {""}) > 1]
    shown = {name: [_plain_text(row[name]) for row in rows] for name in distinct}
    shown |= {title: [_text(row, name) for row in rows] for name, title in SHOWN.items()}
    return pd.DataFrame(shown, index=summary.index)


def _plain_text(value: Any) -> str:
    if value is None or value != value:
        return ""
    return value if isinstance(value, str) else f"{value:g}"


def _text(row: dict[Any, Any], name: str) -> str:
    value = row.get(name)
    if value is None or value != value:
        modelled = row.get(f"{name}_modelled")  # used if the speed-up was not timed
        return "" if modelled is None or modelled != modelled else f"~{modelled:.3f}"
    if isinstance(value, str):
        return value
    return f"{value:g}" if name in WHOLE else format_interval(estimate_of(row, name), 3)


def to_markdown(summary: pd.DataFrame) -> str:
    lines = table(summary)
    return markdown(list(lines.columns), list(lines.itertuples(index=False)))


def to_latex(summary: pd.DataFrame) -> str:
    """Return a booktabs tabular."""
    lines = table(summary)
    rows = [tex_row(row) for row in lines.itertuples(index=False)]
    num_left = list(lines.columns).index(SHOWN["setting"]) + 1
    return booktabs("l" * num_left + "r" * (len(lines.columns) - num_left), [tex_row(lines.columns), r"\midrule"], rows)


def metrics_of(results: Results, **options: Any) -> Metrics:
    """Return {cell: {metric: estimate}} for every score in the records, including pass@k."""
    cells = results.cells.set_index("cell")
    estimates: dict[str, dict[str, Estimate]] = {}
    for key, part in results.generations.groupby("cell", sort=True):
        if key in cells.index:
            metrics = scores_of(cells.loc[str(key)].to_dict(), sorted(results.scores))
            held = [metric for metric in metrics if quality.is_held(part, metric)]
            estimates[str(key)] = quality.all_metrics(part, held, **options)
    return estimates


def metrics_table(results: Results, metrics: Metrics) -> pd.DataFrame:
    """Return one row per cell and metric: value, low, high, n."""
    cells = table_of(results.cells)
    labels = list(LABELS)
    rows = [
        {**cells.loc[key, labels], "metric": name, **asdict(estimate), "cell": key}
        for key, estimates in metrics.items()
        for name, estimate in estimates.items()
    ]
    labels.remove("value")  # here it is the metric's
    return pd.DataFrame(rows, columns=[*labels, "metric", "value", "low", "high", "n", "cell"])


def to_results_json(
    results: Results, summary: pd.DataFrame, metrics: Metrics, advice: Recommendation | None = None
) -> str:
    """Return lm-eval's format: results[task@setting][metric,none] with intervals; an unknown limit is null.

    It also has the decision: `recommendations`, one per sweep; for a single sweep `recommended`, `margin` and `tests` at the
    top too.
    """
    cells = table_of(results.cells)
    names = unique_names_of(cells.loc[list(metrics)])
    speeds = summary.set_index("cell")
    document: dict[str, Any] = {"results": {}, "n-samples": {}, "configs": {}, "versions": {}}
    for key, estimates in metrics.items():
        if not estimates:
            continue
        cell, name = cells.loc[key], names[key]
        entry: dict[str, Any] = {"alias": name}
        for metric, value in estimates.items():
            entry[f"{metric},none"] = value.value
            entry |= {f"{metric}_{end},none": finite_or_none(getattr(value, end)) for end in ("low", "high")}
        columns = spread_names(SPEEDS) if key in speeds.index else []
        entry |= {column: finite_or_none(float(speeds.at[key, column])) for column in columns}
        document["results"][name] = entry
        document["n-samples"][name] = {"effective": max(value.n for value in estimates.values())}
        document["configs"][name] = {"task": cell["task"], "model": cell["model"], "protocol": cell["protocol"]}
        document["versions"][name] = ((cell["content"] or {}).get("task") or {}).get("version")
    if advice is not None:
        pairs = zip(advice.advices, advice.weighed, strict=True)
        decisions = [_decision(decision, weighed.alpha, names) for decision, weighed in pairs]
        document["recommendations"] = decisions
        if len(decisions) == 1:
            document |= {name: decisions[0][name] for name in ("recommended", "margin", "tests")}
    return json.dumps(document, indent=2, sort_keys=True)


def _decision(advice: Advice, alpha: float, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the decision for one sweep with every test behind it, in order, at this level."""
    gain = spread("speedup_over_lossless", advice.gain or Estimate(math.nan, math.nan, math.nan, 0))
    return {
        "model": advice.model,
        "task": advice.task,
        "decision": advice.kind,
        "recommended": None if advice.cell is None else names[advice.cell],
        "margin": finite_or_none(advice.margin),
        "text": advice.text,
        **{name: finite_or_none(value) for name, value in gain.items()},
        "tests": [_test(test, advice.margin, alpha, names) for test in advice.tests],
    }


def _test(test: Comparison, margin: float, alpha: float, names: Mapping[str, str]) -> dict[str, Any]:
    excess, kind = test.excess if test.excesses else (math.nan, None)
    numbers = {"change": test.change, "worst": test.worst, "loops": test.loops, "excess": excess}
    labels = {"setting": names[test.cell], "cell": test.cell, "verifier": test.verifier, "num_draft": test.num_draft}
    outcome: dict[str, Any] = {"excess_kind": kind, "n": test.difference.n, "is_passed": test.is_safe(margin)}
    if not outcome["is_passed"]:
        outcome["examples_needed"] = examples_needed(test, margin, alpha)
    return labels | {name: finite_or_none(value) for name, value in numbers.items()} | outcome


def finite_or_none(limit: float) -> float | None:
    return limit if math.isfinite(limit) else None


def unique_names_of(cells: pd.DataFrame) -> dict[str, str]:
    """Return {cell: task@name T=temperature}, with the model, and finally the cell's key, where that is not unique."""
    plain = names_of(cells)
    names = {str(key): f"{cell['task']}@{plain[str(key)]} T={cell['temperature']:g}" for key, cell in cells.iterrows()}
    for more in ("model", None):
        twins = {name for name, count in Counter(names.values()).items() if count > 1}
        names = {
            key: f"{name} {cells.at[key, more] if more else key}" if name in twins else name
            for key, name in names.items()
        }
    return names


def to_model_index(summary: pd.DataFrame) -> str:
    """Return the YAML block `model-index` of a model card on the hub."""
    import yaml

    names, models = names_of(summary.set_index("cell")), []
    for model, cells in summary.groupby("model", sort=True):
        entries = []
        for _, cell in cells[cells["quality"].notna()].iterrows():
            name = f"{names[cell['cell']]} T={cell['temperature']:g}"
            metric = {"type": str(cell["metric"]), "value": float(cell["quality"]), "name": name}
            data = {"type": str(cell["task"]), "name": str(cell["task"])}
            entries.append({"task": {"type": "text-generation"}, "dataset": data, "metrics": [metric]})
        models.append({"name": str(model), "results": entries})
    return yaml.safe_dump({"model-index": models}, sort_keys=False, allow_unicode=True)


def scores_of_texts(*folders: Results) -> pd.DataFrame:
    """Return one row per text: cell, example (its row number or name), sample, headline score, sums of a corpus score, counts.

    The intervals of the headline score and its differences, of the rates of accepted drafts, of tokens per round and of the length
    can be computed from it; those of times, other scores, distances of distributions and failures cannot. It holds no prompt,
    reference or text. A cell that several folders hold is taken from the first.
    """
    parts: dict[str, pd.DataFrame] = {}
    for results in folders:
        cells = table_of(results.cells)
        for key, part in results.generations.groupby("cell", sort=True):
            if str(key) not in parts and quality.is_held(part, metric := metric_of(cells, str(key))):
                names = {metric.name: "score", f"stats_{metric.name}": "stats"}
                parts[str(key)] = part.rename(columns=names).reindex(columns=SCORES)
    frame = pd.concat(parts.values()) if parts else pd.DataFrame(columns=list(SCORES))
    small = {"sample": "int16", "score": "float32"} | dict.fromkeys(COUNTED, "Int32")
    return frame.sort_values(["cell", "example", "sample"], kind="stable", ignore_index=True).astype(small)


def write_scores(path: Path, *folders: Results) -> Path:
    """Write `scores_of_texts` as Parquet, small enough to be committed beside tables."""
    parquet = io.BytesIO()
    scores_of_texts(*folders).to_parquet(parquet, index=False, compression="zstd")
    return write_whole(path, parquet.getvalue())


def export(
    results: Results,
    summary: pd.DataFrame,
    folder: Path,
    *,
    metrics: Metrics | None = None,
    advice: Recommendation | None = None,
) -> list[Path]:
    """Write every format into `folder`, each file atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "summary.csv": summary.to_csv(index=False),
        "summary.md": to_markdown(summary),
        "summary.tex": to_latex(summary),
        "model-index.yaml": to_model_index(summary),
        "results.json": to_results_json(results, summary, metrics_of(results) if metrics is None else metrics, advice),
    }
    paths = [write_whole(folder / name, text) for name, text in texts.items()]
    parquet = io.BytesIO()
    summary.to_parquet(parquet, index=False)
    paths.append(write_whole(folder / "summary.parquet", parquet.getvalue()))
    return [*paths, write_scores(folder / "scores.parquet", results)]
