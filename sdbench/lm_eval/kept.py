"""Answers on disk, so that an interrupted evaluation can continue: each is written as soon as it is complete.

An answer is stored with its counts under a key, a hash of everything that decides its text, as in the records of a run.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sdbench.config import ConfigError
from sdbench.prepare.progress import warn

SETTING = "setting of sdbench"  # our key in a file of `--use_cache`; the keys of answers are hashes


class KeptAnswers:
    """Answers by key in an SQLite file, which several processes may share."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, isolation_level=None, timeout=60)
            self._database.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT NOT NULL)")
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"keep={path} cannot store answers ({error}): give a new file") from None

    def read(self, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the stored answers by key."""
        query = "SELECT answer FROM answers WHERE key = ?"
        rows = {key: self._database.execute(query, (key,)).fetchone() for key in keys}
        return {key: json.loads(row[0]) for key, row in rows.items() if row is not None}

    def read_by_task(self, keys: Sequence[str], tasks: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the stored answers by key, with a warning for each task that has some. `tasks` has the task of each key."""
        answers, totals = self.read(keys), Counter(tasks)
        for task, count in Counter(task for task, key in zip(tasks, keys, strict=True) if key in answers).items():
            warn(f"{count} of {totals[task]} answers of {task} were read from {self.path}")
        return answers

    def write(self, key: str, answer: Mapping[str, Any]) -> None:
        """Store an answer; it is on disk when this returns."""
        self._database.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", (key, json.dumps(answer)))


def claim(answers: Any, setting: str) -> None:
    """Reserve a file of the harness's `--use_cache` (a SqliteDict) for one setting, because its keys name the request only.

    Raise ConfigError if it holds answers of another setting or model.
    """
    if not answers:
        answers[SETTING] = setting
    elif answers.get(SETTING) != setting:
        file = answers.filename.removesuffix("_rank0.db")
        raise ConfigError(
            f"--use_cache={file} holds answers that may be of another setting or model: give another file, or keep=FILE in "
            "--model_args"
        )
