"""Which of the texts that a run planned are missing. The ids of its examples are in a file of the records, once for each subset."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sdbench.records.parts import safe_name

if TYPE_CHECKING:
    from sdbench.records.snapshot import Snapshot

Samples = defaultdict[str, defaultdict[str, set[int]]]  # cell -> example -> numbers of its samples


def subset_key(examples: Iterable[str]) -> str:
    """Return a hash of the ids of examples, whatever their order."""
    return safe_name("\n".join(sorted(examples)))


def num_held(numbers: Collection[int], samples: int) -> int:
    """Return how many of an example's first `samples` samples are among these numbers; a run with more may have left gaps."""
    return sum(number < samples for number in numbers)


def num_missing(snapshot: Snapshot, planned: Mapping[str, Any], held: Mapping[str, Collection[int]]) -> int:
    """Return how many texts of a cell are missing, given {example: numbers of its samples}; `planned` is in a run's provenance.

    Earlier versions recorded only how many examples were planned. For them the examples with the most texts count as planned.
    """
    num_examples, samples = int(planned["examples"]), int(planned["samples"])
    counts = {example: num_held(numbers, samples) for example, numbers in held.items()}
    examples: Sequence[str] | None = snapshot.subsets.get(str(planned.get("subset")))
    if examples is not None:
        return sum(samples - counts.get(example, 0) for example in examples)
    sizes = sorted(counts.values(), reverse=True)
    return num_examples * samples - sum(sizes[:num_examples])


def missing_of_newest(snapshot: Snapshot, held: Iterable[tuple[str, str, int]]) -> int | None:
    """Return how many texts of the newest command, all its shards together, are not in `held`; None if its plan is not recorded."""
    by_cell: Samples = defaultdict(lambda: defaultdict(set))
    for cell, example, sample in held:
        by_cell[cell][example].add(sample)
    entries = (data["provenance"] for _, data in sorted(snapshot.runs.items(), reverse=True))
    planned = next((planned for entry in entries if (planned := entry.get("planned"))), None)
    if planned is None:
        return None
    return sum(num_missing(snapshot, planned, by_cell[cell]) for cell in set(planned["cells"]))
