"""The members of a rule that others read, with their defaults."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from sdbench.types import Limits


class Rule:
    """A rule without limits, needs, state or a lossless setting. A subclass may override each member, also by a property."""

    version: ClassVar[str] = ""
    limits: ClassVar[Limits] = Limits()
    needs: ClassVar[frozenset[str]] = frozenset()
    draws_if_greedy: ClassVar[bool] = False  # texts at temperature 0 depend on the uniforms

    def is_lossless(self) -> Tensor:
        return torch.tensor([False])

    def init_state(self, prompts: Sequence[Tensor], device: Any) -> Tensor | None:
        return None
