"""What a round computes beyond its models, counted in operations of torch: seconds are for benchmarks."""

from contextlib import contextmanager

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

import sdbench
from sdbench.verify import Exact
from tests.engine.models import pair

NUM_DRAFT, NEW = 5, 24
MOST = {0.0: 142, 1.0: 201}  # operations of a round; above 0 each law is written to its slot of the block


class Counting(TorchDispatchMode):
    """Counts operations, but none within a call of a model."""

    def __init__(self):
        super().__init__()
        self.count, self.depth = 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += not self.depth
        return function(*args, **(kwargs or {}))

    @contextmanager
    def call(self, *_):
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1


@pytest.mark.parametrize("temperature", MOST)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_round_with_a_draft_model_computes_no_more_than_it_did(temperature, batch_size):
    """Nor more for more rows. What begins and ends texts is the same in a short and a long run, which leaves rounds."""
    engine = sdbench.Engine(*pair("llama"), capture="off")

    def count_of(new: int) -> tuple[int, int]:
        counting, rounds = Counting(), [0]

        @contextmanager
        def hook(phase, num_rows):
            rounds[0] += phase == "round"
            yield

        engine.hook = hook
        for lm in engine.models:
            lm.hook = counting.call
        prompts = [[5, 9, 11, 30 + row] for row in range(batch_size)]
        options = {"temperature": temperature, "num_draft": NUM_DRAFT, "max_new_tokens": new, "stop_ids": ()}
        with counting:
            sdbench.generate(
                None, None, prompts, [Exact()], engine=engine, batch_size=batch_size, measure=False, **options
            )
        return counting.count, rounds[0]

    (few, before), (many, after) = count_of(2), count_of(NEW)
    assert after > before + 3
    assert (many - few) / (after - before) <= MOST[temperature]
