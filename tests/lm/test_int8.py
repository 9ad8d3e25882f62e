"""Weights in int8: each output has its scale, rows do not see each other, and a quantised pair keeps every promise."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

import sdbench
from sdbench.config import ConfigError
from sdbench.draft import NoDraft
from sdbench.lm.int8 import KERNEL_ROWS, Int8Linear, quantize_layers
from sdbench.verify import Ensemble, Exact
from tests.engine.models import PROMPTS, pair

TYPES = [torch.float64, torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(64, 96), (33, 7)])
def test_a_weight_is_off_by_half_a_step_and_rows_do_not_see_each_other(dtype, shape):
    torch.manual_seed(0)
    linear = nn.Linear(*shape).to(dtype).requires_grad_(False)
    layer = Int8Linear(linear)
    assert layer.has_kernel == (shape == (64, 96) and dtype == torch.bfloat16)
    off = (layer.values * layer.scale[:, None].double() - linear.weight.double()).abs()
    assert bool((off <= 0.51 * layer.scale[:, None].double() + 0.004 * linear.weight.double().abs()).all())
    x, order = torch.randn(3, 5, shape[0]).to(dtype), torch.tensor([2, 0, 1])
    y = layer(x)
    wanted = x.double() @ (layer.values.double() * layer.scale[:, None].double()).T + linear.bias.double()
    torch.testing.assert_close(y.double(), wanted, rtol=0, atol={torch.bfloat16: 0.05}.get(dtype, 1e-5))
    rounding = {"rtol": 0, "atol": 0 if layer.has_kernel else 8 * torch.finfo(dtype).eps}
    torch.testing.assert_close(layer(x[order]), y[order], **rounding)
    louder = torch.cat((x[:1], 1000 * x[1:]))  # a scale for the whole batch would round the first row to nothing
    torch.testing.assert_close(layer(louder)[:1], y[:1], **rounding)


@pytest.mark.parametrize(
    ("dtype", "rows", "is_kernel"),
    [(torch.bfloat16, KERNEL_ROWS, True), (torch.bfloat16, KERNEL_ROWS + 1, False), (torch.float32, 1, False)],
)
def test_the_kernel_multiplies_few_rows_of_bfloat16_alone(dtype, rows, is_kernel):
    torch.manual_seed(0)
    layer, x = Int8Linear(nn.Linear(64, 96).to(dtype).requires_grad_(False)), torch.randn(1, rows, 64).to(dtype)
    with torch.profiler.profile() as profile:
        y = layer(x)
    assert ("aten::_weight_int8pack_mm" in {event.key for event in profile.key_averages()}) == is_kernel
    torch.testing.assert_close(y[:, :1], layer(x[:, :1]), rtol=0, atol={torch.bfloat16: 0.02}.get(dtype, 1e-5))


@pytest.mark.slow
@pytest.mark.parametrize(
    "roles",
    [("target", "draft"), *(pytest.param((role,), marks=pytest.mark.slow) for role in ("target", "draft"))],
)
def test_a_quantised_pair_is_lossless_and_a_text_is_the_same_in_any_batch(roles):
    models = dict(zip(("target", "draft"), pair("llama"), strict=True))
    for role in roles:
        layers = [type(layer) for layer in quantize_layers(models[role]).modules()]
        assert Int8Linear in layers
        assert isinstance(models[role].get_output_embeddings(), nn.Linear)
    target, draft = models.values()
    options: dict[str, Any] = {"max_new_tokens": 12, "stop_ids": (), "num_draft": 3}
    alone = sdbench.generate(target, None, PROMPTS, [Exact()], drafter=NoDraft(), temperature=0.0, **options)
    greedy = sdbench.generate(target, draft, PROMPTS, [Exact()], temperature=0.0, **options)
    assert [g.tokens for g in greedy] == [g.tokens for g in alone]
    rules, keys = [Exact(), Ensemble(w=0.5)], list(range(len(PROMPTS)))
    drawn = sdbench.generate(target, draft, PROMPTS, rules, keys=keys, **options)
    swapped = sdbench.generate(target, draft, PROMPTS[::-1], rules, keys=keys[::-1], batch_size=3, **options)
    texts = {(g.prompt, g.verifier): g.tokens for g in drawn}
    assert {(keys[::-1][g.prompt], g.verifier): g.tokens for g in swapped} == texts
    traced = sdbench.generate(target, draft, PROMPTS, rules, keys=keys, capture="trace", **options)
    assert {(g.prompt, g.verifier): g.tokens for g in traced} == texts


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "gpt_oss"])
def test_a_model_with_experts_is_refused_and_left_as_it_is(family):
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = AutoConfig.for_model(family, vocab_size=61, **sizes, num_key_value_heads=2, head_dim=16)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    first = r"model\.layers\.0\.mlp\.experts\.gate_up_proj"
    with pytest.raises(ConfigError, match=f"^the target keeps the weights of its experts in {first}, which quant"):
        quantize_layers(model, "the target")
    assert not any(isinstance(layer, Int8Linear) for layer in model.modules())
