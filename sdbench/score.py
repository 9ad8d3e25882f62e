"""Scores of completions made by any engine: `python -m sdbench.score task=gsm8k predictions=preds.jsonl`.

Only one JSON object goes to stdout; messages go to stderr. A mistake of the user is reported in one sentence, with exit code 2.
"""

import json
import os
import re
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
from sdbench.config import FAMILIES, member_options, nearest, refuse_unknown, show
from sdbench.config.checks import integer, switch
from sdbench.files import read_json_lines
from sdbench.metrics.export import finite_or_none
from sdbench.metrics.quality import all_metrics
from sdbench.subcommand import Exit, Subcommand
from sdbench.tasks.base import DataTask
from sdbench.tasks.data import rows_hash
from sdbench.types import Example, Prompt, Score
from sdbench.words import ESCAPE, parse_words

HELP = """sdbench.score: score completions of any engine as a run would. One JSON object goes to stdout, messages go to stderr.

  python -m sdbench.score task=NAME predictions=FILE [KEY=VALUE ...]

  task=NAME             one of the files in configs/task, for example gsm8k; or lm-eval:NAME
  predictions=FILE      one JSON object a line: id, completion; several lines with one id are samples, which a message reports;
                        an optional "finish": "length" marks an answer that the length limit ended
  data=FILE             rows in the data set's own schema, one JSON object a line (default: the data set itself)
  out=FILE              also writes the JSON object to this file
  per_example=true      adds the values of every answer
  level=0.95 resamples=10000 bootstrap_seed=0     options of the intervals
  protocol=NAME and every other option of the task's file, also written task.protocol=NAME

Ids are the data set's own (task_id, id) or, where it has none and for lm-eval:NAME, the row's number from 0. An id of the
data without a prediction counts as failed. Accuracies and pass@k are on 0-1, ROUGE, BLEU and chrF on 0-100.

Exit codes: 0 done, 1 something unexpected happened, 2 bad configuration, 130 interrupted."""

DEFAULTS = {"per_example": False, "level": 0.95, "resamples": 10_000, "bootstrap_seed": 0}
EXAMPLES = {"task": "gsm8k", "predictions": "preds.jsonl", "out": "scores.json"}
EXAMPLES |= {name: str(value) for name, value in DEFAULTS.items()}
FILES = ("predictions", "data", "out", "shots_data")
TEXTS = ("stop", "system", "extra_metrics", "protocol", "headline", "include_path")
TEXTS += ("dataset", "dataset_config", "split", "shots_split", "revision")
BOUNDS = re.compile(r"(?:--)?(?:task\.)?bounds\.([^=]+)=(.+)")
MOST_NAMED = 5  # most ids in a message


@dataclass(frozen=True, slots=True)
class ScoredAnswer:
    """One scored completion; an id without a prediction has one empty answer, marked as missing."""

    id: str
    sample: int
    score: Score
    is_missing: bool


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """Return options as YAML parses them, file names unchanged."""
    options = {option: "null" for name in (*tasks.names(), *FAMILIES) for option in tasks.options(name)} | EXAMPLES
    matches = [BOUNDS.fullmatch(word) for word in arguments]
    rest = [word for word, match in zip(arguments, matches, strict=True) if match is None]
    words = parse_words(rest, options, groups=["task"])
    if words.paths:
        raise ValueError(f"{words.paths[0]!r} is not of the form key=value, such as task=gsm8k")
    given = {key: text if key in FILES else _value(key, text) for key, text in words.options.items()}
    bounds = {match[1]: _plain(match[2]) for match in matches if match}
    if bounds and "bounds" in given:
        raise ValueError("bounds is given twice")
    return {**given, "bounds": bounds} if bounds else given


def _value(key: str, text: str) -> Any:
    """Return a value as YAML reads it, but a text without quotes as it is, and with its line breaks, which YAML would fold."""
    if key not in TEXTS:
        return _plain(text)
    value = _plain(text.replace("\n", r"\n")) if text[0] in "[\"'" or text == "null" else text
    for each in value if isinstance(value, list) else [value]:
        if key in ("stop", "system") and isinstance(each, str) and (escape := ESCAPE.search(each)):
            right = r'["\n\n"]' if key == "stop" else r'"\n\n"'
            raise ValueError(
                f"{key}={show(text)} has {escape[0]} as two characters, a backslash and a letter, which are not turned into a line "
                f"break or tab: write the text in double quotes, such as "
                f"'{key}={right}'"
            )
    return value


