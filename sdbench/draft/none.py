"""Nobody drafts: plain autoregressive decoding is speculation with empty drafts."""

from typing import ClassVar

from torch import Tensor

from sdbench.draft.base import BaseDrafter
from sdbench.types import Context, DraftBlock


class NoDraft(BaseDrafter):
    """Blocks without slots."""

    version: ClassVar[str] = "1"

    def draft(self, context: Context, k: int, lengths: Tensor, u: Tensor, needs: frozenset[str]) -> DraftBlock:
        return DraftBlock.empty(lengths)
