"""A stranger's task: one file, and one YAML that names its class and its rows."""

from typing import ClassVar

from sdbench.tasks.base import DataTask
from sdbench.tasks.protocol import Protocol
from sdbench.types import Metric, Score


class Reverse(DataTask):
    """Words to be written backwards; a row: {"word": "tool", "answer": "loot"}."""

    PROTOCOLS: ClassVar = {"own": Protocol(ask="Backwards, {word} is", max_new_tokens=8, stop=("\n",))}
    metric = "exact_match"
    metrics = (Metric("exact_match", "share"),)

    def measure(self, example, text):
        return Score({"exact_match": float(text == example.row["answer"])})
