"""A small model drafts token by token."""

import torch
from torch import Tensor

from sdbench.lm import LM, Prefix, RaggedCache
from sdbench.probs import Warp, draw
from sdbench.types import Context, DraftBlock, Feedback


class ModelDrafter:
    """The pair's own draft model, under the warpers of the target.

    A round begins with the last two tokens of a text: the first was never fed where the whole last block was kept, and is written
    again, unchanged, where it was. So shapes stay fixed, and what is cached needs no record.
    """

    def __init__(self, model: LM, warp: Warp) -> None:
        self.model, self.warp = model, warp
        self.cache: RaggedCache = model.cache(0, 0)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    def open(self, num_rows: int, capacity: int) -> None:
        self.cache = self.model.cache(num_rows, capacity)

    def prefill(self, prompt: Tensor) -> Prefix:
        return self.model.prefill(prompt[:-2])

    def admit(self, row: int, prefix: Prefix) -> None:
        self.cache.write(row, prefix)

    def move(self, source: int, row: int) -> None:
        self.cache.move(source, row, self.cache.capacity)

    def draft(
        self, context: Context, k: int, lengths: Tensor, u: Tensor, feedback: Feedback | None, needs: frozenset[str]
    ) -> DraftBlock:
        if not k:
            return DraftBlock.empty(lengths)
        last = context.lengths[:, None] - 1  # [B,1]: where the text's last token stands
        positions = torch.cat((last - 1, last), 1)
        ids = context.tokens.gather(1, positions.clamp_min(0))
        tokens, laws, kept = [], [], []
        for step in range(k):
            plan = self.model.plan(positions, self.cache, context.longest + step)
            logits = self.warp.logits(self.model.forward(ids.clamp_min(0), plan, self.cache, keep=1)[:, 0])
            q = self.warp.law(logits)
            ids = (q if self.warp.is_greedy else draw(q, u[:, step]))[:, None]
            if self.warp.is_greedy:  # argmax picks a NaN; a draw from one is −1
                ids = ids.masked_fill(logits.gather(-1, ids).isnan(), -1)
            positions = last + step + 1
            tokens.append(ids)
            laws.append(q)
            if "raw" in needs:
                kept.append(logits)
        return DraftBlock(torch.cat(tokens, 1), torch.stack(laws, 1), lengths, torch.stack(kept, 1) if kept else None)
