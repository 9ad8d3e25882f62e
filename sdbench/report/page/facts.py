"""What was run and on what, what went wrong, and how to make it again: the page's words that come from provenance.

Older or foreign records may lack an entry: what is not there is left out, nothing is guessed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from sdbench.metrics.cells import table_of
from sdbench.metrics.speed import drift
from sdbench.metrics.text import setting_of
from sdbench.metrics.weigh import SMALL
from sdbench.records import Results
from sdbench.report.page.measures import MEASURES
from sdbench.report.sweep import Sweep

MANY = 0.05  # a share of answers cut or failed from which a score says less than it seems to
DECODING = ("top_k", "top_p", "max_new_tokens")
NUMBERS = ("target_dtype", "draft_dtype", "target_quantization", "draft_quantization", "dtype")
DRIFT = 0.1  # a latency pass that much slower or faster at its end than at its start


@dataclass(frozen=True, slots=True)
class Provenance:
    """One run of a folder: its command, facts to read, and all of its provenance as JSON."""

    name: str
    command: str
    facts: tuple[tuple[str, str], ...]
    everything: str


def facts_of(sweep: Sweep) -> list[tuple[str, str]]:
    """Term and value: the pair, the task, how it was decoded, how much of it, on what."""
    cells, generations = sweep.cells, sweep.results.generations
    first = cells.iloc[0]
    content: Mapping[str, Any] = next((c for c in cells["content"] if isinstance(c, Mapping)), {})
    task: Mapping[str, Any] = content["task"] if isinstance(content.get("task"), Mapping) else {}
    facts = [(role.capitalize(), _weights(sweep, role)) for role in ("target", "draft")]
    facts += [("Task", f"{first['task']}, protocol {first['protocol']}, headline {sweep.metric.name}")]
    facts += [("Data", _joined(task, ("dataset", "dataset_config", "split", "revision")))]
    facts += [("Prompt", str(task.get("source") or ""))]
    rules = sorted(set(cells.loc[~cells["verifier"].isin(("target", "draft", "generate")), "verifier"]))
    lengths = sorted({int(k) for k in cells["num_draft"] if k > 0})
    facts += [("Rules", ", ".join(rules)), ("Draft length K", ", ".join(map(str, lengths)))]
    decoding = {"temperature": f"{first['temperature']:g}"} | {
        name.replace("_", " "): content.get(name) for name in DECODING
    }
    facts += [("Decoding", _joined(decoding, decoding, named=True))]
    numbers = {name.replace("_", " "): str(content.get(name) or "").removeprefix("torch.") for name in NUMBERS}
    facts += [("Numbers", _joined(numbers, numbers, named=True))]
    own = generations[generations["cell"].isin(cells.index)]
    samples = int(own.groupby(["cell", "example"])["sample"].nunique().max()) if len(own) else 0
    several = "" if samples == 1 else f", {samples} generations each in every setting"
    facts += [("Examples", f"{own['example'].nunique()}{several}"), ("Machine", _machine_of(sweep.results))]
    return [(term, value) for term, value in facts if value]


def _weights(sweep: Sweep, role: str) -> str:
    """What a model is called in the configuration, and its checkpoint where that says more."""
    entries = [config.get("model") for config in sweep.results.configs.values()]
    named = [
        entry for entry in entries if isinstance(entry, Mapping) and entry.get("name") == sweep.cells["model"].iloc[0]
    ]
    name = str(named[-1].get(role) or "") if named else ""
    checkpoint = _one(sweep.cells.get(f"checkpoint_{role}"))
    return checkpoint if not name or checkpoint.startswith(name) else ", ".join(filter(None, [name, checkpoint]))


def _machine_of(results: Results) -> str:
    """The device of the last run."""
    entry: Mapping[str, Any] = next(reversed(results.provenance.values()), {})
    device, threads = entry.get("device"), entry.get("threads")
    name = _joined(device, ("name", "type")) if isinstance(device, Mapping) else str(device or "")
    return name if not name or not threads else f"{name}, {threads} thread{'' if threads == 1 else 's'}"


def _one(column: pd.Series | None) -> str:
    """The values of a column that should be one."""
    return "" if column is None else ", ".join(sorted({str(value) for value in column.dropna()}))


def _joined(source: Mapping[str, Any], keys: Iterable[str], *, named: bool = False) -> str:
    parts = [(key, source.get(key)) for key in keys]
    texts = [f"{key} {value}" if named else str(value) for key, value in parts if value not in (None, "", [])]
    return ", ".join(texts)


def runs_of(results: Sequence[Results]) -> list[Provenance]:
    """Every run of every folder, in the order of time."""
    runs = []
    for one in results:
        for name, entry in one.provenance.items():
            command = str(one.configs[name].get("command") or entry.get("command") or "")
            everything = json.dumps(entry, indent=1, sort_keys=True, default=str, ensure_ascii=False)
            runs.append(Provenance(f"{one.name}, {_when(name)}", command, tuple(_machine(entry)), everything))
    return runs


def _when(stem: str) -> str:
    """The start of a run from its name: 20261121T090922… is 2026-11-21 09:09 UTC."""
    day, _, clock = stem.partition("T")
    is_time = len(day) == 8 and day.isdigit() and clock[:4].isdigit()
    return f"{day[:4]}-{day[4:6]}-{day[6:]} {clock[:2]}:{clock[2:4]} UTC" if is_time else stem


def _machine(entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    device, versions = entry.get("device"), entry.get("versions")
    shown = {"device": _joined(device, device) if isinstance(device, Mapping) else device}
    shown["threads"] = entry.get("threads")
    load = entry.get("load")
    shown["load"] = ", ".join(f"{value:.1f}" for value in load) if isinstance(load, list | tuple) else load
    shown |= {name: entry.get(name) for name in ("platform", "python")}
    shown["commit"] = entry.get("commit") or entry.get("git")
    shown["versions"] = _joined(versions, versions, named=True) if isinstance(versions, Mapping) else versions
    task = entry.get("task")
    shown["sandbox"] = entry.get("sandbox") or (task.get("sandbox") if isinstance(task, Mapping) else None)
    return [(term.capitalize(), str(value)) for term, value in shown.items() if value not in (None, "", [])]


def failures_of(results: Sequence[Results]) -> list[str]:
    """What could not be read or made, cells by their names."""
    failures = []
    for one in results:
        names = {key: _setting(row) for key, row in table_of(one.cells).to_dict("index").items()}
        for problem in one.problems:
            key, _, rest = problem.name.partition(", ")
            name = f"{names[key]}{', ' * bool(rest)}{rest}" if key in names else problem.name
            failures.append(f"{problem.kind}: {name}: {problem.message}")
    return failures


def _setting(row: Mapping[Any, Any]) -> str:
    knob = f" {text}" if (text := setting_of(row)) else ""
    return f"{row['model']} on {row['task']}, {row['verifier']}{knob} K={row['num_draft']}"


def warnings_of(sweep: Sweep) -> list[str]:
    """What a reader should know before the numbers are quoted; each names where it is seen."""
    rows = sweep.rows
    warnings = []
    least = rows["n"].min()
    if least < SMALL:
        warnings.append(f"n is small: {least:g} examples in the smallest cell. Below {SMALL} nothing is recommended.")
    for name in ("truncated_rate", "loop_rate", "empty_rate", "extraction_failed_rate", "prompt_cut_rate"):
        high = rows.index[rows[name].astype("float64") > MANY] if name in rows else []
        if len(high):
            worst = rows.loc[high, name].astype("float64").idxmax()
            warnings.append(
                f"{MEASURES[name].title}: above {MANY:.0%} in {len(high)} of {len(rows)} settings, "
                f"at most {rows.at[worst, name]:.0%} ({sweep.cells.at[worst, 'label']})."
            )
    timings = sweep.results.timings
    pace = drift(timings[timings["cell"].isin(sweep.cells.index)])
    if abs(pace - 1) > DRIFT:
        warnings.append(f"The latency pass drifted: its last third took {pace:.2f}× the seconds a round of its first.")
    dirty = [run for run, entry in sweep.results.provenance.items() if str(entry.get("commit") or "").endswith("+")]
    if dirty:
        warnings.append("The source tree differed from its commit when this was run (commit ends in +).")
    return warnings


def merged(warnings: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """(where, warning), each once: where is empty if it holds for every sweep."""
    lines = list(dict.fromkeys(line for own in warnings.values() for line in own))
    places = {line: [title for title, own in warnings.items() if line in own] for line in lines}
    return [("" if len(where) == len(warnings) else ", ".join(where), line) for line, where in places.items()]
