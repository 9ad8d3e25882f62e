"""What is to be done: cells × examples × samples, less what the records hold.

Resuming, raising n, adding a w or a sample, sharding over machines, completing a killed sweep: this one subtraction.

Items come prompt by prompt, all cells of an example together, so that a prompt is prefilled once for its whole sweep.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, TypeVar

from sdbench.records import Cell, Results, Store

T = TypeVar("T")
POLL_S = 2.0


class Item(NamedTuple):
    """One generation to make; equal to the key of its record."""

    cell: str
    example: str
    sample: int


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `index` of `count`: every count-th example."""

    index: int = 0
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From "0/8"; ValueError in a sentence otherwise."""
        found = re.fullmatch(r"\s*(\d+)\s*/\s*(\d+)\s*", str(text))
        if not found or not int(found[1]) < int(found[2]):
            raise ValueError(f'shard must be "i/n" with i from 0 to n-1, as "0/8", got {text!r}')
        return cls(int(found[1]), int(found[2]))

    def of(self, examples: Sequence[T]) -> Sequence[T]:
        """This part; the parts of all indices are disjoint and complete, whatever n is raised to."""
        return examples[self.index :: self.count]


def items(cells: Sequence[Cell], examples: Sequence[str], samples: int) -> Iterator[Item]:
    """All of a sweep, prompt by prompt."""
    return (Item(cell.key, example, n) for example in examples for n in range(samples) for cell in cells)


def missing(cells: Sequence[Cell], examples: Sequence[str], samples: int, held: Container[tuple]) -> list[Item]:
    """The subtraction: what `store.held()` lacks of the sweep, prompt by prompt."""
    return [item for item in items(cells, examples, samples) if item not in held]


def share(store: Store, todo: Sequence[Item], *, prompts: int = 8, poll_s: float = POLL_S) -> Iterator[list[Item]]:
    """Claimed work, a few prompts at a time, until nothing of `todo` is missing: with others on one folder, or alone.

    What another job has claimed is passed over and looked at again at the end, until it is recorded or that job died.
    An item counts as done when it is appended or given up with `store.append_failure`. Before every wait comes an empty
    share: the time to append what is finished, because the other job may be waiting for that very thing.
    """
    waiting = _by_prompt(todo)
    while waiting:
        passed: dict[str, list[Item]] = {}
        is_idle = True
        for names in _chunks(waiting, prompts):
            asked = [item for name in names for item in waiting[name]]
            taken = store.take(asked)
            if taken:
                is_idle = False
                yield [Item(*key) for key in taken]
            for item in store.elsewhere(asked):
                passed.setdefault(item[1], []).append(Item(*item))
        waiting = passed
        if waiting and is_idle:
            yield []
            time.sleep(poll_s)


def timed_cells(
    results: Results, cells: Sequence[Cell], examples: Sequence[str], repeats: int, *, machine: str
) -> set[str]:
    """Keys of the cells whose timing is complete in one pass on this machine: speed-ups form only inside one pass."""
    frame = results.timings
    is_here = (frame["machine"] == machine) & frame["example"].isin(list(examples))
    frame = frame.loc[is_here & ~frame["is_split"] & (frame["repeat"] < repeats)]
    counts = Counter(zip(frame["cell"], frame["pass_id"], strict=True))
    wanted = {cell.key for cell in cells}
    return {cell for (cell, _), count in counts.items() if cell in wanted and count >= len(examples) * repeats}


def _by_prompt(todo: Iterable[Item]) -> dict[str, list[Item]]:
    prompts: dict[str, list[Item]] = {}
    for item in todo:
        prompts.setdefault(item.example, []).append(item)
    return prompts


def _chunks(names: Iterable[str], size: int) -> Iterator[list[str]]:
    iterator = iter(names)
    while chunk := list(islice(iterator, size)):
        yield chunk
