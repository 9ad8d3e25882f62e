"""Prompts whose keys and values are kept, because few-shot prompts share a beginning and several streams use the same prompts."""

from collections import deque
from collections.abc import Sequence
from itertools import takewhile

from torch import Tensor

from sdbench.lm.cache import Prefix
from sdbench.lm.memory import KNOWN_BYTES

SHORTEST = 16  # tokens; shorter beginnings are not reused


class KnownPrefixes:
    """The newest prompts of a model: at most `most_bytes`, or those of one call. Valid while the weights do not change."""

    def __init__(self, most_bytes: int = KNOWN_BYTES) -> None:
        self.most_bytes = most_bytes
        self._calls: deque[list[tuple[list[int], Prefix]]] = deque()  # the prefixes of a call are views of one cache

    def longest(self, prompts: Sequence[Tensor]) -> tuple[int, list[Prefix]]:
        """Return how many tokens are known at the start of every prompt [L], and the prefixes that hold them."""
        best = [self._best(prompt.tolist()) for prompt in prompts]
        start = min(length for length, _ in best)
        if start < SHORTEST:
            return 0, []
        return start, [prefix.first(start) for _, prefix in best if prefix is not None]

    def _best(self, ids: list[int]) -> tuple[int, Prefix | None]:
        """Return the longest known beginning of a prompt, and where it is stored."""
        known = ((num_equal(ids, others), prefix) for call in self._calls for others, prefix in call)
        return max(known, key=lambda pair: pair[0], default=(0, None))

    def add(self, prompts: Sequence[Tensor], prefixes: Sequence[Prefix]) -> None:
        """Store these prompts, and drop the oldest until all fit."""
        self._calls.append([(prompt.tolist(), prefix) for prompt, prefix in zip(prompts, prefixes, strict=True)])
        while (
            len(self._calls) > 1 and sum(prefix.nbytes for call in self._calls for _, prefix in call) > self.most_bytes
        ):
            self._calls.popleft()


def num_equal(ids: Sequence[int], others: Sequence[int]) -> int:
    """Return the length of the common beginning of two texts."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ids, others, strict=False)))
