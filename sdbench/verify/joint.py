"""Rules that judge a block as a whole. What such a rule emits at one position is not known without sampling."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from sdbench.probs import at
from sdbench.types import Evidence, Limits, Measures
from sdbench.verify.tokenwise import measured_tv


class Joint:
    """Acceptance probability and bias are NaN; the rest of a rule's members with their defaults."""

    version: ClassVar[str] = ""
    limits: ClassVar[Limits] = Limits()

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    @property
    def draws_if_greedy(self) -> bool:
        return False

    def is_lossless(self) -> Tensor:
        return torch.tensor([False])

    def init_state(self, prompts: Sequence[Tensor], device: Any) -> Tensor | None:
        return None

    def measure(self, evidence: Evidence) -> Measures:
        x, p, q = evidence.draft.tokens, evidence.p[:, :-1], evidence.draft.q
        return Measures(at(p, x), at(q, x), measured_tv(p, q), **unknown(evidence))


def unknown(evidence: Evidence) -> dict[str, Tensor]:
    """Measures that such a rule has not."""
    nan = torch.full(evidence.draft.tokens.shape, torch.nan, dtype=torch.float64, device=evidence.draft.tokens.device)
    return {"expected": nan, "bias": nan.clone()}
