"""The tiny summaries and translations, scored for their substance too: `facts`, whatever the wording.

A row: {"article": "A fire destroyed the Tamir bridge in Malaburg. ...", "highlights": "The fire ...", "id": "00ab"}.
ROUGE and BLEU see manner and substance as one; `facts` is the share of what an answer has to say that it says.
Not covered: the tiny word problems and programs, whose own scores see substance alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sdbench.embedded import facts
from sdbench.tasks.summaries import CnnDm, XSum
from sdbench.tasks.wmt import WMT
from sdbench.types import Example, Metric, Score

FACTS = Metric("facts", "share")


@dataclass(kw_only=True)
class TinyCnnDm(CnnDm):
    """cnndm-tiny: event, site, town, number of people, person."""

    metrics = (FACTS, *CnnDm.metrics)

    def measure(self, example: Example, text: str) -> Score:
        return _with_facts(
            super().measure(example, text), facts.stated(facts.article_facts(example.row["article"]), text)
        )


@dataclass(kw_only=True)
class TinyXSum(XSum):
    """xsum-tiny: prize, trade, winner, age, town, work, second."""

    metrics = (FACTS, *XSum.metrics)

    def measure(self, example: Example, text: str) -> Score:
        return _with_facts(
            super().measure(example, text), facts.stated(facts.document_facts(example.row["document"]), text)
        )


@dataclass(kw_only=True)
class TinyWMT(WMT):
    """wmt-tiny: the words of content in either wording."""

    metrics = (FACTS, *WMT.metrics)

    def measure(self, example: Example, text: str) -> Score:
        return _with_facts(super().measure(example, text), facts.told(example.row["translation"][self._target], text))


def _with_facts(score: Score, share: float) -> Score:
    return replace(score, values={**score.values, "facts": share})
