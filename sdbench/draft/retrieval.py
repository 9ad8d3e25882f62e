"""Retrieval: the distribution of what followed the text's ending in a frozen corpus."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

from sdbench.draft.corpus import IndexedCorpus, refuse_corpus
from sdbench.draft.suffix import Drawn, SuffixDrafter
from sdbench.probs import Warp
from sdbench.types import Context, DraftSetup

MOST = 256  # at most this many occurrences are counted


class RetrievalDrafter(SuffixDrafter):
    """REST's datastore (He et al. 2023, arXiv:2311.08252) on a chain: suffix statistics over a corpus instead of the row's
    text.

    It finds the longest ending of the text, of `shortest` to `longest` tokens, that occurs in the corpus, and drafts like
    `SuffixDrafter` from at most MOST of its occurrences. Nothing is kept per row.
    """

    version: ClassVar[str] = "3"
    reads_target: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"tokenizer"})

    def __init__(self, corpus: IndexedCorpus, warp: Warp, vocab_size: int, *options: Any) -> None:
        super().__init__(warp, vocab_size, *options)
        self.corpus = corpus

    @classmethod
    def build(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls,
        setup: DraftSetup,
        corpus: str | Path | None = None,
        shortest: int = 2,
        longest: int = 16,
        factor: float = 2.0,
        least: float = 0.1,
    ) -> "RetrievalDrafter":
        path, size = refuse_corpus(corpus), setup.target.vocab_size
        options = shortest, longest, factor, least
        size = min(size, setup.warp.vocab_size or size)
        return cls(IndexedCorpus.open(path, setup.tokenizer, setup.tokenizer_key), setup.warp, size, *options)

    @classmethod
    def check(cls, setup: DraftSetup, corpus: Any = None, **options: Any) -> None:
        super().check(setup, **options)
        refuse_corpus(corpus, setup.tokenizer, setup.tokenizer_key)

    def prefill(self, prompt: Any, prefix: Any) -> Any:
        return None

    def admit(self, row: int, prefix: Any) -> None:
        pass

    def move(self, source: int, row: int) -> None:
        pass

    def draw_blocks(
        self, context: Context, limits: Sequence[int], uniforms: Sequence[list[float]]
    ) -> list[list[Drawn]]:
        positions = context.lengths[:, None] - torch.arange(self.longest, 0, -1, device=context.lengths.device)
        endings = context.tokens.gather(1, positions.clamp_min(0)).tolist()
        blocks: list[list[Drawn]] = []
        for ending, size, limit, u in zip(endings, context.lengths.tolist(), limits, uniforms, strict=True):
            ending = ending[max(0, self.longest - size) :]
            where, agreed = self.corpus.occurrences(ending, self.shortest, MOST) if limit else ([], 0)
            blocks.append(self.follow(self.corpus.tokens, where, agreed, limit, u))
        return blocks
