"""A cell among others: its sweep, its metric, the names of drafters, and its baselines.

Metrics and axes are stored in the cell as plain data (`types.Metric`, `types.Axis`); `knobs` has the position of a cell on the
knob of its rule.
"""

import json
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import Any

import pandas as pd

from sdbench.metrics.knobs import along, format_value
from sdbench.metrics.server import server_key
from sdbench.types import Metric

BASELINES = ("target", "draft", "lossless", "generate", "assisted")
OF_TRANSFORMERS = ("generate", "assisted")  # decoded by transformers' `generate`, without packed weights
STRICTEST = ("lossless", "exact")  # names of a strict end that is the lossless rule
SETTINGS = ("seed", "max_new_tokens", "top_k", "top_p")  # of a cell's content: what a sweep holds fixed besides labels
VARIED = (*SETTINGS, "dtype", "weights")  # in which sweeps of one pair, task and temperature may differ
NUMERICS = ("dtype", "quantization", "packed")  # fields of each model's content, as in target_dtype
GGUF = re.compile(r"\((\S+) GGUF\)")  # in the identity of a checkpoint


def sweep_of(cells: pd.DataFrame) -> pd.Series:
    """Return a string per cell, equal within a sweep: pair, task, temperature, prompts, settings, target, numerics, server."""
    records = cells.to_dict("records")
    sides = [[side_of(cell, role) for role in ("draft", "target")] for cell in records]
    # The draft alone has no target: it belongs to a sweep that uses this draft.
    drafts = list(map(_draft_key, records))
    targets = {key: target for key, (_, target) in zip(drafts, sides, strict=True) if target is not None}
    keys = [
        json.dumps([*_sweep(cell), targets.get(key, draft) if target is None else target, *_server(cell)])
        for cell, key, (draft, target) in zip(records, drafts, sides, strict=True)
    ]
    return pd.Series(keys, index=cells.index, dtype=object)


def _sweep(cell: Mapping[Any, Any]) -> list[Any]:
    settings = [settings_of(cell)[name] for name in SETTINGS]
    return [cell["model"], cell["task"], float(cell["temperature"]), cell["protocol"], cell["asked"], settings]


def _server(cell: Mapping[Any, Any]) -> list[str]:
    return [] if (server := server_key(cell)) is None else [server]  # no entry for the native engine


def side_of(cell: Mapping[Any, Any], role: str) -> list[Any] | None:
    """Return the checkpoint and numerics of a model; None if the cell does not read it."""
    checkpoint, content = cell.get(f"checkpoint_{role}"), cell.get("content") or {}
    if not isinstance(checkpoint, str):
        return None
    # Settings given beside a GGUF file. Without any there is no entry, so that the names of other sweeps stay the same.
    settings = [content[f"{role}_settings"]] if content.get(f"{role}_settings") else []
    return [checkpoint, *(content.get(f"{role}_{name}") for name in NUMERICS), *settings]


def settings_of(cell: Mapping[Any, Any]) -> dict[str, Any]:
    """Return VARIED -> values."""
    content = cell["content"] or {}
    dtypes = (content.get(name) for name in ("target_dtype", "draft_dtype", "dtype"))
    dtype = next((str(name).removeprefix("torch.") for name in dtypes if name), None)
    return {**{name: content.get(name) for name in SETTINGS}, "dtype": dtype, "weights": _weights(cell)}


