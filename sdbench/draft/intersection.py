"""A draft model with another tokenizer, whose law is restricted to tokens that the target also has."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from sdbench.draft.foreign import ForeignDrafter
from sdbench.draft.translation import Translation, shared_ids
from sdbench.probs import clamp_nan_ids, draw
from sdbench.types import Context, DraftBlock, DraftSetup


@dataclass
class TranslatedText:
    """A text as the joined translations of its tokens; all ids are settled."""

    ids: list[int]
    size: int

    @property
    def num_settled(self) -> int:
        return len(self.ids)

    def copy(self) -> "TranslatedText":
        return replace(self, ids=list(self.ids))


class IntersectionDrafter(ForeignDrafter):
    """Token-level intersection (Timor et al. 2025, arXiv:2502.05202): q is the draft's law over shared tokens, renormalised.

    The map from the draft's ids to the target's is built once. The draft reads the target's text token by token; a token that
    it does not share is read as several of its own. So a text in its ids only grows, and is cached like any other.
    """

    version: ClassVar[str] = "2"
    reads_target: ClassVar[bool] = False

    def __init__(self, setup: DraftSetup) -> None:
        self.model, self.warp = setup.draft, setup.warp
        self.num_ids = min(setup.target.vocab_size, setup.warp.vocab_size or setup.target.vocab_size)
        self.translation = Translation(setup.tokenizer, setup.draft_tokenizer)
        pairs = self.translation.shared_below(self.num_ids, self.model.vocab_size)
        self.target_ids, self.draft_ids = torch.tensor(pairs, device=self.model.device).unbind(1)
        self.draft_id_of = self.target_ids.new_zeros(self.num_ids).scatter_(0, self.target_ids, self.draft_ids)

    @classmethod
    def build(cls, setup: DraftSetup) -> "IntersectionDrafter":  # pyright: ignore[reportIncompatibleMethodOverride]
        return cls(setup)

    @classmethod
    def check(cls, setup: DraftSetup, **options: Any) -> None:
        if setup.tokenizer is not None and setup.draft_tokenizer is not None:
            shared_ids(setup.tokenizer, setup.draft_tokenizer)

    @property
    def facts(self) -> dict[str, int]:
        return {"shared_tokens": len(self.target_ids), "target_tokens": self.num_ids}

    @property
    def most_ids(self) -> int:
        return self.translation.longest

    def begin_text(self, prompt: list[int]) -> TranslatedText:
        return TranslatedText(self.translation.ids_of_whole(prompt) or [0], len(prompt))

    def extend(self, texts: Mapping[int, TranslatedText], new: Mapping[int, list[int]]) -> None:
        for row, tokens in new.items():
            texts[row].ids += self.translation.ids_of(tokens)
            texts[row].size += len(tokens)

    def draft(self, context: Context, k: int, lengths: Tensor, u: Tensor, needs: frozenset[str]) -> DraftBlock:
        if not k:
            return DraftBlock.empty(lengths)
        self.read(context)
        rows = [self.has_room(row, count) for row, count in enumerate(lengths.tolist())]
        lengths = torch.where(torch.tensor(rows, device=lengths.device), lengths, 0)
        name = "intersection", self.warp, self.num_ids
        _, hidden, tokens, laws, logits = self.draw_slots(name, rows, u, self._choose)
        kept = logits if "raw" in needs else None
        return DraftBlock(tokens, laws, lengths, kept, hidden if "draft_hidden" in needs else None)

    def _choose(self, raw: Tensor, u: Tensor) -> tuple[Tensor, ...]:
        """Return the draft's ids [B], and the target's ids, laws and logits."""
        logits = self._restrict(raw)
        q = self.warp.law(logits)
        token = q if self.warp.is_greedy else draw(q, u)
        known = clamp_nan_ids(token, self.num_ids)
        return self.draft_id_of[known], token, known if self.warp.is_greedy else q, logits

    def _restrict(self, raw: Tensor) -> Tensor:
        """Return logits [B,V] of the target's ids from those of the draft's: −∞ for tokens that the draft does not have."""
        raw = raw if raw.dtype in (torch.float32, torch.float64) else raw.float()
        logits = raw.new_full((len(raw), self.num_ids), -torch.inf)
        return logits.index_copy_(1, self.target_ids, raw.index_select(1, self.draft_ids))
