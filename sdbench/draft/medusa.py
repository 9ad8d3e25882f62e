"""Medusa: heads on the target's newest state, each for one position further ahead."""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import silu

from sdbench.draft.trained import TrainedDrafter
from sdbench.lm.cache import Prefix
from sdbench.lm.model import LM
from sdbench.probs import Warp, clamp_nan_ids, draw
from sdbench.types import Context, DraftBlock, Evidence, Verdict


class Medusa(TrainedDrafter):
    """Independent heads (Cai et al. 2024, arXiv:2401.10774): residual blocks followed by the target's output head.

    Head k predicts token n−1+k from h(n−2) alone, so its q does not depend on earlier drafts of the block. A block has at most
    as many tokens as there are heads. One state [d] is kept per row. Weights: weight [K,d,d], bias [K,d].
    """

    version: ClassVar[str] = "1"
    kind: ClassVar[str] = "medusa"

    states: Tensor  # [R,d], from open to close

    def __init__(self, target: LM, warp: Warp, weights: Mapping[str, Tensor]) -> None:
        self.target, self.warp = target, warp
        self.weights = {name: x.to(target.device, target.dtype) for name, x in weights.items()}

    @classmethod
    def width_of(cls, weights: Mapping[str, Tensor]) -> int | None:
        shapes = {name: tuple(x.shape) for name, x in weights.items()}
        count, width = shapes.get("bias", (0, 0))
        return width if count and shapes == {"bias": (count, width), "weight": (count, width, width)} else None

    @classmethod
    def most_drafts(cls, weights: Mapping[str, Tensor]) -> int:
        return len(weights["bias"])

    def open(self, num_rows: int, capacity: int, cache: Any) -> None:
        self.states = self.weights["bias"].new_zeros(num_rows, self.weights["bias"].shape[1])

    def close(self) -> None:
        del self.states

    def prefill(self, prompt: Tensor, prefix: Prefix) -> Tensor:
        """Return the newest state; zeros after a prompt of one token, which has none."""
        if not prefix.length:
            return self.weights["bias"].new_zeros(self.weights["bias"].shape[1])
        assert prefix.hidden is not None, "target_hidden is among the needs"
        return prefix.hidden[-1].clone()  # a view would keep the states of all prompts of this call in memory

    def admit(self, row: int, prefix: Tensor) -> None:
        self.states[row] = prefix

    def move(self, source: int, row: int) -> None:
        self.states[row] = self.states[source]

    def draft(self, context: Context, k: int, lengths: Tensor, u: Tensor, needs: frozenset[str]) -> DraftBlock:
        k = min(k, len(self.weights["bias"]))
        if not k:
            return DraftBlock.empty(lengths)
        states = self.states[: len(lengths)]
        with self.target.hook(self.target, states, partial(guess, self.weights, states, k)):
            hidden = guess(self.weights, states, k)
        logits = self.warp.used(self.target.read_out(hidden))
        q = self.warp.law(logits)
        tokens = q if self.warp.is_greedy else draw(q, u[:, :k])
        law = clamp_nan_ids(tokens, logits.shape[-1]) if self.warp.is_greedy else q
        kept = logits if "raw" in needs else None, hidden if "draft_hidden" in needs else None
        return DraftBlock(tokens, law, lengths.clamp_max(k), *kept)

    def observe(self, emitted: Tensor, evidence: Evidence, verdict: Verdict) -> None:
        """Store the state that predicted the new last token: after m kept drafts, that of slot m."""
        assert evidence.target_hidden is not None, "it is among the needs"
        count = len(verdict.accepted)
        rows = torch.arange(count, device=verdict.accepted.device)
        self.states[:count] = evidence.target_hidden[rows, verdict.accepted]


def guess(weights: Mapping[str, Tensor], states: Tensor, k: int) -> Tensor:
    """Return the states [...,k,d] of the first k heads from a state [...,d]: x + silu(W·x + b)."""
    inner = torch.einsum("kij,...j->...ki", weights["weight"][:k], states) + weights["bias"][:k]
    return states[..., None, :] + silu(inner)
