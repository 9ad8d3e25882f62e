"""Length policies: how many tokens a row drafts, as pure functions of its earlier rounds and its draft so far.

No policy depends on other rows, and none drops a drafted token because of its value: that would bias the emitted tokens (by up to
.24 in total variation). The token at which a policy ends a block is therefore still offered.
"""

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, ClassVar

import torch
from torch import Tensor

from sdbench.config import nearest
from sdbench.draft.base import is_number
from sdbench.draft.gate import KIND as GATE
from sdbench.draft.gate import Gate
from sdbench.probs import at, clamp_nan_ids, in_float32, is_ids
from sdbench.types import DraftBlock, DraftSetup

FINE, COARSE = 20, 5  # number of equal bins of [0, 1] for probabilities
MISSED = 3.0  # weight of the false-negative rate, as in transformers
ENOUGH = 6  # tokens that are examined before a threshold is fitted


class LengthPolicy:
    """Drafts as many tokens as requested. A row's state [S] begins as `start`; all methods work on rows [B,S]."""

    version: ClassVar[str] = "1"
    least: ClassVar[int] = 1  # the smallest num_draft that leaves a choice
    reads_chance: ClassVar[bool] = False  # whether the probability of a token may end a block
    reads_history: ClassVar[bool] = False  # whether it reads the row's earlier rounds
    calls_sure: ClassVar[bool] = False  # whether it marks tokens as sure, for rules that keep these unjudged
    start: ClassVar[Sequence[float]] = ()

    @property
    def card(self) -> Mapping[str, Any]:
        """The card of its trained weights; empty if it has none."""
        return {}

    def check(self, kind: type, setup: DraftSetup) -> None:
        """Raise ValueError if it cannot be used with drafters of this class; `setup` has no models yet."""

    def most(self, state: Tensor, lengths: Tensor) -> Tensor:
        """Return how many tokens [B] may be drafted: at most `lengths`, and at least 1 where these are at least 1."""
        return lengths

    def goes_on(self, state: Tensor, chance: Tensor) -> Tensor:
        """Return [B] bool: whether another token is drafted after i ≥ 1 tokens with these probabilities, chance [B,i]."""
        return torch.ones(len(chance), dtype=torch.bool, device=chance.device)

    def chance(self, block: DraftBlock, slot: int, num_ids: int) -> Tensor:
        """Return how likely [B,1] the target is to keep the drafted tokens of this slot, the only one of `block`."""
        return chance_of(block)

    def sure(self, block: DraftBlock, slot: int, num_ids: int) -> Tensor | None:
        """Return [B,1,V] bool: which tokens of this slot are sure, for rules that keep these without judging them; None: none."""
        return None

    def thresholds(self, state: Tensor) -> Tensor | None:
        """Return the threshold on q(x) of each row [B] if it is fitted to the row, else None; records count the rounds at each."""
        return None

    def learn(self, state: Tensor, chance: Tensor, offered: Tensor, accepted: Tensor) -> Tensor:
        """Return the state after a round that accepted `accepted` [B] of `offered` [B] tokens with probabilities chance [B,K]."""
        return state


class HeuristicLength(LengthPolicy):
    """transformers' heuristic schedule: two more after a block that was kept whole, otherwise one fewer, at least 1."""

    least, reads_history = 2, True
    start = (torch.inf,)  # the first block has num_draft tokens

    def most(self, state: Tensor, lengths: Tensor) -> Tensor:
        return torch.minimum(lengths, state[:, 0]).long()

    def learn(self, state: Tensor, chance: Tensor, offered: Tensor, accepted: Tensor) -> Tensor:
        after = torch.where(accepted == offered, offered + 2, (offered - 1).clamp_min(1))
        return torch.where(offered > 0, after, state[:, 0])[:, None].to(state.dtype)


class ConfidenceLength(LengthPolicy):
    """Ends a block after the first token with q(x) < threshold."""

    least, reads_chance = 2, True

    def __init__(self, threshold: float = 0.4) -> None:
        self.threshold = share("length_threshold", threshold)

    def goes_on(self, state: Tensor, chance: Tensor) -> Tensor:
        return chance[:, -1] >= self.threshold


class GateLength(ConfidenceLength):
    """Ends a block after the first token that, by a trained gate, the target keeps with a probability below `threshold`.

    Tokens with an estimate above `threshold` are sure. A rule that keeps sure tokens therefore judges only the last token of a
    block. At threshold = 1 no token is sure.
    """

    calls_sure = True

    def __init__(self, head: Gate | str | None = None, threshold: float = 0.5) -> None:
        super().__init__(threshold)
        self.gate = head if isinstance(head, Gate) else Gate.load(head)

    @property
    def card(self) -> Mapping[str, Any]:
        return self.gate.card

    def check(self, kind: type, setup: DraftSetup) -> None:
        self.gate.check(setup, f"{kind.__module__}.{kind.__qualname__}")

    def chance(self, block: DraftBlock, slot: int, num_ids: int) -> Tensor:
        return self.gate.estimates(block, slot, num_ids)

    def sure(self, block: DraftBlock, slot: int, num_ids: int) -> Tensor | None:
        return self.gate.estimates(block, slot, num_ids, of_all=True) > self.threshold if self.threshold < 1 else None


