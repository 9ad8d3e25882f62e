"""A cell among others: its sweep, its metric, its position on the knob of its rule, and its baselines.

Metrics and axes are stored in the cell as plain data (`types.Metric`, `types.Axis`). The axis of a rule in a sweep is the first
of its axes that has an order and several values, otherwise the first that has an order. All other options that vary (other
knobs, drafter, draft length) separate curves.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from sdbench.metrics.server import server_endings, server_key
from sdbench.types import Axis, Metric

BASELINES = ("target", "draft", "lossless", "generate", "assisted")
OF_TRANSFORMERS = ("generate", "assisted")  # decoded by its `generate`, with the weights as they are
STRICTEST = ("lossless", "exact")  # names of a strict end that is the lossless rule
SETTINGS = ("seed", "max_new_tokens", "top_k", "top_p")  # of a cell's content: what a sweep holds fixed besides labels
VARIED = (*SETTINGS, "dtype", "weights")  # in which sweeps of one pair, task and temperature may differ
NUMERICS = ("dtype", "quantization", "packed")  # fields of each model's content, as in target_dtype
GGUF = re.compile(r"\((\S+) GGUF\)")  # in the identity of a checkpoint
ALONG = ("knob", "value", "rank", "equals", "knobs")


def sweep_of(cells: pd.DataFrame) -> pd.Series:
    """Return a string per cell, equal within a sweep: pair, task, temperature, prompts, settings, target, numerics, server."""
    records = cells.to_dict("records")
    sides = [[_side(cell, role) for role in ("draft", "target")] for cell in records]
    # The draft alone has no target: it belongs to the sweep that uses this draft.
    targets = {json.dumps(draft): target for draft, target in sides if target is not None}
    keys = [
        json.dumps([*_sweep(cell), targets.get(json.dumps(draft), draft) if target is None else target, *_server(cell)])
        for cell, (draft, target) in zip(records, sides, strict=True)
    ]
    return pd.Series(keys, index=cells.index, dtype=object)


def _sweep(cell: dict[Any, Any]) -> list[Any]:
    settings = [settings_of(cell)[name] for name in SETTINGS]
    return [cell["model"], cell["task"], float(cell["temperature"]), cell["protocol"], cell["asked"], settings]


def _server(cell: Mapping[Any, Any]) -> list[str]:
    return [] if (server := server_key(cell)) is None else [server]  # sweeps of the native engine keep their names


def _side(cell: Mapping[Any, Any], role: str) -> list[Any] | None:
    """Return the checkpoint and numerics of a model; None if the cell does not read it."""
    checkpoint, content = cell.get(f"checkpoint_{role}"), cell["content"] or {}
    if not isinstance(checkpoint, str):
        return None
    # Settings that were set beside a GGUF file: only where there are some, so that other sweeps keep their names.
    settings = [content[f"{role}_settings"]] if content.get(f"{role}_settings") else []
    return [checkpoint, *(content.get(f"{role}_{name}") for name in NUMERICS), *settings]


def settings_of(cell: Mapping[Any, Any]) -> dict[str, Any]:
    """Return VARIED -> values."""
    content = cell["content"] or {}
    dtypes = (content.get(name) for name in ("target_dtype", "draft_dtype", "dtype"))
    dtype = next((str(name).removeprefix("torch.") for name in dtypes if name), None)
    return {**{name: content.get(name) for name in SETTINGS}, "dtype": dtype, "weights": _weights(cell)}


def _weights(cell: Mapping[Any, Any]) -> str | None:
    """Return how the weights are stored if not simply as the publisher's in the dtype: "Q4_K_M dequantised" of a GGUF file,
    "plain and int8" of target and draft, "repacked" in oneDNN's layout. A server reads a GGUF file as it is: "Q4_K_M".
    """
    content: Mapping[str, Any] = cell["content"] or {}
    dequantised = "" if content.get("engine") else " dequantised"
    kinds = []
    for role in ("target", "draft"):
        checkpoint = cell.get(f"checkpoint_{role}")
        if isinstance(checkpoint, str):
            is_packed = content.get(f"{role}_packed") and cell.get("verifier") not in OF_TRANSFORMERS
            gguf = GGUF.search(checkpoint)
            file, repacked = gguf and gguf[1] + dequantised, "repacked" if is_packed else None
            kinds.append(", ".join(filter(None, (file, content.get(f"{role}_quantization"), repacked))))
    return " and ".join(dict.fromkeys(kind or "plain" for kind in kinds)) if any(kinds) else None


def task_options_of(cell: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the options of a cell's task that are single values, and as `padded to` the number of tokens of padded prompts."""
    described = (cell["content"] or {}).get("task")
    options = dict(described) if isinstance(described, Mapping) else {}
    padding = options.pop("padding", {})
    single = {name: value for name, value in options.items() if not isinstance(value, list | Mapping)}
    return {**single, "padded to": padding.get("to")}


