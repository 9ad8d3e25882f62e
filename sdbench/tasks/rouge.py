"""ROUGE-1/2/L/Lsum by `rouge_score`, on 0-100, with and without its stemmer; each word is stemmed once and remembered."""

from __future__ import annotations

from functools import cache, lru_cache
from importlib.metadata import version
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer

TYPES = ["rouge1", "rouge2", "rougeL", "rougeLsum"]


@cache
def _scorer(*, use_stemmer: bool) -> RougeScorer:
    """rouge_score's default, which spends half of a summary's time on stemming, with a memory of words and recent texts."""
    from nltk.stem.porter import PorterStemmer
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.tokenize import tokenize

    stemmer = SimpleNamespace(stem=lru_cache(maxsize=200_000)(PorterStemmer().stem)) if use_stemmer else None
    tokenizer: Any = SimpleNamespace(tokenize=lru_cache(maxsize=20_000)(lambda text: tokenize(text, stemmer)))
    return RougeScorer(TYPES, tokenizer=tokenizer)


def rouge(reference: str, candidate: str, *, use_stemmer: bool) -> dict[str, float]:
    """F-measures x 100. Lines are sentences to rougeLsum, so newlines must still stand in both texts."""
    scores = _scorer(use_stemmer=use_stemmer).score(reference, candidate)
    return {name: 100 * score.fmeasure for name, score in scores.items()}


def signature(*, use_stemmer: bool) -> str:
    return f"rouge_score {version('rouge_score')}, stemmer {'on' if use_stemmer else 'off'}, F-measure x 100"
