"""The facts of a run on the page: what was run and on what, what failed, and how to repeat it, from provenance.

Records of other tools may lack an entry, which is then left out.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from statistics import NormalDist
from typing import Any

from sdbench.metrics.cells import BASELINES, table_of
from sdbench.metrics.speed import drift_sentence, mixed_sentence
from sdbench.metrics.text import drafter_of, names_of
from sdbench.metrics.weigh import SMALL
from sdbench.records import Results
from sdbench.report.captions import MEASURES
from sdbench.report.page.tables import format_signed
from sdbench.report.sweep import Sweep

MANY = 0.05  # share of cut or failed answers above which there is a warning
NOISE = 0.05  # chance of a difference between lossless and the target alone where there is none
DECODING = ("top_k", "top_p", "max_new_tokens")
NUMBERS = (
    *("target_dtype", "draft_dtype", "target_quantization", "draft_quantization", "target_packed", "draft_packed"),
    "dtype",
)


def facts_of(sweep: Sweep) -> list[tuple[str, str]]:
    """Return terms and values: the pair, the task, the decoding options, the amount, the machine."""
    cells, generations = sweep.cells, sweep.select(sweep.results.generations)
    first = cells.iloc[0]
    contents: list[Mapping[str, Any]] = [content for content in cells["content"] if isinstance(content, Mapping)]
    content = contents[0] if contents else {}
    task: Mapping[str, Any] = content["task"] if isinstance(content.get("task"), Mapping) else {}
    decoding = {"temperature": f"{first['temperature']:g}"} | {n.replace("_", " "): content.get(n) for n in DECODING}
    numbers = {name.replace("_", " "): _values(contents, name) for name in NUMBERS}  # a cell has those of its models
    drafting = cells[cells["drafter"].notna()]
    drafters = list(drafting["drafter"].unique())  # with the options in which they differ
    drafters = [drafter_of(drafting.iloc[0])] if len(drafters) == 1 else drafters
    samples = int(generations.groupby(["cell", "example"])["sample"].nunique().max()) if len(generations) else 0
    several = "" if samples == 1 else f", {samples} generations each in every setting"
    entry = provenance_of(sweep)
    device, threads = entry.get("device"), entry.get("threads")
    name = _join(device, ("name", "type")) if isinstance(device, Mapping) else str(device or "")
    facts = {
        "Target": _weights(sweep, "target"),
        "Draft": _draft(sweep),
        "Task": f"{first['task']}, protocol {first['protocol']}, headline {sweep.metric.name}",
        "Data": _join(task, ("dataset", "dataset_config", "split", "revision")),
        "Prompt": str(task.get("source") or ""),
        "Rules": ", ".join(sorted(set(cells["verifier"]) - {"target", "draft", "generate", "assisted"})),
        "Drafters": "" if drafters == ["model"] else ", ".join(drafters),
        "Draft length K": ", ".join(str(k) for k in sorted(set(cells["num_draft"])) if k > 0),
        "Decoding": _join(decoding, is_named=True),
        "Numbers": _join(numbers, is_named=True),
        "Lossless against the target alone": check_lossless(sweep)[0],
        "Texts at T = 0": "; ".join(compared.count for compared in sweep.equal_texts),
        "Examples": f"{generations['example'].nunique()}{several}",
        "Machine": f"{name}, {threads} thread{'' if threads == 1 else 's'}" if name and threads else name,
    }
    return [(term, value) for term, value in facts.items() if value]


def provenance_of(sweep: Sweep) -> Mapping[str, Any]:
    """Return the provenance of the last run that timed any of these cells; of their last run if none was timed.

    Without records of these cells all runs count.
    """
    results = sweep.results
    known = results.runs_of_cells[results.runs_of_cells["cell"].isin(sweep.belonging)]
    choices = set(known["run"][known["is_timed"]]), set(known["run"]), set(results.provenance)
    runs = next(filter(None, (choice & set(results.provenance) for choice in choices)), set())
    return results.provenance[max(runs)] if runs else {}


def _weights(sweep: Sweep, role: str) -> str:
    """Return a model's name in the configuration, and its checkpoint if that has more information."""
    entries = [config.get("model") for config in sweep.results.configs.values()]
    named = [entry for entry in entries if isinstance(entry, Mapping) and entry.get("name") == sweep.model]
    name = str(named[-1].get(role) or "") if named else ""
    checkpoints = sweep.cells[f"checkpoint_{role}"].dropna() if f"checkpoint_{role}" in sweep.cells else []
    checkpoint = ", ".join(sorted({str(each) for each in checkpoints}))
    return checkpoint if checkpoint.startswith(name) else ", ".join(filter(None, [name, checkpoint]))


