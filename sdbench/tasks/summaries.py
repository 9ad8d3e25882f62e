"""CNN/DailyMail and XSum: summaries, scored by ROUGE-1/2/L/Lsum of `rouge_score`, on 0-100.

A CNN/DailyMail row: {"article": "A cat was found ...", "highlights": "Cat found .\\nOwner happy .", "id": "00ab"}.
An XSum row: {"document": "A cat was found ...", "summary": "A lost cat is home again.", "id": "29750031"}.
Not covered: BERTScore and faithfulness, which need models.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import version
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from sdbench.config.checks import optional_integer
from sdbench.tasks.base import DataTask, Row
from sdbench.tasks.protocol import Protocol
from sdbench.types import Example, Metric, Score

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer

TYPES = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
ENDINGS = ("", "_nostem")  # suffixes of a metric's name: with the stemmer, and without


@cache
def _scorer(*, use_stemmer: bool) -> RougeScorer:
    """Return rouge_score's default scorer with a cache of stems and recent texts: stemming takes half of a summary's time."""
    from nltk.stem.porter import PorterStemmer
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.tokenize import tokenize

    stemmer = SimpleNamespace(stem=lru_cache(maxsize=200_000)(PorterStemmer().stem)) if use_stemmer else None
    tokenizer: Any = SimpleNamespace(tokenize=lru_cache(maxsize=20_000)(lambda text: tokenize(text, stemmer)))
    return RougeScorer(TYPES, tokenizer=tokenizer)


@dataclass(kw_only=True)
class Summaries(DataTask):
    """ROUGE with the stemmer under the plain names and without it under `…_nostem`, always both."""

    truncate_words: int | None = None

    metrics = tuple(Metric(f"{name}{ending}", "points") for ending in ENDINGS for name in TYPES)
    usual_metric: ClassVar[str] = "rougeL"  # the headline, unless the protocol has another

    @property
    def metric(self) -> str:  # type: ignore[override] - the protocol decides it
        return self.rules.headline or self.usual_metric

    def __post_init__(self) -> None:
        super().__post_init__()
        self.truncate_words = self.rules.truncate_words if self.truncate_words is None else self.truncate_words
        self.truncate_words = optional_integer("truncate_words", self.truncate_words, 1)

    def _lack_of(self, row: Row) -> str | None:
        if lack := super()._lack_of(row):
            return lack
        other = next((name for name in self.FIELDS if not isinstance(row[name], str)), None)
        return None if other is None else f"has no text in {other!r}, but a {type(row[other]).__name__}"

    def scored_text(self, text: str) -> str:
        return text if self.truncate_words is None else " ".join(text.split()[: self.truncate_words])

    def measure(self, example: Example, text: str) -> Score:
        text = self.scored_text(text)
        # rougeLsum takes lines as sentences, so both texts must keep their newlines.
        scores = {end: _scorer(use_stemmer=not end).score(example.row[self.reference], text) for end in ENDINGS}
        return Score({f"{name}{end}": 100 * scores[end][name].fmeasure for end in ENDINGS for name in TYPES})

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "truncate_words": self.truncate_words}

    @property
    def signatures(self) -> dict[str, str]:
        library = f"rouge_score {version('rouge_score')}"
        stemmers = {end: "off" if end else "on" for end in ENDINGS}
        return {f"rouge{end}": f"{library}, stemmer {stemmers[end]}, F-measure x 100" for end in ENDINGS}


@dataclass(kw_only=True)
class CnnDm(Summaries):
    """CNN/DailyMail 3.0.0 (See et al. 2017, arXiv:1704.04368); test has 11,490 rows."""

    FIELDS = ("article", "highlights")
    reference = "highlights"
    PROTOCOLS = Protocol.read("cnndm")


@dataclass(kw_only=True)
class XSum(Summaries):
    """XSum: one-sentence summaries (Narayan et al. 2018, arXiv:1808.08745); test has 11,334 rows."""

    FIELDS = ("document", "summary")
    reference = "summary"
    usual_metric = (
        "rouge2"  # as its source reports: two single sentences share half of their longest subsequence by chance
    )
    PROTOCOLS = Protocol.read("xsum")
