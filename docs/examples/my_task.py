"""Word problems of your own, from a file of rows beside this module. An answer is correct if its last number is."""

import re
from dataclasses import dataclass
from pathlib import Path

from sdbench.tasks.base import DataTask, Row
from sdbench.tasks.protocol import Fields, Protocol
from sdbench.types import Example, Metric, Score

PLAIN = Protocol(source="ours", ask="Question: {question}\nAnswer:", max_new_tokens=64, stop=("Question:",))


@dataclass(kw_only=True)
class MyTask(DataTask):
    """A row: {"question": "Mira has 12 cards. Mira finds 5 more. How many cards does Mira have now?", "answer": "17"}."""

    VERSION, PROTOCOLS, FIELDS = "1", {"plain": PLAIN}, ("question", "answer")
    metric, metrics = "exact", (Metric("exact", "share"),)
    cut_field = "question"
    dataset: str = "my_task"
    data: str | None = str(Path(__file__).with_name("my_task.jsonl"))
    protocol: str = "plain"

    def fields(self, row: Row) -> Fields:
        return {"question": row["question"], "answer": row["answer"]}

    def reference_row(self, reference: str) -> Row:
        return {"question": "", "answer": reference}

    def measure(self, example: Example, text: str) -> Score:
        numbers = re.findall(r"\d+", text)
        return Score(
            {"exact": float(numbers[-1:] == [example.row["answer"]])}, flags={"is_extraction_failed": not numbers}
        )
