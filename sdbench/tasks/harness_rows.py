"""Rows of the tasks of lm-evaluation-harness: read with its seeds, each split once, and where the shots come from.

A task's `process_docs` may shuffle, as those of gpqa do with the choices of a question. Not covered: a `doc_to_target` that is
random, whose targets differ at each call.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from sdbench.config import ConfigError

SEED, NUMPY_SEED = 0, 1234  # lm_eval's defaults of random_seed and numpy_random_seed
ORDERS = {"default": "drawn", "first_n": "first"}  # of shots, by the name of the harness's sampler


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
    """Return `process_docs` with a cache: the harness calls it at each reading of a split, and each call shuffles differently."""
    processed: dict[int, tuple[Any, Any]] = {}  # by id(); the split is stored too, so that no other object gets its id

    def process_once(split: Any) -> Any:
        if id(split) not in processed:
            processed[id(split)] = split, process(split)
        return processed[id(split)][1]

    return process_once


@dataclass(frozen=True, slots=True)
class ShotSource:
    """Where the harness takes shots from, and in which order; split: None where the task's file has samples for them."""

    split: str | None
    order: str

    @classmethod
    def of_file(cls, tree: Mapping[str, Any]) -> Self:
        """Read a task's file as `ConfigurableTask.fewshot_docs` does."""
        config = tree.get("fewshot_config") or {}
        sampler = config.get("sampler") or "default"
        split = config.get("split") or tree.get("fewshot_split")
        if split is None and config.get("samples") is None:
            split = next(
                (tree[kind] for kind in ("training_split", "validation_split", "test_split") if tree.get(kind)), None
            )
        return cls(split, ORDERS.get(sampler, str(sampler).rpartition("/")[2]))  # a class is named by its file

    def __str__(self) -> str:
        return f"{self.order} " + ("samples in the task's file" if self.split is None else f"rows of {self.split}")


def refuse_unused_shots(task: str, shots_data: str, tree: Mapping[str, Any], *, has_data: bool) -> None:
    """Raise ConfigError where no shot of a task would come from the file `shots_data`."""
    if not has_data:
        why = "it goes with task.data=, and without that the harness reads all splits of its data set"
    elif tree.get("num_fewshot") == 0:
        why = f"the file of {task} sets num_fewshot: 0, which lm_eval never overrides"
    elif ShotSource.of_file(tree).split is None:
        why = f"the shots of {task} are samples in its file"
    else:
        return
    raise ConfigError(f"task.shots_data={shots_data} has no effect: {why}; leave it out")
