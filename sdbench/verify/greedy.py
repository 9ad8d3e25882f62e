"""Greedy forms: at temperature 0 both laws are one-hot, so thresholds apply to un-tempered laws instead.

Most published greedy rules are a set of acceptable tokens with the correction argmax p; a few choose the argmax of another law.
"""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from sdbench.probs import at, by_slices, is_ids, total_variation
from sdbench.types import Evidence, Measures
from sdbench.verify.families import at_part, at_slots
from sdbench.verify.tokenwise import Part, Tokenwise, best_at, in_parts


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

    agrees_with_both: ClassVar[bool] = (
        False  # a token that is the most likely one of both models is also that of the law
    )

    @abstractmethod
    def greedy_scores(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        """Return scores [B,K,V] of log-laws [B,K,V], in the order of the law's probabilities."""

    def greedy_keeps(self, evidence: Evidence) -> Tensor:
        x = evidence.draft.tokens
        row, slot = (
            index.reshape(-1)
            for index in torch.meshgrid(*(torch.arange(size, device=x.device) for size in x.shape), indexing="ij")
        )
        return self._best(evidence, row, slot).view(x.shape) == x

    def greedy_correction(self, evidence: Evidence, slot: Tensor) -> Tensor:
        return self._best(evidence, torch.arange(len(slot), device=slot.device), slot)

    def _best(self, evidence: Evidence, row: Tensor, slot: Tensor) -> Tensor:
        """Return the most likely token of the law in each of N slots, given by their rows [N] and slots [N].

        Drafts are mostly what both models would say, so a CPU computes the law of the others only. A GPU would have to wait for
        their number, and computes all.
        """
        if not self.agrees_with_both or row.device.type != "cpu":
            return self._computed(evidence, row, slot)
        best = evidence.p[row, slot]
        rest = (best != _best_of_draft(evidence)[row, slot]).nonzero()[:, 0]
        if len(rest):
            best[rest] = self._computed(evidence, row[rest], slot[rest])
        return best

    def _computed(self, evidence: Evidence, row: Tensor, slot: Tensor) -> Tensor:
        rule = at_slots(self, lambda knob: knob[row, slot][:, None] if knob.ndim > 1 else knob[row], least=1)

        def work(part: Part) -> Tensor:
            where = row[part[0]], slot[part[0]]
            logs = evidence.raw_logs(lambda slots: slots[where][:, None])
            return at_part(rule, part).greedy_scores(*logs).argmax(-1)

        return in_parts(work, (len(row), 1), _vocab(evidence))[:, 0]


def _best_of_draft(evidence: Evidence) -> Tensor:
    """Return [B,K] the draft's most likely tokens, the first of several alike."""
    draft = evidence.draft
    if draft.logits is not None:
        return by_slices(lambda logits: logits.max(-1).indices, draft.logits)
    assert is_ids(draft.q), "a drafter that samples from a law keeps its logits where asked"
    return draft.q


def raw_laws(evidence: Evidence, part: Part) -> tuple[Tensor, Tensor]:
    """Return the un-tempered laws [b,k,V] of target and draft at some rows and slots."""
    log_p, log_q = evidence.raw_logs(lambda slots: slots[part])
    return log_p.exp_(), log_q.exp_()


def kept_of(rule: GreedySet, evidence: Evidence) -> Tensor:
    """Return the rule's set [B,K,V], or [B,K,1], of un-tempered laws."""

    def work(part: Part) -> Tensor:
        return at_part(rule, part).set_of(*raw_laws(evidence, part))

    return in_parts(work, evidence.draft.tokens.shape, _vocab(evidence))


def is_in_set(kept: Tensor, x: Tensor) -> Tensor:
    """Return [B,K] bool: whether tokens [B,K] are in sets [B,K,V] or [B,K,1]."""
    return kept[..., 0] if kept.shape[-1] == 1 else kept.gather(-1, x[..., None])[..., 0]


def greedy_measures(evidence: Evidence) -> Measures:
    """Return the measures of a deterministic choice: un-tempered probabilities and TV, NaN for the others."""
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
