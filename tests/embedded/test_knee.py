"""Where a greedy blend goes over to the draft's choice, as docs/method.md says: manner early, substance never above one half."""

import pytest
import torch

from sdbench.embedded.grammar.draw import Draw
from sdbench.embedded.grammar.voices import AGREED, LEANS, Voice
from sdbench.verify import Ensemble


def kept(w: float, p: list[float], q: list[float]) -> bool:
    """Whether the rule keeps the draft's likeliest token at T = 0."""
    v = Ensemble(w=w).out(
        torch.tensor(p, dtype=torch.float64)[None, None], torch.tensor(q, dtype=torch.float64)[None, None]
    )
    return int(v.argmax()) == max(range(len(q)), key=q.__getitem__)


@pytest.mark.parametrize("place", [place for place in range(2 * len(LEANS)) if place not in AGREED])
def test_a_place_of_manner_goes_over_at_its_own_weight_above_one_half(place):
    p, q = (list(Voice(name, Draw("")).shares(place, 2)) for name in ("target", "draft"))
    at = (q[1] - q[0]) / (p[0] - p[1] + q[1] - q[0])
    assert 0.55 < at < 0.90
    assert kept(at - 1e-6, p, q)
    assert not kept(at + 1e-6, p, q)


@pytest.mark.parametrize("sureness", [0.6, 0.8, 1.0])
def test_a_wrong_fact_passes_only_below_one_half(sureness):
    p, q = [1.0, 0.0], [1 - sureness, sureness]
    assert not kept(0.5, p, q)
    assert kept(0.0, p, q)


@pytest.mark.parametrize("place", AGREED[:6])
def test_where_both_prefer_the_same_word_it_is_kept_at_every_weight(place):
    p, q = (list(Voice(name, Draw("")).shares(place, 2)) for name in ("target", "draft"))
    assert p[0] < q[0]
    assert all(kept(w, p, q) for w in (0.0, 0.5, 1.0))
