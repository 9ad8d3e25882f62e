"""Tiers: a draft model drafts, the target's first layers judge and partly redraw its tokens, and the target judges the block."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from sdbench.draft.base import BaseDrafter, is_whole, prefill_all
from sdbench.draft.length import GrownContext
from sdbench.draft.model import ModelDrafter
from sdbench.draft.policies import share
from sdbench.draft.slim import SlimVerifier, slim_layers
from sdbench.probs import clamp_nan_ids
from sdbench.types import Context, DraftBlock, Drafter, DraftSetup, Evidence, Limits, PartialForward, Verdict


class Tiers(BaseDrafter):
    """VIA-SD's three tiers (arXiv:2606.12243) as a wrapper of a drafter that continues its drafts.

    The drafter drafts `chunk` tokens at a time. For each, a = min(1, s/q), where s is the slim verifier's law. If low ≤ a ≤
    high, the slim verifier keeps the token with probability a, and otherwise redraws it from norm((s − q)+). The block ends
    after the first token with a < low, which is offered. So the law of a token is q·a where low ≤ a ≤ high and q elsewhere,
    plus the remaining mass times norm((s − q)+). Rules get this law as q, so every lossless rule stays lossless. A token with
    a > high is sure; at high = 1 no token is.
    """

    version: ClassVar[str] = "1"
    limits: ClassVar[Limits] = Limits(draft_model=True)
    needs: ClassVar[frozenset[str]] = frozenset({"draft"})
    varies_length: ClassVar[bool] = True
    calls_sure: ClassVar[bool] = True

    def __init__(self, drafter: Drafter, slim: SlimVerifier, low: float, high: float, chunk: int) -> None:
        self.drafter, self.slim, self.low, self.high, self.chunk = drafter, slim, low, high, chunk

    @classmethod
    def build(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, setup: DraftSetup, exit_layer: int | None = None, low: float = 0.3, high: float = 0.9, chunk: int = 4
    ) -> "Tiers":
        cls.check(setup, exit_layer, low, high, chunk)
        layers = slim_layers(setup.target.config.num_hidden_layers, exit_layer)
        return cls(ModelDrafter.build(setup), SlimVerifier(setup.target, setup.warp, layers), low, high, chunk)

    @classmethod
    def check(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, setup: DraftSetup, exit_layer: int | None = None, low: float = 0.3, high: float = 0.9, chunk: int = 4
    ) -> None:
        check_thresholds(low, high, chunk)
        if setup.target_config is not None:
            slim_layers(setup.target_config.num_hidden_layers, exit_layer)

    def open(self, num_rows: int, capacity: int, cache: Any) -> None:
        self.drafter.open(num_rows, capacity, cache)
        self.slim.open(cache)

    def prefill(self, prompt: Tensor, prefix: Any) -> Any:
        return self.drafter.prefill(prompt, prefix)

    def prefill_all(self, prompts: Sequence[Tensor], prefixes: Sequence[Any]) -> list[Any]:
        return prefill_all(self.drafter, prompts, prefixes)

    def admit(self, row: int, prefix: Any) -> None:
        self.drafter.admit(row, prefix)

    def move(self, source: int, row: int) -> None:
        self.drafter.move(source, row)

    def observe(self, emitted: Tensor, evidence: Evidence, verdict: Verdict) -> None:
        self.drafter.observe(emitted, evidence, verdict)

    def rehearse(self, context: Context) -> None:
        self.slim.begin(context)

    def close(self) -> None:
        self.drafter.close()
        self.slim.close()

    def draft(self, context: Context, k: int, lengths: Tensor, u: Tensor, needs: frozenset[str]) -> DraftBlock:
        room, is_marked = k + self.chunk + 1, "sure" in needs and self.high < 1
        grown, u = GrowingBlock(context, room, self.slim.num_ids), pad(u, (0, room))
        is_open, is_redrawn = lengths > 0, lengths < 0
        while bool(is_open.any()):
            wanted = torch.where(is_open, (lengths - grown.lengths).clamp_max(self.chunk), 0)
            width = int(wanted.max())
            texts, uniforms = grown.texts(), u.gather(1, grown.places(width))
            block = self.drafter.draft(texts, width, wanted, uniforms, self.slim.needs | needs)
            judged = self.slim.judge(texts, block, uniforms, self.low, self.high, is_marked=is_marked)
            grown.write(judged.by_slot | ({} if block.hidden is None else {"hidden": block.hidden}))
            plain = (judged.is_kept & ~judged.is_last).long().cumprod(1).sum(1)
            count = torch.minimum(plain + 1, block.lengths)
            end = (count - 1).clamp_min(0)[:, None]
            is_redrawn = (count > 0) & ~judged.is_kept.gather(1, end)[:, 0]
            grown.lengths = grown.lengths + count
            is_open = is_open & (count > 0) & ~judged.is_last.gather(1, end)[:, 0] & (grown.lengths < lengths)
        if not grown.slots:
            return DraftBlock.empty(lengths)
        if bool(is_redrawn.any()):  # the newest states of these rows still belong to the replaced tokens
            grown.write({"states": self.slim.begin(grown.texts())})
        width = int(grown.lengths.max())
        states = grown.slots.pop("states")[:, : width + 1]
        slots = {name: value[:, :width] for name, value in grown.slots.items() if name != "logits" or "raw" in needs}
        begun = PartialForward(self.slim.num_layers, (states,)) if self.slim.continues else PartialForward()
        return DraftBlock(lengths=grown.lengths, partial_forward=begun, **slots)


class GrowingBlock:
    """Drafts after texts; each row has its own length. Later slots hold values that will be overwritten."""

    def __init__(self, context: Context, room: int, num_ids: int) -> None:
        self.context, self.room, self.num_ids = context, room, num_ids
        self.tokens = pad(context.tokens, (0, room))
        self.lengths = torch.zeros_like(context.lengths)
        self.slots: dict[str, Tensor] = {}  # [B,room,…]

    def texts(self) -> GrownContext:
        """Return the texts with their drafts."""
        longest = self.context.longest + int(self.lengths.max())
        return GrownContext(self.tokens, self.context.lengths + self.lengths, longest)

    def places(self, count: int) -> Tensor:
        """Return the next slots [B,count] of each row."""
        return self.lengths[:, None] + torch.arange(count, device=self.lengths.device)

    def write(self, values: Mapping[str, Tensor]) -> None:
        """Write values [B,c,…] into the next slots of each row."""
        row = torch.arange(0, len(self.lengths) * self.room, self.room, device=self.lengths.device)[:, None]
        places = self.places(max(value.shape[1] for value in values.values()))
        for name, value in values.items():
            if name not in self.slots:  # the first chunk, which begins at slot 0 in each row
                self.slots[name] = pad(value, (*(0, 0) * (value.dim() - 2), 0, self.room - value.shape[1]))
                continue
            index = (row + places[:, : value.shape[1]]).flatten()
            self.slots[name].flatten(0, 1).index_copy_(0, index, value.flatten(0, 1))
        if "tokens" in values:
            tokens = clamp_nan_ids(values["tokens"], self.num_ids)
            self.tokens.scatter_(1, self.context.lengths[:, None] + places[:, : tokens.shape[1]], tokens)


def check_thresholds(low: float, high: float, chunk: int) -> None:
    """Raise ValueError for thresholds outside (0, 1] or in the wrong order, and for an empty chunk."""
    if share("low", low) > share("high", high):
        raise ValueError(f"low must be at most high, got low={low} and high={high}")
    if not is_whole(chunk) or chunk < 1:
        raise ValueError(f"chunk must be a whole number of at least 1, got {chunk}")
