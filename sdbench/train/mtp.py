"""Train the layer of drafter=mtp, eagle or eagle3, which drafts position k from its own states of the positions before k.

Training unrolls the layer as drafting does (training-time test, EAGLE-3, arXiv:2503.01840, section 3.2). Slot t of pass k reads
the layer's state of slot t−1 in pass k−1; pass 0 reads the target's state. The slot attends to itself, to the earlier slots of
its chain (one in each earlier pass), and to the slots of pass 0 before the chain. In every pass the distribution of slot t is
compared with the target's at t. Texts are sampled once and read repeatedly, with the target's states on disk.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad, smooth_l1_loss
from transformers import DynamicCache

from sdbench.draft.mtp import MTP, Eagle, Eagle3
from sdbench.lm.state_model import fuse
from sdbench.train.drafter_recipes import MTPRecipe
from sdbench.train.heads import Text
from sdbench.train.layers import LayersTraining, Window


class MTPTraining(LayersTraining[MTPRecipe]):
    """Trains a layer that drafts from its own states, unrolled over several passes."""

    name = kind = MTP.kind

    @property
    def depth(self) -> int:
        return self.recipe.passes

    @property
    def num_positions(self) -> int:
        return self.setup.run.num_draft[0]

    def loss(self, drafted: Tensor, states: Tensor) -> Tensor:
        loss = super().loss(drafted, states)
        if self.recipe.regression:
            distance = smooth_l1_loss(drafted, states, reduction="none").mean(-1).sum()
            loss = loss + self.recipe.regression * distance
        return loss

    def unroll(self, texts: Sequence[Text], depth: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield the states of each pass; pass k drafts position k."""
        weights = self.cast_weights()
        embeddings, before, states, first, last = self.pad_texts(texts, weights)
        slots, cache = torch.arange(embeddings.shape[1], device=embeddings.device), DynamicCache()
        for k in range(depth):
            drafted = self.run(weights, fuse(weights, before, embeddings), slots, partial(sees, slots, k), cache)
            is_read = (slots >= first + k) & (slots <= last)
            yield k, drafted[is_read], states[is_read]
            before = pad(drafted, (0, 0, 1, -1))


def sees(slots: Tensor, k: int, window: Window) -> Tensor:
    """Return the mask [L,(k+1)·L] of the slots of pass k over the slots of all passes up to k."""
    query, key = slots[:, None], slots[None]
    seen = window(query, key) & (key <= query - k)
    return torch.cat([seen, *(key == query - k + i for i in range(1, k + 1))], 1)


class EagleTraining(MTPTraining):
    """MTP's training without norms, and with the distance to the target's states added to the loss."""

    name = kind = Eagle.kind
    has_norms = False


class Eagle3Training(MTPTraining):
    """MTP's training on states of three of the target's layers; the loss compares distributions only."""

    name = kind = Eagle3.kind
    state_needs = Eagle3.needs
    has_join = True