def titles(groups: Sequence[tuple[str, pd.DataFrame]]) -> list[str]:
    """Return pair and task, and what distinguishes sweeps: temperature, folder, protocol, settings, task, server, or a number."""
    firsts = [cells.iloc[0] for _, cells in groups]
    names = [f"{first['model']} on {first['task']}" for first in firsts]
    contents = [{"content": None, **first.to_dict()} for first in firsts]
    settings, options = list(map(settings_of, contents)), list(map(task_options_of, contents))
    known = dict.fromkeys(name for given in options for name in given)
    more = [
        [f" at T = {first['temperature']:g}" for first in firsts],
        [f" ({name})" for name, _ in groups],
        [f", {first['protocol']}" for first in firsts],
        *([_ending(name, given[name]) for given in settings] for name in VARIED),
        *([_ending(name, given.get(name)) for given in options] for name in known),
        *([f", {option}" if option else "" for option in given] for given in server_endings(contents)),
    ]
    for ends in more:
        if len(set(names)) < len(names) and len(set(ends)) > 1:
            names = [title + end for title, end in zip(names, ends, strict=True)]
    counts = [names[: number + 1].count(title) for number, title in enumerate(names)]
    return [title if count == 1 else f"{title}, sweep {count}" for title, count in zip(names, counts, strict=True)]


def _ending(name: str, value: object) -> str:
    return "" if value is None else f", {name.replace('_', ' ')} {value}"


def suffixes(groups: Sequence[tuple[str, pd.DataFrame]]) -> list[str]:
    """Return the suffix of each sweep's files: pair and task, then as needed T, the length of prompts, the folder in front,
    settings such as the seed, options of the server, a number.
    """
    if len(groups) == 1:
        return [""]
    firsts, folders = [cells.iloc[0].to_dict() for _, cells in groups], [name for name, _ in groups]
    names = [f"{first['model']}-{first['task']}" for first in firsts]
    names = _with_ends(names, [f"T{first['temperature']:g}" for first in firsts])
    lengths = [task_options_of(first)["padded to"] for first in firsts]
    settings = [settings_of(first) for first in firsts]
    if len(set(names)) < len(names):
        names = _with_ends(names, ["" if length is None else str(length) for length in lengths])
    if len(set(names)) < len(names) and len(set(folders)) > 1:
        names = [f"{folder}-{name}" for folder, name in zip(folders, names, strict=True)]
    for setting in VARIED:
        if len(set(names)) < len(names):
            values = [given[setting] for given in settings]
            ends = [
                "" if value is None else f"{setting}-{value}".replace(",", "").replace(" ", "-") for value in values
            ]
            names = _with_ends(names, ends)
    for words in server_endings(firsts):
        if len(set(names)) < len(names):
            names = _with_ends(names, [re.sub(r"[^\w.-]+", "-", word) for word in words])
    repeats = [names[:index].count(name) for index, name in enumerate(names)]
    return [f"{name}-{repeat + 1}" if repeat else name for name, repeat in zip(names, repeats, strict=True)]


def _with_ends(names: Sequence[str], ends: Sequence[str]) -> list[str]:
    """Return the names with these ends, unless the ends are equal."""
    if len(set(ends)) == 1:
        return list(names)
    return [f"{name}-{end}" if end else name for name, end in zip(names, ends, strict=True)]


def metrics_of(cell: Mapping[Any, Any]) -> dict[str, Metric]:
    """Return {name: metric} of the cell's task, including its headline metric."""
    metrics = {declared["name"]: Metric.from_json(declared) for declared in cell["metrics"]}
    metrics.setdefault(str(cell["metric"]), Metric(str(cell["metric"])))
    return metrics


def metric_of(cells: pd.DataFrame, key: str) -> Metric:
    """Return the headline metric of a cell."""
    cell = cells.loc[key].to_dict()
    return metrics_of(cell)[str(cell["metric"])]


def scores_of(cell: Mapping[Any, Any], names: Sequence[str]) -> list[Metric]:
    """Return the metric of each score in this cell. A score that the task does not declare has no unit and no bounds."""
    known = metrics_of(cell)
    return [known.get(name) or Metric(name) for name in names]


def along(cells: pd.DataFrame) -> pd.DataFrame:
    """Return [ALONG] per cell: its knob, its position on it, and as text the other options of its curve; rows as in `cells`."""
    axes = {key: [Axis.from_json(axis) for axis in of_cell] for key, of_cell in cells["axes"].items()}  # as in the YAML
    rows: dict[Any, tuple[Any, ...]] = {}
    for _, group in cells.groupby(["sweep", "verifier"], sort=False):
        knob = main_knob([axes[key] for key in group.index])
        for key, cell in zip(group.index, group.to_dict("records"), strict=True):
            main = next((axis for axis in axes[key] if axis.knob == knob), None)
            along = ("", None, None, None) if main is None else (main.knob, main.value, main.rank, main.equals)
            rows[key] = (*along, _others(cell, axes[key], knob))
    frame = pd.DataFrame([rows[key] for key in cells.index], columns=list(ALONG), index=cells.index, dtype=object)
    return frame.astype({"rank": "float64"})


