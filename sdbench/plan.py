"""What is left to do: cells × examples × samples minus what the records hold.

Resuming, raising n, adding a w or a sample, sharding over machines and completing an interrupted sweep all use this
subtraction.

Items come prompt by prompt, all cells of an example together, so that a prompt is prefilled once for its whole sweep.
"""

import time
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sdbench.records import Cell, Store

POLL_S = 2.0


class WorkItem(NamedTuple):
    """One generation to decode; equal to the key of its record."""

    cell: str
    example: str
    sample: int


def items(cells: Sequence[Cell], examples: Sequence[str], samples: int) -> Iterator[WorkItem]:
    """Yield all items of a sweep, prompt by prompt."""
    return (WorkItem(cell.key, example, n) for example in examples for n in range(samples) for cell in cells)


def missing(cells: Sequence[Cell], examples: Sequence[str], samples: int, held: Container[tuple]) -> list[WorkItem]:
    """Return what `store.held()` lacks of the sweep, prompt by prompt."""
    return [item for item in items(cells, examples, samples) if item not in held]


@dataclass
class Work:
    """Items that one stream decodes, and the shares of them that this job has claimed."""

    items: Sequence[WorkItem]
    shares: Iterator[list[WorkItem]]
    is_done: bool = field(default=False, init=False)

    def claim(self) -> list[WorkItem]:
        """Return the next share: none where other jobs hold what is left, or when all is done."""
        claimed = next(self.shares, None)
        self.is_done = claimed is None
        return claimed or []


def share(
    store: Store, todo: Sequence[WorkItem], *, prompts: int = 8, fewest: int = 1, poll_s: float = POLL_S
) -> Iterator[list[WorkItem]]:
    """Claimed work, some prompts at a time, until nothing of `todo` is missing: with others on one folder, or alone.

    A share is a part of what is left, the smaller the more jobs are there, from `fewest` prompts to `prompts`: so jobs that
    come later find something, and all end together. What another job has claimed is passed over and looked at again at the
    end, until it is recorded or that job died. An item counts as done when it is appended or given up with
    `store.append_failure`. Before every wait comes an empty share: the time to append what is finished, because the other
    job may be waiting for that very thing.
    """
    waiting = _by_prompt(todo)
    while waiting:
        passed: dict[str, list[WorkItem]] = {}
        is_idle = True
        names = list(waiting)
        while names:
            size = share_size(len(names), store.claims.num_alive(), fewest=fewest, most=prompts)
            batch = [item for name in names[:size] for item in waiting[name]]
            names = names[size:]
            taken = store.take(batch)
            if taken:
                is_idle = False
                yield [WorkItem(*key) for key in taken]
            for item in store.left_to_others(batch):
                passed.setdefault(item[1], []).append(WorkItem(*item))
        waiting = passed
        if waiting and is_idle:
            yield []
            time.sleep(poll_s)


def share_size(left: int, jobs: int, *, fewest: int, most: int) -> int:
    """How many of the prompts left a job claims at once: a quarter alone, an eighth where three work together, and from `fewest`
    to `most`: the end of a share empties its batch.
    """
    part = -(-left // (2 * jobs + 2))
    return max(1, min(most, left, max(part, fewest)))


def _by_prompt(todo: Iterable[WorkItem]) -> dict[str, list[WorkItem]]:
    prompts: dict[str, list[WorkItem]] = {}
    for item in todo:
        prompts.setdefault(item.example, []).append(item)
    return prompts
