"""ROUGE-1/2/L/Lsum by `rouge_score`, with and without its stemmer, on 0-100. Same numbers, words stemmed once."""

from __future__ import annotations

from functools import cache, lru_cache
from importlib.metadata import version

TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")


class CachedStemmer:
    """The Porter stemmer of rouge_score's default tokenizer, each word stemmed once."""

    def __init__(self) -> None:
        from nltk.stem import porter

        self.stem = lru_cache(maxsize=200_000)(porter.PorterStemmer().stem)


class Tokenizer:
    """rouge_score's default tokenizer; recent texts are kept, since a reference meets many candidates."""

    def __init__(self, *, use_stemmer: bool) -> None:
        from rouge_score import tokenize

        stemmer = CachedStemmer() if use_stemmer else None
        self.tokenize = lru_cache(maxsize=20_000)(lambda text: tokenize.tokenize(text, stemmer))


@cache
def _scorer(use_stemmer: bool):
    from rouge_score import rouge_scorer

    return rouge_scorer.RougeScorer(list(TYPES), tokenizer=Tokenizer(use_stemmer=use_stemmer))  # type: ignore[arg-type]


def rouge(reference: str, candidate: str, *, use_stemmer: bool) -> dict[str, float]:
    """F-measures x 100. Lines are sentences to rougeLsum, so newlines must still stand in both texts."""
    scores = _scorer(use_stemmer).score(reference, candidate)
    return {name: 100 * scores[name].fmeasure for name in TYPES}


def signature(*, use_stemmer: bool) -> str:
    return f"rouge_score {version('rouge_score')}, stemmer {'on' if use_stemmer else 'off'}, F-measure x 100"
