"""The summary for other tools: CSV, Parquet, Markdown, LaTeX; the hub's model-index; lm-eval's results.json."""

from __future__ import annotations

import io
import json
import math
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from sdbench.metrics import quality
from sdbench.metrics.cells import table_of
from sdbench.metrics.stats import Estimate
from sdbench.records import Results

Metrics = Mapping[str, Mapping[str, Estimate]]  # {cell: {metric: estimate}}
SHOWN = {
    "verifier": "rule",
    "w": "w",
    "num_draft": "K",
    "n": "n",
    "acceptance": "acceptance",
    "acceptance_expected": "expected",
    "tokens_per_round": "tokens/round",
    "quality": "quality",
    "difference": "vs lossless",
    "speedup": "speed-up",
}


def table(summary: pd.DataFrame) -> pd.DataFrame:
    """The columns people quote, as text with intervals; empty where not measured."""
    shown = {title: [_text(row, name) for row in summary.to_dict("records")] for name, title in SHOWN.items()}
    return pd.DataFrame(shown, index=summary.index)


def _text(row: dict[Any, Any], name: str) -> str:
    value, low, high = (row.get(key) for key in (name, f"{name}_low", f"{name}_high"))
    if value is None or value != value:
        return ""
    if isinstance(value, str):
        return value
    text = f"{value:g}" if name in ("w", "num_draft", "n") else f"{value:.3f}"
    return text if low is None or low != low else f"{text} [{low:.3f}, {high:.3f}]"


def to_markdown(summary: pd.DataFrame) -> str:
    lines = table(summary)
    head = ["| " + " | ".join(lines.columns) + " |", "|" + "---|" * len(lines.columns)]
    return "\n".join([*head, *("| " + " | ".join(row) + " |" for row in lines.itertuples(index=False))]) + "\n"


def to_latex(summary: pd.DataFrame) -> str:
    """A booktabs tabular."""
    escape = str.maketrans({"%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#"})
    lines = table(summary)
    rows = [" & ".join(str(value).translate(escape) for value in row) + r" \\" for row in lines.itertuples(index=False)]
    head = " & ".join(name.translate(escape) for name in lines.columns) + r" \\"
    spec = "l" + "r" * (len(lines.columns) - 1)
    return (
        "\n".join(
            [rf"\begin{{tabular}}{{{spec}}}", r"\toprule", head, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}"]
        )
        + "\n"
    )


def metrics_of(results: Results, **options: Any) -> Metrics:
    """{cell: {metric: estimate}} for every metric that the records hold, pass@k included."""
    known = set(results.cells["cell"])
    found: dict[str, dict[str, Estimate]] = {}
    for key, part in results.generations.groupby("cell", sort=True):
        if key in known:
            named = [name for name in part.columns if quality.is_metric(name) and part[name].notna().all()]
            found[str(key)] = quality.all_metrics(part, named, **options)
    return found


def metrics_table(results: Results, metrics: Metrics) -> pd.DataFrame:
    """One row a cell and metric: value, low, high, n."""
    cells = results.cells.set_index("cell")
    labels = ["model", "task", "verifier", "w", "num_draft", "temperature"]
    rows = [
        {
            **cells.loc[key, labels],
            "metric": name,
            "value": e.value,
            "low": e.low,
            "high": e.high,
            "n": e.n,
            "cell": key,
        }
        for key, own in metrics.items()
        for name, e in own.items()
    ]
    return pd.DataFrame(rows, columns=[*labels, "metric", "value", "low", "high", "n", "cell"])


def to_results_json(results: Results, metrics: Metrics) -> str:
    """lm-eval's shape: results[task@setting][metric,none], with intervals beside; a limit that is not known is null."""
    cells = table_of(results.cells)
    names = names_of(cells.loc[list(metrics)])
    found: dict[str, Any] = {"results": {}, "n-samples": {}, "configs": {}, "versions": {}}
    for key, own in metrics.items():
        if not own:
            continue
        cell, name = cells.loc[key], names[key]
        entry: dict[str, Any] = {"alias": name}
        for metric, value in own.items():
            entry[f"{metric},none"] = value.value
            entry |= {f"{metric}_{end},none": _or_null(getattr(value, end)) for end in ("low", "high")}
        found["results"][name] = entry
        found["n-samples"][name] = {"effective": max(value.n for value in own.values())}
        found["configs"][name] = {"task": cell["task"], "model": cell["model"], "protocol": cell["protocol"]}
        found["versions"][name] = ((cell["content"] or {}).get("task") or {}).get("version")
    return json.dumps(found, indent=2, sort_keys=True)


def _or_null(limit: float) -> float | None:
    return limit if math.isfinite(limit) else None


def names_of(cells: pd.DataFrame) -> dict[str, str]:
    """{cell: task@setting}; the model, the rule's options and at last the cell's key where that alone is not unique."""
    names = {str(key): f"{cell['task']}@{setting(cell)}" for key, cell in cells.iterrows()}
    for more in ("model", "knobs", None):
        twins = {name for name, count in Counter(names.values()).items() if count > 1}
        names = {
            key: f"{name} {cells.at[key, more] if more else key}".strip() if name in twins else name
            for key, name in names.items()
        }
    return names


def to_model_index(summary: pd.DataFrame) -> str:
    """The YAML block `model-index` of a model card on the hub."""
    import yaml

    models = []
    for model, cells in summary.groupby("model", sort=True):
        entries = []
        for _, cell in cells[cells["quality"].notna()].iterrows():
            metric = {"type": str(cell["metric"]), "value": float(cell["quality"]), "name": setting(cell)}
            data = {"type": str(cell["task"]), "name": str(cell["task"])}
            entries.append({"task": {"type": "text-generation"}, "dataset": data, "metrics": [metric]})
        models.append({"name": str(model), "results": entries})
    return yaml.safe_dump({"model-index": models}, sort_keys=False, allow_unicode=True)


def setting(cell: pd.Series) -> str:
    knob = f" w={cell['w']:g}" if cell["w"] == cell["w"] else ""
    return f"{cell['verifier']}{knob} K={int(cell['num_draft'])} T={cell['temperature']:g}"


def export(results: Results, summary: pd.DataFrame, folder: Path, *, metrics: Metrics | None = None) -> list[Path]:
    """Every form, in `folder`; a file is there whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "summary.csv": summary.to_csv(index=False),
        "summary.md": to_markdown(summary),
        "summary.tex": to_latex(summary),
        "model-index.yaml": to_model_index(summary),
        "results.json": to_results_json(results, metrics_of(results) if metrics is None else metrics),
    }
    paths = [write_whole(folder / name, text.encode()) for name, text in texts.items()]
    parquet = io.BytesIO()
    summary.to_parquet(parquet, index=False)
    return [*paths, write_whole(folder / "summary.parquet", parquet.getvalue())]


def write_whole(path: Path, data: bytes) -> Path:
    """Jobs that share a folder may finish at once: none of them reads or leaves half a file."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_bytes(data)
    part.replace(path)
    return path
