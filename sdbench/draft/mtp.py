"""Multi-token prediction, EAGLE-1 and EAGLE-3: one trained layer reads the target's states and next tokens, then its own states."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from sdbench.draft.model import draw_tokens
from sdbench.draft.trained import TrainedDrafter
from sdbench.lm.cache import Prefix, RaggedCache
from sdbench.lm.model import LM
from sdbench.lm.mtp_weights import num_modules, shipped_weights
from sdbench.lm.plan import Plan
from sdbench.lm.state_model import LAYER, LAYERS, NORMS, StateLM, join
from sdbench.probs import Warp
from sdbench.types import Context, DraftBlock, DraftSetup, Evidence, Verdict

CHECKPOINT = "checkpoint"  # this value of `head` means the MTP weights in the target's checkpoint


class StatePrefix(NamedTuple):
    """What all rows of a prompt share: the draft's keys and values of all tokens but the last, and the newest state [d]."""

    cached: Prefix
    state: Tensor


class MTP(TrainedDrafter):
    """The module of DeepSeek-V3 (arXiv:2412.19437, section 2.2) as in Bebop (arXiv:2606.12370): one layer, run K times.

    A round first runs the slots whose target states are new: one more than the number of drafts that the last round kept. This
    overwrites what was written there from the layer's own states. The last of these slots predicts the first draft. In `states`
    the new states come first; `newest` is the index of the last one.
    """

    version: ClassVar[str] = "1"
    kind: ClassVar[str] = "mtp"
    option_words: ClassVar[Mapping[str, tuple[str, ...]]] = {"head": (CHECKPOINT,)}

    cache: RaggedCache  # from open to close
    states: Tensor  # [R,W,d]
    newest: Tensor  # [R] int64

    def __init__(self, target: LM, warp: Warp, weights: Mapping[str, Tensor], *, is_shipped: bool = False) -> None:
        model = target.pruned.get(self.kind)
        if not isinstance(model, StateLM) or not model.is_of(target, weights):
            model = target.pruned[self.kind] = StateLM(target, weights, is_shipped=is_shipped)
        model.patience = target.patience
        self.model, self.warp = model, warp

    @classmethod
    def build(cls, setup: DraftSetup, head: str | None = None) -> Self:
        if head not in cls.option_words.get("head", ()):
            return super().build(setup, head)
        held = setup.target.pruned.get(cls.kind)
        is_held = isinstance(held, StateLM) and held.is_shipped
        return cls(setup.target, setup.warp, held.source if is_held else shipped_weights(setup.target), is_shipped=True)

    @classmethod
    def check(cls, setup: DraftSetup, head: str | None = None) -> None:
        if head not in cls.option_words.get("head", ()):
            super().check(setup, head)
        elif setup.target_config is not None and not num_modules(setup.target_config):
            raise ValueError(
                f"head={CHECKPOINT}: the configuration of this target names no MTP weights (num_mtp_layers): "
                f"train them with python -m sdbench.train {cls.kind} model=NAME task=NAME"
            )

    @classmethod
    def width_of(cls, weights: Mapping[str, Tensor]) -> int | None:
        shapes = {name: tuple(x.shape) for name, x in weights.items() if not name.startswith((LAYER, LAYERS))}
        width = shapes.get("fuse", (0,))[0]
        norms = {name: (width,) for name in NORMS if name in shapes}
        wanted = {"fuse": (width, 2 * width), **norms, **cls.more_shapes(width)}
        return width if len(shapes) < len(weights) and shapes == wanted else None

    @classmethod
    def more_shapes(cls, width: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of weights besides those of the layer, its norms and `fuse`."""
        return {}

    @classmethod
    def cache_share(cls, config: Any, **options: Any) -> float:
        return 1 / config.num_hidden_layers

    def open(self, num_rows: int, capacity: int, cache: RaggedCache) -> None:
        self.cache = self.model.cache(num_rows, capacity)
        fuse = self.model.weights["fuse"]
        self.states = fuse.new_zeros(num_rows, 1, len(fuse))
        self.newest = torch.zeros(num_rows, dtype=torch.int64, device=fuse.device)

    def close(self) -> None:
        self.model.give_back(self.cache)
        del self.cache, self.states, self.newest

    def prefill(self, prompt: Tensor, prefix: Prefix) -> StatePrefix:
        return self.prefill_all([prompt], [prefix])[0]

    def prefill_all(self, prompts: Sequence[Tensor], prefixes: Sequence[Prefix]) -> list[StatePrefix]:
        """Compute the draft's keys and values of prompts. The state before the first token is zero."""
        states = [self._states_before(prefix) for prefix in prefixes]
        inputs = [self.model.inputs(x[:-1], prompt[:-1]) for x, prompt in zip(states, prompts, strict=True)]
        cached = self.model.prefill_all(inputs)
        return [StatePrefix(keys, x[-1].clone()) for keys, x in zip(cached, states, strict=True)]

    def _states_before(self, prefix: Prefix) -> Tensor:
        """Return the states [L,d] that predicted each token of a prompt."""
        fuse = self.model.weights["fuse"]
        if not prefix.length:
            return fuse.new_zeros(1, len(fuse))
        return pad(self._join(prefix.hidden, prefix.layer_hidden), (0, 0, 1, 0))

    def _join(self, hidden: Tensor | None, layer_hidden: Tensor | None) -> Tensor:
        """Return the states [...,d] that slots read, from the target's: [...,d] of its last layer and [...,2d] of two others."""
        assert hidden is not None, "target_hidden is among the needs"
        return join(self.model.weights, hidden if layer_hidden is None else torch.cat((layer_hidden, hidden), -1))

    def admit(self, row: int, prefix: StatePrefix) -> None:
        self.cache.write(row, prefix.cached)
        self.states[row, 0], self.newest[row] = prefix.state, 0

    def move(self, source: int, row: int) -> None:
        self.cache.move(source, row, self.cache.slots)
        self.states[row], self.newest[row] = self.states[source], self.newest[source]

    def draft(self, context: Context, k: int, lengths: Tensor, u: Tensor, needs: frozenset[str]) -> DraftBlock:
        if not k:
            return DraftBlock.empty(lengths)
        count, width = len(lengths), max(k + 1, self.states.shape[1])
        self._widen(width)
        states, newest = self.states[:count], self.newest[:count]
        slots = (context.lengths - 1 - newest)[:, None] + torch.arange(width, device=lengths.device)
        ids = context.tokens.gather(1, slots.clamp(0, context.tokens.shape[1] - 1))  # after the text, any token
        cache, wanted = self.cache, tuple(name for name in ("raw", "draft_hidden") if name in needs)
        kv_length = self.model.kv_length(
            context.longest + width - 1, cache
        )  # the last new slot may lie past the drafts
        step = partial(self._propose, cache, wanted)
        name = self.kind, self.warp, wanted
        tokens, q, *more = cache.steps(step, name, kv_length, ids, states, newest, context.lengths, lengths, u)
        extra = dict(zip(wanted, more, strict=True))
        return DraftBlock(tokens, q, lengths, extra.get("raw"), extra.get("draft_hidden"))

    def _propose(
        self,
        cache: RaggedCache,
        wanted: Sequence[str],
        kv_length: int,
        ids: Tensor,
        states: Tensor,
        newest: Tensor,
        sizes: Tensor,
        lengths: Tensor,
        u: Tensor,
    ) -> tuple[Tensor, ...]:
        """Run new slots with ids [B,W] and states [B,W,d]; return `draw_tokens` for texts of `sizes` [B].

        No token depends on `lengths` [B], how many of them are offered.
        """
        width, k = ids.shape[1], u.shape[1]
        begin = (sizes - 1 - newest)[:, None] + torch.arange(width, device=u.device)
        positions = torch.cat((begin, sizes[:, None] + torch.arange(k - 1, device=u.device)), 1)
        plans = self.model.plan(positions.clamp_min(-1), cache, kv_length).split([width, *[1] * (k - 1)])

        def forward(ids: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
            nonlocal states
            wanted = newest.clamp_max(ids.shape[1] - 1)[:, None]
            logits, states = self.model.advance(partial(self.model.inputs, states, ids), wanted, plan, cache)
            return logits, states

        return draw_tokens(forward, plans, ids, self.warp, u, wanted)

    def observe(self, emitted: Tensor, evidence: Evidence, verdict: Verdict) -> None:
        """Store the states of all slots of the block; after m kept drafts, the newest is that of slot m."""
        states = self._join(evidence.target_hidden, evidence.layer_hidden)
        count, width = states.shape[:2]
        self._widen(width)
        self.states[:count, :width], self.newest[:count] = states, verdict.accepted

    def _widen(self, width: int) -> None:
        """Make room for the states of `width` slots in each row."""
        self.states = pad(self.states, (0, 0, 0, max(0, width - self.states.shape[1])))


class Eagle(MTP):
    """EAGLE-1 (Li et al. 2024, arXiv:2401.15077) on a chain: a layer without norms, trained to predict the target's states."""

    kind: ClassVar[str] = "eagle"
    option_words: ClassVar[Mapping[str, tuple[str, ...]]] = {}


class Eagle3(MTP):
    """EAGLE-3 (Li et al. 2025, arXiv:2503.01840) on a chain: slots read a combination of three of the target's layers.

    The low and the middle layer are those of `low_and_middle`; the last layer's state is taken after the final norm. A slot that
    has no target state yet reads the layer's own state, uncombined.
    """

    kind: ClassVar[str] = "eagle3"
    option_words: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    needs: ClassVar[frozenset[str]] = frozenset({"target_hidden", "layer_hidden"})

    @classmethod
    def more_shapes(cls, width: int) -> dict[str, tuple[int, ...]]:
        return {"join": (width, 3 * width)}
