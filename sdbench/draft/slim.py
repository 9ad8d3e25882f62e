"""A slim verifier: the target's first layers, over the target's cache, judge drafts before the target does."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from sdbench.draft.base import num_layers
from sdbench.lm.cache import RaggedCache
from sdbench.lm.exit import can_continue
from sdbench.lm.model import LM
from sdbench.probs import Warp, clamp_nan_ids, dense, draw, in_float32, normalise, rest_of
from sdbench.types import Context, DraftBlock


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict of a slim verifier on c drafted slots: tensors [B,c,…] by name, and states [B,c+1,d]."""

    # tokens, q, states, sure if requested, and logits if the draft has them, as in DraftBlock
    by_slot: dict[str, Tensor]
    is_kept: Tensor  # [B,c]: the token is the drafted one
    is_last: Tensor  # [B,c]: nothing is drafted after it


class SlimVerifier:
    """The first `num_layers` layers of the target with its final norm and head: the same part that `EarlyExit` drafts with.

    `continues`: whether the target's forward pass continues from their states.
    """

    cache: RaggedCache  # the target's, from open to close

    def __init__(self, target: LM, warp: Warp, num_layers: int) -> None:
        self.target, self.warp, self.num_layers = target, warp, num_layers
        self.continues = can_continue(target, num_layers)
        self.num_ids = warp.vocab_size or target.vocab_size
        self.needs = frozenset({"raw"} if warp.is_greedy else ())  # at temperature 0 un-tempered laws are compared

    def open(self, cache: RaggedCache) -> None:
        self.cache = cache

    def close(self) -> None:
        del self.cache

    def judge(
        self, context: Context, block: DraftBlock, u: Tensor, low: float, high: float, *, is_marked: bool
    ) -> Judged:
        """Judge a block [B,c] that was drafted after these texts, with uniforms u [B,c]. is_marked: return which are sure."""
        ids = torch.cat((context.tokens.gather(1, context.lengths[:, None] - 1), block.tokens), 1)
        logits = () if block.logits is None else (block.logits,)
        kv_length = self.target.kv_length(context.longest + block.tokens.shape[1], self.cache)
        step = partial(self._judge, self.cache, low, high, is_marked)
        name = "slim", self.num_layers, self.warp, low, high, is_marked
        results = self.cache.steps(step, name, kv_length, ids, context.lengths, u, block.q, *logits)
        is_kept, is_last, *values = results
        names = ("tokens", "q", "states", *["sure"] * is_marked, *["logits"] * len(logits))
        return Judged(dict(zip(names, values, strict=True)), is_kept, is_last)

    def begin(self, context: Context) -> Tensor:
        """Return the states [B,1,d] of the last token of each text."""
        ids = context.tokens.gather(1, context.lengths[:, None] - 1)
        kv_length = self.target.kv_length(context.longest, self.cache)
        step, name = partial(self._begin, self.cache), ("slim begin", self.num_layers)
        return self.cache.steps(step, name, kv_length, ids, context.lengths)[0]

    def _begin(self, cache: RaggedCache, kv_length: int, ids: Tensor, sizes: Tensor) -> tuple[Tensor]:
        plan = self.target.plan(sizes[:, None] - 1, cache, kv_length)
        return (self.target.begin(ids, plan, cache, self.num_layers),)

    def _judge(
        self,
        cache: RaggedCache,
        low: float,
        high: float,
        is_marked: bool,
        kv_length: int,
        ids: Tensor,
        sizes: Tensor,
        u: Tensor,
        q: Tensor,
        *logits: Tensor,
    ) -> tuple[Tensor, ...]:
        """Judge ids [B,1+c], of which the first ends texts of `sizes` [B] and the others were drafted with laws q [B,c,V]."""
        positions = sizes[:, None] + torch.arange(-1, ids.shape[1] - 1, device=ids.device)
        plan = self.target.plan(positions, cache, kv_length)
        drafts, valid = ids[:, 1:], clamp_nan_ids(ids, self.num_ids)
        raw, _, states = self.target.forward_exit(valid, plan, cache, self.num_layers)
        raw = self.warp.logits(raw[:, :-1])
        x = clamp_nan_ids(drafts, raw.shape[-1])[..., None]
        plain = [mix(in_float32(drafted).softmax(-1), raw.softmax(-1), low, high) for drafted in logits]
        q = q if self.warp.is_greedy else dense(q, raw.shape[-1])
        ratio, law, redrawn = plain[0] if self.warp.is_greedy else mix(q, self.warp.law(raw), low, high)
        chance = ratio.gather(-1, x)[..., 0].clamp_max(1)
        is_between = (chance >= low) & (chance <= high)
        if self.warp.is_greedy:
            other = raw.argmax(-1)
            is_kept = (x[..., 0] == other) | ~is_between
        else:
            rest = rest_of(q, u, x[..., 0])
            is_kept = (rest < chance) | ~is_between
            other = redraw(redrawn, chance, rest, is_kept)
        tokens = torch.where(is_kept, drafts, other)
        law = clamp_nan_ids(tokens, raw.shape[-1]) if self.warp.is_greedy else law
        sure = [ratio > high] if is_marked else []
        return is_kept, ~(chance >= low), tokens, law, states, *sure, *(mixed.log() for _, mixed, _ in plain)


def slim_layers(count: int, exit_layer: int | None) -> int:
    """Return the number of layers of the slim verifier, of `count`; None: half of them, at least one."""
    return num_layers("exit_layer", count, exit_layer, count // 2)


def redraw(laws: Tensor, chance: Tensor, rest: Tensor, is_kept: Tensor) -> Tensor:
    """Draw the token [B,1] of the first slot that is not kept, from its law in `laws` [B,c,V]; later slots are dropped."""
    first = is_kept.long().cumprod(1).sum(1, keepdim=True).clamp_max(is_kept.shape[1] - 1)
    law = laws.gather(1, first[..., None].expand(-1, -1, laws.shape[-1]))
    chance, rest = chance.gather(1, first), rest.gather(1, first)
    return draw(law, ((rest - chance) / (1 - chance)).clamp(0, 1 - 2**-52).nan_to_num(0))


def mix(q: Tensor, s: Tensor, low: float, high: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return s/q for each token, the law of a token after the slim verifier, and the law from which it redraws.

    q is the draft's law, s the slim verifier's; all [...,V]. If low ≤ min(1, s/q) ≤ high, the slim verifier keeps a token with
    this probability, and otherwise redraws it. Memory access takes most of the time for large laws, so tensors are reused.
    """
    ratio = s / q  # 0/0 is NaN, which is in no range
    # 1.0 or 0.0: multiplying by it takes a quarter of the time of torch.where.
    is_between = ratio.clamp(low, high).eq_(ratio)
    over = s - q
    left = over.clamp_max(0).mul_(is_between)  # minus the mass that is redrawn
    redrawn = normalise(over.clamp_min_(0), s)
    return ratio, torch.addcmul(q, redrawn, left.sum(-1, keepdim=True), value=-1).add_(left), redrawn
