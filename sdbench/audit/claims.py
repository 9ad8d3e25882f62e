"""The claims that are tested by samples. A test receives texts in parts; after each part it states the evidence against its claim.

The tests of prefixes, whole texts and rounds need every text enumerated; those of larger vocabularies are in
large_vocabulary.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from sdbench.audit.evidence import AcceptanceEvidence, CountEvidence, least_tv, log_mean
from sdbench.audit.laws import TextLaws
from sdbench.audit.source import Sampling, Source
from sdbench.audit.texts import RoundBatch, TextBatch, cut_at_stops, digits_of, number_of

ClaimVerdict = Literal["sound", "violated", "too few"]
NUM_BINS = 16
PAIRS = "prefixes of two tokens"


@dataclass(frozen=True, slots=True)
class Effect:
    """The difference between samples and claim, with a 95 % interval, and the smallest difference that would be detected.

    view: the kind of counts that `least` refers to, where several kinds are tested; untested: the kinds that could not be tested.
    pooled: the share of that kind that is too rare to be counted singly, so that `least` excludes changes within it.
    """

    name: str
    value: float
    low: float
    high: float
    least: float = float("nan")
    view: str = ""
    untested: str = ""
    pooled: float = 0.0


@dataclass(frozen=True, slots=True)
class ContingencyCell:
    """The cell that deviates most, as text, with its observed and expected counts."""

    name: str
    seen: float
    expected: float


class TableTest(ABC):
    """A test of counts against their laws, in one or several views of the texts; a view has a table for each prompt."""

    claim: str
    parts: list[list[CountEvidence]]  # [view][prompt]
    quantity: ClassVar[str] = "TV"  # the report shows its largest value over the tables of `views`
    views: ClassVar[Sequence[str]] = (PAIRS,)  # names of the first `parts`, which are shown and decide the power

    @abstractmethod
    def add(self, texts: TextBatch, rounds: RoundBatch | None) -> None: ...

    @abstractmethod
    def name_of(self, view: int, prompt: int, cell: int) -> str:
        """Return the name of a cell."""

    def log_e(self) -> float:
        return log_mean([sum(float(counts.log_e()) for counts in part) for part in self.parts])

    @property
    def samples(self) -> int:
        return sum(counts.size for counts in self.parts[0])

    def effect(self, log_wanted: float) -> Effect:
        shown = self.parts[: len(self.views)]
        largest = max(counts.effect() for part in shown for counts in part)
        leasts = self._leasts([counts.size for counts in self.parts[0]], log_wanted)
        weakest = int(np.argmax(leasts))
        untested = ", ".join(self.views[len(shown) :])
        pooled = sum(counts.size * counts.pooled for counts in self.parts[weakest]) / max(self.samples, 1)
        return Effect(self.quantity, *largest, leasts[weakest], self.views[weakest], untested, pooled)

    def least(self, sizes: Sequence[int], log_wanted: float) -> float:
        """Return the smallest TV, equal for all prompts, that these numbers of texts detect in every one of `views`.

        Rare cells count as one, so changes among them are not included.
        """
        return max(self._leasts(sizes, log_wanted))

    def _leasts(self, sizes: Sequence[int], log_wanted: float) -> list[float]:
        # The e-values of m views are averaged, so a single one must reach m times the wanted value.
        log_wanted += float(np.log(len(self.parts)))
        return [least_tv(part, sizes, log_wanted) for part in self.parts[: len(self.views)]]

    def worst(self) -> ContingencyCell:
        """Return the cell that deviates most, the first of equals; the rare cells of a table count as one."""
        tables = [
            (counts.worst(), counts, view, prompt)
            for prompt, views in enumerate(zip(*self.parts, strict=True))
            for view, counts in enumerate(views)
        ]
        worst, counts, view, prompt = max(tables, key=lambda table: table[0].z)
        cell = int(worst.cells[counts.raw[worst.cells].argmax()])
        name, num_rare = self.name_of(view, prompt, cell), len(worst.cells)
        if num_rare > 1:
            name = f"any of {num_rare} rare cells, such as: {name}"
        return ContingencyCell(name, worst.seen, worst.expected)


@dataclass
class LawTest(TableTest):
    """Emitted texts against their exact law: prefixes of two tokens, whole texts, and how many drafts first rounds keep."""

    claim: str
    laws: TextLaws
    stops: Sequence[int]
    horizon: int  # texts of a prompt
    with_rounds: bool = False

    def __post_init__(self) -> None:
        self.vocab, self.budget = self.laws.tables.vocab, self.laws.budget
        self.short = min(2, self.budget)
        every = torch.arange(self.vocab**self.budget)
        canonical = cut_at_stops(every, self.vocab, self.budget, self.stops).numpy()
        self.parts = [[], []]
        prompts = range(len(self.laws.tables.prompts))
        for prompt in prompts:
            whole = np.bincount(canonical, self.laws.texts(prompt).numpy(), len(every)).astype(float)
            prefix = whole.reshape(self.vocab**self.short, -1).sum(1)
            self.parts[0].append(CountEvidence(prefix, self.horizon))
            self.parts[1].append(CountEvidence(whole, self.horizon))
        if self.with_rounds:
            tables = [first_round_law(self.laws, prompt, self.stops) for prompt in prompts]
            self.parts.append([CountEvidence(table, self.horizon) for table in tables])

    def add(self, texts: TextBatch, rounds: RoundBatch | None) -> None:
        whole = number_of(texts.tokens, self.vocab)
        cells = [whole // self.vocab ** (self.budget - self.short), whole]
        if self.with_rounds and rounds is not None:
            first, width = rounds.rows(rounds.begin == 0), min(self.laws.num_draft, self.budget - 1) + 1
            emitted = torch.where(torch.arange(width) < first.emitted[:, None], texts.tokens[:, :width], 0)
            cells.append(first.accepted * self.vocab**width + number_of(emitted, self.vocab))
        for part, cell in zip(self.parts, cells, strict=False):
            for prompt, counts in enumerate(part):
                counts.add(cell[texts.prompts == prompt].numpy())

    def name_of(self, view: int, prompt: int, cell: int) -> str:
        if view == 2:
            return self._name_of_round(prompt, cell)
        width = (self.short, self.budget)[view]
        tokens = digits_of(torch.tensor([cell]), self.vocab, width)[0].tolist()
        stop = next((i for i, token in enumerate(tokens) if token in self.stops), width - 1)
        verb = "begins with" if width < self.budget else "is"
        return f"the text after prompt {prompt} {verb} {' '.join(map(str, tokens[: stop + 1]))}"

    def _name_of_round(self, prompt: int, cell: int) -> str:
        width = min(self.laws.num_draft, self.budget - 1) + 1
        kept, number = divmod(cell, self.vocab**width)
        tokens = digits_of(torch.tensor([number]), self.vocab, width)[0, : kept + 1].tolist()
        stop = next((i for i, token in enumerate(tokens) if token in self.stops), kept)
        emitted = " ".join(map(str, tokens[: stop + 1]))
        return f"the first round after prompt {prompt} keeps {kept} drafts and emits {emitted}"


def first_round_law(laws: TextLaws, prompt: int, stops: Sequence[int]) -> np.ndarray:
    """Return the law of (number of drafts kept, tokens emitted) in a first round, cut at a stop as in the engine."""
    vocab, ends = laws.tables.vocab, laws.round(prompt, 0).ends
    width = min(laws.num_draft, laws.budget - 1) + 1
    law = np.zeros((width + 1) * vocab**width)
    for kept, end in enumerate(ends):
        numbers = torch.arange(vocab ** (kept + 1))
        shown = cut_at_stops(numbers, vocab, kept + 1, stops) * vocab ** (width - kept - 1)
        np.add.at(law, (kept_at_stop(numbers, vocab, kept, stops) * vocab**width + shown).numpy(), end[0].numpy())
    return law


def kept_at_stop(numbers: Tensor, vocab: int, kept: int, stops: Sequence[int]) -> Tensor:
    """Return how many of `kept` drafts count in rounds that emit kept + 1 tokens: a stop among them cuts the rest."""
    is_stop = torch.isin(digits_of(numbers, vocab, kept + 1), torch.tensor(list(stops), dtype=torch.int64))
    return torch.where(is_stop.any(1), is_stop.long().argmax(1) + 1, kept).clamp_max(kept)


@dataclass
class AcceptanceTest(AcceptanceEvidence):
    """How many drafts were kept, against exact probabilities given the text so far: a martingale."""

    claim: str = "acceptance"
    quantity: str = "acceptance"

    def add(self, texts: TextBatch, rounds: RoundBatch | None) -> None:
        """Do nothing: the test that computes the distributions adds the numbers of kept drafts."""

    def effect(self, log_wanted: float) -> Effect:
        return Effect(self.quantity, *self.gap(), self.least(log_wanted))

    def worst(self) -> ContingencyCell:
        return ContingencyCell("drafts that were kept", self.total, self.expected)


@dataclass
class RoundAcceptanceTest(AcceptanceTest):
    """The number of kept drafts, round by round, against its exact law after the same text."""

    quantity: str = "drafts a round"
    laws: TextLaws = field(kw_only=True)
    stops: Sequence[int] = field(kw_only=True)

    def __post_init__(self) -> None:
        self._kept: dict[tuple[int, int], Tensor] = {}

    def add(self, texts: TextBatch, rounds: RoundBatch | None) -> None:
        assert rounds is not None, "an engine that records its rounds"
        for prompt in range(len(self.laws.tables.prompts)):
            # Where a rule carries a state, later rounds depend on more than the text.
            for depth in range(1 if self.laws.carries_state else self.laws.budget - 1):
                rows = ((rounds.prompts == prompt) & (rounds.begin == depth)).nonzero()[:, 0]
                if len(rows):
                    context = number_of(rounds.before[rows, :depth], self.laws.tables.vocab)
                    law = self._law(prompt, depth)[context]
                    self.add_counts(rounds.accepted[rows].numpy(), law.numpy())

    def _law(self, prompt: int, depth: int) -> Tensor:
        """Return the law [V^d,K+1] of how many drafts are kept."""
        if (prompt, depth) not in self._kept:
            vocab, ends = self.laws.tables.vocab, self.laws.round(prompt, depth).ends
            law = torch.zeros(vocab**depth, len(ends), dtype=torch.float64)
            for kept, end in enumerate(ends):
                law.index_add_(1, kept_at_stop(torch.arange(vocab ** (kept + 1)), vocab, kept, self.stops), end)
            self._kept[prompt, depth] = law / law.sum(1, keepdim=True).clamp_min(1e-300)
        return self._kept[prompt, depth]


@dataclass
class PitTest(TableTest):
    """The randomised probability integral transform of tokens under the law claimed for each: uniform, whatever came before.

    Tokens are ordered from the likeliest down, and in a second view by how much the other side prefers them.
    """

    claim: str
    horizon: int
    quantity = "TV of PIT"
    views = ("the PIT of tokens", "the PIT of tokens in another order")
    generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def __post_init__(self) -> None:
        even = np.full(NUM_BINS, 1 / NUM_BINS)
        self.parts = [[CountEvidence(even, self.horizon)] for _ in range(2)]

    def add_tokens(self, law: Tensor, other: Tensor, tokens: Tensor) -> None:
        """Add tokens [M] with their laws [M,V]; `other` orders the second view."""
        if not len(tokens):
            return
        uniforms = torch.from_numpy(self.generator.random((2, len(tokens))))
        orders = (law, torch.log(other + 1e-12) - torch.log(law + 1e-12))
        for (part,), order, u in zip(self.parts, orders, uniforms, strict=True):
            rank = order.gather(1, tokens[:, None])
            ids = torch.arange(law.shape[1])
            is_before = (order > rank) | ((order == rank) & (ids < tokens[:, None]))
            value = (law * is_before).sum(1) + u * law.gather(1, tokens[:, None])[:, 0]
            part.add((value * NUM_BINS).long().clamp(0, NUM_BINS - 1).numpy())

    def name_of(self, view: int, prompt: int, cell: int) -> str:
        return f"tokens in bin {cell} of {NUM_BINS} of their law"


@dataclass
class DraftTest(PitTest):
    """Drafted tokens against the draft model's own law at their prefix.

    After a token that ends the text no draft is recorded. Where a rule judges a block as a whole, whether an earlier draft ends the
    text depends on the later ones. Then only the first draft is recorded in every case, and `is_first_only` tests that one alone.
    """

    source: Source = field(kw_only=True)
    sampling: Sampling = field(kw_only=True)
    max_rounds: int | None = None  # rounds tested of each part of the texts; None: all
    is_first_only: bool = False

    def add(self, texts: TextBatch, rounds: RoundBatch | None) -> None:
        assert rounds is not None, "an engine that records its rounds"
        rounds = rounds if self.max_rounds is None else rounds.first(self.max_rounds)
        for part in rounds.parts(self.source.vocab):
            whole, prompts = part.whole()[:, : part.before.shape[1]], part.prompts.tolist()
            rows = part.is_drafted & (
                torch.arange(part.drafts.shape[1]) < (1 if self.is_first_only else part.drafts.shape[1])
            )
            draft, target = (
                self.sampling.law(part.at_drafts(self.source.outputs(side, prompts, whole).logits)[rows])
                for side in ("draft", "target")
            )
            self.add_tokens(draft, target, part.drafts[rows])


ClaimTest = TableTest | AcceptanceTest