class AdaptiveLength(ConfidenceLength):
    """Dynamic speculation lookahead (Mamou et al. 2024, arXiv:2405.04304) as in transformers: a threshold fitted to the row.

    Of the thresholds 0, .05, … .95 it uses the one with the lowest false-positive rate + 3·false-negative rate over the tokens
    examined so far. It uses `threshold` until six tokens were examined, at least one of them accepted and one rejected. The
    state counts accepted and rejected tokens by q(x).
    """

    reads_history = True
    start = (0.0,) * (2 * FINE)

    def thresholds(self, state: Tensor) -> Tensor:
        accepted, refused = state.split(FINE, -1)
        totals = torch.stack((accepted.sum(-1), refused.sum(-1)), -1)
        missed = (accepted.cumsum(-1) - accepted) / totals[:, :1].clamp_min(1)
        wasted = 1 - (refused.cumsum(-1) - refused) / totals[:, 1:].clamp_min(1)
        tie = torch.arange(FINE, device=state.device) * 1e-5  # the lowest of equally good thresholds
        fitted = (wasted + MISSED * missed + tie).argmin(-1) / FINE
        return torch.where((totals.min(-1).values > 0) & (totals.sum(-1) >= ENOUGH), fitted, self.threshold)

    def goes_on(self, state: Tensor, chance: Tensor) -> Tensor:
        return chance[:, -1] >= self.thresholds(state)

    def learn(self, state: Tensor, chance: Tensor, offered: Tensor, accepted: Tensor) -> Tensor:
        return count(state, chance, offered, accepted)


class ValueLength(LengthPolicy):
    """Drafts on while the expected tokens per cost of the round grow, as vLLM's adaptive verification, but for each row alone.

    A round of k drafts is expected to emit 1 + a₁ + a₁a₂ + … tokens and costs 1 + k·price target calls. The acceptance of a
    drafted token is estimated from the row's tokens with similar q(x), that of the next token from all its tokens.
    """

    least, reads_chance, reads_history = 2, True, True
    start = (0.0,) * (2 * COARSE)

    def __init__(self, price: float = 0.1) -> None:
        self.price = share("length_price", price)

    def goes_on(self, state: Tensor, chance: Tensor) -> Tensor:
        accepted, refused = state.split(COARSE, -1)
        middle = (torch.arange(COARSE, device=state.device) + 0.5) / COARSE
        estimates = (accepted + 2 * middle) / (accepted + refused + 2)  # the prior counts as two tokens
        overall = (accepted.sum(-1) + 1.5) / (state.sum(-1) + 2)
        survival = estimates.gather(1, part_of(chance, COARSE)).cumprod(1)
        price = 1 + chance.shape[1] * self.price
        return survival[:, -1] * overall * price > (1 + survival.sum(1)) * self.price

    def learn(self, state: Tensor, chance: Tensor, offered: Tensor, accepted: Tensor) -> Tensor:
        return count(state, chance, offered, accepted)


POLICIES: Mapping[str, type[LengthPolicy]] = {
    "constant": LengthPolicy,
    "heuristic": HeuristicLength,
    "confidence": ConfidenceLength,
    "adaptive": AdaptiveLength,
    "value": ValueLength,
    GATE: GateLength,
}


def policy_of(name: str, options: Mapping[str, Any]) -> LengthPolicy:
    """Return the policy of this name with its options, given as `drafter.length_…`; None stands for the default."""
    if name not in POLICIES:
        raise ValueError(f"length={name} is not a length policy {nearest(str(name), sorted(POLICIES))}")
    kind = POLICIES[name]
    arguments = {key.removeprefix("length_"): value for key, value in options.items() if value is not None}
    unread = sorted(arguments.keys() - signature(kind).parameters.keys())
    if unread:
        where = "or set it to null where the drafter's file has it"
        raise ValueError(f"length_{unread[0]} is not an option of length={name}: remove it, {where}")
    return kind(**arguments)


def share(name: str, value: Any) -> float:
    """Return a number in (0, 1]."""
    if not is_number(value) or not 0 < value <= 1:
        raise ValueError(f"{name} must be in (0, 1], got {value}")
    return float(value)


def chance_of(block: DraftBlock) -> Tensor:
    """Return q(x) [B,K] of the tokens. Where q is ids it comes from the un-tempered law, or is 1 if there are no logits."""
    law = block.q
    if is_ids(law):
        if block.logits is None:
            return torch.ones(law.shape, device=law.device)
        law = in_float32(block.logits).softmax(-1)
    return at(law, clamp_nan_ids(block.tokens, law.shape[-1]))


def part_of(chance: Tensor, parts: int) -> Tensor:
    """Return the bin of [0, 1] of each probability."""
    return (chance * parts).long().clamp(0, parts - 1)


def count(state: Tensor, chance: Tensor, offered: Tensor, accepted: Tensor) -> Tensor:
    """Return the counts [B,2P] of accepted, then of rejected tokens by probability, with the tokens of a round [B,K] added."""
    parts, slots = state.shape[1] // 2, torch.arange(chance.shape[1], device=chance.device)
    is_accepted = slots < accepted[:, None]
    is_examined = slots < torch.minimum(offered, accepted + 1)[:, None]
    where = part_of(chance, parts) + parts * (~is_accepted)
    return state.scatter_add(1, where, is_examined.to(state.dtype))
