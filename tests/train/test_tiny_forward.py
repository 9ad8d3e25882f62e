"""The training forward computes what the Hugging Face modules compute."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F  # its usual name

from scripts.tiny.forward import GeluTanh, Net, Rms, Silu
from scripts.tiny.pairs import Family, Shape
from scripts.tiny.weights import initial, to_model

SHAPE = Shape(layers=3, width=32, heads=4, kv_heads=2, feed_forward=48, window=5)


@pytest.mark.parametrize("family", ["llama", "qwen", "gemma"])
def test_training_forward_equals_the_hf_model(family: Family):
    torch.set_num_threads(1)
    net = Net(family, SHAPE if family == "gemma" else replace(SHAPE, window=0))
    weights = initial(net, 60, seed=0)
    weights["head"] *= 50
    if "q_norm" in weights:
        weights["q_norm"] += torch.rand_like(weights["q_norm"])
    tokens = torch.randint(3, 60, (2, 16))
    with torch.no_grad():
        ours = F.linear(net.hidden(weights, tokens), weights["head"])
        theirs = to_model(net, weights)(tokens).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Silu, F.silu),
        (GeluTanh, lambda x: F.gelu(x, approximate="tanh")),
        (Rms, lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-5)),
    ],
)
def test_lean_functions_have_the_values_and_gradients_of_torch(ours, theirs):
    x = torch.randn(4, 8, requires_grad=True)
    g = torch.randn(4, 8)
    torch.testing.assert_close(ours.apply(x), theirs(x))
    (dx,) = torch.autograd.grad(ours.apply(x), x, g)
    (want,) = torch.autograd.grad(theirs(x), x, g)
    torch.testing.assert_close(dx, want)
