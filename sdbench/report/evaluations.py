"""The report of evaluations by lm-evaluation-harness, from folders that `python -m sdbench.lm_eval … --output_path FOLDER`
wrote.

    FOLDER/evaluations.csv  evaluations.md    one row per task, metric and setting
           report.html                        the same as tables

Scores and standard errors come from the harness, acceptance and tokens per round from sdbench. Intervals of shares are cut at 0
and 1. Of several evaluations of a setting the newest counts. Differences from lossless are paired by document and prompt, and
need the samples of `--log_samples`. Not covered: means of groups, and what such folders do not hold (MISSING).
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sdbench.files import read_json_lines, write_whole
from sdbench.metrics.columns import estimate_of, spread, spread_names
from sdbench.metrics.markup import markdown
from sdbench.metrics.stats import Estimate, paired_interval
from sdbench.metrics.text import format_interval
from sdbench.report.evaluation_facts import (
    NAMED_BY,
    OURS,
    model_options_of,
    options_of,
    setting_of,
    task_version_of,
    words_of,
)
from sdbench.report.page import render_page
from sdbench.report.page.tables import Table, column_of
from sdbench.types import HARNESS_SHARES, Metric

MISSING = (
    "Evaluations of the harness hold neither the time of the target alone nor every setting under one clock, so no speed-up and no "
    "recommendation can be worked out: python -m sdbench task=lm-eval:NAME measures both."
)
UNPAIRED = (
    "Differences from lossless need a lossless evaluation of the same documents, prompts and models, and --log_samples in both, "
    "and a metric whose score is the mean over the documents."
)
SHOWN = ("quality", "difference", "acceptance", "acceptance_expected", "tokens_per_round", "bias", "n")
ESTIMATES = SHOWN[:-1]
PAIRED_BY = ["task", "metric", "task_version", "target", "draft", "checkpoints", "numerics", "options", "chat_options"]
NONE = Estimate(math.nan, math.nan, math.nan, 0)


class EvaluationFiles(NamedTuple):
    """The files of a report of evaluations."""

    page: Path
    tables: tuple[Path, ...]


def results_files(folder: Path) -> list[Path]:
    """Return the harness's results files in a folder and directly below it; none for a folder of records."""
    if (folder / "records").is_dir():
        return []
    return [path for pattern in ("results_*.json", "*/results_*.json") for path in folder.glob(pattern)]


