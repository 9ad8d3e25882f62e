"""Requests that wait, a line for each family, prompt by prompt; and the prefills they share."""

from collections import Counter, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sdbench.engine.request import Request
from sdbench.lm import LM, Prefix
from sdbench.types import Drafter
from sdbench.verify.families import family


class Queue:
    """A row keeps to one family while that has requests, so that families stay together in the batch."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests
        self._lines: dict[Hashable, deque[int]] = {}
        self._waiting: Counter[tuple[int, ...]] = Counter()
        for place in range(len(requests)):
            self.give_back(place)

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def first(self, count: int) -> list[int]:
        """The next requests in the order given, those of a family side by side."""
        places = sorted(place for line in self._lines.values() for place in line)[:count]
        order = {name: i for i, name in enumerate(self._lines)}
        places.sort(key=lambda place: (order[family(self._requests[place].rule)], place))
        for place in places:
            self._lines[family(self._requests[place].rule)].remove(place)
        return places

    def next(self, like: Hashable) -> int | None:
        """The next request of this family, or else the one that has waited longest."""
        line = self._lines.get(like)
        if not line:
            lines = [line for line in self._lines.values() if line]
            line = min(lines, key=lambda line: line[0], default=None)
        return line.popleft() if line else None

    def give_back(self, place: int) -> None:
        """A request that waits, for the first time or anew."""
        self._waiting[self._requests[place].ids] += 1
        self.again(place)

    def again(self, place: int) -> None:
        """A request that was taken and never admitted."""
        name = family(self._requests[place].rule)
        line = self._lines.setdefault(name, deque())
        line.append(place)
        if len(line) > 1 and line[-2] > place:
            self._lines[name] = deque(sorted(line))

    def leave(self, place: int) -> bool:
        """A request was admitted; whether it was the last of its prompt."""
        ids = self._requests[place].ids
        self._waiting[ids] -= 1
        return not self._waiting[ids]


@dataclass(slots=True)
class Shared:
    """What is computed once for a prompt. The target lacks its last token, which the first round feeds."""

    prompt: Tensor
    target: Prefix
    draft: Any = None
    seconds: float = 0.0


class Prefixes:
    """Prompts that were prefilled and still have rows to come."""

    def __init__(self, target: LM, drafter: Drafter | None) -> None:
        self.target, self.drafter = target, drafter
        self._kept: dict[tuple[int, ...], Shared] = {}

    def get(self, request: Request) -> Shared:
        shared = self._kept.get(request.ids)
        if shared is None:
            prompt = torch.tensor(request.ids, device=self.target.device)
            shared = self._kept[request.ids] = Shared(prompt, self.target.prefill(prompt[:-1]))
        if shared.draft is None and request.num_draft and self.drafter is not None:
            shared.draft = self.drafter.prefill(shared.prompt)
        return shared

    def drop(self, request: Request) -> None:
        self._kept.pop(request.ids, None)

    def clear(self) -> None:
        self._kept.clear()
