"""The work that is left: cells × examples × samples minus what the records hold.

Resuming, raising n, adding a w or a sample, sharding over machines and completing an interrupted sweep all use this
subtraction.

Items are ordered by prompt, all cells of an example together, so that a prompt is prefilled once for its whole sweep.
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
        """Return the next share. It is empty if other jobs hold what is left, or if everything is done (then `is_done` is set)."""
        claimed = next(self.shares, None)
        self.is_done = claimed is None
        return claimed or []


def share(
    store: Store, todo: Sequence[WorkItem], *, prompts: int = 8, fewest: int = 1, poll_s: float = POLL_S
) -> Iterator[list[WorkItem]]:
    """Claim work, a few prompts at a time, and yield each share until nothing of `todo` is missing, alone or with other jobs on
    the same folder.

    A share has `fewest` to `prompts` prompts; the more jobs are running, the smaller it is, so that jobs which start later also
    get work and all end at about the same time. Items that another job has claimed are skipped and tried again at the end, until
    they are recorded or that job has died. An item is done when it is appended or given up with `store.append_failure`. Before
    each wait an empty share is yielded: the caller must then append what is finished, because another job may be waiting for it.
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
    """Return how many of the prompts left a job claims at once: a quarter if it works alone, an eighth if three jobs do, but at
    least `fewest`, because rows of the batch are idle at the end of a share, and at most `most`.
    """
    part = -(-left // (2 * jobs + 2))
    return max(1, min(most, left, max(part, fewest)))


def _by_prompt(todo: Iterable[WorkItem]) -> dict[str, list[WorkItem]]:
    prompts: dict[str, list[WorkItem]] = {}
    for item in todo:
        prompts.setdefault(item.example, []).append(item)
    return prompts
