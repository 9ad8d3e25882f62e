"""Suffix statistics: the distribution of what followed earlier occurrences of the text's ending."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from inspect import signature
from itertools import accumulate
from typing import Any, ClassVar

import torch
from torch import Tensor

from sdbench.draft.base import is_number
from sdbench.draft.lookup import TextDrafter
from sdbench.draft.text_index import TextIndex
from sdbench.probs import Warp
from sdbench.types import Context, DraftBlock, DraftSetup

Drawn = tuple[int, Counter[int]]  # a token, and the counts from which it was drawn


class SuffixDrafter(TextDrafter):
    """SuffixDecoding's statistics (Oliaro et al. 2024, arXiv:2411.04975) over a row's own prompt and output.

    It follows the earlier occurrences that agree longest with the text's ending. q of the first slot is the share of each token
    among those that follow them. After a token is drawn, only the occurrences that continue with it are followed further. A
    block is at most `factor` times as long as the agreement. It ends before the first slot whose likeliest token has a share
    below `least`, a test that does not depend on the token drawn there. Unlike in the paper, other requests' outputs are not
    read, because texts would then depend on the order of the requests.
    """

    version: ClassVar[str] = "2"
    reads_target: ClassVar[bool] = False

    def __init__(self, warp: Warp, vocab_size: int, shortest: int, longest: int, factor: float, least: float) -> None:
        super().__init__(shortest, longest)
        for name, value in {"factor": factor, "least": least}.items():
            if not is_number(value):
                raise ValueError(f"{name} must be a finite number, got {value}")
        if not (factor > 0 and 0 < least <= 1):
            raise ValueError(f"factor must be above 0 and least in (0, 1], got factor={factor:g}, least={least:g}")
        self.warp, self.vocab_size, self.factor, self.least = warp, vocab_size, factor, least

    @classmethod
    def build(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, setup: DraftSetup, shortest: int = 1, longest: int = 16, factor: float = 2.0, least: float = 0.1
    ) -> "SuffixDrafter":
        size = setup.target.vocab_size
        return cls(setup.warp, min(size, setup.warp.vocab_size or size), shortest, longest, factor, least)

    @classmethod
    def check(cls, setup: DraftSetup, **options: Any) -> None:
        defaults = {name: part.default for name, part in list(signature(cls.build).parameters.items())[1:]}
        numbers = {**defaults, **options}
        SuffixDrafter(Warp(), 1, *(numbers[name] for name in ("shortest", "longest", "factor", "least")))

    def draft(self, context: Context, k: int, lengths: Tensor, u: Tensor, needs: frozenset[str]) -> DraftBlock:
        blocks = self.draw_blocks(context, lengths.tolist(), u.tolist())
        block = self.block_of([[token for token, _ in drawn] for drawn in blocks], lengths)
        if self.warp.is_greedy and "raw" not in needs:
            return block
        law = self._law_of(blocks, block.tokens.shape[1], lengths.device)
        q = block.tokens if self.warp.is_greedy else law
        return DraftBlock(block.tokens, q, block.lengths, law.log() if "raw" in needs else None)

    def _law_of(self, blocks: Sequence[Sequence[Drawn]], width: int, device: torch.device) -> Tensor:
        """Return the law [B,width,V] of each slot; in slots that are not offered it is all on token 0."""
        places: list[int] = []
        chances: list[float] = []
        for row, drawn in enumerate(blocks):
            for slot, (_, counts) in enumerate(drawn):
                begin, total = (row * width + slot) * self.vocab_size, counts.total()
                places += [begin + token for token in counts]
                chances += [count / total for count in counts.values()]
            slots = range(row * width + len(drawn), (row + 1) * width)
            places += [slot * self.vocab_size for slot in slots]
            chances += [1.0] * len(slots)
        law = torch.zeros(len(blocks), width, self.vocab_size, device=device)
        law.view(-1)[torch.tensor(places, dtype=torch.int64, device=device)] = torch.tensor(chances, device=device)
        return law

    def draw_blocks(
        self, context: Context, limits: Sequence[int], uniforms: Sequence[list[float]]
    ) -> list[list[Drawn]]:
        """Return for each row the tokens of its block, with the counts from which each was drawn."""
        self.read(context)
        blocks: list[list[Drawn]] = [[] for _ in limits]
        for row, text in self.texts.items():
            if row < len(blocks):
                blocks[row] = self.draw_block(text, limits[row], uniforms[row])
        return blocks

    def draw_block(self, text: TextIndex, limit: int, uniforms: list[float]) -> list[Drawn]:
        """Return the block of one text."""
        return self.follow(text.tokens, *text.longest_earlier(self.longest), limit, uniforms)

    def follow(
        self, tokens: Any, positions: Sequence[int], agreed: int, limit: int, uniforms: list[float]
    ) -> list[Drawn]:
        """Return a block drawn from what follows these positions of a text, after `agreed` tokens each.

        tokens: ids by position, outside the vocabulary for those that cannot be drafted.
        """
        block: list[Drawn] = []
        for slot in range(min(limit, int(self.factor * agreed))):
            reached = [position for position in positions if position + slot < len(tokens)]
            following = {position: int(tokens[position + slot]) for position in reached}
            counts = Counter(token for token in following.values() if 0 <= token < self.vocab_size)
            if not counts or max(counts.values()) < self.least * counts.total():
                break
            token = likeliest(counts) if self.warp.is_greedy else draw_token(counts, uniforms[slot])
            block.append((token, counts))
            positions = [position for position, after in following.items() if after == token]
        return block


def likeliest(counts: Counter[int]) -> int:
    """Return the token with the highest count, the lowest id among equals, as `argmax` of their law does."""
    return min(counts, key=lambda token: (-counts[token], token))


def draw_token(counts: Counter[int], u: float) -> int:
    """Draw a token in proportion to its count by inverse CDF, in the order of ids."""
    tokens = sorted(counts)
    sums = list(accumulate(counts[token] for token in tokens))
    return tokens[bisect_right(sums, u * sums[-1])]
