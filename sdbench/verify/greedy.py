"""Greedy forms: at temperature 0 both laws are one-hot, so thresholds apply to un-tempered laws instead.

Most published greedy rules keep a draft iff it is in a set of acceptable tokens, and otherwise emit argmax p. A few emit the argmax
of another law.
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

Pick = Callable[[Tensor], Tensor]  # selects slots from [B,K,…]


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

    At a lossless end of the knobs only argmax p is kept, even if other tokens tie with it.
    """

    keeps_best: ClassVar[bool] = True  # the target's own choice is kept even if the set does not contain it

    @abstractmethod
    def set_of(self, p: Tensor, q: Tensor) -> Tensor:
        """Return the set for laws [B,K,V]: bool [B,K,V], or [B,K,1] if it holds all tokens or none."""

    def greedy_keeps(self, evidence: Evidence) -> Tensor:
        x = evidence.draft.tokens
        is_kept = is_in_set(kept_of(self, evidence), x) & ~self.is_lossless().to(x.device)[:, None]
        return is_kept | (x == evidence.p[:, :-1]) if self.keeps_best else is_kept


class GreedyLaw(Greedy):
    """At temperature 0 keeps x iff it is the most likely token of another law, made of un-tempered laws; else emits that token."""

    # [b], [b,k] or a single value: whether a token that is most likely under both models is also most likely under the law.
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
        """Return the most likely token of a rule's law in slots of this shape; `pick(part)` selects some of them from [B,K,…].

        At a lossless end these are the target's choices, even if the law in float32 has ties that the logits do not have. In most
        slots both models have the same most likely token, so a CPU computes the law of a part only if one of its slots differs. A
        GPU computes every part, because it would have to wait for this comparison.
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
    """Return [b,k] bool: whether no token is more likely than x [b,k] under the draft."""
    if draft.logits is None:
        assert is_ids(draft.q), "a drafter that samples from a law must return its logits if a rule needs them"
        return slots(draft.q) == x
    logits = slots(draft.logits)
    return logits.gather(-1, x[..., None])[..., 0] == logits.amax(-1)


def kept_of(rule: GreedySet, evidence: Evidence) -> Tensor:
    """Return the rule's set, computed from un-tempered laws: [B,K,V] or [B,K,1]."""

    def work(part: Part) -> Tensor:
        log_p, log_q = evidence.raw_logs(lambda slots: slots[part])
        return at_part(rule, part).set_of(log_p.exp_(), log_q.exp_())

    return in_parts(work, evidence.draft.tokens.shape, _vocab(evidence))


def is_in_set(kept: Tensor, x: Tensor) -> Tensor:
    """Return [B,K] bool: whether tokens [B,K] are in sets [B,K,V] or [B,K,1]."""
    return kept[..., 0] if kept.shape[-1] == 1 else kept.gather(-1, x[..., None])[..., 0]


def greedy_measures(evidence: Evidence) -> Measures:
    """Return the measures of a deterministic rule: probabilities and TV of un-tempered laws, NaN for the others."""
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
