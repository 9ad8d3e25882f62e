"""The types that drafter, rule and engine exchange, for B rows, K drafted slots and a vocabulary of V.

A *law* is a distribution over the vocabulary: a float tensor [..., V], or int64 ids [...] with all mass on one token, as at
temperature 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

Origin = Literal["accepted", "replacement", "bonus", "sure"]
Finish = Literal["stop", "length"]


class EngineError(Exception):
    """An engine outside this process no longer answers. This error ends a run; it does not count as a failure of a cell."""


@dataclass(frozen=True, slots=True)
class PartialForward:
    """A forward pass of the target over T tokens, of which the first `num_layers` layers have run; by default none.

    Keys and values of these layers are in the target's cache.
    """

    num_layers: int = 0
    states: tuple[Tensor, ...] = ()  # [B,T,d], output of the last of these layers

    def first(self, count: int) -> PartialForward:
        """Return the part for the first `count` tokens."""
        return PartialForward(self.num_layers, tuple(states[:, :count] for states in self.states))


@dataclass(frozen=True, slots=True)
class DraftBlock:
    """What a drafter proposes: the first lengths[b] tokens in row b; the contents of other slots are ignored."""

    tokens: Tensor  # [B,K] int64; K may be smaller than requested
    q: Tensor  # law [B,K,V], or ids [B,K]: the law from which each token was actually sampled
    lengths: Tensor  # [B] int64, 0..K: the tokens that are offered and counted
    logits: Tensor | None = None  # [B,K,V] un-tempered, in the model's dtype; kept where a rule needs "raw"
    hidden: Tensor | None = None  # [B,K,d] that each token was sampled from; kept where a rule needs "draft_hidden"
    # Of the target over the text's last token and the drafted tokens, T = K + 1. Verification continues from its layers.
    partial_forward: PartialForward = PartialForward()
    # [B,K,V] bool: which tokens the drafter is sure of if it drafts them; None: none. Kept where a rule needs "sure".
    sure: Tensor | None = None

    @property
    def is_sure(self) -> Tensor:
        """Return [B,K] bool: whether the drafter is sure of the token that it offers."""
        if self.sure is None:
            return self.tokens.new_zeros(self.tokens.shape).bool()
        return self.sure.gather(-1, self.tokens[..., None])[..., 0]

    @classmethod
    def empty(cls, lengths: Tensor) -> DraftBlock:
        """Return a block without slots for len(lengths) rows."""
        none = lengths.new_empty(len(lengths), 0)
        return cls(none, none, lengths.new_zeros(len(lengths)))

    def rows(self, index: Any) -> DraftBlock:
        """Return the block of some rows, given by a slice or an index [b]."""
        logits, hidden, sure = (None if x is None else x[index] for x in (self.logits, self.hidden, self.sure))
        return DraftBlock(self.tokens[index], self.q[index], self.lengths[index], logits, hidden, sure=sure)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a rule may read. `p` has one more position than the draft, that of the bonus token."""

    p: Tensor  # law [B,K+1,V], or ids [B,K+1]
    draft: DraftBlock
    is_greedy: bool = False
    logits: Tensor | None = None  # [B,K+1,V] un-tempered, in the model's dtype; kept where a rule needs "raw"
    target_hidden: Tensor | None = None  # [B,K+1,d]: slot i predicts draft i; kept where a rule needs "target_hidden"
    layer_hidden: Tensor | None = (
        None  # [B,K+1,2d]: of a low and a middle layer; kept where a drafter needs "layer_hidden"
    )

    @property
    def raw_p(self) -> Tensor:
        """The target's un-tempered log-law [B,K+1,V]."""
        assert self.logits is not None, 'a rule that reads un-tempered laws names "raw" in its needs'
        return _log_law(self.logits)

    @property
    def raw_q(self) -> Tensor:
        """The draft's un-tempered log-law [B,K,V]."""
        return self.raw_logs()[1]

    def raw_logs(self, pick: Callable[[Tensor], Tensor] = lambda slots: slots) -> tuple[Tensor, Tensor]:
        """Return the un-tempered log-laws [B,k,V] of target and draft at the slots that `pick` selects from [B,K,…].

        A draft without logits has ids as its law: its log-law is 0 at the id and −inf elsewhere.
        """
        assert self.logits is not None, 'a rule that reads un-tempered laws names "raw" in its needs'
        log_p = _log_law(pick(self.logits[:, :-1]))
        if self.draft.logits is not None:
            return log_p, _log_law(pick(self.draft.logits))
        assert not self.draft.q.is_floating_point(), "a drafter that samples from a law keeps its logits where asked"
        return log_p, log_p.new_full(log_p.shape, -float("inf")).scatter_(-1, pick(self.draft.q)[..., None], 0)

    def raw_laws(self, pick: Callable[[Tensor], Tensor] = lambda slots: slots) -> tuple[Tensor, Tensor]:
        """Return the un-tempered laws [B,k,V] of target and draft, as `raw_logs` does their logarithms."""
        if self.logits is None or self.draft.logits is None:
            log_p, log_q = self.raw_logs(pick)
            return log_p.exp_(), log_q.exp_()
        p, q = (_in_float32(pick(logits)).softmax(-1) for logits in (self.logits[:, :-1], self.draft.logits))
        return p, q

    def rows(self, index: Any) -> Evidence:
        """Return the evidence of some rows, given by a slice or an index [b]."""
        kept = ("logits", "target_hidden", "layer_hidden")
        parts = {name: x[index] for name in kept if (x := getattr(self, name)) is not None}
        return replace(self, p=self.p[index], draft=self.draft.rows(index), **parts)


