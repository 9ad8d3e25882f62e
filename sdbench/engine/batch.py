"""Which row stands where. Rows lie dense in slots 0 … n−1, sorted by family, so that a family's evidence is a view.

A finished row is replaced at once: by a request of its own family in its very slot, else the hole travels to where the new
row belongs, one move for each family it crosses.
"""

from collections.abc import Hashable, Sequence

import numpy as np
import torch
from torch import Tensor

from sdbench import noise
from sdbench.engine.row import Decoding
from sdbench.lm import LM, Prefix, RaggedCache
from sdbench.types import Drafter, Verifier
from sdbench.verify import family, stack

WINDOW = 32  # rounds whose noise is made at a time


class Batch:
    """At most `num_rows` rows of at most `capacity` tokens, at most `num_draft` drafted a round; a Context for drafters.

    Where the target's steps are captured, rows come in powers of two, those behind the last text being empty.
    """

    def __init__(
        self,
        target: LM,
        drafter: Drafter,
        verifiers: Sequence[Verifier],
        num_rows: int,
        capacity: int,
        num_draft: int,
        seed: int,
    ) -> None:
        self.target, self.drafter, self.verifiers, self.seed = target, drafter, verifiers, seed
        self.num_rows, self.capacity, self.num_draft = num_rows, capacity, num_draft
        self.cache: RaggedCache = target.cache(num_rows, capacity)
        drafter.open(num_rows, capacity, self.cache)
        self.texts = torch.zeros(num_rows, capacity + 1, dtype=torch.int64, device=target.device)
        self.sizes = torch.ones(num_rows, dtype=torch.int64, device=target.device)
        self.keys = np.zeros((num_rows, 2), dtype=np.uint64)
        self.noise = torch.zeros(num_rows, WINDOW, 2 * num_draft + 1, dtype=torch.float64, device=target.device)
        self.order = torch.arange(num_rows, device=target.device)
        self.rows: list[Decoding] = []
        names: dict[Hashable, int] = {}
        self.family_of = [names.setdefault(family(rule), len(names)) for rule in verifiers]
        self.counts = [0] * len(names)
        self.states: list[Tensor | None] = [None] * len(names)
        self._rules: dict[tuple[int, ...], Verifier] = {}
        self._families: list[tuple[slice, Verifier, int]] | None = None

    @property
    def width(self) -> int:
        """Rows of the tensors of a round."""
        return self.target.padded(len(self.rows), self.num_rows)

    # What a drafter sees.
    @property
    def tokens(self) -> Tensor:
        return self.texts[: self.width]

    @property
    def lengths(self) -> Tensor:
        return self.sizes[: self.width]

    @property
    def longest(self) -> int:
        return max(row.length for row in self.rows)

    def begin(self, wanted: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Of the round that begins: how much each row may draft [B], and its uniforms [B,2K+1] as `noise.table` orders them."""
        rounds = [len(row.drafted) for row in self.rows]
        for slot, number in enumerate(rounds):
            if number and not number % WINDOW:
                self._make_noise(slot, number)
        empty = [0] * (self.width - len(rounds))
        where = torch.tensor([[*wanted, *empty], [*(n % WINDOW for n in rounds), *empty]], device=self.target.device)
        return where[0], self.noise[self.order[: self.width], where[1]]

    def _make_noise(self, slot: int, first: int) -> None:
        table = noise.table(self.keys[slot], first, WINDOW, self.num_draft)
        self.noise[slot] = torch.from_numpy(table).to(self.noise)

    def families(self) -> list[tuple[slice, Verifier, int]]:
        """(rows, their stacked rule, family) of every family that has rows."""
        if self._families is None:
            self._families, start = [], 0
            for number, count in enumerate(self.counts):
                if count:
                    members = tuple(row.request.verifier for row in self.rows[start : start + count])
                    self._families.append((slice(start, start + count), self._stacked(members), number))
                start += count
        return self._families

    def _stacked(self, members: tuple[int, ...]) -> Verifier:
        if members not in self._rules:
            if len(self._rules) > 64:
                self._rules.clear()
            self._rules[members] = stack([self.verifiers[index] for index in members], self.target.device)
        return self._rules[members]

    def admit(self, row: Decoding, prompt: Tensor, prefix: Prefix, draft_prefix: object) -> None:
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

    def replace(self, slot: int, row: Decoding, prompt: Tensor, prefix: Prefix, draft_prefix: object) -> None:
        """A new row in the slot of a finished one of the same family."""
        self._write(slot, row, prompt, prefix, draft_prefix)

    def write(self, drafts: Tensor, accepted: Tensor, next_token: Tensor) -> Tensor:
        """Behind each text, the block [B,K+1]: drafts [B,K] with next_token [B,1] in place accepted [B,1]; the text ends there."""
        block = torch.cat((drafts, next_token), 1).scatter_(1, accepted, next_token)
        sizes = self.sizes[: len(block)]
        places = sizes[:, None] + torch.arange(block.shape[1], device=block.device)
        self.texts[: len(block)].scatter_(1, places, block)
        sizes += accepted[:, 0] + 1
        return block

    def close(self) -> None:
        """Nothing is decoded any more."""
        self.target.give_back(self.cache)
        self.drafter.close()

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
        self.sizes[len(self.rows)] = 1  # an empty row sees itself only: nothing it computes is NaN
        self._families = None

    def _write(self, slot: int, row: Decoding, prompt: Tensor, prefix: Prefix, draft_prefix: object) -> None:
        self.rows[slot], self._families = row, None
        self.texts[slot, : len(prompt)] = prompt
        self.sizes[slot] = len(prompt)
        self.keys[slot] = noise.stream_key(self.seed, row.request.key, row.request.sample)
        self._make_noise(slot, 0)
        self.cache.write(slot, prefix)
        self.drafter.admit(slot, draft_prefix)
        state = self.verifiers[row.request.verifier].init_state([prompt], self.target.device)
        if state is not None:
            states = self.states[row.family]
            if states is None:
                states = self.states[row.family] = state.new_zeros(self.num_rows, *state.shape[1:])
            states[slot] = state[0]

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