def _weights(cell: Mapping[Any, Any]) -> str | None:
    """Return how the weights are stored; None for the publisher's weights in the dtype. Examples: "Q4_K_M dequantised" of a GGUF
    file ("Q4_K_M" on a server, which reads it as it is), "plain and int8" of target and draft, "repacked" in oneDNN's layout.
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


def variants_of(cells: pd.DataFrame) -> pd.DataFrame:
    """Return as text what distinguishes cells of a sweep whose options are equal, "" where nothing does.

    `draft_variant`: the draft's checkpoint and numerics, and the versions of the drafter, of the engine's law and of texts;
    `rule_variant`: the version of the rule, and those of the law and of texts where nothing is drafted.
    """
    rows = cells.to_dict("records")
    users: defaultdict[str, set[Any]] = defaultdict(set)
    for cell in rows:
        users[_draft_key(cell)].add(cell["sweep"])
    # The draft alone belongs to every sweep that uses the draft.
    groups = [users[_draft_key(cell)] if cell["verifier"] == "draft" else {cell["sweep"]} for cell in rows]
    rules = [{(cell["sweep"], cell["verifier"], _unordered_of(cell))} for cell in rows]
    drafts, versions = list(map(draft_facts, rows)), list(map(_rule_facts, rows))
    variants = {"draft_variant": differing(drafts, groups), "rule_variant": differing(versions, rules)}
    return pd.DataFrame(variants, index=cells.index, dtype=object)


def differing(facts: Sequence[Mapping[str, Any]], groups: Sequence[Collection[Any]]) -> list[str]:
    """Return for each cell, as text, those of its facts in which cells of its groups differ; a fact without a value is left out."""
    known: defaultdict[tuple[Any, str], set[str]] = defaultdict(set)
    for given, homes in zip(facts, groups, strict=True):
        for name, home in product(given, homes):
            known[home, name].add(format_value(given[name] or None))
    return [
        " ".join(
            f"{name.rpartition('.')[2]}={format_value(value)}"
            for name, value in given.items()
            if value and any(len(known[home, name]) > 1 for home in homes)
        )
        for given, homes in zip(facts, groups, strict=True)
    ]


def draft_facts(cell: Mapping[Any, Any]) -> dict[str, Any]:
    """Return what decides the drafts of a cell besides the options of its drafter; {} if it does not draft."""
    side, content = side_of(cell, "draft"), cell.get("content") or {}
    names = ("draft", *(f"draft_{name}" for name in NUMERICS), "draft_settings")
    facts = dict(zip(names, side or (), strict=False))
    drafter = content.get("drafter")
    if drafter is not None:  # versions are compared between equal options only: a length policy has a version too
        version = f"{json.dumps(drafter, sort_keys=True)}.version"
        facts |= {version: (content.get("versions") or {}).get("drafter"), **_law(cell)}
    return {name: value.removeprefix("torch.") if isinstance(value, str) else value for name, value in facts.items()}


def _unordered_of(cell: Mapping[Any, Any]) -> str:
    """Return, as text, those options of a rule whose values have no order; some of them have their own version."""
    ranks = {axis["knob"]: axis.get("rank") for axis in cell["axes"]}
    options = {axis["knob"]: axis["value"] for axis in cell["axes"]}
    options |= {name.removeprefix("knob_"): value for name, value in cell.items() if str(name).startswith("knob_")}
    kept = {name: value for name, value in options.items() if ranks.get(name) is None and value == value}
    return json.dumps({name: value for name, value in kept.items() if value is not None}, sort_keys=True, default=str)


def _rule_facts(cell: Mapping[Any, Any]) -> dict[str, Any]:
    content = cell["content"] or {}
    law = _law(cell) if content.get("drafter") is None else {}
    return {"version": (content.get("versions") or {}).get("verifier"), **law}


def _law(cell: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the versions of the engine's law, which the loops of transformers do not follow, and of how ids become text."""
    if cell["verifier"] in OF_TRANSFORMERS:
        return {}
    versions = (cell["content"] or {}).get("versions") or {}
    return {"law": str(cell.get("law") or "").rpartition("/")[2], "text": versions.get("text")}


def _draft_key(cell: Mapping[Any, Any]) -> str:
    """Return the draft of a cell and what its sweep holds fixed besides the target, as text."""
    return json.dumps([*_sweep(cell), side_of(cell, "draft"), *_server(cell)])


