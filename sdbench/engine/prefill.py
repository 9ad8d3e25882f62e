"""Prompts on their way into rows: each is prefilled once, short ones that wait behind each other together."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sdbench.engine.clock import Clock
from sdbench.engine.row import Request
from sdbench.lm import CHUNK, LM, Prefix
from sdbench.types import DRAFTER_NEEDS, Drafter, needs_of


class Prefixes:
    """What target and drafter made of prompts that will be asked for again."""

    def __init__(
        self, target: LM, drafter: Drafter, prompts: Sequence[Sequence[int]], requests: Iterable[Request], clock: Clock
    ) -> None:
        self.target, self.drafter, self.prompts, self.clock = target, drafter, prompts, clock
        self.num_left = Counter(request.prompt for request in requests)
        self.with_hidden = "target_hidden" in needs_of(drafter, DRAFTER_NEEDS)
        self._made: dict[int, tuple[Tensor, Prefix, Any]] = {}
        self._seconds: dict[int, float] = {}  # of prompts that no row has begun with

    def take(self, number: int, waiting: Iterable[int]) -> tuple[Tensor, Prefix, Any, float]:
        """The prompt [L], the target's prefix of it, the drafter's, and the seconds they took where this row is the first.

        `waiting`: the prompts of the queue behind it.
        """
        if number not in self._made:
            self._make(self._together(number, waiting))
        self.num_left[number] -= 1
        made = self._made[number] if self.num_left[number] else self._made.pop(number)
        return *made, self._seconds.pop(number, 0.0)

    def _together(self, number: int, waiting: Iterable[int]) -> list[int]:
        """This prompt and those behind it that have no prefix yet, while one call takes them all, padded."""
        numbers, longest = [number], len(self.prompts[number])
        for other in waiting:
            if other in self._made or other in numbers:
                continue
            longest = max(longest, len(self.prompts[other]))
            if (len(numbers) + 1) * longest > CHUNK:
                break
            numbers.append(other)
        return numbers

    def _make(self, numbers: Sequence[int]) -> None:
        started_s = self.clock.read()
        prompts = [torch.tensor(list(self.prompts[n]), dtype=torch.int64, device=self.target.device) for n in numbers]
        prefixes = self.target.prefill_all([prompt[:-1] for prompt in prompts], with_hidden=self.with_hidden)
        # The last token begins the first round.
        own = _prefill_all(self.drafter, prompts, prefixes)
        seconds = self.clock.read() - started_s
        for n, prompt, prefix, drafters in zip(numbers, prompts, prefixes, own, strict=True):
            self._made[n] = prompt, replace(prefix, hidden=None), drafters
            self._seconds[n] = seconds * len(prompt) / sum(map(len, prompts))


def _prefill_all(drafter: Any, prompts: Sequence[Tensor], prefixes: Sequence[Prefix]) -> list[Any]:
    """By its `prefill_all`, unless a class built upon the one that has it writes a `prefill` of its own."""
    for kind in type(drafter).__mro__:
        if "prefill_all" in vars(kind):
            return drafter.prefill_all(prompts, prefixes)
        if "prefill" in vars(kind):
            break
    return [drafter.prefill(prompt, prefix) for prompt, prefix in zip(prompts, prefixes, strict=True)]
