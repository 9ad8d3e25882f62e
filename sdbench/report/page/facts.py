"""What was run and on what, what went wrong, and how to make it again: the page's words that come from provenance.

Records of other tools may lack an entry: what is missing is left out, nothing is guessed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sdbench.metrics.cells import table_of
from sdbench.metrics.speed import drift
from sdbench.metrics.text import names_of
from sdbench.metrics.weigh import SMALL
from sdbench.records import Results
from sdbench.report.page.losses import check_lossless
from sdbench.report.page.measures import MEASURES
from sdbench.report.sweep import Sweep

MANY = 0.05  # a share of answers cut or failed from which a score says less than it seems to
DECODING = ("top_k", "top_p", "max_new_tokens")
NUMBERS = ("target_dtype", "draft_dtype", "target_quantization", "draft_quantization", "dtype")
DRIFT = 0.1  # a latency pass that much slower or faster at its end than at its start


@dataclass(frozen=True, slots=True)
class Provenance:
    """A run of a folder: its command, facts to read, and all of its provenance as JSON."""

    name: str
    command: str
    facts: tuple[tuple[str, str], ...]
    everything: str


def facts_of(sweep: Sweep) -> list[tuple[str, str]]:
    """Return term and value: the pair, the task, how it was decoded, how much of it, on what."""
    cells, generations = sweep.cells, sweep.select(sweep.results.generations)
    first = cells.iloc[0]
    content: Mapping[str, Any] = next((c for c in cells["content"] if isinstance(c, Mapping)), {})
    task: Mapping[str, Any] = content["task"] if isinstance(content.get("task"), Mapping) else {}
    decoding = {"temperature": f"{first['temperature']:g}"} | {n.replace("_", " "): content.get(n) for n in DECODING}
    numbers = {name.replace("_", " "): str(content.get(name) or "").removeprefix("torch.") for name in NUMBERS}
    samples = int(generations.groupby(["cell", "example"])["sample"].nunique().max()) if len(generations) else 0
    several = "" if samples == 1 else f", {samples} generations each in every setting"
    facts = {
        "Target": _weights(sweep, "target"),
        "Draft": _weights(sweep, "draft"),
        "Task": f"{first['task']}, protocol {first['protocol']}, headline {sweep.metric.name}",
        "Data": _join(task, ("dataset", "dataset_config", "split", "revision")),
        "Prompt": str(task.get("source") or ""),
        "Rules": ", ".join(sorted(set(cells["verifier"]) - {"target", "draft", "generate"})),
        "Draft length K": ", ".join(str(k) for k in sorted(set(cells["num_draft"])) if k > 0),
        "Decoding": _join(decoding, is_named=True),
        "Numbers": _join(numbers, is_named=True),
        "Lossless against the target alone": check_lossless(sweep)[0],
        "Texts at T = 0": "; ".join(compared.count for compared in sweep.equal_texts),
        "Examples": f"{generations['example'].nunique()}{several}",
        "Machine": _machine_of(sweep.results),
    }
    return [(term, value) for term, value in facts.items() if value]


def _weights(sweep: Sweep, role: str) -> str:
    """Return what a model is called in the configuration, and its checkpoint where that says more."""
    entries = [config.get("model") for config in sweep.results.configs.values()]
    named = [entry for entry in entries if isinstance(entry, Mapping) and entry.get("name") == sweep.model]
    name = str(named[-1].get(role) or "") if named else ""
    column = sweep.cells.get(f"checkpoint_{role}")
    checkpoint = "" if column is None else ", ".join(sorted(set(column.dropna().astype(str))))
    return checkpoint if not name or checkpoint.startswith(name) else ", ".join(filter(None, [name, checkpoint]))


def _machine_of(results: Results) -> str:
    """Return the device of the last run."""
    entry: Mapping[str, Any] = next(reversed(results.provenance.values()), {})
    device, threads = entry.get("device"), entry.get("threads")
    name = _join(device, ("name", "type")) if isinstance(device, Mapping) else str(device or "")
    return name if not name or not threads else f"{name}, {threads} thread{'' if threads == 1 else 's'}"


def _join(source: Mapping[str, Any], keys: Iterable[str] | None = None, *, is_named: bool = False) -> str:
    parts = [(key, source.get(key)) for key in (source if keys is None else keys)]
    return ", ".join(
        f"{key} {value}" if is_named else str(value) for key, value in parts if value not in (None, "", [])
    )


def runs_of(results: Sequence[Results]) -> list[Provenance]:
    """Return every run of every folder, in the order of time."""
    runs = []
    for folder in results:
        for name, entry in folder.provenance.items():
            command = str(folder.configs[name].get("command") or entry.get("command") or "")
            everything = json.dumps(entry, indent=1, sort_keys=True, default=str, ensure_ascii=False)
            runs.append(Provenance(f"{folder.name}, {_when(name)}", command, tuple(_machine(entry)), everything))
    return runs


def _when(stem: str) -> str:
    """Return the start of a run from its name: 20261121T090922… is 2026-11-21 09:09 UTC."""
    day, _, clock = stem.partition("T")
    is_time = len(day) == 8 and day.isdigit() and clock[:4].isdigit()
    return f"{day[:4]}-{day[4:6]}-{day[6:]} {clock[:2]}:{clock[2:4]} UTC" if is_time else stem


def _machine(entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    device, versions, load, task = (entry.get(name) for name in ("device", "versions", "load", "task"))
    shown = {
        "device": _join(device) if isinstance(device, Mapping) else device,
        "threads": entry.get("threads"),
        "load": ", ".join(f"{value:.1f}" for value in load) if isinstance(load, list | tuple) else load,
        "platform": entry.get("platform"),
        "python": entry.get("python"),
        "commit": entry.get("commit") or entry.get("git"),
        "versions": _join(versions, is_named=True) if isinstance(versions, Mapping) else versions,
        "sandbox": entry.get("sandbox") or (task.get("sandbox") if isinstance(task, Mapping) else None),
    }
    return [(term.capitalize(), str(value)) for term, value in shown.items() if value not in (None, "", [])]


def failures_of(results: Sequence[Results], sweeps: Sequence[Sweep]) -> list[str]:
    """Return what could not be read or made, cells by their names, and lossless texts that are not the target's own."""
    failures = [f"{sweep.title}: {each.text}" for sweep in sweeps for each in sweep.equal_texts if each.is_fault]
    for folder in results:
        cells = table_of(folder.cells)
        labels = names_of(cells)
        for problem in folder.problems:
            key, _, rest = problem.name.partition(", ")
            name = problem.name
            if key in labels:
                pair = f"{cells.at[key, 'model']} on {cells.at[key, 'task']}"
                name = ", ".join(filter(None, [pair, labels[key], rest]))
            failures.append(f"{problem.kind}: {name}: {problem.message}")
    return failures


def warnings_of(sweep: Sweep) -> list[str]:
    """Return what a reader should know before the numbers are quoted; each names where it is seen."""
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
    text, is_odd = check_lossless(sweep)
    if is_odd:
        advice = "More examples tell luck from a fault, and so does python -m sdbench.audit."
        warnings.append(f"Lossless against the target alone: {text}. {advice}")
    warnings += [each.text for each in sweep.equal_texts if each.num_equal < each.num and not each.is_fault]
    pace = drift(sweep.select(sweep.results.timings))
    if abs(pace - 1) > DRIFT:
        warnings.append(
            f"The latency pass drifted: a round in its last third took {pace:.2f}× as long as in its first."
        )
    if any(str(entry.get("commit") or "").endswith("+") for entry in sweep.results.provenance.values()):
        warnings.append("The source tree had uncommitted changes when this was run (the commit ends in +).")
    return warnings


def merge_warnings(warnings: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """Return (where, warning), each once: where is empty if it holds for every sweep."""
    lines = list(dict.fromkeys(line for group in warnings.values() for line in group))
    titles = {line: [title for title, group in warnings.items() if line in group] for line in lines}
    return [("" if len(where) == len(warnings) else ", ".join(where), line) for line, where in titles.items()]
