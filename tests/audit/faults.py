"""Faults planted from outside: wrappers around honest rules, drafters and the engine. The audit knows none of them.

A wrapped rule goes on claiming what the honest one claims (`accept`, `replace`, `is_lossless`); only what it does is wrong.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sdbench import noise
from sdbench.audit import pairs
from sdbench.audit.outcomes import Outcomes, judge_in_order, keep_and_replace
from sdbench.audit.source import Sampling
from sdbench.audit.subject import AuditedRule, Subject
from sdbench.draft import ModelDrafter
from sdbench.engine import batch
from sdbench.engine.batch import Batch
from sdbench.lm.plan import LayerMask
from sdbench.probs import Warp
from sdbench.types import Context, DraftBlock, Evidence, Verdict
from sdbench.verify import Ensemble, Exact, Lenience, Within

STOP = pairs.STOP
PLAIN = Sampling()
NUCLEUS = Sampling(0.7, None, 0.8)


def rows_of(block: DraftBlock) -> Tensor:
    return torch.arange(len(block.tokens))


# Rules.


@dataclass(frozen=True, slots=True)
class WrongResidual(Ensemble):
    """What replaces a rejected draft is drawn from p, not from norm((p − q)+)."""

    def correction(self, evidence: Evidence, slot: Tensor) -> Tensor:
        return evidence.p[torch.arange(len(slot)), slot]


@dataclass(frozen=True, slots=True)
class ReusedCoin(Ensemble):
    """The coin of the first slot draws the next token too."""

    def __call__(self, evidence: Evidence, u: Tensor, state: Tensor | None = None) -> Verdict:
        return Ensemble.__call__(self, evidence, torch.cat((u[:, :-1], u[:, :1]), 1), state)


@dataclass(frozen=True, slots=True)
class BonusFromTheDraft(Ensemble):
    """The token behind a block that was kept whole is drawn from q of its last slot."""

    def __call__(self, evidence: Evidence, u: Tensor, state: Tensor | None = None) -> Verdict:
        p = evidence.p.clone()
        if evidence.draft.tokens.shape[1]:
            p[:, -1] = evidence.draft.q[:, -1]
        return Ensemble.__call__(self, replace(evidence, p=p), u, state)


@dataclass(frozen=True, slots=True)
class SuppressedStop(Ensemble):
    """Inside a block the target never ends a text: its mass there goes to the others."""

    def __call__(self, evidence: Evidence, u: Tensor, state: Tensor | None = None) -> Verdict:
        p = evidence.p.clone()
        if evidence.draft.tokens.shape[1] and p.is_floating_point():
            p[:, :-1, STOP] = 0
            p /= p.sum(-1, keepdim=True)
        return Ensemble.__call__(self, replace(evidence, p=p), u, state)


@dataclass(frozen=True, slots=True)
class Spending(Ensemble):
    """Honest, and from outside: lenient until a text has kept `most` drafts, lossless in later rounds. No text tells its state."""

    most: int | Tensor = 2

    def init_state(self, prompts: Sequence[Tensor], device: Any) -> Tensor:
        return torch.zeros(len(prompts), 1, dtype=torch.int64, device=device)

    def _now(self, state: Tensor) -> Ensemble:
        spent = state[:, 0] >= self.most
        return Ensemble(torch.where(spent, 1.0, torch.as_tensor(self.w, dtype=torch.float64)))

    def __call__(self, evidence: Evidence, u: Tensor, state: Tensor | None = None) -> Verdict:
        assert state is not None, "it counts what a text has kept"
        verdict = self._now(state)(evidence, u)
        return replace(verdict, state=state + verdict.accepted[:, None])

    def outcomes_from(self, evidence: Evidence, state: Tensor) -> Outcomes:
        result = judge_in_order(evidence, *keep_and_replace(self._now(state), evidence))
        kept = torch.arange(result.accepted.shape[1])[:, None, None]
        return replace(result, state=(state[:, None, None] + kept).expand(*result.following.shape, 1))


# Drafters.


class UncutQ(ModelDrafter):
    """Drafts from the law behind top-k and top-p, and says the law before them."""

    def draft(self, context: Context, k: int, lengths: Tensor, u: Tensor, needs: frozenset[str]) -> DraftBlock:
        block = super().draft(context, k, lengths, u, needs | {"raw"})
        if block.logits is None or self.warp.is_greedy:
            return block
        return replace(block, q=Warp(self.warp.temperature).law(block.logits))


class TemperatureTwice(ModelDrafter):
    """Divides the logits twice where it draws, and once where it says q."""

    def draft(self, context: Context, k: int, lengths: Tensor, u: Tensor, needs: frozenset[str]) -> DraftBlock:
        own, honest = self.warp, self.warp
        self.warp = replace(own, temperature=own.temperature**2)
        try:
            block = super().draft(context, k, lengths, u, needs | {"raw"})
        finally:
            self.warp = honest
        return block if block.logits is None or honest.is_greedy else replace(block, q=honest.law(block.logits))


class ClaimsOneHot(ModelDrafter):
    """Samples, and says that it chose."""

    def draft(self, context: Context, k: int, lengths: Tensor, u: Tensor, needs: frozenset[str]) -> DraftBlock:
        block = super().draft(context, k, lengths, u, needs)
        return replace(block, q=block.tokens)


class DropsTheUnlikely(ModelDrafter):
    """Stops at the first sampled token that it finds unlikely, and drops that token."""

    def draft(self, context: Context, k: int, lengths: Tensor, u: Tensor, needs: frozenset[str]) -> DraftBlock:
        block = super().draft(context, k, lengths, u, needs)
        if not block.q.is_floating_point() or not block.tokens.shape[1]:
            return block
        is_likely = block.q.gather(-1, block.tokens[..., None])[..., 0] > 0.3
        return replace(block, lengths=torch.minimum(lengths, is_likely.long().cumprod(1).sum(1)))


class ExchangedColumns(ModelDrafter):
    """A map between vocabularies with two columns exchanged: the drafted ids are right, the law beside them is not."""

    def draft(self, context: Context, k: int, lengths: Tensor, u: Tensor, needs: frozenset[str]) -> DraftBlock:
        block = super().draft(context, k, lengths, u, needs)
        if not block.q.is_floating_point():
            return block
        return replace(block, q=block.q[..., [1, 0, *range(2, block.q.shape[-1])]])


# The engine.


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def noise_by_position() -> AbstractContextManager[None]:
    """One uniform a place of the text: what a slot behind a rejection used is used again when its place comes."""
    honest = Batch.begin

    def begin(self: Batch, wanted: Any) -> tuple[Tensor, Tensor]:
        lengths, u = honest(self, wanted)
        k = self.num_draft
        for slot, row in enumerate(self.rows):
            places = np.arange(len(row.tokens), len(row.tokens) + k + 1, dtype=np.uint64)
            own = noise.uniforms(self.keys[slot][None], [0], places, 0)[0]
            u[slot] = torch.from_numpy(np.concatenate((own[:k], own[1:], own[:1])))
        return lengths, u

    return patched(Batch, "begin", begin)


def state_kept_at_a_refill() -> AbstractContextManager[None]:
    """A new text begins with what the last one of its row left."""
    honest = Batch.admit

    def admit(self: Batch, row: Any, start: Any, slot: int | None = None) -> None:
        states = self.states[row.family]
        before = None if states is None or slot is None else states[slot].clone()
        honest(self, row, start, slot)
        if states is not None and before is not None:
            states[slot] = before

    return patched(Batch, "admit", admit)


def state_left_behind() -> AbstractContextManager[None]:
    """A row moves, and what its rule carries stays."""
    honest = Batch._move

    def move(self: Batch, source: int, slot: int) -> None:
        states = self.states[self.rows[source].family]
        before = None if states is None else states[slot].clone()
        honest(self, source, slot)
        if states is not None and before is not None:
            states[slot] = before

    return patched(Batch, "_move", move)


def rows_swapped() -> AbstractContextManager[None]:
    """In a batch whose rows have different knobs, each row is judged by its neighbour's."""
    honest = batch.stack
    return patched(batch, "stack", lambda rules, device: honest(rules[::-1], device))


