"""The rows that are being decoded: texts on the device, their logs and noise keys on the host."""

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sdbench import noise
from sdbench.engine.log import Log
from sdbench.types import Verdict, Verifier
from sdbench.verify.families import family, stack


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that one call of a rule judges: a slice where they stand together."""

    rule: Verifier
    rows: list[int]
    index: slice | Tensor


class Batch:
    """Rows 0 … len(logs) − 1 are active. Texts are right-padded; row b's is tokens[b, :lengths[b]]."""

    def __init__(self, num_rows: int, capacity: int, seed: int, device: torch.device) -> None:
        self.logs: list[Log] = []
        self.num_rows, self.capacity, self.seed, self.device = num_rows, capacity, seed, device
        self._tokens = torch.zeros(num_rows, capacity, dtype=torch.int64, device=device)
        self._lengths = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self._keys = np.zeros((num_rows, 2), dtype=np.uint64)
        self._rounds = np.zeros(num_rows, dtype=np.int64)
        self._states: list[Tensor | None] = [None] * num_rows
        self._groups: list[Group] | None = None

    @property
    def tokens(self) -> Tensor:
        return self._tokens[: len(self.logs)]

    @property
    def lengths(self) -> Tensor:
        return self._lengths[: len(self.logs)]

    @property
    def longest(self) -> int:
        return max(len(log.request.ids) + len(log.tokens) for log in self.logs)

    def put(self, row: int, log: Log, prompt: Tensor) -> None:
        """A new text in a free row, or in the first beyond the active ones."""
        request = log.request
        if row == len(self.logs):
            self.logs.append(log)
        else:
            self.logs[row] = log
        self._tokens[row, : len(prompt)] = prompt
        self._lengths[row] = len(prompt)
        self._keys[row] = noise.stream_key(self.seed, request.key, request.sample)
        self._rounds[row] = 0
        state = request.rule.init_state(1)
        self._states[row] = None if state is None else state[0]
        self._groups = None

    def close(self, row: int) -> int:
        """The last row moves into a row that is done; gives the row it came from."""
        last = len(self.logs) - 1
        for store in (self._tokens, self._lengths, self._keys, self._rounds, self._states, self.logs):
            store[row] = store[last]  # pyright: ignore
        self.logs.pop()
        self._groups = None
        return last

    def uniforms(self, num_draft: int, stream: int) -> Tensor:
        """[B,K] for the drafter, [B,K+1] for the rules."""
        slots = noise.slots(num_draft)
        rows = len(self.logs)
        slots = slots[:-1] if stream == noise.DRAFT else slots
        return torch.from_numpy(noise.uniforms(self._keys[:rows], self._rounds[:rows], slots, stream)).to(self.device)

    def groups(self) -> list[Group]:
        """Families of rules; rows of one family may differ in their knobs."""
        if self._groups is None:
            by_family: dict[Hashable, list[int]] = {}
            for row, log in enumerate(self.logs):
                by_family.setdefault(family(log.request.rule), []).append(row)
            self._groups = [self._group(rows) for rows in by_family.values()]
        return self._groups

    def _group(self, rows: list[int]) -> Group:
        together = rows[-1] - rows[0] + 1 == len(rows)
        index = slice(rows[0], rows[-1] + 1) if together else torch.tensor(rows, device=self.device)
        return Group(stack([self.logs[row].request.rule for row in rows], self.device), rows, index)

    def state(self, group: Group) -> Tensor | None:
        """[b,S] of a stateful family."""
        states = [self._states[row] for row in group.rows]
        return None if states[0] is None else torch.stack([s for s in states if s is not None])

    def commit(self, draft_tokens: Tensor, verdict: Verdict) -> None:
        """Write what was emitted behind the texts; slots past it hold anything."""
        accepted, next_token = verdict.accepted[:, None], verdict.next_token[:, None]
        new = torch.cat((draft_tokens, next_token), 1).scatter_(1, accepted, next_token)
        lengths = self.lengths
        self.tokens.scatter_(1, lengths[:, None] + torch.arange(new.shape[1], device=self.device), new)
        lengths += verdict.accepted + 1
        self._rounds[: len(self.logs)] += 1

    def keep_state(self, group: Group, state: Tensor | None) -> None:
        if state is not None:
            for row, value in zip(group.rows, state, strict=True):
                self._states[row] = value
