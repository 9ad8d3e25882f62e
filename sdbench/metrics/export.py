"""The summary for other tools: CSV, Parquet, Markdown, LaTeX; the hub's model-index; lm-eval's results.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from sdbench.metrics import quality
from sdbench.metrics.stats import Estimate
from sdbench.records import Results

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


def metrics_of(results: Results, **options: Any) -> dict[str, dict[str, Estimate]]:
    """{cell: {metric: estimate}} for every metric that the records hold, pass@k included."""
    base = {"cell", "example", "sample", "text", "finish", "run", "epoch"}
    found: dict[str, dict[str, Estimate]] = {}
    for key, part in results.generations.groupby("cell", sort=True):
        named = [
            name for name in part.columns if quality.is_metric(name) and name not in base and part[name].notna().all()
        ]
        found[str(key)] = quality.all_metrics(part, named, **options)
    return found


def to_results_json(results: Results, **options: Any) -> str:
    """lm-eval's shape: results[task@setting][metric,none], with intervals beside."""
    cells = results.cells.set_index("cell")
    found: dict[str, Any] = {"results": {}, "n-samples": {}, "configs": {}}
    for key, metrics in metrics_of(results, **options).items():
        cell = cells.loc[key]
        name = f"{cell['task']}@{setting(cell)}"
        entry: dict[str, Any] = {"alias": name}
        for metric, value in metrics.items():
            entry |= {f"{metric},none": value.value, f"{metric}_low,none": value.low, f"{metric}_high,none": value.high}
        found["results"][name] = entry
        found["n-samples"][name] = max(value.n for value in metrics.values())
        found["configs"][name] = {"task": cell["task"], "model": cell["model"], "protocol": cell["protocol"]}
    return json.dumps(found, indent=2, sort_keys=True)


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


def export(results: Results, summary: pd.DataFrame, folder: Path) -> list[Path]:
    """Every form, in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "summary.csv": summary.to_csv(index=False),
        "summary.md": to_markdown(summary),
        "summary.tex": to_latex(summary),
        "model-index.yaml": to_model_index(summary),
        "results.json": to_results_json(results),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    summary.to_parquet(folder / "summary.parquet", index=False)
    return [*(folder / name for name in texts), folder / "summary.parquet"]
