"""CNN/DailyMail and XSum: summaries, scored by ROUGE.

A CNN/DailyMail row: {"article": "A cat was found ...", "highlights": "Cat found .\\nOwner happy .", "id": "00ab"}.
An XSum row: {"document": "A cat was found ...", "summary": "A lost cat is home again.", "id": "29750031"}.
Not covered: BERTScore and faithfulness, which need models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sdbench.config.checks import optional_integer
from sdbench.tasks.base import DataTask
from sdbench.tasks.protocol import Protocol, read_protocols
from sdbench.tasks.rouge import TYPES, rouge, signature
from sdbench.types import Example, Metric, Score

ENDINGS = ("", "_nostem")  # of a metric's name: with the stemmer, and without


@dataclass(frozen=True, kw_only=True)
class SummaryProtocol(Protocol):
    """`truncate_words` keeps only the first words of an answer before it is scored."""

    truncate_words: int | None = None


@dataclass(kw_only=True)
class Summaries(DataTask):
    """ROUGE with the stemmer under the plain names and without it under `…_nostem`, always both."""

    truncate_words: int | None = None

    metric = "rougeL"
    metrics = tuple(Metric(f"{name}{ending}", "points") for ending in ENDINGS for name in TYPES)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.truncate_words is None and isinstance(self.rules, SummaryProtocol):
            self.truncate_words = self.rules.truncate_words
        optional_integer("truncate_words", self.truncate_words, 1)

    def measure(self, example: Example, text: str) -> Score:
        if self.truncate_words is not None:
            text = " ".join(text.split()[: self.truncate_words])
        scores = {ending: rouge(example.row[self.reference], text, use_stemmer=not ending) for ending in ENDINGS}
        return Score({f"{name}{ending}": scores[ending][name] for ending in ENDINGS for name in TYPES})

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "truncate_words": self.truncate_words}

    @property
    def signatures(self) -> dict[str, str]:
        return {f"rouge{ending}": signature(use_stemmer=not ending) for ending in ENDINGS}


@dataclass(kw_only=True)
class CnnDm(Summaries):
    """CNN/DailyMail 3.0.0 (See et al. 2017, arXiv:1704.04368); test has 11,490 rows."""

    FIELDS = ("article", "highlights")
    reference = "highlights"
    PROTOCOLS = read_protocols("cnndm", SummaryProtocol)


@dataclass(kw_only=True)
class XSum(Summaries):
    """XSum: one-sentence summaries (Narayan et al. 2018, arXiv:1808.08745); test has 11,334 rows."""

    FIELDS = ("document", "summary")
    reference = "summary"
    metric = "rouge2"  # as the source of its prompt reports: two single sentences share half of their longest subsequence by chance
    PROTOCOLS = read_protocols("xsum", SummaryProtocol)
