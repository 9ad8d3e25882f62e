"""Every drafter of configs/drafter: a text does not depend on the order of the requests or on the batch."""

from typing import Any

import pytest

import sdbench
from sdbench.verify import Ensemble, Exact
from tests.contracts.parts import Named
from tests.contracts.test_drafter_contract import REPEATING, by_drafter, engine_and_drafter
from tests.engine.models import pair

RULES = [Exact(), Ensemble(w=0.5)]
COUNTS = ("tokens", "drafted", "examined", "accepted", "draft_tokens", "origins")


def decode(pair_of: Any, named: Named, temperature: float, order: list[int], batch_size: int) -> dict[Any, list[Any]]:
    """What is counted of each (prompt, rule), prompts given in this order."""
    engine, drafter = engine_and_drafter(pair_of, named, temperature=temperature)
    options: dict[str, Any] = {"temperature": temperature, "max_new_tokens": 12, "num_draft": 4, "stop_ids": ()}
    prompts = [REPEATING[index] for index in order]
    decoded = sdbench.generate(
        None, None, prompts, RULES, keys=order, drafter=drafter, engine=engine, batch_size=batch_size, **options
    )
    return {(order[g.prompt], g.verifier): [getattr(g, name) for name in COUNTS] for g in decoded}


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    return pair("llama")


@by_drafter
@pytest.mark.parametrize("temperature", [1.0, pytest.param(0.0, marks=pytest.mark.slow)])
def test_two_requests_swapped_in_the_batch_change_nothing(models, named, temperature):
    order = list(range(len(REPEATING)))
    texts = decode(models, named, temperature, order, 4)
    swapped = [order[1], order[0], *order[2:]]
    assert decode(models, named, temperature, swapped, 4) == texts
    assert decode(models, named, temperature, order[::-1], 3) == texts, "in reverse, and in other batches"
    assert any(sum(counts[1]) for counts in texts.values()), "something was drafted"
