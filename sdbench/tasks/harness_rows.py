"""Rows of the tasks of lm-evaluation-harness: read with its seeds, and each split once.

A task's `process_docs` may shuffle, as those of gpqa do with the choices of a question. Not covered: a `doc_to_target` that is
random, whose targets differ at each call.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SEED, NUMPY_SEED = 0, 1234  # lm_eval's defaults of random_seed and numpy_random_seed


@contextmanager
def fix_seeds() -> Iterator[None]:
    """Seed `random` and numpy's global generator as lm_eval does; afterwards both continue as if nothing had been drawn."""
    import numpy

    before, numpy_before = random.getstate(), numpy.random.get_state()
    random.seed(SEED)
    numpy.random.seed(NUMPY_SEED)
    try:
        yield
    finally:
        random.setstate(before)
        numpy.random.set_state(numpy_before)


def once_per_split(process: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `process_docs` with a memory: the harness calls it at each reading of a split, and a shuffle then differs."""
    processed: dict[int, tuple[Any, Any]] = {}  # by identity; the split is kept, so that its id stays its own

    def process_once(split: Any) -> Any:
        if id(split) not in processed:
            processed[id(split)] = split, process(split)
        return processed[id(split)][1]

    return process_once