def evaluations_of(paths: Iterable[Path]) -> pd.DataFrame:
    """Return one row per task, metric and setting, from its newest evaluation in whatever folder."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for path in sorted(paths, key=lambda path: (path.stem, path)):  # a stem ends in the date
        for row in _rows_of(path):
            key = tuple(row[name] for name in ("task", "metric", *NAMED_BY))
            rows.pop(key, None)
            rows[key] = row
    if not rows:
        raise ValueError("the results files hold no score of any task: see what lm_eval printed")
    frame = pd.DataFrame(rows.values()).sort_values(
        PAIRED_BY,
        kind="stable",
        ignore_index=True,
        key=lambda column: column.where(column != ""),  # the empty ones last
    )
    differences = pd.DataFrame([spread("difference", _difference(row, frame)) for row in frame.to_dict("records")])
    return pd.concat([frame, differences], axis=1)


def _rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield one row per task and metric of one results file."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        config, counts, results = (dict(document[name]) for name in ("config", "n-samples", "results"))
        model = config["model"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not a results file of lm_eval ({type(error).__name__}: {error}): remove it"
        ) from None
    ours = config.get("sdbench") or {}
    target = ours.get("target") or document.get("model_name") or model
    facts = {"target": target, **{name: words_of(ours.get(name)) for name in OURS}, "setting": setting_of(config)}
    facts["model_options"] = model_options_of(config)
    facts |= {"is_lossless": ours.get("is_lossless"), "path": path}
    if not document.get("chat_template_sha"):
        facts["chat_options"] = ""  # they change no prompt
    for task, count in counts.items():
        measured = (ours.get("tasks") or {}).get(task, {})
        entry = results.get(task, {})
        shots = document.get("n-shot", {}).get(task)
        for name, value in entry.items():
            metric, comma, filter_name = name.partition(",")
            if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            value = math.nan if metric == "bypass" else value  # 999 in place of each score, with --predict_only
            error = entry.get(f"{metric}_stderr,{filter_name}")
            half = 1.96 * error if isinstance(error, int | float) and error else math.nan  # 0: all answers score alike
            low, high = value - half, value + half
            if HARNESS_SHARES.search(metric) and 0 <= value <= 1:
                low, high = np.clip((low, high), 0, 1).tolist()  # NaN stays NaN
            yield {
                **facts,
                "task": task,
                "metric": metric if filter_name == "none" else name,
                "task_version": task_version_of(document, task),
                "options": options_of(document, task),
                "num_shots": shots,
                "n": count["effective"],
                **spread("quality", Estimate(value, low, high, count["effective"])),
                **_measures_of(measured),
                **{
                    key: _number_of(measured.get(key)) for key in ("tokens", *spread_names(("seconds", "tokens_per_s")))
                },
            }


def _measures_of(measured: Mapping[str, Any]) -> dict[str, float]:
    """Return the columns that sdbench measured for a task; NaN if it measured nothing."""
    columns: dict[str, float] = {}
    for name in ("acceptance", "acceptance_expected", "tokens_per_round", "bias"):
        ends = [(measured.get(name) or {}).get(end) for end in ("value", "low", "high")]
        columns |= dict(zip(spread_names((name,)), map(_number_of, ends), strict=True))
    return columns


def _number_of(value: float | None) -> float:
    return math.nan if value is None else value


def _difference(row: Mapping[Any, Any], frame: pd.DataFrame) -> Estimate:
    """Return a setting's score minus that of the newest lossless evaluation of the same documents, prompts and models.

    There is none if the score is not the mean of the samples, as in RULER, which leaves rows out, or if it is not finite.
    """
    same = (frame[PAIRED_BY] == pd.Series({name: row[name] for name in PAIRED_BY})).all(axis=1)
    lossless = frame[same & (frame["is_lossless"] == True)]  # noqa: E712 - a column of objects
    if row["is_lossless"] is not False or lossless.empty:
        return NONE
    sides = [row, lossless.iloc[-1]]
    ours, theirs = (_scores_of(side["path"], row["task"], row["metric"]) for side in sides)
    if not ours or set(ours) != set(theirs):
        return NONE
    for side, scores in zip(sides, (ours, theirs), strict=True):
        mean = sum(scores.values()) / len(scores)
        if not (math.isfinite(mean) and math.isclose(mean, side["quality"], rel_tol=1e-6, abs_tol=1e-9)):
            return NONE
    return paired_interval([ours[key] for key in theirs], list(theirs.values()))


def _scores_of(path: Path, task: str, metric: str) -> dict[Any, float]:
    """Return {document and prompt: score} from the samples beside a results file; empty if there are none, or no numbers."""
    samples = path.with_name(f"samples_{task}_{path.stem.partition('_')[2]}.jsonl")
    if not samples.is_file():
        return {}
    name, _, filter_name = metric.partition(",")
    scores = {}
    for _, sample in read_json_lines(samples):
        value = sample.get(name)
        if sample.get("filter", "none") == (filter_name or "none") and isinstance(value, int | float):
            scores[tuple(sample.get(key) for key in ("doc_id", "doc_hash", "prompt_hash"))] = float(value)
    return scores


def write_evaluations(home: Path, frame: pd.DataFrame, command: str) -> EvaluationFiles:
    """Write the tables and the page to `home`; `command` rebuilds them."""
    home.mkdir(parents=True, exist_ok=True)
    columns = frame.drop(columns="path").assign(file=[str(path.name) for path in frame["path"]])
    texts = {"evaluations.csv": columns.to_csv(index=False), "evaluations.md": to_text(frame)}
    tables = tuple(write_whole(home / name, text) for name, text in texts.items())
    notes = notes_of(frame)
    title = ", ".join(dict.fromkeys(frame["task"]))
    context = {"title": title, "tables": tables_of_evaluations(frame), "notes": notes, "rebuild": command}
    page = write_whole(home / "report.html", render_page("evaluations.html.j2", context, ("theme.js", "tables.js")))
    return EvaluationFiles(page, tables)


def labels_of(frame: pd.DataFrame) -> list[str]:
    """Return the setting of each row, with the other facts that distinguish it from rows of its task."""
    facts = frame[["task", "metric", *NAMED_BY]].copy()
    facts.loc[frame["is_lossless"].isna(), OURS] = None  # a model of the harness has none of these
    labels = frame["setting"].astype(str)
    for number, name in enumerate(NAMED_BY, start=2):
        alike = facts.groupby(list(facts.columns[:number]), dropna=False)[name]
        is_named = (alike.transform("nunique") > 1) & (frame[name] != "") & (name != "setting")
        labels = labels.mask(is_named, labels + f", {name.replace('_', ' ')} " + frame[name])
    return list(labels)


def notes_of(frame: pd.DataFrame) -> list[str]:
    """Return sentences on what these evaluations cannot show."""
    has_lenient = (frame["is_lossless"] == False).any()  # noqa: E712 - a column of objects
    return [MISSING, *([UNPAIRED] if has_lenient and frame["difference"].isna().all() else [])]


def to_text(frame: pd.DataFrame) -> str:
    """Return the table as Markdown, with intervals."""
    rows = [
        [
            str(row["task"]),
            str(row["metric"]),
            label.replace("|", r"\|"),  # stop strings such as <|im_end|>
            *(format_interval(estimate_of(row, name), 3) for name in ESTIMATES),
            str(row["n"]),
        ]
        for row, label in zip(frame.to_dict("records"), labels_of(frame), strict=True)
    ]
    return markdown(["task", "metric", "setting", *SHOWN], rows, num_left=3)


def tables_of_evaluations(frame: pd.DataFrame) -> Sequence[Table]:
    """Return one table per task and metric. Metrics that are known to be shares are shown in points of 100, others as they are."""
    tables = []
    for (task, name), part in frame.assign(label=labels_of(frame)).groupby(["task", "metric"], sort=False):
        is_share = HARNESS_SHARES.search(str(name).partition(",")[0]) and part["quality"].between(0, 1).all()
        metric = Metric(str(name), "share" if is_share else "raw")
        columns = [column_of(part, measure, metric) for measure in SHOWN if part[measure].notna().any()]
        rows = [
            (str(label), "baseline" if is_lossless is True else "")
            for label, is_lossless in zip(part["label"], part["is_lossless"], strict=True)
        ]
        tables.append(Table(f"{task}: {name}", columns, rows, is_open=True))
    return tables
