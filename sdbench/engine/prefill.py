"""Prefill of prompts: each is prefilled once, consecutive short ones together.

In a batch of one row, a prompt that only one request needs is prefilled in whole chunks only. Its first round reads the rest
together with the first drafts, which saves one forward pass of each model per text.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sdbench.draft import prefill_all, reads_target
from sdbench.engine.clock import Clock
from sdbench.lm.cache import Prefix
from sdbench.lm.memory import CHUNK
from sdbench.lm.model import LM
from sdbench.types import DRAFTER_NEEDS, Drafter, needs_of


class Prepared(NamedTuple):
    """A prompt, its prefixes of target and drafter, and the seconds of the prefill; 0 for later rows with the same prompt."""

    prompt: Tensor  # [L]
    prefix: Prefix
    draft_prefix: Any
    prefill_s: float


@dataclass(eq=False)
class Prefixes:
    """Prepared prompts that later requests will need again."""

    target: LM
    drafter: Drafter
    prompts: Sequence[Sequence[int]]
    num_rows: int  # most rows of a call: those of the batch, which are halved when memory runs out
    clock: Clock

    def __post_init__(self) -> None:
        self.num_left: Counter[int] = Counter()
        self.needs = needs_of(self.drafter, DRAFTER_NEEDS)
        self.leaves_rest = (
            self.num_rows == 1  # other rows would have as many tokens computed in that round
            and self.target.mode == "off"  # captured steps have shapes that recur
            and self.target.known is None  # prompts that are kept (lm/known.py) are not read again
            and not self.clock.is_split  # the seconds of a round's parts would include reading the prompt
            and not reads_target(self.drafter)
        )
        self._prepared: dict[int, Prepared] = {}

    def expect(self, numbers: Iterable[int]) -> None:
        """Count how often each prompt will be taken: as often as its number occurs here."""
        self.num_left.update(numbers)

    def take(self, number: int, waiting: Iterable[int]) -> Prepared:
        """Return a prepared prompt; if it is new, it is prepared together with the next prompts of the queue (`waiting`)."""
        if number not in self._prepared:
            self._make(self._together(number, waiting))
        prepared = self._prepared.pop(number)
        self.num_left[number] -= 1
        if self.num_left[number]:
            self._prepared[number] = prepared._replace(prefill_s=0.0)
        return prepared

    def _together(self, number: int, waiting: Iterable[int]) -> list[int]:
        """Return this prompt and the next ones that are not prepared yet, as many as fit in one padded call."""
        numbers, longest = [number], len(self.prompts[number])
        for other in waiting:
            if other in self._prepared or other in numbers:
                continue
            longest = max(longest, len(self.prompts[other]))
            if len(numbers) == self.num_rows or (len(numbers) + 1) * longest > CHUNK:
                break
            numbers.append(other)
        return numbers

    def _num_prefilled(self, number: int) -> int:
        """Return how many tokens of a prompt to prefill; the first round reads the rest, which is at least its last token."""
        most = len(self.prompts[number]) - 1
        return most // CHUNK * CHUNK if self.leaves_rest and self.num_left[number] == 1 else most

    def _make(self, numbers: Sequence[int]) -> None:
        started_s = self.clock.read()
        prompts = [torch.tensor(list(self.prompts[n]), dtype=torch.int64, device=self.target.device) for n in numbers]
        starts = [prompt[: self._num_prefilled(number)] for number, prompt in zip(numbers, prompts, strict=True)]
        prefixes = self.target.prefill_all(starts, needs=self.needs)
        by_drafter = prefill_all(self.drafter, prompts, prefixes)
        seconds = self.clock.read() - started_s
        for n, prompt, prefix, draft_prefix in zip(numbers, prompts, prefixes, by_drafter, strict=True):
            share_s = seconds * len(prompt) / sum(map(len, prompts))
            self._prepared[n] = Prepared(prompt, replace(prefix, hidden=None, layer_hidden=None), draft_prefix, share_s)
