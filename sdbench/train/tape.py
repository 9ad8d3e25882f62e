"""What a rule saw of the tokens that it decided, written down while it decodes: no model runs again over a finished text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from sdbench.probs import at, total_variation
from sdbench.types import Evidence, Generation, Limits, Measures, Verdict
from sdbench.verify.head import needed_by, seen_by


@dataclass(frozen=True, slots=True)
class Seen:
    """At the N tokens of a text that a rule decided, kept drafts and replacements: features, and what both sides gave them."""

    features: Tensor  # [N,n]
    p: Tensor  # [N], of the token
    q: Tensor
    tv: Tensor


@dataclass(eq=False)
class Tape:
    """Of texts that are decoded together: a part for each round of each family, in the host's memory."""

    features: Sequence[str]
    parts: list[tuple[Tensor, ...]] = field(default_factory=list)  # text [N], then the columns of Seen
    begun: dict[int, int] = field(default_factory=dict)  # the part before which a text last began

    def of(self, rule: Any, text: int) -> Taped:
        """The rule, for this text alone."""
        return Taped(rule, self, text)

    def write(self, text: Tensor, evidence: Evidence, verdict: Verdict) -> None:
        """A round of texts [B]. Slots behind the first that was not kept were not decided."""
        draft, accepted = evidence.draft, verdict.accepted[:, None]
        slots = torch.arange(draft.tokens.shape[1], device=accepted.device)
        decided = (slots <= accepted) & (slots < draft.lengths[:, None])
        tokens = torch.where(slots < accepted, draft.tokens, verdict.next_token[:, None])[decided]
        p, q = evidence.p[:, :-1][decided], draft.q[decided]
        columns = seen_by(self.features, evidence)[decided], at(p, tokens), at(q, tokens), total_variation(p, q)
        text = text[:, None].expand(decided.shape)[decided]
        self.parts.append(tuple(column.cpu() for column in (text, *columns)))

    def seen(self, generations: Sequence[Generation]) -> list[Seen]:
        """Of each text up to its end, by the place of its request."""
        text, *columns = (torch.cat(column) for column in zip(*self.parts, strict=True))
        part = torch.arange(len(self.parts)).repeat_interleave(torch.tensor([len(one[0]) for one in self.parts]))
        out = []
        for number, generation in enumerate(generations):
            assert generation.origins is not None, "our own engine tells them"
            count = sum(origin != "bonus" for origin in generation.origins)
            rows = ((text == number) & (part >= self.begun[number])).nonzero()[:count, 0]
            out.append(Seen(*(column[rows] for column in columns)))
        return out


@dataclass(frozen=True, slots=True)
class Taped:
    """A rule that tells a tape what it decides. `text` stacks: each row of a batch has its own."""

    version: ClassVar[str] = ""

    rule: Any
    tape: Tape
    text: int | Tensor

    @property
    def limits(self) -> Limits:
        return getattr(self.rule, "limits", None) or Limits()

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(self.rule.needs) | needed_by(self.tape.features)

    def is_lossless(self) -> Tensor:
        return self.rule.is_lossless()

    def init_state(self, prompts: Sequence[Tensor], device: Any) -> Tensor | None:
        """A text begins, or begins anew where memory ran out."""
        assert isinstance(self.text, int), "a text begins before rows are stacked"
        self.tape.begun[self.text] = len(self.tape.parts)
        return self.rule.init_state(prompts, device)

    def __call__(self, evidence: Evidence, u: Tensor, state: Tensor | None = None) -> Verdict:
        verdict = self.rule(evidence, u, state)
        if evidence.draft.tokens.shape[1]:
            text = torch.as_tensor(self.text, device=u.device).expand(len(u))
            self.tape.write(text, evidence, verdict)
        return verdict

    def measure(self, evidence: Evidence) -> Measures:
        return self.rule.measure(evidence)
