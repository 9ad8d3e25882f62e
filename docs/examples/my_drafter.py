"""Prompt lookup (A. Saxena 2023): draft the tokens that followed an earlier occurrence of the text's last tokens."""

from typing import ClassVar

import torch
from torch import Tensor

from sdbench.draft import BaseDrafter
from sdbench.types import Context, DraftBlock


class MyDrafter(BaseDrafter):
    """Drafts what followed the latest earlier occurrence of the last `ngram` tokens; if there is none, nothing. Reads no model."""

    version: ClassVar[str] = "1"

    def __init__(self, ngram: int = 2) -> None:
        if ngram < 1:
            raise ValueError(f"ngram must be at least 1, got {ngram}")
        self.ngram = ngram

    def draft(self, context: Context, k: int, lengths: Tensor, u: Tensor, needs: frozenset[str]) -> DraftBlock:
        rows = [text[:length] for text, length in zip(context.tokens.tolist(), context.lengths.tolist(), strict=True)]
        drafts = [self._behind(text)[:most] for text, most in zip(rows, lengths.tolist(), strict=True)]
        width = max(map(len, drafts))
        tokens = torch.tensor([[*draft, *[0] * (width - len(draft))] for draft in drafts], device=u.device)
        tokens = tokens.reshape(len(rows), width).long()
        offered = torch.tensor([len(draft) for draft in drafts], device=u.device)
        return DraftBlock(tokens, tokens, offered)  # q as ids: all mass on the drafted token

    def _behind(self, text: list[int]) -> list[int]:
        tail = text[-self.ngram :]
        for start in range(len(text) - self.ngram - 1, -1, -1):
            if text[start : start + self.ngram] == tail:
                return text[start + self.ngram :]
        return []
