"""Generations as arrays: the texts, and the rounds that made them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from sdbench.types import Generation

T = TypeVar("T")

ELEMENTS = 1 << 22  # of laws at a time
ORIGINS = ("accepted", "replacement", "bonus")


def told(values: tuple[T, ...] | None) -> tuple[T, ...]:
    """What an engine tells of a text; only one that tells all of it can be audited round by round."""
    if values is None:
        raise ValueError(
            "this engine does not tell its rounds, drafts and origins: audit its texts with generations=FILE"
        )
    return values


@dataclass(frozen=True, slots=True)
class Texts:
    """N texts of at most T tokens, padded with 0; origins are places in ORIGINS, −1 where there is no token or none is known."""

    prompts: Tensor  # [N]
    tokens: Tensor  # [N,T]
    lengths: Tensor  # [N]
    origins: Tensor  # [N,T]

    @property
    def is_token(self) -> Tensor:
        return torch.arange(self.tokens.shape[1]) < self.lengths[:, None]

    @classmethod
    def of(cls, prompts: Sequence[int], rows: Sequence[Sequence[int]], width: int) -> Texts:
        """Texts of which nothing else is known."""
        padded = [[*row, *[0] * (width - len(row))] for row in rows]
        tokens = torch.tensor(padded, dtype=torch.int64).reshape(len(rows), width)
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
        return cls(torch.tensor(list(prompts)), tokens, lengths, torch.full_like(tokens, -1))

    @classmethod
    def decoded(cls, generations: Sequence[Generation], width: int) -> Texts:
        plain = cls.of([g.prompt for g in generations], [g.tokens for g in generations], width)
        for row, generation in enumerate(generations):
            codes = [ORIGINS.index(origin) for origin in told(generation.origins)]
            plain.origins[row, : len(codes)] = torch.tensor(codes, dtype=torch.int64)
        return plain


@dataclass(frozen=True, slots=True)
class Rounds:
    """R rounds: the text before each, what was drafted (padded with 0), how much of it stayed."""

    text: Tensor  # [R] its text
    prompts: Tensor  # [R]
    begin: Tensor  # [R] tokens emitted before it
    before: Tensor  # [R,T] those tokens, padded with 0
    drafts: Tensor  # [R,K]
    drafted: Tensor  # [R] … of which so many are recorded
    accepted: Tensor  # [R]
    emitted: Tensor  # [R]
    p: Tensor  # [R,K] as recorded, NaN where nothing is
    q: Tensor  # [R,K]

    @classmethod
    def of(cls, generations: Sequence[Generation], width: int, num_draft: int) -> Rounds:
        rows: list[tuple[int, int, int, int, int, int]] = []
        before: list[list[int]] = []
        drafts: list[list[int]] = []
        recorded: tuple[list[list[float]], list[list[float]]] = ([], [])
        for number, g in enumerate(generations):
            begin = place = 0
            counts = list(zip(told(g.drafted), told(g.accepted), strict=True))
            for which, (length, kept) in enumerate(counts):
                is_last = which == len(counts) - 1
                emitted = len(g.tokens) - begin if is_last else kept + 1
                rows.append((number, g.prompt, begin, length, kept, emitted))
                before.append([*g.tokens[:begin], *[0] * (width - begin)])
                drafts.append([*told(g.draft_tokens)[place : place + length], *[0] * (num_draft - length)])
                for into, values in zip(recorded, (g.p, g.q), strict=True):
                    own = list(told(values)[place : place + length])
                    into.append([*own, *[float("nan")] * (num_draft - len(own))])
                begin, place = begin + emitted, place + length
        text, prompts, begins, drafted, accepted, emitted = (
            torch.tensor([row[column] for row in rows], dtype=torch.int64) for column in range(6)
        )
        past = torch.tensor(before, dtype=torch.int64).reshape(len(rows), width)
        x = torch.tensor(drafts, dtype=torch.int64).reshape(len(rows), num_draft)
        p, q = (torch.tensor(values, dtype=torch.float64).reshape(len(rows), num_draft) for values in recorded)
        return cls(text, prompts, begins, past, x, drafted, accepted, emitted, p, q)

    @property
    def is_drafted(self) -> Tensor:
        return torch.arange(self.drafts.shape[1]) < self.drafted[:, None]

    def first(self, count: int) -> Rounds:
        """The same of `count` rounds, evenly spread."""
        return self.rows(torch.arange(0, len(self.text), max(1, -(-len(self.text) // count))))

    def rows(self, index: Tensor) -> Rounds:
        return Rounds(*(getattr(self, name)[index] for name in self.__dataclass_fields__))

    def parts(self, vocab: int) -> Iterator[Rounds]:
        """The same in parts whose laws [R,T,V] fit into memory."""
        step = max(1, ELEMENTS // (vocab * self.before.shape[1]))
        for index in torch.arange(len(self.text)).split(step):
            yield self.rows(index)

    def whole(self) -> Tensor:
        """[R,T+K]: the text before each round and its drafts behind it, closed up."""
        out = torch.cat((self.before, torch.zeros_like(self.drafts)), 1)
        places = self.begin[:, None] + torch.arange(self.drafts.shape[1])
        return out.scatter(1, places, torch.where(self.is_drafted, self.drafts, 0))


def at_slots(values: Tensor, rounds: Rounds) -> Tensor:
    """[R,K,…]: of values [R,T+K,…] along `rounds.whole()`, those at the drafted places."""
    places = rounds.begin[:, None] + torch.arange(rounds.drafts.shape[1])
    rows = torch.arange(len(places))[:, None]
    return values[rows, places.clamp_max(values.shape[1] - 1)]


def cut(numbers: Tensor, base: int, width: int, stops: Sequence[int]) -> Tensor:
    """Numbers of texts of `width` tokens -> of the same with 0 behind the first stop."""
    texts = torch.stack([numbers // base ** (width - 1 - place) % base for place in range(width)], 1)
    is_stop = torch.isin(texts, torch.tensor(list(stops), dtype=torch.int64))
    ended = torch.nn.functional.pad(is_stop.long().cumsum(1), (1, -1)) > 0
    texts = torch.where(ended, 0, texts)
    number = torch.zeros(len(texts), dtype=torch.int64)
    for token in texts.unbind(1):
        number = number * base + token
    return number
