"""Hybrid chain: a model drafts while it is confident; then tokens that followed its drafts earlier in the text are copied."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from sdbench.draft.base import BaseDrafter
from sdbench.draft.length import VariableLength
from sdbench.draft.lookup import PromptLookup, continue_text
from sdbench.draft.model import ModelDrafter
from sdbench.draft.policies import ConfidenceLength, share
from sdbench.probs import dense
from sdbench.types import Context, DraftBlock, DraftSetup, Evidence, Limits, Verdict


class HybridDrafter(BaseDrafter):
    """Graft's idea (arXiv:2605.20104) on a chain: once the draft model is unsure, prompt lookup fills the rest of the block.

    The model's part ends after its first token with q(x) < threshold, which is offered. Prompt lookup then continues the text
    and these drafts. q of a copied token is one-hot, as in `PromptLookup`.
    """

    version: ClassVar[str] = "1"
    limits: ClassVar[Limits] = Limits(draft_model=True, num_draft=(2, None))
    needs: ClassVar[frozenset[str]] = frozenset({"draft"})
    varies_length: ClassVar[bool] = True
    has_logits: ClassVar[bool] = False  # looked-up tokens have none
    reads_target: ClassVar[bool] = False

    def __init__(self, setup: DraftSetup, threshold: float, shortest: int, longest: int) -> None:
        self.inner = ModelDrafter.build(setup)
        self.model = VariableLength(self.inner, ConfidenceLength(threshold), setup.warp, setup.target.device)
        self.lookup = PromptLookup(shortest, longest)
        self.vocab_size = min(setup.target.vocab_size, setup.warp.vocab_size or setup.target.vocab_size)
        self.is_greedy = setup.warp.is_greedy

    @classmethod
    def build(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, setup: DraftSetup, threshold: float = 0.4, shortest: int = 2, longest: int = 8
    ) -> "HybridDrafter":
        return cls(setup, threshold, shortest, longest)

    @classmethod
    def check(cls, setup: DraftSetup, threshold: Any = 0.4, **options: Any) -> None:
        share("threshold", threshold)
        PromptLookup.check(setup, **options)

    def open(self, num_rows: int, capacity: int, cache: Any) -> None:
        self.model.open(num_rows, capacity, cache)
        self.num_copied = 0  # most tokens copied in a row of the last block; the model has not run these

    def prefill_all(self, prompts: Sequence[Tensor], prefixes: Sequence[Any]) -> list[Any]:
        indices = [self.lookup.prefill(prompt, None) for prompt in prompts]
        return list(zip(self.model.prefill_all(prompts, prefixes), indices, strict=True))

    def prefill(self, prompt: Tensor, prefix: Any) -> Any:
        return self.prefill_all([prompt], [prefix])[0]

    def admit(self, row: int, prefix: Any) -> None:
        self.model.admit(row, prefix[0])
        self.lookup.admit(row, prefix[1])

    def move(self, source: int, row: int) -> None:
        self.model.move(source, row)
        self.lookup.move(source, row)

    def observe(self, emitted: Tensor, evidence: Evidence, verdict: Verdict) -> None:
        self.inner.observe(emitted, evidence, verdict)  # the threshold is fixed: nothing is learned

    def close(self) -> None:
        self.model.close()
        self.lookup.close()

    def draft(self, context: Context, k: int, lengths: Tensor, u: Tensor, needs: frozenset[str]) -> DraftBlock:
        if "draft_hidden" in needs:
            raise ValueError("drafter=hybrid has no states for tokens that it looks up: use a rule that reads none")
        if self.num_copied:
            self.inner.feed(context, self.num_copied)
        block = self.model.draft(context, k, lengths, u, needs)
        self.lookup.read(context)
        copies = self._copies(block, (lengths - block.lengths).tolist())
        self.num_copied = max(map(len, copies), default=0)
        if not self.num_copied:
            return block
        width = max(size + len(copy) for size, copy in zip(block.lengths.tolist(), copies, strict=True))
        tokens = pad(block.tokens, (0, width))[:, :width]
        looked_up = torch.zeros_like(tokens, dtype=torch.bool)
        for row, (size, copy) in enumerate(zip(block.lengths.tolist(), copies, strict=True)):
            tokens[row, size : size + len(copy)] = tokens.new_tensor(copy)
            looked_up[row, size:] = True
        offered = block.lengths + lengths.new_tensor([len(copy) for copy in copies])
        is_copy = looked_up[..., None]
        copied = dense(tokens.clamp(0, self.vocab_size - 1), self.vocab_size)
        logits = block.logits
        if logits is not None:
            logits = torch.where(is_copy, copied.to(logits.dtype).log(), pad(logits, (0, 0, 0, width))[:, :width])
        if self.is_greedy:
            return DraftBlock(tokens, tokens, offered, logits)
        law = pad(block.q, (0, 0, 0, width))[:, :width] if block.q.is_floating_point() else copied
        return DraftBlock(tokens, torch.where(is_copy, copied.to(law.dtype), law), offered, logits)

    def _copies(self, block: DraftBlock, left: Sequence[int]) -> list[list[int]]:
        """Return for each row the tokens that followed its text and drafts earlier, at most `left`."""
        drafts = [tokens[:size] for tokens, size in zip(block.tokens.tolist(), block.lengths.tolist(), strict=True)]
        copies: list[list[int]] = [[] for _ in drafts]
        for row, text in self.lookup.texts.items():
            if row < len(drafts) and left[row] > 0:
                text.extend(drafts[row])
                copies[row] = continue_text(text, left[row], self.lookup.longest)
                text.shrink(len(drafts[row]))
        return copies