def window_one_short(subject: Subject) -> None:
    """The sliding layer of the target sees one token less than the model's own."""
    masks, short = dict(subject.engine.target.layer_masks), pairs.WINDOW - 1
    honest = masks[0].function
    masks[0] = LayerMask(lambda b, h, place, slot: honest(b, h, place, slot) & (place - slot < short), short)
    subject.engine.target.layer_masks = masks


def temperature_twice_in_the_target(subject: Subject) -> None:
    """The target's law is tempered once more by the engine."""
    engine, honest = subject.engine, subject.engine.warp

    def warp(temperature: float = 1.0, *rest: Any, **more: Any) -> Warp:
        return honest(temperature**2, *rest, **more)

    engine.warp = warp  # type: ignore[method-assign]


@dataclass(frozen=True)
class Fault:
    """How a subject with the fault is made, and what of the engine is patched meanwhile."""

    name: str
    rules: Callable[[], list[Any]] = lambda: [Ensemble(1.0), Ensemble(0.5)]
    drafter: Any = "model"
    sampling: Sampling = PLAIN
    patch: Callable[[], AbstractContextManager[None]] = nullcontext
    spoil: Callable[[Subject], None] | None = None

    def subject(self, models: tuple[Any, Any], seed: int = 0) -> Subject:
        settings = [AuditedRule(f"{type(rule).__name__} {n}", rule) for n, rule in enumerate(self.rules())]
        subject = Subject(settings, *models, pairs.PROMPTS, self.sampling, self.drafter, stops=(STOP,), seed=seed)
        if self.spoil is not None:
            self.spoil(subject)
        return subject


