"""Early exit: the target's first layers draft, with its final norm and head, over its cache."""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from sdbench.draft.base import BaseDrafter, num_layers
from sdbench.draft.model import draw_tokens
from sdbench.lm.cache import RaggedCache
from sdbench.lm.exit import can_continue
from sdbench.lm.model import LM
from sdbench.lm.plan import Plan
from sdbench.probs import Warp, clamp_nan_ids
from sdbench.types import Context, DraftBlock, DraftSetup, PartialForward


class EarlyExit(BaseDrafter):
    """Self-speculative decoding by early exit (LayerSkip, Elhoushi et al. 2024, arXiv:2404.16710).

    Drafting writes the keys and values of the first layers to where verification would, so there is no second prefill and
    nothing is stored twice. Verification continues after these layers from their states [B,K+1,d], so the last drafted token
    also runs through them. If a later layer reads more from the first layers than their last states and the cache, verification
    runs all layers and writes the same keys and values again: `continues` is False.
    """

    version: ClassVar[str] = "1"

    cache: RaggedCache  # the target's, from open to close

    def __init__(self, target: LM, warp: Warp, exit_layer: int) -> None:
        self.target, self.warp, self.exit_layer = target, warp, exit_layer
        self.continues = can_continue(target, exit_layer)

    @classmethod
    def build(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, setup: DraftSetup, exit_layer: int | None = None
    ) -> "EarlyExit":
        return cls(setup.target, setup.warp, exit_of(setup.target.config.num_hidden_layers, exit_layer))

    @classmethod
    def check(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, setup: DraftSetup, exit_layer: int | None = None
    ) -> None:
        if setup.target_config is not None:
            exit_of(setup.target_config.num_hidden_layers, exit_layer)

    def open(self, num_rows: int, capacity: int, cache: RaggedCache) -> None:
        self.cache = cache

    def close(self) -> None:
        del self.cache

    def draft(self, context: Context, k: int, lengths: Tensor, u: Tensor, needs: frozenset[str]) -> DraftBlock:
        if not k:
            return DraftBlock.empty(lengths)
        ids = context.tokens.gather(1, context.lengths[:, None] - 1)
        cache, wanted = self.cache, tuple(name for name in ("raw", "draft_hidden") if name in needs)
        kv_length = self.target.kv_length(context.longest + k, cache)
        name = "exit", self.exit_layer, self.continues, self.warp, wanted
        step = partial(self._propose, cache, wanted)
        tokens, q, *more = cache.steps(step, name, kv_length, ids, context.lengths, u)
        extra = dict(zip(wanted, more, strict=False))
        begun = PartialForward(self.exit_layer, (more[-1],)) if self.continues else PartialForward()
        return DraftBlock(tokens, q, lengths, extra.get("raw"), extra.get("draft_hidden"), begun)

    def _propose(
        self, cache: RaggedCache, wanted: Sequence[str], kv_length: int, ids: Tensor, sizes: Tensor, u: Tensor
    ) -> tuple[Tensor, ...]:
        """Return `draw_tokens` for texts of `sizes` [B] that end in ids [B,1], and the states [B,K+1,d] at the exit."""
        k = u.shape[1]
        positions = sizes[:, None] + torch.arange(-1, k, device=u.device)  # [B,K+1]
        *plans, last = self.target.plan(positions, cache, kv_length).split([1] * (k + 1))
        states: list[Tensor] = []

        def forward(ids: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
            logits, hidden, left = self.target.forward_exit(ids, plan, cache, self.exit_layer)
            states.append(left)
            return logits, hidden

        tokens, *more = draw_tokens(forward, plans, ids, self.warp, u, wanted)
        if not self.continues:
            return tokens, *more
        drafted = clamp_nan_ids(tokens[:, -1:], self.target.vocab_size)
        states.append(self.target.begin(drafted, last, cache, self.exit_layer))
        return tokens, *more, torch.cat(states, 1)


def exit_of(count: int, exit_layer: int | None) -> int:
    """Return how many of `count` layers draft; None: a quarter of them, at least one."""
    return num_layers("exit_layer", count, exit_layer, count // 4)