def _values(contents: Iterable[Mapping[str, Any]], name: str) -> str:
    """Return the values of an option of the cells, each once."""
    values = dict.fromkeys(str(content[name]).removeprefix("torch.") for content in contents if content.get(name))
    return " and ".join(values)


def _draft(sweep: Sweep) -> str:
    """Return the draft model, with a remark where no drafter of the sweep reads it."""
    weights, known = _weights(sweep, "draft"), sweep.results.cells
    drafting = sweep.cells[sweep.cells["num_draft"] > 0]
    if (
        not weights
        or drafting.empty
        or "checkpoint_draft" not in drafting
        or drafting["checkpoint_draft"].notna().any()
    ):
        return weights
    is_alone = ((known["verifier"] == "draft") & (known["model"] == sweep.model)).any()
    return f"{weights} ({'decoded alone only: ' if is_alone else ''}no drafter reads it)"


def _join(source: Any, keys: Iterable[str] | None = None, *, is_named: bool = False) -> str:
    """Return the entries of a mapping as text; other values unchanged."""
    if not isinstance(source, Mapping):
        return ", ".join(f"{each:.1f}" for each in source) if isinstance(source, list | tuple) else str(source or "")
    parts = [(key, source.get(key)) for key in keys or source]
    return ", ".join(
        f"{key} {value}" if is_named else str(value) for key, value in parts if value not in (None, "", [])
    )


def runs_of(results: Sequence[Results]) -> list[dict[str, Any]]:
    """Return every run of every folder, by time: its command, facts to read, and its provenance as JSON."""
    runs = []
    for folder in results:
        for name, entry in folder.provenance.items():
            command = str(folder.configs[name].get("command") or entry.get("command") or "")
            everything = json.dumps(entry, indent=1, sort_keys=True, default=str, ensure_ascii=False)
            shown = {"name": f"{folder.name}, {_start_of(name)}", "command": command, "facts": _machine(entry)}
            runs.append(shown | {"everything": everything})
    return runs


def _start_of(run: str) -> str:
    """Return the start of a run from its name: 20261121T090922… is 2026-11-21 09:09 UTC."""
    try:
        return f"{datetime.strptime(run[:13], '%Y%m%dT%H%M'):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return run


