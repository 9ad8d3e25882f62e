"""Greedy forms: at temperature 0 both laws are one-hot, so thresholds apply to un-tempered laws instead.

Most published greedy rules are a set of acceptable tokens with the correction argmax p; a few choose the argmax of another law.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from sdbench.probs import at, is_ids
from sdbench.types import DraftBlock, Evidence, Measures
from sdbench.verify.families import at_part, at_slots
from sdbench.verify.tokenwise import Part, Tokenwise, best_at, in_parts, knob

Pick = Callable[[Tensor], Tensor]  # takes some slots out of [B,K,…]


class Greedy(Tokenwise):
    """A rule with its own form at temperature 0: deterministic, so it has neither an acceptance probability nor a bias."""

    needs: ClassVar[frozenset[str]] = frozenset({"raw_if_greedy"})
    draws_if_greedy: ClassVar[bool] = False

    @abstractmethod
    def greedy_keeps(self, evidence: Evidence) -> Tensor:
        """Return [B,K] bool: which drafts are kept at temperature 0."""

    def greedy_correction(self, evidence: Evidence, slot: Tensor) -> Tensor:
        """Return the ids [B] that replace the draft in that slot [B] at temperature 0."""
        return best_at(evidence, slot)

    def keeps(self, evidence: Evidence, u: Tensor) -> Tensor:
        return self.greedy_keeps(evidence) if evidence.is_greedy else super().keeps(evidence, u)

    def correction(self, evidence: Evidence, slot: Tensor) -> Tensor:
        return self.greedy_correction(evidence, slot) if evidence.is_greedy else super().correction(evidence, slot)

    def measure(self, evidence: Evidence) -> Measures:
        return greedy_measures(evidence) if evidence.is_greedy else super().measure(evidence)


class GreedySet(Greedy):
    """At temperature 0 keeps x iff it is in the set of un-tempered laws (`set_of`), or the target's own choice; corrects to
    argmax p.

    Where the knobs are at a lossless end the set is {argmax p}, with or without ties.
    """

    keeps_best: ClassVar[bool] = True  # the target's own choice is kept even if the set does not contain it

    @abstractmethod
    def set_of(self, p: Tensor, q: Tensor) -> Tensor:
        """Return the set of laws [B,K,V]: bool [B,K,V], or [B,K,1] where it is everything or nothing."""

    def greedy_keeps(self, evidence: Evidence) -> Tensor:
        x = evidence.draft.tokens
        is_kept = is_in_set(kept_of(self, evidence), x) & ~self.is_lossless().to(x.device)[:, None]
        return is_kept | (x == evidence.p[:, :-1]) if self.keeps_best else is_kept


class GreedyLaw(Greedy):
    """At temperature 0 keeps x iff it is the most likely token of another law, computed from un-tempered ones; corrects to it."""

    # [b], [b,k] or a single value: whether a token that is the most likely one of both models is also that of the law.
    agrees_with_both: ClassVar[Tensor] = torch.tensor(False)

    @abstractmethod
    def greedy_scores(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        """Return scores [B,K,V] of log-laws [B,K,V], in the order of the law's probabilities."""

    def greedy_keeps(self, evidence: Evidence) -> Tensor:
        def pick(part: Part) -> Pick:
            return lambda slots: slots[part]

        return self._best(self, evidence, evidence.draft.tokens.shape, pick) == evidence.draft.tokens

    def greedy_correction(self, evidence: Evidence, slot: Tensor) -> Tensor:
        row = torch.arange(len(slot), device=slot.device)
        rule = at_slots(self, lambda knob: knob[row, slot][:, None])

        def pick(part: Part) -> Pick:
            return lambda slots: slots[row[part[0]], slot[part[0]]][:, None]

        return self._best(rule, evidence, (len(slot), 1), pick)[:, 0]

    @staticmethod
    def _best(rule: "GreedyLaw", evidence: Evidence, shape: Sequence[int], pick: Callable[[Part], Pick]) -> Tensor:
        """Return the most likely tokens of the law of a rule in slots of this shape; `pick` gives a part of them out of [B,K,…].

        At a lossless end they are the target's choices, also where the law in float32 has ties that the logits do not have. Drafts
        are mostly what both models would say, so a CPU computes the law of a part only if some are not. A GPU would have to wait
        for the comparison, and computes all.
        """

        def work(part: Part) -> Tensor:
            at, slots = at_part(rule, part), pick(part)
            best = slots(evidence.p[:, :-1])
            is_best = at.is_lossless().to(best.device)[:, None].expand_as(best)
            if best.device.type == "cpu" and (agrees := at.agrees_with_both).any():
                is_best = is_best | (_are_best(evidence.draft, slots, best) & knob(agrees, is_best))
                if is_best.all():
                    return best
            return torch.where(is_best, best, at.greedy_scores(*evidence.raw_logs(slots)).max(-1).indices)

        return in_parts(work, shape, _vocab(evidence))


def _are_best(draft: DraftBlock, slots: Pick, x: Tensor) -> Tensor:
    """Return [b,k] bool: whether the draft finds no token more likely than that of x [b,k] in a slot."""
    if draft.logits is None:
        assert is_ids(draft.q), "a drafter that samples from a law keeps its logits where asked"
        return slots(draft.q) == x
    logits = slots(draft.logits)
    return logits.gather(-1, x[..., None])[..., 0] == logits.amax(-1)


def kept_of(rule: GreedySet, evidence: Evidence) -> Tensor:
    """Return the rule's set [B,K,V], or [B,K,1], of un-tempered laws."""

    def work(part: Part) -> Tensor:
        log_p, log_q = evidence.raw_logs(lambda slots: slots[part])
        return at_part(rule, part).set_of(log_p.exp_(), log_q.exp_())

    return in_parts(work, evidence.draft.tokens.shape, _vocab(evidence))


def is_in_set(kept: Tensor, x: Tensor) -> Tensor:
    """Return [B,K] bool: whether tokens [B,K] are in sets [B,K,V] or [B,K,1]."""
    return kept[..., 0] if kept.shape[-1] == 1 else kept.gather(-1, x[..., None])[..., 0]


def greedy_measures(evidence: Evidence) -> Measures:
    """Return the measures of a deterministic choice: un-tempered probabilities and TV, NaN for the others."""
    x = evidence.draft.tokens

    def work(part: Part) -> Tensor:
        p, q = evidence.raw_laws(lambda slots: slots[part])
        values = at(p, x[part]), at(q, x[part])
        return torch.stack((*values, (p.sub_(q).abs_().sum(-1) / 2).clamp_max_(1)), -1)

    p_x, q_x, tv = in_parts(work, x.shape, _vocab(evidence)).unbind(-1)
    nan = torch.full_like(tv, torch.nan)
    return Measures(p_x, q_x, tv, nan, nan.clone())


def _vocab(evidence: Evidence) -> int:
    assert evidence.logits is not None, 'a rule that reads un-tempered laws names "raw" in its needs'
    return evidence.logits.shape[-1]
