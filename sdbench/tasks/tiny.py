"""The tiny summaries and translations, which are also scored by `facts`, whatever the wording.

A row: {"article": "A fire destroyed the Tamir bridge in Malaburg. ...", "highlights": "The fire ...", "id": "00ab"}.
ROUGE and BLEU mix wording and facts; `facts` is the share of the row's facts that an answer states.
Not covered: the tiny word problems and programs, whose scores depend on facts only.
"""

from dataclasses import dataclass, replace

from sdbench.embedded.facts import article_facts, document_facts, share_stated, share_translated
from sdbench.tasks.summaries import CnnDm, XSum
from sdbench.tasks.wmt import WMT
from sdbench.types import Example, Metric, Score

FACTS = Metric("facts", "share")


@dataclass(kw_only=True)
class TinyCnnDm(CnnDm):
    """cnndm-tiny. Facts: event, site, town, number of people, person."""

    metrics = (FACTS, *CnnDm.metrics)
    scores_rows = True  # facts are those of the article

    def measure(self, example: Example, text: str) -> Score:
        share = share_stated(article_facts(example.row["article"]), text)
        return _with_facts(super().measure(example, text), share)


@dataclass(kw_only=True)
class TinyXSum(XSum):
    """xsum-tiny. Facts: prize, trade, winner, age, town, work, second."""

    metrics = (FACTS, *XSum.metrics)
    scores_rows = True

    def measure(self, example: Example, text: str) -> Score:
        share = share_stated(document_facts(example.row["document"]), text)
        return _with_facts(super().measure(example, text), share)


@dataclass(kw_only=True)
class TinyWMT(WMT):
    """wmt-tiny. Facts: the content words, in either wording."""

    metrics = (FACTS, *WMT.metrics)

    def measure(self, example: Example, text: str) -> Score:
        share = share_translated(self.fields(example.row)["answer"], text)
        return _with_facts(super().measure(example, text), share)


def _with_facts(score: Score, share: float) -> Score:
    return replace(score, values={**score.values, "facts": share})
