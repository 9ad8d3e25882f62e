"""Scores of completions made by any engine: `python -m sdbench.score task=gsm8k predictions=preds.jsonl`.

One JSON object alone goes to stdout, messages go to stderr; exit code 2 is one sentence of what is wrong.
"""

from __future__ import annotations

import json
import math
import os
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from sdbench import tasks
from sdbench.config import nearest, refuse_unknown
from sdbench.config.checks import integer, switch
from sdbench.errors import json_fault
from sdbench.metrics.quality import all_metrics
from sdbench.tasks.base import DataTask
from sdbench.tasks.data import rows_hash
from sdbench.types import Example, Prompt, Score
from sdbench.words import parse_words

USAGE = """python -m sdbench.score task=NAME predictions=FILE [KEY=VALUE ...]

  task=NAME             one of the files in configs/task, for example gsm8k
  predictions=FILE      one JSON object a line: id, completion; several lines of one id are samples (and said);
                        an optional "finish": "length" marks an answer that the length limit ended
  data=FILE             rows in the data set's own schema, one JSON object a line (default: the data set itself)
  out=FILE              writes the JSON there too
  per_example=true      adds the values of every answer
  level=0.95 resamples=10000 bootstrap_seed=0     of the intervals
  protocol=NAME and every other option of the task's file, also written task.protocol=NAME

Ids are the data set's own (task_id, id) or, where it has none, the row's number from 0. An id of the data without a
prediction counts as failed. Accuracies and pass@k are on 0-1, ROUGE, BLEU and chrF on 0-100."""

OWN = {
    "task": None,
    "predictions": None,
    "out": None,
    "per_example": False,
    "level": 0.95,
    "resamples": 10_000,
    "bootstrap_seed": 0,
}
EXAMPLES = {
    "task": "gsm8k",
    "predictions": "preds.jsonl",
    "out": "scores.json",
    **{key: str(OWN[key]) for key in list(OWN)[3:]},
}
FILES = ("predictions", "data", "out", "shots_data")


@dataclass(frozen=True, slots=True)
class ScoredAnswer:
    """One scored completion; an id without a prediction has one empty answer that is missing."""

    id: str
    sample: int
    score: Score
    is_missing: bool


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Options of the intervals."""

    level: float
    resamples: int
    seed: int


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """Options as YAML reads them, those that name files as they are."""
    options = {option: "null" for name in tasks.names() for option in tasks.options(name)} | EXAMPLES
    words = parse_words(arguments, options, groups=["task"])
    if words.paths:
        raise ValueError(f"{words.paths[0]!r} is not of the form key=value, such as task=gsm8k")
    return {key: text if key in FILES else _plain(text) for key, text in words.options.items()}


def _plain(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def read_predictions(path: Path) -> list[tuple[int, str, str, bool]]:
    """(line number, id, completion, ended by length) of every line."""
    predictions = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{path} line {number}"
            entry = _object(line, where)
            for field in ("id", "completion"):
                if field not in entry:
                    raise ValueError(f"{where} has no field {field!r}: a line needs id and completion")
            if not isinstance(entry["completion"], str):
                raise ValueError(f"{where}: completion must be a text, got {json.dumps(entry['completion'])[:60]}")
            predictions.append((number, str(entry["id"]), entry["completion"], entry.get("finish") == "length"))
    return predictions


def _object(line: bytes, where: str) -> dict[str, Any]:
    """Return a line's JSON object; an error names the line."""
    try:
        text = line.decode("utf-8-sig").rstrip()
        entry = json.loads(text)
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not UTF-8 text: {error}") from None
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is no JSONDecodeError
        raise ValueError(f"{where} is not JSON: {json_fault(error)}") from None
    if not isinstance(entry, dict):
        raise ValueError(f"{where} must be an object with id and completion, got {text.strip()[:60]}")
    return entry


def score_predictions(task: DataTask, path: Path) -> list[ScoredAnswer]:
    """Every prediction scored, in the data's order; ids without one stand in as missing."""
    by_id: dict[str, list[tuple[str, bool]]] = {}
    for number, key, completion, is_cut in read_predictions(path):
        if key not in task.rows:
            raise ValueError(
                f"{path} line {number}: id {key!r} is not in the data of {task.name} {_near_id(key, task)}"
            )
        by_id.setdefault(key, []).append((completion, is_cut))
    _say_repeated({key: len(lines) for key, lines in by_id.items()})
    answers = [
        (key, sample, completion, is_cut, key not in by_id)
        for key in task.ids
        for sample, (completion, is_cut) in enumerate(by_id.get(key, [("", False)]))
    ]
    missing = [key for key, *_, is_missing in answers if is_missing]
    if missing:
        shown = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
        say(f"{len(missing)} of {len(task.ids)} ids have no prediction and count as failed: {shown}")
    pairs = [(Example(key, task.rows[key], Prompt()), completion) for key, _, completion, *_ in answers]
    scores = task.score_all(pairs, [is_cut for *_, is_cut, _ in answers])
    return [
        ScoredAnswer(key, sample, score, gone) for (key, sample, *_, gone), score in zip(answers, scores, strict=True)
    ]


def _say_repeated(counts: Mapping[str, int]) -> None:
    """Lines of one id are samples; whether they were meant to be, the user knows."""
    repeated = [key for key, count in counts.items() if count > 1]
    if not repeated:
        return
    if len(set(counts.values())) == 1:
        say(f"every id has {counts[repeated[0]]} lines: they count as samples")
        return
    shown = ", ".join(repeated[:5]) + (", …" if len(repeated) > 5 else "")
    say(f"{len(repeated)} of {len(counts)} ids have more lines than others, which count as samples: {shown}")


