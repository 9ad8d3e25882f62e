"""Prompt lookup: the tokens that followed an earlier occurrence of the text's ending."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from sdbench.draft.base import BaseDrafter, is_whole, new_tokens
from sdbench.draft.text_index import TextIndex
from sdbench.types import Context, DraftBlock, DraftSetup


class TextDrafter(BaseDrafter):
    """Drafts from the row's own text, without a model. Each row has an index."""

    def __init__(self, shortest: int, longest: int) -> None:
        for name, value in {"shortest": shortest, "longest": longest}.items():
            if not is_whole(value):
                raise ValueError(f"{name} must be a whole number, got {value}")
        if not 1 <= shortest <= longest:
            raise ValueError(f"shortest must be from 1 to longest={longest}, got shortest={shortest}")
        self.shortest, self.longest = shortest, longest
        self.texts: dict[int, TextIndex] = {}

    def prefill(self, prompt: Tensor, prefix: Any) -> TextIndex:
        return TextIndex(self.shortest, prompt.tolist())

    def admit(self, row: int, prefix: TextIndex) -> None:
        self.texts[row] = prefix.copy()

    def move(self, source: int, row: int) -> None:
        self.texts[row] = self.texts.pop(source)

    def close(self) -> None:
        self.texts = {}

    def read(self, context: Context) -> None:
        """Append to each row's index the tokens emitted in the last round."""
        for row, tokens in new_tokens(context, {row: len(text) for row, text in self.texts.items()}).items():
            self.texts[row].extend(tokens)

    @staticmethod
    def block_of(blocks: Sequence[Sequence[int]], lengths: Tensor) -> DraftBlock:
        """Return the block of these tokens, as wide as the longest row, with one-hot laws."""
        width, device = max(map(len, blocks), default=0), lengths.device
        tokens = torch.tensor(
            [[*block, *[0] * (width - len(block))] for block in blocks], dtype=torch.int64, device=device
        )
        return DraftBlock(tokens, tokens, torch.tensor([len(block) for block in blocks], device=device))


class PromptLookup(TextDrafter):
    """Prompt lookup decoding (Saxena 2023): copies what followed the longest earlier occurrence of the text's ending, of
    `shortest` to `longest` tokens; among equally long ones, the latest. A copy that reaches the end of the text continues with
    its own tokens.
    """

    version: ClassVar[str] = "1"
    reads_target: ClassVar[bool] = False

    def __init__(self, shortest: int = 2, longest: int = 8) -> None:
        super().__init__(shortest, longest)

    @classmethod
    def check(cls, setup: DraftSetup, **options: Any) -> None:
        cls(**options)

    def draft(self, context: Context, k: int, lengths: Tensor, u: Tensor, needs: frozenset[str]) -> DraftBlock:
        self.read(context)
        limits = lengths.tolist()
        blocks = [
            continue_text(self.texts[row], limit, self.longest) if row in self.texts else []
            for row, limit in enumerate(limits)
        ]
        return self.block_of(blocks, lengths)


def continue_text(text: TextIndex, limit: int, longest: int) -> list[int]:
    """Return at most `limit` tokens that followed the longest earlier occurrence of the text's ending."""
    best, most = 0, 0
    for position, length in text.earlier(longest):
        if length > most:
            best, most = position, length
        if most == longest:
            break
    if not best:
        return []
    block = list(text.tokens[best : best + limit])
    period = len(text) - best
    while len(block) < limit:
        block.append(block[-period])
    return block
