"""What forwards over a ragged cache need beside ids: where each token stands, where it is written, what it sees."""

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
    """What the tokens of a layer see: the model's own mask function of (row, head, position, slot) tensors that broadcast.

    Among the first `local` tokens of a text it is plain causal (None: everywhere).
    """

    function: Callable[..., Any]
    local: int | None = None

    @property
    def is_causal(self) -> bool:
        return self.function is causal_mask_function


CAUSAL = LayerMask(causal_mask_function)


@dataclass
class Plan:
    """T new tokens for each of the first B rows of a cache, which see among the first `length` slots.

    A position past the cache, or below 0, is padding: it writes to the scratch slot at the end and its output means nothing.
    """

    positions: Tensor  # [B,T] int64, within the model's limit
    index: Tensor  # [B·T] int64: rows of the flattened cache [R·C, …]
    length: int  # in a trace a tensor
    levels: tuple[Tensor, ...]  # what a mask adds where a token sees, and where not: 0 and −inf of the model's dtype
    layer_masks: Mapping[int, LayerMask]
    start: int | None = None  # of a chunk of prompts, the positions being start … start + T − 1
    kernel: Kernel | None = None  # that takes lengths instead of a causal mask
    masks: dict[tuple[LayerMask, int], Tensor] = field(default_factory=dict)  # [B,1,groups·T,L]

    def split(self, sizes: Sequence[int]) -> list["Plan"]:
        """Plans of so many tokens each, with masks made once: the steps of a round are planned together."""
        for layer in {mask: layer for layer, mask in self.layer_masks.items()}.values():
            self.mask(layer, 1)
        masks = zip(*(mask.split(sizes, 2) for mask in self.masks.values()), strict=True)
        steps = zip(
            self.positions.split(sizes, 1), self.index.view_as(self.positions).split(sizes, 1), masks, strict=True
        )
        rest = self.length, self.levels, self.layer_masks, None, self.kernel
        return [Plan(at, slots.flatten(), *rest, dict(zip(self.masks, seen, strict=True))) for at, slots, seen in steps]

    @cached_property
    def ends(self) -> Tensor:
        """[B] int32: how long each text is with its new tokens; at least one, for a row that is empty sees itself."""
        return (self.positions[:, -1] + 1).clamp_max(self.length).clamp_min(1).int()

    def mask(self, layer: int, groups: int) -> Tensor:
        """[B,1,groups·T,L] of 0 and −inf, to be added: query heads that share keys are folded into the query axis."""
        layer_mask, steps = self.layer_masks[layer], self.positions.shape[1]
        groups = groups if steps > 1 else 1  # one row serves all by broadcasting
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
    """The plan of the forward that runs: model code hands neither its cache nor its attention the engine's own arguments."""
    plan = CURRENT.get()
    assert plan is not None, "the ragged cache and its attention work inside LM.forward only"
    return plan
