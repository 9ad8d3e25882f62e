"""What forwards over a ragged cache need beside ids: where each token stands, where it is written, what it sees."""

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import causal_mask_function

from sdbench.lm.split_kv import Kernel


@dataclass(frozen=True, slots=True, eq=False)
class Sight:
    """What a layer's tokens see: the model's own mask function of (row, head, position, slot) tensors that broadcast.

    Among the first `local` tokens of a text it is plain causal (None: everywhere).
    """

    rule: Callable[..., Any]
    local: int | None = None

    @property
    def is_causal(self) -> bool:
        return self.rule is causal_mask_function


CAUSAL = Sight(causal_mask_function)


@dataclass(slots=True)
class Plan:
    """T new tokens for each of the first B rows of a cache, which see among the first `length` slots.

    A position past the cache, or below 0, is padding: it writes to the scratch slot at the end and its output means nothing.
    """

    positions: Tensor  # [B,T] int64, within the model's limit
    index: Tensor  # [B·T] int64: rows of the flattened cache [R·C, …]
    length: int  # in a trace a tensor
    levels: tuple[Tensor, Tensor]  # what a mask adds where a token sees, and where not: 0 and −inf of the model's dtype
    sights: Mapping[int, Sight]  # a layer
    start: int | None = None  # of a chunk of prompts, the positions being start … start + T − 1
    kernel: Kernel | None = None  # that takes lengths instead of a causal mask
    masks: dict[tuple[Sight, int], Tensor] = field(default_factory=dict)  # [B,1,groups·T,L]
    lengths: Tensor | None = None  # `ends`, once they were asked for

    def split(self, sizes: Sequence[int]) -> list["Plan"]:
        """Of so many tokens each, with masks made once: the steps of a round are planned together."""
        for layer in {sight: layer for layer, sight in self.sights.items()}.values():
            self.mask(layer, 1)
        positions, index = self.positions.split(sizes, 1), self.index.view_as(self.positions).split(sizes, 1)
        masks = [
            dict(zip(self.masks, parts, strict=True))
            for parts in zip(*(mask.split(sizes, 2) for mask in self.masks.values()), strict=True)
        ]
        return [
            Plan(place, slot.flatten(), self.length, self.levels, self.sights, None, self.kernel, seen)
            for place, slot, seen in zip(positions, index, masks, strict=True)
        ]

    @property
    def ends(self) -> Tensor:
        """[B] int32: how long each text is with its new tokens; at least one, for a row that is empty sees itself."""
        if self.lengths is None:
            self.lengths = (self.positions[:, -1] + 1).clamp_max(self.length).clamp_min(1).int()
        return self.lengths

    def mask(self, layer: int, groups: int) -> Tensor:
        """[B,1,groups·T,L] of 0 and −inf, to be added: query heads that share keys are folded into the query axis."""
        sight = self.sights[layer]
        steps = self.positions.shape[1]
        groups = groups if steps > 1 else 1  # one row serves all by broadcasting
        if (sight, groups) not in self.masks:
            if groups > 1:
                self.masks[sight, groups] = self.mask(layer, 1).repeat(1, 1, groups, 1)
            else:
                self.masks[sight, 1] = self._seen(sight)
        return self.masks[sight, groups]

    def _seen(self, sight: Sight) -> Tensor:
        slot = torch.arange(self.length, device=self.positions.device)
        return torch.where(sight.rule(0, 0, self.positions[:, None, :, None], slot), *self.levels)


CURRENT: ContextVar[Plan | None] = ContextVar("plan of the forward that runs", default=None)


def current() -> Plan:
    """The plan of the forward that runs: model code hands neither its cache nor its attention the engine's own arguments."""
    plan = CURRENT.get()
    assert plan is not None, "the ragged cache and its attention work inside LM.forward only"
    return plan
