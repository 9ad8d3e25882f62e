"""The logits of a head for a model's last states are the model's: whatever it multiplies, divides or caps after its head."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from sdbench.lm.model import LM

MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "cohere2": {"logit_scale": 0.25, "layer_types": ["full_attention"]},
    "granite": {"logits_scaling": 4.0},
    "hyperclovax": {"logits_scaling": 0.5},
    "gemma2": {"final_logit_softcapping": 2.0, "head_dim": 8, "query_pre_attn_scalar": 8},
    "minicpm3": {
        "kv_lora_rank": 8,
        "q_lora_rank": 8,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "dim_model_base": 8,
    },
}
SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "initializer_range": 0.35,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 3,
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_head_reads_the_models_own_logits(kind):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES, **MODELS[kind])).double().eval()
    lm = LM(model, capture="off")
    ids, positions = torch.arange(5, 26).view(3, 7), torch.arange(7).expand(3, -1)
    with torch.inference_mode():
        cache = lm.cache(3, 64)
        logits, states = lm.forward_hidden(ids, lm.plan(positions, cache, 64), cache)
        assert torch.allclose(lm.read_out(states), logits, rtol=0, atol=1e-12)
        alone = lm.head(states)
    assert torch.equal(alone, logits) == (kind in ("llama", "minicpm3")), "the scale can be seen"