def _plain(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def read_predictions(path: Path, task: DataTask) -> dict[str, list[tuple[str, bool]]]:
    """Return for each id its completions, each with whether the length limit ended it."""
    by_id: dict[str, list[tuple[str, bool]]] = {}
    for where, entry in read_json_lines(path):
        for field in ("id", "completion"):
            if field not in entry:
                raise ValueError(f"{where} has no field {field!r}: a line needs id and completion")
        key, completion = str(entry["id"]), entry["completion"]
        if not isinstance(completion, str):
            raise ValueError(f"{where}: completion must be a text, got {json.dumps(completion)[:60]}")
        if key not in task.rows:
            ids = list(task.rows)
            hint = nearest(key, ids) if len(ids) <= 10 else f"(its ids are {ids[0]} … {ids[-1]})"
            raise ValueError(f"{where}: id {key!r} is not in the data of {task.name} {hint}")
        by_id.setdefault(key, []).append((completion, entry.get("finish") == "length"))
    return by_id


def score_predictions(task: DataTask, path: Path) -> list[ScoredAnswer]:
    """Score every prediction, in the data's order. An id without a prediction gets an empty answer that is marked as missing."""
    by_id = read_predictions(path, task)
    report_counts({key: len(by_id.get(key, ())) for key in task.ids})
    answers = [
        (key, sample, completion, is_cut)
        for key in task.ids
        for sample, (completion, is_cut) in enumerate(by_id.get(key, [("", False)]))
    ]
    pairs = [(Example(key, task.rows[key], Prompt()), completion) for key, _, completion, _ in answers]
    scores = task.score_all(pairs, [is_cut for *_, is_cut in answers])
    return [
        ScoredAnswer(key, sample, score, is_missing=key not in by_id)
        for (key, sample, *_), score in zip(answers, scores, strict=True)
    ]


def report_counts(counts: Mapping[str, int]) -> None:
    """Report which ids have no line, and which have more than others: several lines of an id are samples."""
    given = {key: count for key, count in counts.items() if count}
    repeated = [key for key, count in given.items() if count > 1]
    if repeated and len(set(given.values())) == 1:
        say(f"every id has {given[repeated[0]]} lines: they count as samples")
    elif repeated:
        say(
            f"{len(repeated)} of {len(given)} ids have more lines than others, which count as samples: {_list(repeated)}"
        )
    missing = [key for key, count in counts.items() if not count]
    if missing:
        say(f"{len(missing)} of {len(counts)} ids have no prediction and count as failed: {_list(missing)}")


def _list(ids: Sequence[str]) -> str:
    return ", ".join(ids[:MOST_NAMED]) + (", …" if len(ids) > MOST_NAMED else "")


def check_out(out: object) -> Path | None:
    """Return the path of the result; ValueError if it cannot be written, before anything is scored."""
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


def table(answers: Sequence[ScoredAnswer]) -> pd.DataFrame:
    """Return one row per answer, as in records. An id without an answer counts as failed; it gets as many rows as the id that has
    the fewest answers.
    """
    num_samples = Counter(answer.id for answer in answers if not answer.is_missing)
    fewest = min(num_samples.values(), default=1)
    rows = [
        {"example": a.id, **a.score.values, **{f"stats_{name}": stats for name, stats in a.score.stats.items()}}
        for a in answers
        for _ in range(fewest if a.is_missing else 1)
    ]
    return pd.DataFrame(rows)


def aggregate(task: DataTask, answers: Sequence[ScoredAnswer], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return every metric with its interval over examples; an unknown limit is null, since JSON has no NaN."""
    estimates = all_metrics(table(answers), list(map(task.metric_of, answers[0].score.values)), **options)
    metrics: dict[str, Any] = {
        name: {"value": estimate.value} | {end: finite_or_none(getattr(estimate, end)) for end in ("low", "high")}
        for name, estimate in estimates.items()
    }
    if "bleu" in task.signatures:
        metrics["bleu_signature"] = {"value": task.signatures["bleu"], "low": None, "high": None}
    return metrics


def report(task: DataTask, answers: Sequence[ScoredAnswer], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON object of a whole set of predictions; `settings` has the options of DEFAULTS."""
    flags: Counter[str] = Counter({"is_missing": sum(answer.is_missing for answer in answers)})
    for answer in answers:
        flags.update({name: int(value) for name, value in answer.score.flags.items()})
    names = ("protocol", "version", "dataset", "dataset_commit", "split")
    options = {"level": settings["level"], "resamples": settings["resamples"], "seed": settings["bootstrap_seed"]}
    result = {
        "task": task.name,
        **{name: getattr(task, name) for name in names},
        "rows_hash": rows_hash({key: task.rows[key] for key in task.ids}),
        "n": len(task.ids),
        "num_answers": sum(not answer.is_missing for answer in answers),
        "metrics": aggregate(task, answers, options),
        "flags": dict(flags),
        "settings": {**task.describe(), **task.environment()},
    }
    if settings["per_example"]:
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
    name, predictions = str(options.pop("task")), Path(options.pop("predictions"))
    if member_options(name)[0] not in (*tasks.names(), *FAMILIES):
        raise ValueError(f"there is no task {name} {nearest(name, tasks.names())}")
    settings = {key: options.pop(key, default) for key, default in DEFAULTS.items()}
    switch("per_example", settings["per_example"])
    if not isinstance(settings["level"], float) or not 0 < settings["level"] < 1:
        raise ValueError(f"level must be a number between 0 and 1, got {settings['level']}")
    for key, low in (("resamples", 100), ("bootstrap_seed", 0)):
        settings[key] = integer(key, settings[key], low)
    out = check_out(options.pop("out", None))
    refuse_unknown("", options, [*EXAMPLES, *tasks.options(name)])
    task = tasks.load(name, **{"n": None, **options})
    task.environment()  # raises if something that the scores need is missing
    result = report(task, score_predictions(task, predictions), settings)
    if result["flags"].get("is_uncontained"):
        sandbox = f"sandbox={result['settings']['sandbox']}"
        say(f"{sandbox}: programs ran with little or no protection, and the result says so")
    if out is not None:
        out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return result


def say(message: str) -> None:
    print(message, file=sys.stderr)


def score(words: Sequence[str], _compose: None) -> int:
    """Print the scores as one JSON object."""
    warnings.showwarning = lambda message, *_: say(str(message))
    with redirect_stdout(sys.stderr):  # output of libraries must not mix with the JSON
        result = run(words)
    print(json.dumps(result, ensure_ascii=False))
    return Exit.DONE


# RuntimeError: no working sandbox
COMMAND = Subcommand("sdbench.score", lambda _: HELP, score, mistakes=(ValueError, OSError, RuntimeError))

if __name__ == "__main__":
    COMMAND.main()
