"""A small model drafts token by token."""

from functools import partial

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
        self.cache: RaggedCache | None = None

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    def open(self, num_rows: int, capacity: int) -> None:
        self.cache = self.model.cache(num_rows, capacity)

    def close(self) -> None:
        if self.cache is not None:
            self.model.give_back(self.cache)
        self.cache = None

    def prefill(self, prompt: Tensor) -> Prefix:
        return self.model.prefill(prompt[:-2])

    def admit(self, row: int, prefix: Prefix) -> None:
        self._cache.write(row, prefix)

    def move(self, source: int, row: int) -> None:
        self._cache.move(source, row, self._cache.capacity)

    def draft(
        self, context: Context, k: int, lengths: Tensor, u: Tensor, feedback: Feedback | None, needs: frozenset[str]
    ) -> DraftBlock:
        if not k:
            return DraftBlock.empty(lengths)
        tail = context.lengths[:, None] + torch.arange(-2, 0, device=lengths.device)
        ids = context.tokens.gather(1, tail.clamp_min(0))
        cache, is_raw = self._cache, "raw" in needs
        reach = self.model.reach(context.longest + k - 1, cache)
        step = partial(self._propose, cache, reach, is_raw)
        tokens, q, *logits = cache.records(step, ("draft", self.warp, reach, is_raw), ids, context.lengths, u)
        return DraftBlock(tokens, q, lengths, *logits)

    @property
    def _cache(self) -> RaggedCache:
        assert self.cache is not None, "a drafter is opened first"
        return self.cache

    def _propose(
        self, cache: RaggedCache, reach: int, is_raw: bool, ids: Tensor, sizes: Tensor, u: Tensor
    ) -> tuple[Tensor, ...]:
        """Tokens [B,K] and laws [B,K,V] behind texts of `sizes` [B] that end in ids [B,2]; their logits where asked for."""
        k = u.shape[1]
        positions = sizes[:, None] + torch.arange(-2, k - 1, device=u.device)  # [B,K+1]
        plans = self.model.plan(positions, cache, reach).split([2, *[1] * (k - 1)])
        tokens: list[Tensor] = []
        laws: list[Tensor] = []
        kept: list[Tensor] = []
        for plan, coins in zip(plans, u.unbind(1), strict=True):
            logits = self.warp.logits(self.model.forward(ids, plan, cache, keep=1)[:, 0])
            q = self.warp.law(logits)
            token = q if self.warp.is_greedy else draw(q, coins)
            ids = token.clamp_max(logits.shape[-1] - 1)[:, None]  # V where logits are NaN
            tokens.append(token)
            laws.append(ids[:, 0] if self.warp.is_greedy else q)
            kept.append(logits)
        found = torch.stack(tokens, 1), torch.stack(laws, 1)
        return (*found, torch.stack(kept, 1)) if is_raw else found
