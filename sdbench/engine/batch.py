"""Which row stands where. Rows lie dense in slots 0 … n−1, sorted by family, so that a family's evidence is a view.

A finished row is replaced at once: by a request of its own family in its very slot, else the hole travels to where the new
row belongs, one move for each family it crosses.
"""

from collections.abc import Hashable, Sequence

import numpy as np
import torch
from torch import Tensor

from sdbench import noise
from sdbench.engine.row import Row
from sdbench.lm import LM, Prefix, RaggedCache
from sdbench.types import Drafter, Verifier
from sdbench.verify import family, stack


class Batch:
    """At most `num_rows` rows of at most `capacity` tokens; a Context for drafters."""

    def __init__(
        self, target: LM, drafter: Drafter, verifiers: Sequence[Verifier], num_rows: int, capacity: int, seed: int
    ) -> None:
        self.target, self.drafter, self.verifiers, self.seed = target, drafter, verifiers, seed
        self.num_rows, self.capacity = num_rows, capacity
        self.cache: RaggedCache = target.cache(num_rows, capacity)
        drafter.open(num_rows, capacity)
        self.texts = torch.zeros(num_rows, capacity + 1, dtype=torch.int64, device=target.device)
        self.sizes = torch.ones(num_rows, dtype=torch.int64, device=target.device)
        self.keys = np.zeros((num_rows, 2), dtype=np.uint64)
        self.rows: list[Row] = []
        names: dict[Hashable, int] = {}
        self.family_of = [names.setdefault(family(rule), len(names)) for rule in verifiers]
        self.counts = [0] * len(names)
        self.states: list[Tensor | None] = [None] * len(names)
        self._rules: dict[tuple[int, ...], Verifier] = {}

    # What a drafter sees.
    @property
    def tokens(self) -> Tensor:
        return self.texts[: len(self.rows)]

    @property
    def lengths(self) -> Tensor:
        return self.sizes[: len(self.rows)]

    @property
    def longest(self) -> int:
        return max(row.length for row in self.rows)

    def families(self) -> list[tuple[slice, Verifier, int]]:
        """(rows, their stacked rule, family) of every family that has rows."""
        found, start = [], 0
        for number, count in enumerate(self.counts):
            if count:
                members = tuple(row.request.verifier for row in self.rows[start : start + count])
                found.append((slice(start, start + count), self._stacked(members), number))
            start += count
        return found

    def _stacked(self, members: tuple[int, ...]) -> Verifier:
        if members not in self._rules:
            if len(self._rules) > 64:
                self._rules.clear()
            self._rules[members] = stack([self.verifiers[index] for index in members], self.target.device)
        return self._rules[members]

    def admit(self, row: Row, prompt: Tensor, prefix: Prefix, draft_prefix: object) -> None:
        """A new row, at the end of its family."""
        free = len(self.rows)
        self.rows.append(row)
        for other in range(len(self.counts) - 1, row.family, -1):
            if self.counts[other]:
                first = free - self.counts[other]
                self._move(first, free)
                free = first
        self.counts[row.family] += 1
        self._write(free, row, prompt, prefix, draft_prefix)

    def replace(self, slot: int, row: Row, prompt: Tensor, prefix: Prefix, draft_prefix: object) -> None:
        """A new row in the slot of a finished one of the same family."""
        self._write(slot, row, prompt, prefix, draft_prefix)

    def remove(self, slot: int) -> None:
        """Close the hole: the last row of its family moves in, then the last of each family behind."""
        gone, free, end = self.rows[slot].family, slot, sum(self.counts[: self.rows[slot].family])
        for count in self.counts[gone:]:
            end += count
            if count and end - 1 != free:
                self._move(end - 1, free)
                free = end - 1
        self.counts[gone] -= 1
        self.rows.pop()

    def _write(self, slot: int, row: Row, prompt: Tensor, prefix: Prefix, draft_prefix: object) -> None:
        self.rows[slot] = row
        self.texts[slot, : len(prompt)] = prompt
        self.sizes[slot] = len(prompt)
        self.keys[slot] = noise.stream_key(self.seed, row.request.key, row.request.sample)
        self.cache.write(slot, prefix)
        self.drafter.admit(slot, draft_prefix)
        fresh = self.verifiers[row.request.verifier].init_state(1)
        if fresh is not None:
            held = self.states[row.family]
            if held is None:
                held = self.states[row.family] = fresh.new_zeros(self.num_rows, *fresh.shape[1:])
            held[slot] = fresh[0]

    def _move(self, source: int, slot: int) -> None:
        row = self.rows[slot] = self.rows[source]
        self.texts[slot] = self.texts[source]
        self.sizes[slot] = self.sizes[source]
        self.keys[slot] = self.keys[source]
        self.cache.move(source, slot, row.length)
        self.drafter.move(source, slot)
        held = self.states[row.family]
        if held is not None:
            held[slot] = held[source]
