"""What one forward over a ragged cache needs beside ids: where each token stands, where it is written, what it sees."""

from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True)
class Plan:
    """T new tokens for each of the first B rows of a cache; each sees the slots j <= its position, among the first `length`.

    A position past the cache, or below 0, is padding: it writes to the scratch slot at the end and its output means nothing.
    """

    positions: Tensor  # [B,T] int64, as given
    index: Tensor  # [B·T] int64: rows of the flattened cache [R·C, …]
    length: int  # slots that are read
    dtype: torch.dtype
    is_prefill: bool = False  # B = 1, positions are start … start + T − 1
    start: int = 0
    masks: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def visible(self, window: int) -> Tensor:
        """[B,1,T,L] bool: what each token sees; window 0 is all."""
        slot = torch.arange(self.length, device=self.positions.device)
        position = self.positions.clamp_min(0)[:, None, :, None]
        seen = slot <= position
        return seen & (slot > position - window) if window else seen

    def mask(self, window: int, groups: int) -> Tensor:
        """[B,1,groups·T,L] of 0 and −inf, to be added: query heads that share keys are folded into the query axis."""
        if (window, groups) not in self.masks:
            seen = self.visible(window)
            seen = seen.repeat(1, 1, groups, 1) if groups > 1 else seen
            zero = torch.zeros((), dtype=self.dtype, device=seen.device)
            self.masks[window, groups] = torch.where(seen, zero, -torch.inf)
        return self.masks[window, groups]


CURRENT: ContextVar[Plan | None] = ContextVar("plan of the forward that runs", default=None)


def current() -> Plan:
    """The plan of the forward that runs: model code hands neither its cache nor its attention the engine's own arguments."""
    plan = CURRENT.get()
    assert plan is not None, "the ragged cache and its attention work inside LM.forward only"
    return plan
