"""A wrapper that lets a length policy decide the length of any drafter's blocks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from sdbench.draft.base import prefill_all, reads_target
from sdbench.draft.policies import LengthPolicy
from sdbench.probs import Warp, clamp_nan_ids
from sdbench.types import DRAFTER_NEEDS, Context, DraftBlock, Drafter, Evidence, Limits, Verdict, needs_of

PERCENT = 100  # rounds are counted by fitted threshold, in hundredths


@dataclass(frozen=True, slots=True)
class GrownContext:
    """The texts of a context followed by drafts."""

    tokens: Tensor
    lengths: Tensor
    longest: int


class VariableLength:
    """Drafts with another drafter until the policy ends a row's block: token by token if that drafter can continue its drafts
    (`continues_drafts`), otherwise by cutting its blocks.
    """

    varies_length = True

    def __init__(self, drafter: Drafter, policy: LengthPolicy, warp: Warp, device: Any = "cpu") -> None:
        self.drafter, self.policy, self.warp, self.device = drafter, policy, warp, device
        self.needs = needs_of(drafter, DRAFTER_NEEDS)
        limits = getattr(drafter, "limits", None) or Limits()
        low, high = limits.num_draft
        self.limits = replace(limits, num_draft=(max(low, policy.least), high))
        self.version = f"{getattr(drafter, 'version', '')} {policy.version}"
        self.facts, self.has_logits = getattr(drafter, "facts", {}), bool(getattr(drafter, "has_logits", True))
        self.reads_target = reads_target(drafter)
        self.draws_draft_law = bool(getattr(drafter, "draws_draft_law", False))
        self.calls_sure = policy.calls_sure or bool(getattr(drafter, "calls_sure", False))
        self.reads_history = policy.reads_history or bool(getattr(drafter, "reads_history", False))
        self.rounds_at = torch.zeros(PERCENT + 1, dtype=torch.long, device=device)  # rounds by fitted threshold

    @property
    def counts(self) -> Mapping[str, float]:
        rounds = {f"rounds_at_{at / PERCENT:g}": count for at, count in enumerate(self.rounds_at.tolist()) if count}
        return {**getattr(self.drafter, "counts", {}), **rounds}

    def open(self, num_rows: int, capacity: int, cache: Any) -> None:
        self.drafter.open(num_rows, capacity, cache)
        self.state = self._start_state().repeat(num_rows, 1)

    def _start_state(self) -> Tensor:
        return torch.tensor(list(self.policy.start), dtype=torch.float32, device=self.device)

    def prefill(self, prompt: Tensor, prefix: Any) -> Any:
        return self.drafter.prefill(prompt, prefix)

    def prefill_all(self, prompts: Sequence[Tensor], prefixes: Sequence[Any]) -> list[Any]:
        return prefill_all(self.drafter, prompts, prefixes)

    def admit(self, row: int, prefix: Any) -> None:
        self.state[row] = self._start_state()
        self.drafter.admit(row, prefix)

    def move(self, source: int, row: int) -> None:
        self.state[row] = self.state[source]
        self.drafter.move(source, row)

    def close(self) -> None:
        self.drafter.close()

    def draft(self, context: Context, k: int, lengths: Tensor, u: Tensor, needs: frozenset[str]) -> DraftBlock:
        state = self.state[: len(lengths)]
        wanted = self.policy.most(state, lengths)
        width = int(wanted.max())
        self.chance = torch.ones(len(lengths), width, device=lengths.device)
        self.is_drafting = wanted > 0
        if not width or not self.policy.reads_chance:
            return self.drafter.draft(context, width, wanted, u[:, :width], needs)
        # At temperature 0 q holds ids, so probabilities are computed from logits.
        all_needs = needs | {"raw"} if self.warp.is_greedy else needs
        taken: list[DraftBlock] = []
        offered, is_open = torch.zeros_like(wanted), wanted > 0
        for slot, block in enumerate(self._slots(context, wanted, u[:, :width], all_needs)):
            is_open = is_open & (block.lengths > 0)
            if not bool(is_open.any()):
                break
            self.chance[:, slot] = self.policy.chance(block, slot, self.warp.vocab_size or 0)[:, 0]
            taken.append(self._mark_sure(block, slot, wanted) if "sure" in needs else block)
            offered += is_open
            if slot + 1 == width:
                break
            is_open = is_open & (wanted > slot + 1) & self.policy.goes_on(state, self.chance[:, : slot + 1])
            if not bool(is_open.any()):
                break
        return join(taken, offered, needs)

    def _mark_sure(self, block: DraftBlock, slot: int, wanted: Tensor) -> DraftBlock:
        """Return the block of a slot with the tokens marked that the policy is sure of.

        It marks none in the last slot that a row may use, so that a full block also ends with a token that the rule judges.
        """
        sure = self.policy.sure(block, slot, self.warp.vocab_size or 0)
        if sure is None:
            return block
        sure = sure & (wanted > slot + 1)[:, None, None]
        return replace(block, sure=sure if block.sure is None else sure | block.sure)

    def _slots(self, context: Context, wanted: Tensor, u: Tensor, needs: frozenset[str]) -> Iterator[DraftBlock]:
        """Yield blocks of one slot each, in order; they are drafted one by one if the drafter can continue its drafts."""
        width = u.shape[1]
        if not getattr(self.drafter, "continues_drafts", False):
            block = self.drafter.draft(context, width, wanted, u, needs)
            yield from (slot_of(block, slot) for slot in range(block.tokens.shape[1]))
            return
        tokens, sizes = pad(context.tokens, (0, width)), context.lengths
        for slot in range(width):
            grown = GrownContext(tokens, sizes + slot, context.longest + slot)
            block = self.drafter.draft(grown, 1, (wanted > slot).long(), u[:, slot : slot + 1], needs)
            if block.tokens.shape[1]:
                tokens.scatter_(1, grown.lengths[:, None], clamp_nan_ids(block.tokens, self.warp.vocab_size or 1 << 62))
                yield block

    def rehearse(self, context: Context) -> None:
        if (rehearse := getattr(self.drafter, "rehearse", None)) is not None:
            rehearse(context)

    def observe(self, emitted: Tensor, evidence: Evidence, verdict: Verdict) -> None:
        count = len(verdict.accepted)
        if (thresholds := self.policy.thresholds(self.state[:count])) is not None:
            self.rounds_at.scatter_add_(0, (thresholds * PERCENT).round().long(), self.is_drafting[:count].long())
        rounds = self.chance[:count], evidence.draft.lengths, verdict.accepted
        self.state[:count] = self.policy.learn(self.state[:count], *rounds)
        self.drafter.observe(emitted, evidence, verdict)


def slot_of(block: DraftBlock, slot: int) -> DraftBlock:
    """Return one slot of a block as a block, with the partial forward of the whole block."""
    parts = block.logits, block.hidden, block.sure
    logits, hidden, sure = (None if x is None else x[:, slot : slot + 1] for x in parts)
    tokens, q = (x[:, slot : slot + 1] for x in (block.tokens, block.q))
    return DraftBlock(tokens, q, (block.lengths > slot).long(), logits, hidden, block.partial_forward, sure)


def join(blocks: Sequence[DraftBlock], lengths: Tensor, needs: frozenset[str]) -> DraftBlock:
    """Return the block of these slots, of which `lengths` [B] are offered."""
    if not blocks:
        return DraftBlock.empty(lengths)
    tokens, q = (torch.cat([getattr(block, name) for block in blocks], 1) for name in ("tokens", "q"))
    wanted = {"logits": "raw" in needs, "hidden": "draft_hidden" in needs, "sure": True}
    more: dict[str, Any] = {}
    for name, is_wanted in wanted.items():
        values = [getattr(block, name) for block in blocks]
        if is_wanted and values[0] is not None:
            more[name] = torch.cat(values, 1)
    # Verification also reads the last token of the text, before these slots.
    return DraftBlock(tokens, q, lengths, **more, partial_forward=blocks[0].partial_forward.first(len(blocks) + 1))
