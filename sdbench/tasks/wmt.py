"""WMT14 and WMT16 news translation between German and English: corpus BLEU, chrF2, and the DIVERSED paper's mean.

A row: {"translation": {"de": "Die Katze schläft.", "en": "The cat is sleeping."}}.
Not covered: TER, COMET (a model), other pairs of languages.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from sdbench.tasks.base import DataTask, Row
from sdbench.tasks.protocol import Fields, Protocol
from sdbench.types import Example, Metric, Score

LANGUAGES = {"de": "German", "en": "English"}
DIRECTIONS = ("de-en", "en-de")


@cache
def scorers() -> tuple[Any, Any, Any, Any]:
    """Return sacrebleu's corpus BLEU, chrF2, and sentence BLEU with case and without."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    return BLEU(), CHRF(), BLEU(effective_order=True), BLEU(effective_order=True, lowercase=True)


@dataclass(kw_only=True)
class WMT(DataTask):
    """`bleu` and `chrf2` of a row are its sentence scores; corpus scores are computed from its statistics."""

    direction: str = "de-en"

    PROTOCOLS = Protocol.read("wmt")
    FIELDS = ("translation",)
    metric = "bleu"
    metrics = (
        Metric("bleu", "points", stats="bleu"),
        Metric("chrf2", "points", stats="chrf2"),
        Metric("diversed_sbleu", "points"),
    )
    cut_field = "source"

    def __post_init__(self) -> None:
        if self.direction not in DIRECTIONS:
            raise ValueError(f"direction must be one of {', '.join(DIRECTIONS)}, got {self.direction}")
        super().__post_init__()
        target = LANGUAGES[self._languages[1]]
        self.stop = tuple(stop.replace("{target_language}", target) for stop in self.stop)

    @property
    def _languages(self) -> list[str]:
        return self.direction.split("-")

    def _lack_of(self, row: Row) -> str | None:
        pair = row.get("translation")
        is_whole = isinstance(pair, Mapping) and all(pair.get(language) is not None for language in self._languages)
        return None if is_whole else f"has no translation with {' and '.join(self._languages)}"

    def fields(self, row: Row) -> Fields:
        source, target = self._languages
        languages = {"source_language": LANGUAGES[source], "target_language": LANGUAGES[target]}
        return {"source": row["translation"][source], "answer": row["translation"][target], **languages}

    def reference_row(self, reference: str) -> Row:
        return {"translation": dict(zip(self._languages, ("", reference), strict=True))}

    def measure(self, example: Example, text: str) -> Score:
        _, chrf, sentence, lowered = scorers()
        reference = [self.fields(example.row)["answer"]]
        bleu = sentence.sentence_score(text, reference)
        # A private method of sacrebleu, whose versions pyproject.toml pins.
        (counts,) = chrf._extract_corpus_statistics([text], [reference])
        values = {
            "bleu": bleu.score,
            "chrf2": chrf._compute_score_from_stats(counts).score,
            "diversed_sbleu": lowered.sentence_score(text, reference).score,
        }
        return Score(values, stats={"bleu": bleu_stats(bleu), "chrf2": tuple(map(float, counts))})

    @property
    def signatures(self) -> dict[str, str]:
        bleu, chrf, _, lowered = scorers()
        for scorer in (bleu, chrf, lowered):
            scorer.num_refs = 1
        return {
            "bleu": str(bleu.get_signature()),
            "chrf2": str(chrf.get_signature()),
            "diversed_sbleu": f"mean of sentence BLEU {lowered.get_signature()}",
        }

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "direction": self.direction}


def bleu_stats(bleu: Any) -> tuple[float, ...]:
    """4 correct + 4 total + [sys_len, ref_len]: sums over sentences give the corpus score."""
    return tuple(map(float, [*bleu.counts, *bleu.totals, bleu.sys_len, bleu.ref_len]))
