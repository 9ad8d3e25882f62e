"""ROUGE-1/2/L/Lsum by `rouge_score`, on 0-100, with and without its stemmer; each word is stemmed once and remembered."""

from __future__ import annotations

from functools import cache, lru_cache
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer

TYPES = ["rouge1", "rouge2", "rougeL", "rougeLsum"]


class Stemmer:
    """The stemmer of rouge_score's default tokenizer with a memory: without one it takes half of a summary's time."""

    def __init__(self) -> None:
        from nltk.stem.porter import PorterStemmer

        self.stem = lru_cache(maxsize=200_000)(PorterStemmer().stem)


class Tokenizer:
    """rouge_score's default tokenizer; recent texts are kept, since a reference meets many candidates."""

    def __init__(self, *, use_stemmer: bool) -> None:
        from rouge_score.tokenize import tokenize

        stemmer = Stemmer() if use_stemmer else None
        self.tokenize = lru_cache(maxsize=20_000)(lambda text: tokenize(text, stemmer))


@cache
def _scorer(*, use_stemmer: bool) -> RougeScorer:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(TYPES, tokenizer=Tokenizer(use_stemmer=use_stemmer))  # type: ignore[arg-type]


def rouge(reference: str, candidate: str, *, use_stemmer: bool) -> dict[str, float]:
    """F-measures x 100. Lines are sentences to rougeLsum, so newlines must still stand in both texts."""
    scores = _scorer(use_stemmer=use_stemmer).score(reference, candidate)
    return {name: 100 * score.fmeasure for name, score in scores.items()}


def signature(*, use_stemmer: bool) -> str:
    return f"rouge_score {version('rouge_score')}, stemmer {'on' if use_stemmer else 'off'}, F-measure x 100"