def _in_float32(logits: Tensor) -> Tensor:
    return logits if logits.element_size() >= 4 else logits.float()  # as in probs.py, which imports torch


def _log_law(logits: Tensor) -> Tensor:
    """Return the log-law [..., V] of logits, in float32 or better."""
    return _in_float32(logits).log_softmax(-1)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier decides: keep draft[:accepted], then emit next_token."""

    accepted: Tensor  # [B] int64, 0..lengths
    next_token: Tensor  # [B] int64
    state: Tensor | None = None  # [B,S], the state of a stateful rule for the row's next round
    is_spared: Tensor | None = None  # [B,K] bool: drafts that the rule keeps without judging them; None: none


@dataclass(frozen=True, slots=True)
class Measures:
    """Values at drafted positions that are computed exactly, without sampling; NaN where not defined."""

    p: Tensor  # [B,K] the drafted token's probability under the target
    q: Tensor  # [B,K] the drafted token's probability under the draft
    tv: Tensor  # [B,K] TV(p,q)
    expected: Tensor  # [B,K] expected acceptance: the sum over tokens of q times the acceptance probability
    bias: Tensor  # [B,K] TV between the law of the emitted token and p


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one generation, with the device synchronised at every reading. draft_s, verify_s and rest_s are NaN unless
    requested.
    """

    prefill_s: float
    decode_s: float
    first_token_s: float  # from the start of the prefill to the end of the round that emitted the first token
    rounds_s: tuple[float, ...]
    draft_s: float = float("nan")
    verify_s: float = float("nan")
    rest_s: float = float("nan")
    reads_prompt: bool = (
        False  # the first round read the prompt, in whole or in part, and its seconds are not in prefill_s
    )


@dataclass(frozen=True, slots=True)
class Generation:
    """One decoded text and its counts. `drafted`, `examined` and `accepted` have one entry per round, other tuples one per emitted,
    drafted or examined token, as the comments say.

    Positions after a stop id or a stop string inside a round are not counted. All rounds but the last emit accepted + 1 tokens.
    None means that an engine does not report it: counts per round, origins of tokens, or the drafts that were rejected.
    """

    prompt: int
    verifier: int
    sample: int
    tokens: tuple[int, ...]  # new ids, including the stop id if the text ended on one
    finish: Finish
    drafted: tuple[int, ...] | None  # per round
    examined: tuple[int, ...] | None  # per round: positions whose token, or whose replacement, reached the text
    accepted: tuple[int, ...] | None  # per round
    # Per emitted token; "bonus" also if nothing was drafted, "sure" if a draft was kept without being judged.
    origins: tuple[Origin, ...] | None
    draft_tokens: tuple[int, ...] | None  # per drafted position
    p: tuple[float, ...] | None = ()  # per drafted position; this and the next four are empty with measure=False
    q: tuple[float, ...] | None = ()  # per drafted position
    tv: tuple[float, ...] | None = ()  # per examined position, as the next two
    expected: tuple[float, ...] | None = ()
    bias: tuple[float, ...] | None = ()
    request: int = 0  # index of the request in its stream
    timing: Timing | None = None
