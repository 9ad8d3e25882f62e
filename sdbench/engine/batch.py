"""The rows of a batch, in slots 0 … n−1 without gaps, sorted by family (rules that one call can judge), so that a family's
evidence is a view.

A finished row is replaced at once. A request of the same family takes over its slot. Otherwise the gap is closed, and the new
row is added at the end of its family; each of these two steps moves at most one row per family.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from sdbench import noise
from sdbench.engine.prefill import Prepared
from sdbench.engine.row import Decoding
from sdbench.lm.cache import RaggedCache
from sdbench.lm.model import LM
from sdbench.types import Drafter, Verifier
from sdbench.verify import family, stack

WINDOW = 32  # rounds whose noise is computed at a time


@dataclass(eq=False)
class Batch:
    """At most `num_rows` rows of at most `capacity` tokens, at most `num_draft` drafted per round; a Context for drafters.

    With captured steps (graphs, compile) a round computes a power of two of rows, at most `num_rows`; those after the last text
    are empty.
    """

    target: LM
    drafter: Drafter
    verifiers: Sequence[Verifier]
    num_rows: int
    capacity: int
    num_draft: int
    seed: int

    def __post_init__(self) -> None:
        num_rows, num_draft, target, verifiers = self.num_rows, self.num_draft, self.target, self.verifiers
        self.cache: RaggedCache = target.cache(num_rows, self.capacity)
        self.drafter.open(num_rows, self.capacity, self.cache)
        self.texts = torch.zeros(num_rows, self.capacity + 1, dtype=torch.int64, device=target.device)
        self.sizes = torch.ones(num_rows, dtype=torch.int64, device=target.device)
        self.keys = np.zeros((num_rows, 2), dtype=np.uint64)
        self.noise = torch.zeros(num_rows, WINDOW, 2 * num_draft + 1, dtype=torch.float64, device=target.device)
        self.order = torch.arange(num_rows, device=target.device)
        self.rows: list[Decoding] = []
        names: dict[Hashable, int] = {}
        self.family_of = [names.setdefault(family(rule), len(names)) for rule in verifiers]
        self.counts = [0] * len(names)
        self.states: list[Tensor | None] = [None] * len(names)
        self._stacked = lru_cache(64)(lambda rules: stack([verifiers[number] for number in rules], target.device))
        self._families: list[tuple[slice, Verifier, int]] | None = None

    @property
    def width(self) -> int:
        """The number of rows in the tensors of a round."""
        return self.target.num_padded(len(self.rows), self.num_rows)

    # The Context protocol for drafters.
    @property
    def tokens(self) -> Tensor:
        return self.texts[: self.width]

    @property
    def lengths(self) -> Tensor:
        return self.sizes[: self.width]

    @property
    def longest(self) -> int:
        return max(row.length for row in self.rows)

    @property
    def num_unread(self) -> int:
        """How many of the last tokens of each text the next forward pass of the target reads."""
        return max(row.num_unread for row in self.rows)

    def begin(self, wanted: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Begin a round: return how many tokens each row may draft [B], and its uniforms [B,2K+1] in the order of `noise.table`."""
        rounds = [len(row.drafted) for row in self.rows]
        for slot, number in enumerate(rounds):
            if not number % WINDOW:
                table = noise.table(self.keys[slot], number, WINDOW, self.num_draft)
                self.noise[slot] = torch.from_numpy(table).to(self.noise)
        empty = [0] * (self.width - len(rounds))
        where = torch.tensor([[*wanted, *empty], [*(n % WINDOW for n in rounds), *empty]], device=self.target.device)
        return where[0], self.noise[self.order[: self.width], where[1]]

    def families(self) -> list[tuple[slice, Verifier, int]]:
        """Return (rows, their stacked rule, family) of every family that has rows."""
        if self._families is None:
            self._families, start = [], 0
            for number, count in enumerate(self.counts):
                if count:
                    rows = slice(start, start + count)
                    rule = self._stacked(tuple(row.request.verifier for row in self.rows[rows]))
                    self._families.append((rows, rule, number))
                start += count
        return self._families

    def admit(self, row: Decoding, start: Prepared, slot: int | None = None) -> None:
        """Add a row: in `slot`, that of a finished row of the same family, or at the end of its family (None)."""
        if slot is None:
            slot = len(self.rows)
            self.rows.append(row)
            for other in range(len(self.counts) - 1, row.family, -1):
                if self.counts[other]:
                    self._move(slot - self.counts[other], slot)
                    slot -= self.counts[other]
            self.counts[row.family] += 1
        self.rows[slot], self._families = row, None
        self.texts[slot, : row.num_prompt] = start.prompt
        self.sizes[slot] = row.num_prompt
        self.keys[slot] = noise.stream_key(self.seed, row.request.key, row.request.sample)
        self.cache.write(slot, start.prefix)
        self.drafter.admit(slot, start.draft_prefix)
        state = self.verifiers[row.request.verifier].init_state([start.prompt], self.target.device)
        if state is not None:
            states = self.states[row.family]
            if states is None:
                states = self.states[row.family] = state.new_zeros(self.num_rows, *state.shape[1:])
            states[slot] = state[0]

    def write(self, drafts: Tensor, accepted: Tensor, next_token: Tensor) -> Tensor:
        """Append to each text its accepted drafts and next_token [B,1]; return the block [B,K+1]: drafts [B,K], with next_token at
        index accepted [B,1]. What follows next_token in the block is not part of the text.
        """
        block = torch.cat((drafts, next_token), 1).scatter_(1, accepted, next_token)
        sizes = self.sizes[: len(block)]
        positions = sizes[:, None] + torch.arange(block.shape[1], device=block.device)
        self.texts[: len(block)].scatter_(1, positions, block)
        sizes += accepted[:, 0] + 1
        return block

    def close(self) -> None:
        """Return the caches."""
        self.target.give_back(self.cache)
        self.drafter.close()

    def remove(self, slot: int) -> None:
        """Remove a row. The last row of its family closes the gap, then the last row of each later family closes the new gap."""
        gone, free, end = self.rows[slot].family, slot, sum(self.counts[: self.rows[slot].family])
        for count in self.counts[gone:]:
            end += count
            if count and end - 1 != free:
                self._move(end - 1, free)
                free = end - 1
        self.counts[gone] -= 1
        self.rows.pop()
        self.sizes[len(self.rows)] = 1  # an empty row sees itself only, so that nothing it computes is NaN
        self._families = None

    def _move(self, source: int, slot: int) -> None:
        row = self.rows[slot] = self.rows[source]
        self.texts[slot] = self.texts[source]
        self.sizes[slot] = self.sizes[source]
        self.keys[slot] = self.keys[source]
        self.noise[slot] = self.noise[source]
        self.cache.move(source, slot, row.length)
        self.drafter.move(source, slot)
        states = self.states[row.family]
        if states is not None:
            states[slot] = states[source]
