"""A block drafter (DFlash): trained layers on the target's states draft all positions of a block in one forward pass."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import embedding

from sdbench.draft.mtp import MTP
from sdbench.lm.cache import RaggedCache
from sdbench.lm.plan import LayerMask
from sdbench.lm.state_model import count_layers, fuse, layer_parameters
from sdbench.probs import clamp_nan_ids, draw
from sdbench.types import Context, DraftBlock

MASK = "mask"  # the name of the vectors [K−1,d] that stand for the unknown tokens of a block


class BlockDrafter(MTP):
    """Drafts all K positions in one forward pass (DFlash, arXiv:2602.06036); q of a position does not depend on the other
    drafts.

    Slots of the text are those of MTP, in the same cache: slot t reads h(t−1) and token t, and attends to the slots up to t.
    The last token is in slot n−1. K−1 slots follow; each reads h(n−2) and a trained vector instead of a token, and attends to
    the whole text and to the others. Slot n−1+k predicts token n+k. A row that may offer m tokens has m−1 of these slots, so
    its block does not depend on other rows.
    """

    version: ClassVar[str] = "1"
    kind: ClassVar[str] = "block"
    option_words: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    @classmethod
    def width_of(cls, weights: Mapping[str, Tensor]) -> int | None:
        width = super().width_of({name: x for name, x in weights.items() if name != MASK})
        shape = tuple(weights[MASK].shape) if MASK in weights else ()
        return width if len(shape) == 2 and shape[0] and shape[1] == width else None

    @classmethod
    def most_drafts(cls, weights: Mapping[str, Tensor]) -> int:
        return len(weights[MASK]) + 1

    @classmethod
    def cache_share(cls, config: Any, head: str | None = None, **options: Any) -> float:
        return count_layers(layer_parameters(cls.read(head)[1])) / config.num_hidden_layers

    def draft(self, context: Context, k: int, lengths: Tensor, u: Tensor, needs: frozenset[str]) -> DraftBlock:
        k = min(k, len(self.model.weights[MASK]) + 1)
        return super().draft(context, k, lengths.clamp_max(k), u[:, :k], needs)

    def _propose(
        self,
        cache: RaggedCache,
        wanted: Sequence[str],
        kv_length: int,
        ids: Tensor,
        states: Tensor,
        newest: Tensor,
        sizes: Tensor,
        lengths: Tensor,
        u: Tensor,
    ) -> tuple[Tensor, ...]:
        """Draft as the parent class, in one forward pass over W+K−1 slots: new slots of the text, the row's block, then padding."""
        k, weights = u.shape[1], self.model.weights
        slots = torch.arange(ids.shape[1] + k - 1, device=u.device)
        beyond = slots - newest[:, None]  # [B,T], relative to the last token
        read = slots.minimum(newest[:, None])
        guesses = embedding((beyond - 1).clamp(0, len(weights[MASK]) - 1), weights[MASK])
        before = states.gather(1, read[..., None].expand(-1, -1, states.shape[-1]))

        def inputs() -> Tensor:
            known = self.model.embed(ids.gather(1, read))
            return fuse(weights, before, torch.where(beyond[..., None] > 0, guesses, known))

        last = sizes[:, None] - 1
        is_padding = beyond >= lengths.clamp_min(1)[:, None]
        plan = self.model.plan((last + beyond).masked_fill(is_padding, -1).clamp_min(-1), cache, kv_length)
        seen = partial(sees, last[:, None, None], lengths[:, None, None, None])
        masks = {mask: LayerMask(partial(seen, mask.function)) for mask in plan.layer_masks.values()}
        plan = replace(plan, layer_masks={layer: masks[mask] for layer, mask in plan.layer_masks.items()})
        raw, hidden = self.model.advance(inputs, newest[:, None] + torch.arange(k, device=u.device), plan, cache)

        logits = self.warp.used(raw)
        q = self.warp.law(logits)
        drafts = q if self.warp.is_greedy else draw(q, u)
        law = clamp_nan_ids(drafts, logits.shape[-1]) if self.warp.is_greedy else q
        more = {"raw": logits, "draft_hidden": hidden}
        return drafts, law, *(more[name] for name in wanted)


def sees(
    last: Tensor, lengths: Tensor, function: Callable[..., Any], row: Any, head: Any, position: Tensor, slot: Tensor
) -> Tensor:
    """Return whether a position attends to a slot: if the layer's mask allows it, or both are in the block after token `last`."""
    is_block = (position > last) & (slot > last) & (slot < last + lengths)
    return function(row, head, position, slot) | is_block