def both(rule: Any) -> Callable[[], list[Any]]:
    return lambda: [rule(1.0), rule(0.5)]


def both_spend() -> list[Any]:
    return [Spending(0.5), Spending(0.2)]


SPANS = [Within(Lenience(0.2), 1, 2), Within(Lenience(0.2), 2, 1)]
FAULTS = [
    Fault("q from before top-p", drafter=UncutQ, sampling=NUCLEUS),
    Fault("q from before top-k", drafter=UncutQ, sampling=Sampling(1.0, 2, None)),
    Fault("residual from the wrong law", both(WrongResidual)),
    Fault("temperature twice in the draft", drafter=TemperatureTwice, sampling=Sampling(0.7)),
    Fault("temperature twice in the target", sampling=Sampling(0.7), spoil=temperature_twice_in_the_target),
    Fault("bonus from q", both(BonusFromTheDraft)),
    Fault("a coin used for the replacement", both(ReusedCoin)),
    Fault("noise by text position", patch=noise_by_position),
    Fault("end of text suppressed in the block", both(SuppressedStop)),
    Fault("state not reset at a refill", lambda: list(SPANS), patch=state_kept_at_a_refill),
    Fault("state not moved with its row", lambda: list(SPANS), patch=state_left_behind),
    Fault("a count not reset at a refill", both_spend, patch=state_kept_at_a_refill),
    Fault("a window one short", spoil=window_one_short),
    Fault("rows swapped in a mixed batch", patch=rows_swapped),
    Fault("one-hot q claimed for a sampled draft", drafter=ClaimsOneHot),
    Fault("a stop rule that looks at the sampled token and drops it", drafter=DropsTheUnlikely),
    Fault("two columns of a cross-tokenizer map exchanged", drafter=ExchangedColumns),
]
HONEST = [
    Fault("none"),
    Fault("none, spans", lambda: list(SPANS)),
    Fault("none, counts", both_spend),
    Fault("none, nucleus", sampling=NUCLEUS),
    Fault("none, exact", lambda: [Exact()]),
]
