"""Generations as arrays: the texts, the rounds that emitted them, and short texts numbered as digits in base V."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

import torch
from torch import Tensor

from sdbench.types import Generation

T = TypeVar("T")

ELEMENTS = 1 << 22  # the most elements of distributions in memory at a time
ORIGINS = ("accepted", "replacement", "bonus", "sure")


def digits_of(numbers: Tensor, base: int, width: int) -> Tensor:
    """Return the digits [N,width] of numbers [N], the first token most significant."""
    return numbers[:, None] // base ** torch.arange(width - 1, -1, -1) % base


def number_of(texts: Tensor, base: int) -> Tensor:
    """Return the numbers [N] of digits [N,width]: the inverse of `digits_of`."""
    return (texts * base ** torch.arange(texts.shape[1] - 1, -1, -1)).sum(1)


def cut_at_stops(numbers: Tensor, base: int, width: int, stops: Sequence[int]) -> Tensor:
    """Replace every token after the first stop by 0, in numbers [N] of texts of `width` tokens."""
    texts = digits_of(numbers, base, width)
    is_stop = torch.isin(texts, torch.tensor(list(stops), dtype=torch.int64))
    has_ended = torch.nn.functional.pad(is_stop.long().cumsum(1), (1, -1)) > 0
    return number_of(torch.where(has_ended, 0, texts), base)


def require_rounds(values: tuple[T, ...] | None) -> tuple[T, ...]:
    """Return a field of a generation; ValueError unless its engine records every round."""
    if values is None:
        raise ValueError(
            "this engine does not report its rounds, drafts and origins: audit its texts with generations=FILE"
        )
    return values


def pad(values: Sequence[T], width: int, filler: T) -> list[T]:
    return [*values, *[filler] * (width - len(values))]


@dataclass(frozen=True, slots=True)
class TextBatch:
    """N texts of at most T tokens, padded with 0. Origins index ORIGINS; −1 where there is no token or its origin is unknown."""

    prompts: Tensor  # [N]
    tokens: Tensor  # [N,T]
    lengths: Tensor  # [N]
    origins: Tensor  # [N,T]

    @property
    def is_token(self) -> Tensor:
        return torch.arange(self.tokens.shape[1]) < self.lengths[:, None]

    @classmethod
    def of(cls, prompts: Sequence[int], rows: Sequence[Sequence[int]], width: int) -> Self:
        """Return a batch of texts whose origins are unknown."""
        tokens = torch.tensor([pad(row, width, 0) for row in rows], dtype=torch.int64).reshape(len(rows), width)
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
        return cls(torch.tensor(list(prompts)), tokens, lengths, torch.full_like(tokens, -1))

    @classmethod
    def of_generations(cls, generations: Sequence[Generation], width: int) -> Self:
        batch = cls.of([g.prompt for g in generations], [g.tokens for g in generations], width)
        for row, g in enumerate(generations):
            codes = [ORIGINS.index(origin) for origin in require_rounds(g.origins)]
            batch.origins[row, : len(codes)] = torch.tensor(codes, dtype=torch.int64)
        return batch


@dataclass(frozen=True, slots=True)
class RoundBatch:
    """R rounds: the text before each, its drafts (padded with 0), and how many of them were accepted."""

    text: Tensor  # [R] index of its text
    prompts: Tensor  # [R]
    begin: Tensor  # [R] number of tokens emitted before it
    before: Tensor  # [R,T] those tokens, padded with 0
    drafts: Tensor  # [R,K]
    drafted: Tensor  # [R] how many of them are recorded
    accepted: Tensor  # [R]
    emitted: Tensor  # [R]
    p: Tensor  # [R,K] as recorded, NaN past `drafted`
    q: Tensor  # [R,K]

    @classmethod
    def of(cls, generations: Sequence[Generation], width: int, num_draft: int) -> Self:
        counts: list[tuple[int, ...]] = []
        before: list[list[int]] = []
        drafts: list[list[int]] = []
        p: list[list[float]] = []
        q: list[list[float]] = []
        for index, g in enumerate(generations):
            begin = first = 0
            rounds = list(zip(require_rounds(g.drafted), require_rounds(g.accepted), strict=True))
            for number, (drafted, accepted) in enumerate(rounds, start=1):
                emitted = accepted + 1 if number < len(rounds) else len(g.tokens) - begin
                counts.append((index, g.prompt, begin, drafted, accepted, emitted))
                before.append(pad(g.tokens[:begin], width, 0))
                slots = slice(first, first + drafted)
                drafts.append(pad(require_rounds(g.draft_tokens)[slots], num_draft, 0))
                p.append(pad(require_rounds(g.p)[slots], num_draft, float("nan")))
                q.append(pad(require_rounds(g.q)[slots], num_draft, float("nan")))
                begin, first = begin + emitted, first + drafted
        text, prompts, begins, lengths, accepted, emitted = torch.tensor(counts).reshape(-1, 6).long().unbind(1)
        past = torch.tensor(before, dtype=torch.int64).reshape(len(counts), width)
        tokens = torch.tensor(drafts, dtype=torch.int64).reshape(len(counts), num_draft)
        recorded = (torch.tensor(values, dtype=torch.float64).reshape(tokens.shape) for values in (p, q))
        return cls(text, prompts, begins, past, tokens, lengths, accepted, emitted, *recorded)

    @property
    def is_drafted(self) -> Tensor:
        return torch.arange(self.drafts.shape[1]) < self.drafted[:, None]

    @property
    def positions(self) -> Tensor:
        """Return the position [R,K] of each draft in its text."""
        return self.begin[:, None] + torch.arange(self.drafts.shape[1])

    def first(self, count: int) -> Self:
        """Return at most `count` of the rounds, chosen at random: even steps could select the first round of every text."""
        order = torch.randperm(len(self.text), generator=torch.Generator().manual_seed(0))
        return self.rows(order[:count].sort().values)

    def rows(self, index: Tensor) -> Self:
        return type(self)(*(getattr(self, name)[index] for name in self.__dataclass_fields__))

    def parts(self, vocab: int) -> Iterator[Self]:
        """Split into parts whose distributions [R,T,V] fit into memory."""
        step = max(1, ELEMENTS // (vocab * self.before.shape[1]))
        for index in torch.arange(len(self.text)).split(step):
            yield self.rows(index)

    def whole(self) -> Tensor:
        """Return the text before each round followed by its drafts, [R,T+K]."""
        out = torch.cat((self.before, torch.zeros_like(self.drafts)), 1)
        return out.scatter(1, self.positions, torch.where(self.is_drafted, self.drafts, 0))

    def at_drafts(self, values: Tensor) -> Tensor:
        """Return the values [R,K,…] at the drafted positions, from values [R,T+K,…] along `whole()`."""
        rows = torch.arange(len(self.text))[:, None]
        return values[rows, self.positions.clamp_max(values.shape[1] - 1)]

    def drafts_along(self, texts: TextBatch) -> Tensor:
        """Return the draft [N,T] that was judged at each position of a text; the token itself where none was."""
        out = texts.tokens.clone()
        is_inside = self.is_drafted & (self.positions < out.shape[1])
        rows = self.text[:, None].expand_as(self.positions)
        out[rows[is_inside], self.positions[is_inside]] = self.drafts[is_inside]
        return out


SampledTexts = tuple[TextBatch, RoundBatch | None]
DrawTexts = Callable[[Sequence[int], int, int], list[SampledTexts]]  # (settings, texts of a prompt, look) -> one each
