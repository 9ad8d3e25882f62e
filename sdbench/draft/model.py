"""A draft model that drafts token by token."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from sdbench.draft.base import BaseDrafter
from sdbench.lm.cache import Prefix, RaggedCache
from sdbench.lm.model import LM
from sdbench.lm.plan import Plan
from sdbench.probs import Warp, clamp_nan_ids, draw, law_dtype
from sdbench.types import Context, DraftBlock, DraftSetup, Limits


class ModelDrafter(BaseDrafter):
    """The pair's draft model, with the temperature, top-k and top-p of the target.

    Each round first runs the last two tokens of a text. The first of them has not been run if the previous block was kept
    whole; otherwise its keys and values are written again, unchanged. So shapes are constant, and nothing tracks what is
    cached. If a text is alone in its batch, its first round may run more: the rest of its prompt, as the target does in its
    first round, unless steps are captured.
    """

    version: ClassVar[str] = "1"
    limits: ClassVar[Limits] = Limits(draft_model=True)
    needs: ClassVar[frozenset[str]] = frozenset({"draft"})
    draws_draft_law: ClassVar[bool] = True
    continues_drafts: ClassVar[bool] = True
    reads_target: ClassVar[bool] = False

    cache: RaggedCache  # from open to close
    num_read: int | None = None  # cached tokens before the first round of a text that is alone in its batch

    def __init__(self, model: LM, warp: Warp) -> None:
        self.model, self.warp = model, warp

    @classmethod
    def build(cls, setup: DraftSetup) -> "ModelDrafter":  # pyright: ignore[reportIncompatibleMethodOverride]
        return cls(setup.draft, setup.warp)

    def open(self, num_rows: int, capacity: int, cache: RaggedCache) -> None:
        self.cache = self.model.cache(num_rows, capacity)

    def close(self) -> None:
        self.model.give_back(self.cache)
        del self.cache

    def prefill(self, prompt: Tensor, prefix: Prefix) -> Prefix:
        return self.prefill_all([prompt], [prefix])[0]

    def prefill_all(self, prompts: Sequence[Tensor], prefixes: Sequence[Prefix]) -> list[Prefix]:
        starts = [prompt[:-2] for prompt in prompts]
        if self.model.mode == "off":
            starts = [start[: prefix.length] for start, prefix in zip(starts, prefixes, strict=True)]
        return self.model.prefill_all(starts)

    def admit(self, row: int, prefix: Prefix) -> None:
        self.cache.write(row, prefix)
        self.num_read = prefix.length if self.cache.num_rows == 1 else None

    def move(self, source: int, row: int) -> None:
        self.cache.move(source, row, self.cache.slots)

    def draft(self, context: Context, k: int, lengths: Tensor, u: Tensor, needs: frozenset[str]) -> DraftBlock:
        if not k:
            return DraftBlock.empty(lengths)
        count = 2 if self.num_read is None else max(2, context.longest - self.num_read)
        self.num_read = None
        tail = context.lengths[:, None] + torch.arange(-count, 0, device=lengths.device)
        ids = context.tokens.gather(1, tail.clamp_min(0))
        cache, wanted = self.cache, tuple(name for name in ("raw", "draft_hidden") if name in needs)
        kv_length = self.model.kv_length(context.longest + k - 1, cache)
        step = partial(self._propose, cache, wanted)
        tokens, q, *more = cache.steps(step, ("draft", self.warp, wanted), kv_length, ids, context.lengths, u)
        extra = dict(zip(wanted, more, strict=True))
        return DraftBlock(tokens, q, lengths, extra.get("raw"), extra.get("draft_hidden"))

    def feed(self, context: Context, count: int) -> None:
        """Run the `count` tokens before the last two of each text, some of which another drafter proposed."""
        tail = context.lengths[:, None] + torch.arange(-2 - count, -2, device=context.lengths.device)
        ids = context.tokens.gather(1, tail.clamp_min(0))
        plan = self.model.plan(tail.clamp_min(-1), self.cache, self.model.kv_length(context.longest, self.cache))
        self.model.forward(ids, plan, self.cache, keep=1)

    def _propose(
        self, cache: RaggedCache, wanted: Sequence[str], kv_length: int, ids: Tensor, sizes: Tensor, u: Tensor
    ) -> tuple[Tensor, ...]:
        """Return tokens [B,K] and laws [B,K,V] after texts of `sizes` [B] that end in ids [B,T], with logits and states."""
        k, count = u.shape[1], ids.shape[1]
        positions = sizes[:, None] + torch.arange(-count, k - 1, device=u.device)  # [B,T+K-1]
        plans = self.model.plan(positions, cache, kv_length).split([count, *[1] * (k - 1)])

        def forward(ids: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
            return self.model.forward_hidden(ids, plan, cache, keep=1)

        return draw_tokens(forward, plans, ids, self.warp, u, wanted)


def draw_tokens(
    forward: Callable[[Tensor, Plan], tuple[Tensor, Tensor]],
    plans: Sequence[Plan],
    ids: Tensor,
    warp: Warp,
    u: Tensor,
    wanted: Sequence[str],
) -> tuple[Tensor, ...]:
    """Return tokens [B,K] and laws [B,K,V] after texts that end in ids [B,t], drawn with u [B,K], with logits and states.

    `forward` returns the logits [B,1,V] after the last id and the states [B,t,d] of all ids.
    """
    tokens: list[Tensor] = []
    choices: list[Tensor] = []  # the same, but ids of the vocabulary where logits are NaN
    block: dict[str, Tensor] = {}  # [K,B,…], filled slot by slot: torch.stack would hold all laws twice

    def slot_of(name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        if name not in block:
            block[name] = u.new_empty(len(plans), *shape, dtype=dtype)
        return block[name][len(tokens)]

    for plan, uniforms in zip(plans, u.unbind(1), strict=True):
        raw, hidden = forward(ids, plan)
        logits = warp.used(raw[:, 0])
        for name in wanted:
            part = logits if name == "raw" else hidden[:, -1]
            slot_of(name, part.shape, part.dtype).copy_(part)
        if warp.is_greedy:
            token = warp.law(logits)
        else:
            law = slot_of("law", logits.shape, law_dtype(logits.dtype))
            token = draw(warp.law(logits, law), uniforms)
        tokens.append(token)
        choices.append(clamp_nan_ids(token, logits.shape[-1]))
        ids = choices[-1][:, None]
    laws = torch.stack(choices, 1) if warp.is_greedy else block["law"].transpose(0, 1)
    return torch.stack(tokens, 1), laws, *(block[name].transpose(0, 1) for name in wanted)
