"""What the shape of a call moves logits by: next to nothing in float64, a rounding step in bfloat16."""

import pytest
import torch

from sdbench.lm.model import LM
from sdbench.lm.rounding import rounding_of
from tests.engine.models import tiny

TEXT = torch.arange(5, 55)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_rounding_is_that_of_the_dtype(family):
    model = tiny(family, attention="eager" if family == "gemma2" else "sdpa")
    most = {torch.float64: 1e-10, torch.float32: 1e-3, torch.bfloat16: 1.0}
    sizes = {dtype: rounding_of(LM(model.to(dtype), capture="off"), TEXT, 20) for dtype in most}
    assert all(sizes[dtype] < limit for dtype, limit in most.items()), sizes
    assert 0 < sizes[torch.float64] < sizes[torch.float32], sizes


def test_a_fault_of_the_cache_is_no_rounding(monkeypatch):
    lm = LM(tiny("llama"), capture="off")
    honest = lm.forward
    monkeypatch.setattr(lm, "forward", lambda ids, *more: honest(ids, *more) * (1 if ids.shape[1] > 1 else 1.01))
    assert rounding_of(lm, TEXT, 20) > 1e-3


def test_a_start_outside_the_text_is_refused():
    with pytest.raises(ValueError, match="start must be between 1 and 49, inside the text, got 50"):
        rounding_of(LM(tiny("llama")), TEXT, 50)
