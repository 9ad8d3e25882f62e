"""Train the layers of drafter=block: one pass over the texts predicts a whole block from every slot of an answer.

First the layers run causally over the slots of the text, as in MTP. Then each slot t of an answer gets a separate block, whose
slots read h(t−1) and the trained vectors and attend to the text up to t and to each other. The output of slot t+k is compared
with the target's distribution at t+k.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from transformers import DynamicCache

from sdbench.draft.block import MASK, BlockDrafter
from sdbench.lm.state_model import fuse, initial_weights
from sdbench.train.drafter_recipes import BlockRecipe
from sdbench.train.heads import Text
from sdbench.train.layers import LayersTraining, Window
from sdbench.train.mtp import sees

SCALE = (
    0.1  # initial scale of the vectors; a norm follows them, so a step changes the direction of short vectors faster
)


class BlockTraining(LayersTraining[BlockRecipe]):
    """Trains the layers and the vectors."""

    name = kind = BlockDrafter.kind

    def first_weights(self) -> dict[str, Tensor]:
        weights = initial_weights(self.target, norms=True, num_layers=self.recipe.layers)
        noise = torch.randn(self.depth - 1, len(weights["fuse"]), generator=torch.Generator().manual_seed(1))
        return {**weights, MASK: SCALE * noise}

    @property
    def depth(self) -> int:
        return self.recipe.positions

    def unroll(self, texts: Sequence[Text], depth: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        weights = self.cast_weights()
        embeddings, before, states, first, last = self.pad_texts(texts, weights)
        count, size, width = states.shape
        slots, cache = torch.arange(size, device=states.device), DynamicCache()
        known = self.run(weights, fuse(weights, before, embeddings), slots, partial(sees, slots, 0), cache)
        is_read = (slots >= first) & (slots <= last)
        yield 0, known[is_read], states[is_read]

        anchors = slots[int(first.min()) : int(last.max()) + 1]
        block = torch.arange(1, depth, device=slots.device)
        positions = anchors[:, None] + block  # [A,K−1]
        guesses = weights[MASK][: depth - 1].expand(count, len(anchors), -1, -1)
        inputs = fuse(weights, before[:, anchors, None].expand(-1, -1, depth - 1, -1), guesses)
        inside = positions.clamp_max((self.target.limit or size + depth) - 1).flatten()
        anchor = anchors.repeat_interleave(depth - 1)[:, None]

        def sees_text_and_block(window: Window) -> Tensor:
            return torch.cat((window(positions.flatten()[:, None], slots) & (slots <= anchor), anchor == anchor.T), 1)

        drafted = self.run(weights, inputs.flatten(1, 2), inside, sees_text_and_block, cache)
        drafted = drafted.view(count, len(anchors), depth - 1, width)
        for k in range(1, depth):
            is_read = (anchors >= first) & (anchors + k <= last)
            wanted = states[:, (anchors + k).clamp_max(size - 1)]
            yield k, drafted[:, :, k - 1][is_read], wanted[is_read]