def check_out(out: object) -> Path | None:
    """Return the path of the result, known to be writable before anything is scored."""
    if out is None:
        return None
    path = Path(str(out))
    if path.is_dir():
        raise ValueError(f"out={path} is a folder, and must be a file")
    if not path.parent.is_dir():
        raise ValueError(f"out={path} cannot be written: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"out={path} cannot be written: permission denied")
    return path


def _near_id(key: str, task: DataTask) -> str:
    ids = list(task.rows)
    return nearest(key, ids) if len(ids) <= 10 else f"(its ids are {ids[0]} … {ids[-1]})"


def table(answers: Sequence[ScoredAnswer]) -> pd.DataFrame:
    """A row an answer, as records have it; an id without one has failed as often as an id with the fewest answers has some."""
    counts = Counter(answer.id for answer in answers if not answer.is_missing)
    fewest = min(counts.values(), default=1)
    rows = [
        {"example": a.id, **a.score.values, **{f"stats_{name}": stats for name, stats in a.score.stats.items()}}
        for a in answers
        for _ in range(fewest if a.is_missing else 1)
    ]
    return pd.DataFrame(rows)


def aggregate(task: DataTask, answers: Sequence[ScoredAnswer], bootstrap: Bootstrap) -> dict[str, dict[str, Any]]:
    """Every metric with its interval by example."""
    options = {"level": bootstrap.level, "resamples": bootstrap.resamples, "seed": bootstrap.seed}
    estimates = all_metrics(table(answers), list(map(task.metric_of, answers[0].score.values)), **options)
    metrics: dict[str, dict[str, Any]] = {
        name: {"value": estimate.value, "low": _finite(estimate.low), "high": _finite(estimate.high)}
        for name, estimate in estimates.items()
    }
    if "bleu" in task.signatures:
        metrics["bleu_signature"] = {"value": task.signatures["bleu"], "low": None, "high": None}
    return metrics


def _finite(limit: float) -> float | None:
    """JSON has no NaN; one example has no interval."""
    return limit if math.isfinite(limit) else None


def report(
    task: DataTask, answers: Sequence[ScoredAnswer], bootstrap: Bootstrap, *, per_example: bool
) -> dict[str, Any]:
    """The JSON object of a whole set of predictions."""
    flags: Counter[str] = Counter({"is_missing": sum(answer.is_missing for answer in answers)})
    for answer in answers:
        flags.update({name: int(value) for name, value in answer.score.flags.items()})
    result = {
        "task": task.name,
        "protocol": task.protocol,
        "version": task.version,
        "dataset": task.dataset,
        "dataset_commit": task.dataset_commit,
        "split": task.split,
        "rows_hash": rows_hash({key: task.rows[key] for key in task.ids}),
        "n": len(task.ids),
        "num_answers": sum(not answer.is_missing for answer in answers),
        "metrics": aggregate(task, answers, bootstrap),
        "flags": dict(flags),
        "settings": {**task.describe(), **task.environment()},
    }
    if per_example:
        result["per_example"] = [
            {
                "id": answer.id,
                "sample": answer.sample,
                "values": dict(answer.score.values),
                "flags": {**answer.score.flags, "is_missing": answer.is_missing},
            }
            for answer in answers
        ]
    return result


def run(arguments: Sequence[str]) -> dict[str, Any]:
    """Parse, score, and write `out`. Raises ValueError or OSError for the user's mistakes."""
    options = parse(arguments)
    for key in ("task", "predictions"):
        if not options.get(key):
            raise ValueError(f"{key}= is missing: python -m sdbench.score task=gsm8k predictions=preds.jsonl")
        if key == "task" and options[key] not in tasks.names():
            raise ValueError(f"there is no task {options[key]} {nearest(options[key], tasks.names())}")
    given = {key: options.pop(key, default) for key, default in OWN.items()}
    switch("per_example", given["per_example"])
    if not isinstance(given["level"], float) or not 0 < given["level"] < 1:
        raise ValueError(f"level must be a number between 0 and 1, got {given['level']}")
    integer("resamples", given["resamples"], 100)
    integer("bootstrap_seed", given["bootstrap_seed"], 0)
    out = check_out(given["out"])
    name = str(given["task"])
    refuse_unknown("", options, [*OWN, *tasks.options(name)])
    task = tasks.load(name, **{"n": None, **options})
    task.environment()  # whatever the scores need is there, or says so now
    answers = score_predictions(task, Path(given["predictions"]))
    bootstrap = Bootstrap(given["level"], given["resamples"], given["bootstrap_seed"])
    result = report(task, answers, bootstrap, per_example=given["per_example"])
    if result["flags"].get("is_uncontained"):
        say(
            f"sandbox={result['settings']['sandbox']}: programs ran with little or no protection, and the result says so"
        )
    if out is not None:
        out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return result


def say(message: str) -> None:
    print(message, file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0
    warnings.showwarning = lambda message, *_: say(str(message))
    try:
        with redirect_stdout(sys.stderr):  # libraries that print must not spoil the JSON
            result = run(arguments)
    except (ValueError, OSError, RuntimeError) as error:  # RuntimeError: no sandbox holds here
        say(f"sdbench.score: {_sentence(error)}")
        return 2
    print(json.dumps(result, ensure_ascii=False))
    return 0


def _sentence(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"there is no file {error.filename}"
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename} cannot be used: {error.strerror}"
    if isinstance(error, UnicodeDecodeError):
        return f"the file is not UTF-8 text: {error}"
    return " ".join(str(error).split())


if __name__ == "__main__":
    sys.exit(main())