def drafts_of(cells: pd.DataFrame, sweep: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of the draft alone that belong to the cells of a sweep: those of every draft that it uses.

    The column `sweep` of such a cell names only one of the sweeps that use its draft.
    """
    used = set(map(_draft_key, sweep.to_dict("records")))
    alone = cells[cells["verifier"] == "draft"]
    return alone.loc[[_draft_key(cell) in used for cell in alone.to_dict("records")]]


def name_drafters(cells: pd.DataFrame, variants: pd.Series) -> pd.Series:
    """Return the name of each cell's drafter, with the options in which drafters of that name differ, and its variant; None
    without a drafter.
    """
    named = cells["drafter"].dropna()
    options = {key: _drafter_options(content) for key, content in cells["content"].loc[named.index].items()}
    common = {
        name: set.intersection(*(set(options[key]) for key in same))
        for name, same in named.groupby(named).groups.items()
    }
    words = {
        key: [name, *(word for word in options[key] if word not in common[name]), *filter(None, [variants[key]])]
        for key, name in named.items()
    }
    return pd.Series([" ".join(words[key]) if key in words else None for key in cells.index], cells.index, dtype=object)


def _drafter_options(content: Mapping[str, Any] | None) -> list[str]:
    """Return OPTION=VALUE of the drafter in a cell's content, and of drafting by a server that was started for it."""
    content = content or {}
    parts = content.get("drafter"), (content.get("engine") or {}).get("speculative")
    options = {name: value for part in parts if isinstance(part, Mapping) for name, value in part.items()}
    return [f"{name}={format_value(value)}" for name, value in options.items() if name != "name"]


def can_share_command(cells: pd.DataFrame, *keys: str) -> bool:
    """Return whether one command can run both cells of a sweep; it cannot if drafts, or drafters of the same name, differ."""
    first, second = (draft_facts(cell) | _drafter_fact(cell) for cell in cells.loc[list(keys)].to_dict("records"))
    return all(first[name] == second[name] for name in first.keys() & second.keys())


def _drafter_fact(cell: Mapping[Any, Any]) -> dict[str, Any]:
    """Return {name of the drafter: its options}, those of drafting by a server included."""
    content = cell.get("content") or {}
    drafter = content.get("drafter")
    name = drafter["name"] if isinstance(drafter, Mapping) else drafter
    return {} if name is None else {str(name): [drafter, (content.get("engine") or {}).get("speculative")]}


def drafting_of(cell: Mapping[Any, Any]) -> str:
    """Return as text what the costs of a cell's calls depend on: its target, its draft and drafter with all options, its server."""
    return json.dumps([side_of(cell, "target"), draft_facts(cell), _drafter_fact(cell), *_server(cell)], sort_keys=True)


def reference(cells: pd.DataFrame, key: str, verifier: str) -> str | None:
    """Return a cell's baseline in the same sweep. Of several, the same version of law and texts is preferred, then the same draft
    and drafter, then the nearest draft length.
    """
    sweeps = cells["sweep"] if "sweep" in cells else sweep_of(cells)
    same = cells[sweeps == sweeps.at[key]]
    baselines = drafts_of(cells, same) if verifier == "draft" else same[same["verifier"] == verifier]
    if baselines.empty and verifier == "lossless":
        baselines = lossless_rules(same)
    if baselines.empty:
        return None
    # The target alone and the draft alone have no drafter and draft length 0; they are treated as drafting with the pair's draft.
    drafter, num_draft = cells.at[key, "drafter"], cells.at[key, "num_draft"]
    drafter = drafter if pd.notna(drafter) else "model"
    draft, drafts = side_of(cells.loc[key], "draft"), [side_of(cell, "draft") for cell in baselines.to_dict("records")]
    laws = map(_law, baselines.to_dict("records"))
    kinds = baselines["drafter"].map(lambda name: str(name).partition(" ")[0])
    closeness = pd.DataFrame(
        {
            "other law": [law != _law(cells.loc[key]) for law in laws],
            "other draft": [None not in (draft, side) and side != draft for side in drafts],
            "other kind": kinds != drafter.partition(" ")[0],
            "other drafter": baselines["drafter"] != drafter,
            "distance": (baselines["num_draft"] - num_draft).abs(),
            "num_draft": baselines["num_draft"],
        }
    )
    return str(closeness.sort_values(list(closeness), kind="stable").index[0])


def lossless_rules(cells: pd.DataFrame) -> pd.DataFrame:
    """Return settings of other rules that are lossless."""
    return cells[cells["is_lossless"].astype(bool) & ~cells["verifier"].isin(BASELINES)]


def table_of(cells: pd.DataFrame) -> pd.DataFrame:
    """Return `results.cells` by key, with `sweep`, the columns of `variants_of` and ALONG, and distinct names of drafters."""
    table = cells.set_index("cell")
    table = table.assign(sweep=sweep_of(table))
    table = table.join(variants_of(table))
    table = table.assign(drafter=name_drafters(table, table["draft_variant"]))
    return table.join(along(table))
