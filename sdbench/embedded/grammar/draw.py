"""Chance for the grammars: the same rows on every machine and under every Python version."""

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """Choices made from `random.Random.random` alone: the one method whose sequence Python promises to keep."""

    def __init__(self, key: str) -> None:
        seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
        self._random = random.Random(seed).random

    def below(self, n: int) -> int:
        return int(self._random() * n)

    def between(self, low: int, high: int) -> int:
        """An integer in [low, high]."""
        return low + int(self._random() * (high - low + 1))

    def share(self) -> float:
        """A number in [0, 1)."""
        return self._random()

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self._random() * len(items))]

    def sample(self, items: Sequence[T], n: int) -> list[T]:
        """Return n different items, in random order."""
        pool = list(items)
        for i in range(n):
            j = i + int(self._random() * (len(pool) - i))
            pool[i], pool[j] = pool[j], pool[i]
        return pool[:n]

    def shuffle(self, items: Sequence[T]) -> list[T]:
        return self.sample(items, len(items))


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def table(text: str) -> tuple[tuple[str, ...], ...]:
    """Return the words of each entry of a comma list; _ stands for a blank within a word."""
    return tuple(tuple(word.replace("_", " ") for word in words(entry)) for entry in text.split(","))
