"""The claims that are tested by samples. Each takes texts as they come and says, at any time, the evidence against the claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from sdbench.audit.evidence import Coins, Counts, combined, least_tv
from sdbench.audit.laws import Laws, number_of
from sdbench.audit.source import Sampling, Source
from sdbench.audit.texts import Rounds, Texts, at_slots, cut

Verdict = Literal["sound", "violated", "too few"]
BINS = 16


@dataclass(frozen=True, slots=True)
class Effect:
    """How far what was seen is from what was claimed, with a 95 % interval, and the least that would have been found."""

    name: str
    value: float
    low: float
    high: float
    least: float = float("nan")


@dataclass(frozen=True, slots=True)
class Cell:
    """The cell that deviates most, in words, with how often it was seen and expected."""

    name: str
    seen: float
    expected: float


class Test(Protocol):
    """A claim under test."""

    claim: str

    def add(self, texts: Texts, rounds: Rounds | None) -> None: ...
    def log_e(self) -> float: ...
    def effect(self, log_wanted: float) -> Effect: ...
    def worst(self) -> Cell: ...
    @property
    def samples(self) -> int: ...


def worst_of(parts: Sequence[tuple[Counts, Any]]) -> Cell:
    """Of counts and the names of their cells."""
    best: tuple[float, Counts, int, Any] | None = None
    for counts, name in parts:
        z = counts.deviations()
        cell = int(np.abs(z).argmax())
        if best is None or abs(z[cell]) > best[0]:
            best = (float(abs(z[cell])), counts, cell, name)
    assert best is not None
    _, counts, cell, name = best
    return Cell(name(cell), float(counts.raw[cell]), float(counts.law[cell] * counts.size))


class TableTest:
    """Counts of what texts begin with against their law, a table for each prompt, looked at in one way or in several."""

    parts: list[list[Counts]]  # of each way to look, a table for each prompt; the first is of prefixes

    def log_e(self) -> float:
        return combined([sum(float(counts.log_e()) for counts in part) for part in self.parts])

    @property
    def samples(self) -> int:
        return sum(counts.size for counts in self.parts[0])

    def effect(self, log_wanted: float) -> Effect:
        """The TV of prefixes, the largest of all prompts."""
        value, low, high = max(counts.effect() for counts in self.parts[0])
        return Effect("TV", value, low, high, self.least([counts.size for counts in self.parts[0]], log_wanted))

    def least(self, sizes: Sequence[int], log_wanted: float) -> float:
        """The least TV of prefixes, the same behind every prompt, that so many texts of each prompt find."""
        return least_tv(self.parts[:1], sizes, log_wanted + np.log(len(self.parts)))


@dataclass
class LawTest(TableTest):
    """Emitted texts against their exact law: prefixes of one and two tokens, whole texts, and first rounds with their latents."""

    claim: str
    laws: Laws
    stops: Sequence[int]
    horizon: int  # texts of a prompt
    with_rounds: bool = False

    def __post_init__(self) -> None:
        self.vocab, self.budget = self.laws.tables.vocab, self.laws.budget
        self.short = min(2, self.budget)
        every = torch.arange(self.vocab**self.budget)
        canonical = cut(every, self.vocab, self.budget, self.stops).numpy()
        self.parts = [[], []]
        for prompt in range(len(self.laws.tables.prompts)):
            law = self.laws.texts(prompt).numpy()
            whole = np.bincount(canonical, law, len(every)).astype(float)
            prefix = whole.reshape(self.vocab**self.short, -1).sum(1)
            self.parts[0].append(Counts(prefix, self.horizon))
            self.parts[1].append(Counts(whole, self.horizon))
        if self.with_rounds:
            tables = [first_rounds(self.laws, prompt, self.stops) for prompt in range(len(self.laws.tables.prompts))]
            self.parts.append([Counts(table, self.horizon) for table in tables])

    def add(self, texts: Texts, rounds: Rounds | None) -> None:
        number = number_of(texts.tokens, self.vocab)
        short = number // self.vocab ** (self.budget - self.short)
        first = None
        if self.with_rounds and rounds is not None:
            begins = rounds.begin == 0
            first = self._latent(texts.tokens, rounds.accepted[begins], rounds.emitted[begins])
        for prompt in range(len(self.parts[0])):
            own = texts.prompts == prompt
            self.parts[0][prompt].add(short[own].numpy())
            self.parts[1][prompt].add(number[own].numpy())
            if first is not None:
                self.parts[2][prompt].add(first[own].numpy())

    def _latent(self, tokens: Tensor, accepted: Tensor, emitted: Tensor) -> Tensor:
        width = min(self.laws.num_draft, self.budget - 1) + 1
        shown = torch.where(torch.arange(width) < emitted[:, None], tokens[:, :width], 0)
        return accepted * self.vocab**width + number_of(shown, self.vocab)

    def worst(self) -> Cell:
        named: list[tuple[Counts, Any]] = []
        for prompt in range(len(self.parts[0])):
            named.append((self.parts[0][prompt], self._namer(prompt, self.short)))
            named.append((self.parts[1][prompt], self._namer(prompt, self.budget)))
        return worst_of(named)

    def _namer(self, prompt: int, width: int) -> Any:
        def name(cell: int) -> str:
            tokens = [cell // self.vocab ** (width - 1 - place) % self.vocab for place in range(width)]
            stop = next((place for place, token in enumerate(tokens) if token in self.stops), width - 1)
            said = "begins with" if width < self.budget else "is"
            return f"the text behind prompt {prompt} {said} {' '.join(map(str, tokens[: stop + 1]))}"

        return name


def first_rounds(laws: Laws, prompt: int, stops: Sequence[int]) -> np.ndarray:
    """The law of (how many drafts stayed, what was emitted) in a first round, cut at a stop as the engine cuts."""
    vocab, ends = laws.tables.vocab, laws.round(prompt, 0).ends
    width = min(laws.num_draft, laws.budget - 1) + 1
    law = np.zeros((width + 1) * vocab**width)
    for kept, end in enumerate(ends):
        for number, chance in enumerate(end[0].tolist()):
            tokens = [number // vocab ** (kept - place) % vocab for place in range(kept + 1)]
            stop = next((place for place, token in enumerate(tokens) if token in stops), kept)
            shown = [*tokens[: stop + 1], *[0] * (width - stop - 1)]
            cell = min(kept, stop + 1) * vocab**width
            law[cell + sum(token * vocab ** (width - 1 - place) for place, token in enumerate(shown))] += chance
    return law


@dataclass
class AcceptanceTest:
    """How many drafts stayed, round by round, against the exact law of that number behind the very text: a martingale."""

    laws: Laws
    stops: Sequence[int]
    claim: str = "acceptance"
    coins: Coins = field(default_factory=Coins)

    def __post_init__(self) -> None:
        self._kept: dict[tuple[int, int], Tensor] = {}

    def add(self, texts: Texts, rounds: Rounds | None) -> None:
        assert rounds is not None, "an engine that records its rounds"
        vocab = self.laws.tables.vocab
        for prompt in range(len(self.laws.tables.prompts)):
            # Later rounds of a rule that carries a state depend on what the text does not tell.
            for depth in range(1 if self.laws.carries_state else self.laws.budget - 1):
                own = ((rounds.prompts == prompt) & (rounds.begin == depth)).nonzero()[:, 0]
                if len(own):
                    row = number_of(rounds.before[own, :depth], vocab)
                    law = self._law(prompt, depth)[row]
                    self.coins.add_counts(rounds.accepted[own].numpy(), law.numpy())

    def _law(self, prompt: int, depth: int) -> Tensor:
        """[V^d,K+1]: how many drafts stay, a stop cutting what stands behind it."""
        if (prompt, depth) not in self._kept:
            vocab, ends = self.laws.tables.vocab, self.laws.round(prompt, depth).ends
            law = torch.zeros(vocab**depth, len(ends), dtype=torch.float64)
            stops = torch.tensor(list(self.stops), dtype=torch.int64)
            for kept, end in enumerate(ends):
                number = torch.arange(vocab ** (kept + 1))
                tokens = torch.stack([number // vocab ** (kept - place) % vocab for place in range(kept + 1)], 1)
                is_stop = torch.isin(tokens, stops)
                ended = torch.where(is_stop.any(1), is_stop.long().argmax(1) + 1, kept)
                law.index_add_(1, ended.clamp_max(kept), end)
            self._kept[prompt, depth] = law / law.sum(1, keepdim=True).clamp_min(1e-300)
        return self._kept[prompt, depth]

    def log_e(self) -> float:
        return self.coins.log_e()

    @property
    def samples(self) -> int:
        return self.coins.size

    def effect(self, log_wanted: float) -> Effect:
        return Effect("drafts a round", *self.coins.effect(), self.coins.least(log_wanted))

    def worst(self) -> Cell:
        return Cell("drafts that stayed", self.coins.total, self.coins.expected)


@dataclass
class PitTest:
    """The randomised probability integral transform of tokens under the law that each claims: uniform, whatever came before.

    Tokens are laid out from the likeliest down, and again by how much the other side prefers them.
    """

    claim: str
    horizon: int
    parts: list[Counts] = field(init=False)
    generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def __post_init__(self) -> None:
        even = np.full(BINS, 1 / BINS)
        self.parts = [Counts(even, self.horizon) for _ in range(2)]

    def add_tokens(self, law: Tensor, other: Tensor, tokens: Tensor) -> None:
        """Laws [M,V] and tokens [M]."""
        if not len(tokens):
            return
        coins = torch.from_numpy(self.generator.random((2, len(tokens))))
        for part, key, u in zip(
            self.parts, (law, torch.log(other + 1e-12) - torch.log(law + 1e-12)), coins, strict=True
        ):
            own = key.gather(1, tokens[:, None])
            ids = torch.arange(law.shape[1])
            is_before = (key > own) | ((key == own) & (ids < tokens[:, None]))
            value = (law * is_before).sum(1) + u * law.gather(1, tokens[:, None])[:, 0]
            part.add((value * BINS).long().clamp(0, BINS - 1).numpy())

    def log_e(self) -> float:
        return combined([float(part.log_e()) for part in self.parts])

    @property
    def samples(self) -> int:
        return self.parts[0].size

    def effect(self, log_wanted: float) -> Effect:
        value, low, high = max(part.effect() for part in self.parts)
        return Effect(
            "TV of PIT", value, low, high, least_tv([[part] for part in self.parts], [self.samples], log_wanted)
        )

    def worst(self) -> Cell:
        return worst_of([(part, lambda cell: f"tokens in part {cell} of {BINS} of their law") for part in self.parts])


@dataclass
class DraftTest(PitTest):
    """Drafted tokens against the draft's own law at their prefix."""

    source: Source | None = None
    sampling: Sampling = field(default_factory=Sampling)
    most: int | None = None  # rounds of a look; None: all

    def add(self, texts: Texts, rounds: Rounds | None) -> None:
        assert rounds is not None, "an engine that records its rounds"
        assert self.source is not None, "the models' own laws"
        rounds = rounds if self.most is None else rounds.first(self.most)
        for part in rounds.parts(self.source.vocab):
            self._add(part, self.source)

    def _add(self, rounds: Rounds, source: Source) -> None:
        whole, rows = rounds.whole()[:, : rounds.before.shape[1]], rounds.is_drafted
        sides = [
            self.sampling.law(at_slots(source.logits(side, rounds.prompts.tolist(), whole), rounds)[rows])
            for side in ("draft", "target")
        ]
        self.add_tokens(sides[0], sides[1], rounds.drafts[rows])
