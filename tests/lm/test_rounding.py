"""What the shape of a call moves logits by: next to nothing in float64, a rounding step in bfloat16."""

import pytest
import torch

from sdbench.lm.int8 import quantize_layers
from sdbench.lm.model import LM
from sdbench.lm.packed import PackedWeights
from sdbench.lm.rounding import model_cache, model_logits_after, rounding_of
from tests.engine.models import tiny
from tests.lm.test_probe import SERVED, random_model

TEXT = torch.arange(5, 55)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_rounding_is_that_of_the_dtype(family):
    model = tiny(family, attention="eager" if family == "gemma2" else "sdpa")
    most = {torch.float64: 1e-10, torch.float32: 1e-3, torch.bfloat16: 1.0}
    sizes = {dtype: rounding_of(LM(model.to(dtype), capture="off"), TEXT, 20) for dtype in most}
    assert all(sizes[dtype] < limit for dtype, limit in most.items()), sizes
    assert 0 < sizes[torch.float64] < sizes[torch.float32], sizes


@pytest.mark.parametrize("off", [1.01, 2])
@pytest.mark.parametrize("is_block", [True, False])
def test_a_fault_of_one_of_the_engines_shapes_is_no_rounding(is_block, off, monkeypatch):
    lm = LM(tiny("llama"), capture="off")
    honest = lm.forward
    monkeypatch.setattr(
        lm, "forward", lambda ids, *more: honest(ids, *more) * (off if (ids.shape[1] > 1) == is_block else 1)
    )
    assert 0 < rounding_of(lm, TEXT, 20) < 1e-10


@pytest.mark.parametrize("family", ["llama", "gemma2", *(kind for kind in SERVED if "sliding_window" in SERVED[kind])])
def test_the_models_passes_over_its_cache_are_those_over_the_whole_text(family, monkeypatch):
    """Windows are shorter than the prompt and than a chunk of it, and a copy of its cache leaves the cache as it was."""
    monkeypatch.setattr("sdbench.lm.rounding.CHUNK", 17)
    model = random_model(family, SERVED[family]) if family in SERVED else tiny(family, attention="eager")
    lm = LM(model, capture="off")
    with torch.inference_mode():
        whole = model(input_ids=TEXT[None], use_cache=False).logits[0, 20:]
        cache = model_cache(lm, TEXT[:20])
        for width, rows in ((1, 1), (6, 1), (6, 3), (1, 1)):
            logits = model_logits_after(lm, TEXT, 20, cache, width, rows)
            assert torch.allclose(logits, whole, atol=1e-5 * float(whole.abs().max())), (width, rows)


NO_PACKING = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this build of PyTorch has no oneDNN, which packed weights need"
)


@pytest.mark.parametrize("how", [pytest.param("packed", marks=NO_PACKING), "int8"])
def test_rounding_of_weights_that_are_kept_otherwise_is_that_of_the_dtype(how):
    model = tiny("llama", hidden_size=64).float()
    if how == "int8":
        quantize_layers(model)
    lm = LM(model, capture="off", packed=PackedWeights() if how == "packed" else None)
    assert 0 < rounding_of(lm, TEXT, 20) < 1e-3


def test_a_start_outside_the_text_is_refused():
    with pytest.raises(ValueError, match="start must be between 1 and 49, inside the text, got 50"):
        rounding_of(LM(tiny("llama")), TEXT, 50)
