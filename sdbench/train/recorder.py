"""Record features of the tokens that a rule decides while texts are decoded, so that no model has to read them again."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from sdbench.probs import at, total_variation
from sdbench.types import Evidence, Generation, Limits, Measures, Verdict
from sdbench.verify.head import needed_by, seen_by


@dataclass(frozen=True, slots=True)
class Recording:
    """Features and probabilities of the N tokens of a text that a rule decided: accepted drafts and replacements."""

    features: Tensor  # [N,n]
    p: Tensor  # [N], probability of the token
    q: Tensor
    tv: Tensor


@dataclass(eq=False)
class Recorder:
    """Records texts that are decoded together. It stores an entry in host memory for each round and family of rules."""

    features: Sequence[str]
    size: int = 0  # how many numbers the features of a token have; needed for texts without drafts
    rounds: list[tuple[Tensor, ...]] = field(
        default_factory=list
    )  # number of the text [N], then the columns of Recording
    first_round: dict[int, int] = field(
        default_factory=dict
    )  # by text: its first entry of `rounds` since it last began

    @property
    def needs(self) -> frozenset[str]:
        """Return what the features need besides p, q and the draft."""
        return needed_by(self.features)

    def wrap(self, rule: Any, text: int) -> "RecordedRule":
        """Return the rule, wrapped so that its decisions about this text are recorded."""
        return RecordedRule(rule, self, text)

    def record(self, text: Tensor, evidence: Evidence, verdict: Verdict) -> None:
        """Store a round of texts [B]: the slots up to and including the first rejected one, which the rule decided."""
        draft, accepted = evidence.draft, verdict.accepted[:, None]
        slots = torch.arange(draft.tokens.shape[1], device=accepted.device)
        is_decided = (slots <= accepted) & (slots < draft.lengths[:, None])
        tokens = torch.where(slots < accepted, draft.tokens, verdict.next_token[:, None])[is_decided]
        p, q = evidence.p[:, :-1][is_decided], draft.q[is_decided]
        columns = seen_by(self.features, evidence)[is_decided], at(p, tokens), at(q, tokens), total_variation(p, q)
        text = text[:, None].expand(is_decided.shape)[is_decided]
        self.rounds.append(tuple(column.cpu() for column in (text, *columns)))

    def recordings(self, generations: Sequence[Generation]) -> list[Recording]:
        """Return the recording of each text up to its end, in the order of requests."""
        if not self.rounds:
            return [Recording(torch.zeros(0, self.size), *torch.zeros(3, 0)) for _ in generations]
        text, *columns = (torch.cat(column) for column in zip(*self.rounds, strict=True))
        number = torch.arange(len(self.rounds)).repeat_interleave(torch.tensor([len(row[0]) for row in self.rounds]))
        out = []
        for index, generation in enumerate(generations):
            count = num_decided(generation, len(generation.tokens))
            rows = ((text == index) & (number >= self.first_round[index])).nonzero()[:count, 0]
            out.append(Recording(*(column[rows] for column in columns)))
        return out


def num_decided(generation: Generation, position: int) -> int:
    """Return how many tokens before a position the rule decided. This is also the row of that token in a recording."""
    assert generation.origins is not None, "our own engine reports them"
    return sum(origin != "bonus" for origin in generation.origins[:position])


@dataclass(frozen=True, slots=True)
class RecordedRule:
    """A rule whose decisions are recorded. `text` stacks: it has a value for each row of a batch."""

    version: ClassVar[str] = ""

    rule: Any
    recorder: Recorder
    text: int | Tensor

    @property
    def limits(self) -> Limits:
        return getattr(self.rule, "limits", None) or Limits()

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(self.rule.needs) | self.recorder.needs

    def is_lossless(self) -> Tensor:
        return self.rule.is_lossless()

    def init_state(self, prompts: Sequence[Tensor], device: Any) -> Tensor | None:
        """Return the rule's state. The engine calls this when a text begins, or begins again after an out-of-memory error."""
        assert isinstance(self.text, int), "a text begins before rows are stacked"
        self.recorder.first_round[self.text] = len(self.recorder.rounds)
        return self.rule.init_state(prompts, device)

    def __call__(self, evidence: Evidence, u: Tensor, state: Tensor | None = None) -> Verdict:
        verdict = self.rule(evidence, u, state)
        if evidence.draft.tokens.shape[1]:
            text = torch.as_tensor(self.text, device=u.device).expand(len(u))
            self.recorder.record(text, evidence, verdict)
        return verdict

    def measure(self, evidence: Evidence) -> Measures:
        return self.rule.measure(evidence)