def _machine(entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    task = entry.get("task")
    shown = {name: _join(entry.get(name)) for name in ("device", "threads", "load", "platform", "python")}
    shown["commit"] = str(entry.get("commit") or entry.get("git") or "")
    shown["versions"] = _join(entry.get("versions"), is_named=True)
    shown["sandbox"] = str(entry.get("sandbox") or (task.get("sandbox") if isinstance(task, Mapping) else None) or "")
    return [(term.capitalize(), value) for term, value in shown.items() if value]


def failures_of(results: Sequence[Results], sweeps: Sequence[Sweep]) -> list[str]:
    """Return what could not be read or decoded, with names of cells, and lossless texts that wrongly differ from the target's."""
    failures = [f"{sweep.title}: {each.text}" for sweep in sweeps for each in sweep.equal_texts if each.is_fault]
    for folder in results:
        cells = table_of(folder.cells)
        labels = names_of(cells)
        for problem in folder.problems:
            key, *rest = problem.name.split(", ", 1)
            pair = [f"{cells.at[key, 'model']} on {cells.at[key, 'task']}", labels[key]] if key in labels else [key]
            failures.append(f"{problem.kind}: {', '.join([*pair, *rest])}: {problem.message}")
    return failures


def check_lossless(sweep: Sweep) -> tuple[str, bool]:
    """Return how the scores of lossless and the target alone compare, as text, and whether they differ beyond noise.

    Both sample the same distribution: a difference beyond noise is chance, or a fault. Of m lossless settings each is tested at
    5 %/m (Bonferroni), by its interval widened as a normal one.
    """
    known = ["difference_from_target", "difference_from_target_low"]  # one example has no interval
    rows: list[dict[Any, Any]] = sweep.baseline("lossless").dropna(subset=known).to_dict("records")
    if not rows:
        return "", False
    quantile = NormalDist().inv_cdf
    wider = quantile(1 - NOISE / (2 * len(rows))) / quantile(1 - NOISE / 2)
    parts, num_out, is_odd = [], 0, False
    for row in rows:
        value, low, high = (row[f"difference_from_target{end}"] for end in ("", "_low", "_high"))
        parts.append("{}: {} [{}, {}]".format(row["label"], *map(format_signed, (value, low, high))))
        num_out += not low <= 0 <= high
        is_odd |= not value + wider * (low - value) <= 0 <= value + wider * (high - value)
    all_of_them = f" over the {len(rows)} settings together" if len(rows) > 1 else ""
    verdict = "no difference is shown, as it should be"
    if is_odd:
        verdict = f"a difference beyond noise (1 in {1 / NOISE:g} by luck{all_of_them})"
    elif num_out:
        verdict = f"no difference is shown{all_of_them} (0 lies outside {num_out} of their intervals)"
    return f"{verdict}; {', '.join(parts)} {sweep.metric.name}", is_odd


def warnings_of(sweep: Sweep, *, has_texts: bool = True) -> list[str]:
    """Return what a reader should know before quoting the numbers; each warning names its sweep.

    `has_texts`: whether lossless texts at T = 0 that differ from the target's are included.
    """
    rows = sweep.rows
    warnings = [small_sentence(sweep)] if rows["n"].min() < SMALL else []
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
    if has_texts:
        warnings += [each.text for each in sweep.equal_texts if each.num_equal < each.num and not each.is_fault]
    timings = sweep.select(sweep.results.timings)
    warnings += [line for line in (mixed_sentence(timings), drift_sentence(timings)) if line]
    if any(str(entry.get("commit") or "").endswith("+") for entry in sweep.results.provenance.values()):
        warnings.append("The source tree had uncommitted changes when this was run (the commit ends in +).")
    return warnings


def small_sentence(sweep: Sweep) -> str:
    """Return a warning of cells with too few examples, which are named if others are enough for a recommendation."""
    n, cells = sweep.rows["n"], sweep.cells.loc[sweep.rows.index]
    is_lossless = cells["is_lossless"].astype(bool)
    lenient, lossless = n[~is_lossless & ~cells["verifier"].isin(BASELINES)], n[is_lossless & (cells["num_draft"] > 0)]
    if not all((side >= SMALL).any() for side in (lenient, lossless)):
        return f"n is small: {n.min():g} examples in the smallest cell. Below {SMALL} nothing is recommended."
    names = ", ".join(f"{cells.at[key, 'label']} (n={count:g})" for key, count in n[n < SMALL].items())
    return f"n is small: {names}. A cell with fewer than {SMALL} examples is left out of the recommendation."


def merge_warnings(warnings: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """Return (where, warning), each once; where is empty if the warning applies to every sweep."""
    lines = list(dict.fromkeys(line for group in warnings.values() for line in group))
    titles = {line: [title for title, group in warnings.items() if line in group] for line in lines}
    return [("" if len(where) == len(warnings) else ", ".join(where), line) for line, where in titles.items()]


def warning_lines(sweeps: Iterable[Sweep], *, has_texts: bool = True) -> list[str]:
    """Return the page's warnings of these sweeps as lines of the terminal."""
    warnings = {sweep.title: warnings_of(sweep, has_texts=has_texts) for sweep in sweeps}
    return [": ".join(filter(None, ["Warning", where, line])) for where, line in merge_warnings(warnings)]