def main_knob(axes: Sequence[Sequence[Axis]]) -> str | None:
    """Return the knob by which a rule's cells are ordered."""
    ordered = [axis for cell_axes in axes for axis in cell_axes if axis.rank is not None]
    names = list(dict.fromkeys(axis.knob for axis in ordered))
    varying = [name for name in names if len({axis.value for axis in ordered if axis.knob == name}) > 1]
    return next(iter([*varying, *names]), None)


def _others(cell: Mapping[Any, Any], axes: Sequence[Axis], knob: str | None) -> str:
    """Return the rule's other options."""
    options = {axis.knob: axis.value for axis in axes}
    options |= {str(name).removeprefix("knob_"): value for name, value in cell.items() if str(name).startswith("knob_")}
    kept = {name: value for name, value in options.items() if name != knob and value is not None and value == value}
    return ", ".join(f"{name}={format_value(value)}" for name, value in kept.items())


def name_drafters(cells: pd.DataFrame) -> pd.Series:
    """Return the name of each cell's drafter, with the options in which drafters of that name differ; None without a drafter."""
    named = cells["drafter"].dropna()
    options = {key: _drafter_options(content) for key, content in cells["content"].loc[named.index].items()}
    common = {
        name: set.intersection(*(set(options[key]) for key in same))
        for name, same in named.groupby(named).groups.items()
    }
    words = {key: [name, *(word for word in options[key] if word not in common[name])] for key, name in named.items()}
    return pd.Series([" ".join(words[key]) if key in words else None for key in cells.index], cells.index, dtype=object)


def _drafter_options(content: Mapping[str, Any] | None) -> list[str]:
    """Return OPTION=VALUE of the drafter in a cell's content, and of drafting by a server that was started for it."""
    content = content or {}
    parts = content.get("drafter"), (content.get("engine") or {}).get("speculative")
    options = {name: value for part in parts if isinstance(part, Mapping) for name, value in part.items()}
    return [f"{name}={format_value(value)}" for name, value in options.items() if name != "name"]


def format_value(value: object) -> str:
    """Format the value of a knob: 0.7, logit."""
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def strict_value(values: pd.Series, ranks: pd.Series) -> float | None:
    """Return the value at rank 0 from the values and ranks of a curve's cells; None if it does not follow from them."""
    known = [
        (float(value), float(rank))
        for value, rank in zip(values, ranks, strict=True)
        if isinstance(value, int | float) and not isinstance(value, bool) and rank == rank
    ]
    at_end = [value for value, rank in known if rank == 0]
    if at_end:
        return at_end[0]
    for sign in (1, -1):
        ends = {round(value + sign * rank, 9) for value, rank in known}
        if len(known) > 1 and len(ends) == 1:
            return ends.pop()
    return None


def reference(cells: pd.DataFrame, key: str, verifier: str) -> str | None:
    """Return a cell's baseline in the same sweep: of several that with the same drafter, then with the nearest draft length."""
    sweeps = cells["sweep"] if "sweep" in cells else sweep_of(cells)
    same = cells[sweeps == sweeps.at[key]]
    baselines = same[same["verifier"] == verifier]
    if baselines.empty and verifier == "lossless":
        baselines = lossless_rules(same)
    if baselines.empty:
        return None
    # The target alone and the draft alone have no drafter: theirs is the pair's own draft. Their draft length is 0.
    drafter, num_draft = cells.at[key, "drafter"], cells.at[key, "num_draft"]
    closeness = pd.DataFrame(
        {
            "other drafter": baselines["drafter"] != (drafter if pd.notna(drafter) else "model"),
            "distance": (baselines["num_draft"] - num_draft).abs(),
            "num_draft": baselines["num_draft"],
        }
    )
    return str(closeness.sort_values(list(closeness)).index[0])


def lossless_rules(cells: pd.DataFrame) -> pd.DataFrame:
    """Return settings of other rules that are lossless."""
    return cells[cells["is_lossless"].astype(bool) & ~cells["verifier"].isin(BASELINES)]


def table_of(cells: pd.DataFrame) -> pd.DataFrame:
    """Return `results.cells` by key, with `sweep`, the columns of ALONG, and distinct names of drafters."""
    table = cells.set_index("cell")
    table = table.assign(sweep=sweep_of(table), drafter=name_drafters(table))
    return table.join(along(table))
