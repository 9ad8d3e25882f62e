"""What a forward pass over a ragged cache needs besides ids: for each token its position, its slot, and what it may attend to."""

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import causal_mask_function

from sdbench.lm.split_kv import Kernel


@dataclass(frozen=True, slots=True, eq=False)
class LayerMask:
    """What the tokens of a layer may attend to: the model's mask function of (row, head, position, slot), tensors that broadcast.

    Within the first `local` tokens of a text the mask is plain causal (None: at all positions).
    """

    function: Callable[..., Any]
    local: int | None = None

    @property
    def is_causal(self) -> bool:
        return self.function is causal_mask_function


CAUSAL = LayerMask(causal_mask_function)


@dataclass
class Plan:
    """T new tokens for each of the first B rows of a cache, which attend to the first `length` slots.

    A token with a position past the cache, or below 0, is padding: it writes to the scratch slot, and its output is ignored.
    """

    positions: Tensor  # [B,T] int64, from 0 on; the last of a block may lie past the model's limit
    index: Tensor  # [B·T] int64: rows of the flattened cache [R·C, …]
    length: int  # a tensor in a trace
    levels: tuple[Tensor, ...]  # mask values for visible and hidden slots: 0 and −inf in the model's dtype
    layer_masks: Mapping[int, LayerMask]
    limit: int | None = None  # positions of the model
    start: int | None = None  # for a chunk of prompts with positions start … start + T − 1
    kernel: Kernel | None = None  # takes lengths instead of a causal mask
    masks: dict[tuple[LayerMask, int], Tensor] = field(default_factory=dict)  # [B,1,groups·T,L]

    def split(self, sizes: Sequence[int]) -> list["Plan"]:
        """Return plans for parts of so many tokens each. Masks are computed once, so the steps of a round are planned together."""
        if len(sizes) == 1:
            return [self]
        for layer in {mask: layer for layer, mask in self.layer_masks.items()}.values():
            self.mask(layer, 1)
        masks = zip(*(mask.split(sizes, 2) for mask in self.masks.values()), strict=True)
        steps = zip(
            self.positions.split(sizes, 1), self.index.view_as(self.positions).split(sizes, 1), masks, strict=True
        )
        rest = self.length, self.levels, self.layer_masks, self.limit, None, self.kernel
        return [Plan(at, slots.flatten(), *rest, dict(zip(self.masks, seen, strict=True))) for at, slots, seen in steps]

    @property
    def position_ids(self) -> Tensor:
        """Return [B,T]: the positions, cut to the model's limit; what a model computes for a token past the limit is ignored."""
        return self.positions if self.limit is None else self.positions.clamp_max(self.limit - 1)

    @cached_property
    def ends(self) -> Tensor:
        """Return [B] int32: the length of each text with its new tokens; at least 1, since an empty row attends to itself."""
        return (self.positions[:, -1] + 1).clamp_max(self.length).clamp_min(1).int()

    def mask(self, layer: int, groups: int) -> Tensor:
        """Return [B,1,groups·T,L] of 0 and −inf, to be added: query heads that share keys are folded into the query axis."""
        layer_mask, steps = self.layer_masks[layer], self.positions.shape[1]
        groups = groups if steps > 1 else 1  # the mask of a single token broadcasts to all groups
        if (layer_mask, groups) not in self.masks:
            if groups > 1:
                mask = self.mask(layer, 1).repeat(1, 1, groups, 1)
            else:
                slot = torch.arange(self.length, device=self.positions.device)
                mask = torch.where(layer_mask.function(0, 0, self.positions[:, None, :, None], slot), *self.levels)
            self.masks[layer_mask, groups] = mask
        return self.masks[layer_mask, groups]


CURRENT: ContextVar[Plan | None] = ContextVar("plan of the forward that runs", default=None)


def current() -> Plan:
    """Return the plan of the running forward pass. The cache and the attention call this, since model code does not pass a plan."""
    plan = CURRENT.get()
    assert plan is not None, "the ragged cache and its attention work inside LM.forward only"
    return plan
