"""Greedy forms: at temperature 0 both laws are one-hot, so thresholds are asked of the un-tempered laws instead.

Most published greedy rules are a set of acceptable tokens with the correction argmax p; a few choose the argmax of another law.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from sdbench.probs import at, total_variation
from sdbench.types import Evidence, Measures
from sdbench.verify.families import at_part, at_slots
from sdbench.verify.tokenwise import Part, Tokenwise, best_at, in_parts


class GreedySet(Tokenwise):
    """At temperature 0 keeps x iff it is in the set `kept` of un-tempered laws, or the target's own choice; corrects to argmax p.

    Where the knobs are at a lossless end the set is {argmax p}, ties or not.
    """

    keeps_best: ClassVar[bool] = True  # whether the target's own choice stays where the set leaves it out

    @property
    def draws_if_greedy(self) -> bool:
        return False

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"raw_if_greedy"})

    @abstractmethod
    def kept(self, p: Tensor, q: Tensor) -> Tensor:
        """The set, bool [B,K,V], or [B,K,1] where it is everything or nothing, from laws [B,K,V]."""

    def keeps(self, evidence: Evidence, u: Tensor) -> Tensor:
        if not evidence.is_greedy:
            return Tokenwise.keeps(self, evidence, u)
        x = evidence.draft.tokens
        is_kept = at_set(kept_of(self, evidence), x) & ~self.is_lossless().to(x.device)[:, None]
        return is_kept | (x == evidence.p[:, :-1]) if self.keeps_best else is_kept

    def correction(self, evidence: Evidence, place: Tensor) -> Tensor:
        if not evidence.is_greedy:
            return Tokenwise.correction(self, evidence, place)
        return best_at(evidence, place)

    def measure(self, evidence: Evidence) -> Measures:
        return greedy_measures(evidence) if evidence.is_greedy else Tokenwise.measure(self, evidence)


class GreedyLaw(Tokenwise):
    """At temperature 0 keeps x iff it is the most likely token of another law, made of un-tempered ones; corrects to that token."""

    @property
    def draws_if_greedy(self) -> bool:
        return False

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"raw_if_greedy"})

    @abstractmethod
    def greedy_scores(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        """[B,K,V], largest where the law is, from log-laws [B,K,V]."""

    def keeps(self, evidence: Evidence, u: Tensor) -> Tensor:
        if not evidence.is_greedy:
            return Tokenwise.keeps(self, evidence, u)

        def best(part: Part) -> Tensor:
            return at_part(self, part).greedy_scores(*raw_logs(evidence, lambda slots: slots[part])).argmax(-1)

        return in_parts(best, evidence.draft.tokens.shape, _vocab(evidence)) == evidence.draft.tokens

    def correction(self, evidence: Evidence, place: Tensor) -> Tensor:
        if not evidence.is_greedy:
            return Tokenwise.correction(self, evidence, place)
        row = torch.arange(len(place), device=place.device)
        own = at_slots(self, lambda knob: knob[row, place][:, None])
        return own.greedy_scores(*raw_logs(evidence, lambda slots: slots[row, place][:, None])).argmax(-1)[:, 0]

    def measure(self, evidence: Evidence) -> Measures:
        return greedy_measures(evidence) if evidence.is_greedy else Tokenwise.measure(self, evidence)


def raw_logs(evidence: Evidence, pick: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """The un-tempered log-laws [B,k,V] of target and draft at the slots that `pick` takes out of [B,K,…]."""
    assert evidence.logits is not None, 'a rule that reads un-tempered laws names "raw" in its needs'
    log_p = pick(evidence.logits[:, :-1]).log_softmax(-1)
    draft = evidence.draft
    if draft.logits is not None:
        return log_p, pick(draft.logits).log_softmax(-1)
    assert not draft.q.is_floating_point(), "a drafter that samples from a law keeps its logits where asked"
    return log_p, torch.full_like(log_p, -torch.inf).scatter_(-1, pick(draft.q)[..., None], 0)


def raw_laws(evidence: Evidence, part: Part) -> tuple[Tensor, Tensor]:
    """The un-tempered laws [b,k,V] of target and draft at some rows and slots."""
    log_p, log_q = raw_logs(evidence, lambda slots: slots[part])
    return log_p.exp_(), log_q.exp_()


def kept_of(rule: GreedySet, evidence: Evidence) -> Tensor:
    """The rule's set [B,K,V], or [B,K,1], of un-tempered laws."""

    def work(part: Part) -> Tensor:
        return at_part(rule, part).kept(*raw_laws(evidence, part))

    return in_parts(work, evidence.draft.tokens.shape, _vocab(evidence))


def at_set(kept: Tensor, x: Tensor) -> Tensor:
    """Whether tokens [B,K] are in sets [B,K,V] or [B,K,1]."""
    return kept[..., 0] if kept.shape[-1] == 1 else kept.gather(-1, x[..., None])[..., 0]


def greedy_measures(evidence: Evidence) -> Measures:
    """Of a deterministic choice: un-tempered probabilities and TV; it has no acceptance probability, and no bias."""
    x = evidence.draft.tokens

    def work(part: Part) -> Tensor:
        p, q = raw_laws(evidence, part)
        return torch.stack((at(p, x[part]), at(q, x[part]), total_variation(p, q)), -1)

    p_x, q_x, tv = in_parts(work, x.shape, _vocab(evidence)).unbind(-1)
    nan = torch.full_like(tv, torch.nan)
    return Measures(p_x, q_x, tv, nan, nan.clone())


def _vocab(evidence: Evidence) -> int:
    assert evidence.logits is not None, 'a rule that reads un-tempered laws names "raw" in its needs'
    return evidence.logits.shape[-1]
