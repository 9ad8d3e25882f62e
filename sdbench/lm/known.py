"""Prompts whose keys and values are kept for a while: few-shot prompts begin alike, and several models' streams ask for each."""

from collections import deque
from collections.abc import Sequence
from itertools import takewhile

from torch import Tensor

from sdbench.lm.cache import Prefix
from sdbench.lm.memory import KNOWN_BYTES

SHORTEST = 16  # tokens; a shorter beginning is not worth a copy


class KnownPrefixes:
    """The newest prompts of a model, of at most `most_bytes` or one call's. It holds while the weights stay what they are."""

    def __init__(self, most_bytes: int = KNOWN_BYTES) -> None:
        self.most_bytes = most_bytes
        self._calls: deque[list[tuple[list[int], Prefix]]] = deque()  # the prefixes of a call are views of one cache

    def longest(self, prompts: Sequence[Tensor]) -> tuple[int, list[Prefix]]:
        """Return how many tokens of each prompt [L] are known at least, and the prefixes that hold these."""
        best = [self._best(prompt.tolist()) for prompt in prompts]
        start = min(length for length, _ in best)
        if start < SHORTEST:
            return 0, []
        return start, [prefix.first(start) for _, prefix in best if prefix is not None]

    def _best(self, ids: list[int]) -> tuple[int, Prefix | None]:
        """Return the longest beginning of a prompt that is known, and where it stands."""
        known = ((num_equal(ids, others), prefix) for call in self._calls for others, prefix in call)
        return max(known, key=lambda pair: pair[0], default=(0, None))

    def add(self, prompts: Sequence[Tensor], prefixes: Sequence[Prefix]) -> None:
        """Keep these, and let go of the oldest."""
        self._calls.append([(prompt.tolist(), prefix) for prompt, prefix in zip(prompts, prefixes, strict=True)])
        while (
            len(self._calls) > 1 and sum(prefix.nbytes for call in self._calls for _, prefix in call) > self.most_bytes
        ):
            self._calls.popleft()


def num_equal(ids: Sequence[int], others: Sequence[int]) -> int:
    """Return how many tokens two texts have in common from their beginnings on."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ids, others, strict=False)))
