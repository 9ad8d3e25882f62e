"""A round that captures steps before timing: blocks of all widths are drafted and scored; nothing is judged or emitted."""

import torch
from torch.nn.functional import pad

from sdbench.engine.batch import Batch
from sdbench.engine.loop import BatchRun
from sdbench.types import DraftBlock, PartialForward


class Rehearsal(BatchRun):
    """Run each step that a round after these texts can need, then end the texts without a new token.

    Some drafters return blocks of a fixed width, even if they may offer no token: one round covers these. Blocks of the others
    are as wide as what they offer, so they draft at every length, and the target scores a block of every width. If the target
    runs eagerly, only drafts have steps to capture; blocks become narrower near the end of a text, so every width is drafted.
    """

    def _round(self, batch: Batch) -> None:
        k, drafter = batch.num_draft, self.drafter
        lengths, u = batch.begin([0] * len(batch.rows))
        if self.target.mode == "off":
            for width in range(k, 0, -1):
                drafter.draft(batch, width, torch.full_like(lengths, width), u[:, :width], self.needs)
        else:
            block = drafter.draft(batch, k, lengths, u[:, :k], self.needs)
            self._score(batch, block)
            if not block.tokens.shape[1]:
                for width in range(k, 0, -1):
                    block = drafter.draft(batch, k, torch.full_like(lengths, width), u[:, :k], self.needs)
                    self._score(batch, widen(block, width))
        if (rehearse := getattr(drafter, "rehearse", None)) is not None:
            rehearse(batch)
        for row in batch.rows:
            row.is_stopped = True


def widen(block: DraftBlock, width: int) -> DraftBlock:
    """Return a block of this width for the target to score; slots after those of `block` hold zeros."""
    more = width - block.tokens.shape[1]
    begun, tokens = block.partial_forward, pad(block.tokens, (0, more))
    states = tuple(pad(layer_states, (0, 0, 0, more)) for layer_states in begun.states)
    return DraftBlock(tokens, tokens, block.lengths, partial_forward=PartialForward(begun.num_layers, states))
