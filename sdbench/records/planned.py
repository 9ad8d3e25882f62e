"""Which of the texts that a run planned are missing."""

from collections.abc import Mapping
from typing import Any


def num_missing(planned: Mapping[str, Any], counts: Mapping[str, int]) -> int:
    """Return how many texts of a cell are missing, given {example: number of its texts}; `planned` is of a run's provenance."""
    examples, samples = int(planned["examples"]), int(planned["samples"])
    sizes = sorted((min(count, samples) for count in counts.values()), reverse=True)
    return examples * samples - sum(sizes[:examples])
