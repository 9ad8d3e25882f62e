"""The target's laws of all rounds of a call lie in the same memory where they are computed in slices: it is not asked for anew."""

import pytest

import sdbench
from sdbench import probs
from sdbench.verify import Ensemble
from tests.engine.models import pair

PROMPTS = [[5, 9, 11, 30 + row] for row in range(3)]
OPTIONS = {"num_draft": 4, "max_new_tokens": 16, "stop_ids": (), "temperature": 1.0, "capture": "off"}


def decode(monkeypatch, size: int) -> tuple[list, list[int]]:
    """Return texts and measures with slices of this size, and where the laws of each round lay."""
    addresses = []

    class Watching(Ensemble):
        def __call__(self, evidence, u, state=None):
            addresses.append(evidence.p.data_ptr())
            return super().__call__(evidence, u, state)

    monkeypatch.setattr(probs, "SLICE", size)
    decoded = sdbench.generate(*pair("llama"), PROMPTS, [Watching(w=0.5)], batch_size=3, **OPTIONS)
    return [(g.tokens, g.p, g.q, g.tv) for g in decoded], addresses


@pytest.mark.parametrize("top_p", [None, 0.9])
def test_rounds_share_the_memory_of_their_laws_and_decode_the_same(monkeypatch, top_p):
    monkeypatch.setitem(OPTIONS, "top_p", top_p)
    whole, _ = decode(monkeypatch, 1 << 18)
    sliced, addresses = decode(monkeypatch, 64)
    assert sliced == whole
    assert len(addresses) > 3
    assert addresses.count(addresses[0]) >= len(addresses) - 1  # a single law is not sliced
