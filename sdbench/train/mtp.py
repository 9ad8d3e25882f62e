"""Trains the layer of drafter=mtp, eagle or eagle3, which drafts position k from its own states of the positions before.

Training unrolls it as drafting does (training-time test, EAGLE-3, arXiv:2503.01840, section 3.2): slot t of pass k reads the
layer's own state of slot t−1 in pass k−1, where pass 0 reads the target's. It attends to itself, to the slots of its own chain in
the passes before, and to those of pass 0 before the chain. The distribution of slot t is compared with the target's own at t in
every pass. Texts are sampled once and read repeatedly, with the target's states in memory.
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
    """Steps of a layer from its own states."""

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
        """A position is a pass."""
        weights = self.cast_weights()
        embeddings, before, states, first, last = self.pad_texts(texts, weights)
        slots, cache = torch.arange(embeddings.shape[1], device=embeddings.device), DynamicCache()
        for k in range(depth):
            drafted = self.run(weights, fuse(weights, before, embeddings), slots, partial(sees, slots, k), cache)
            is_read = (slots >= first + k) & (slots <= last)
            yield k, drafted[is_read], states[is_read]
            before = pad(drafted, (0, 0, 1, -1))


def sees(slots: Tensor, k: int, window: Window) -> Tensor:
    """Return what each slot of a pass sees of all passes so far, [L,(k+1)·L]."""
    query, key = slots[:, None], slots[None]
    seen = window(query, key) & (key <= query - k)
    return torch.cat([seen, *(key == query - k + i for i in range(1, k + 1))], 1)


class EagleTraining(MTPTraining):
    """The same without norms, with a loss on the distance to the target's states beside that of the distributions."""

    name = kind = Eagle.kind
    has_norms = False


class Eagle3Training(MTPTraining):
    """The same with states of three layers; the loss is that of the distributions alone."""

    name = kind = Eagle3.kind
    state_needs = Eagle3.needs
    has_join = True
