"""Tiny random models of every family, in float64: no downloads, exact enough to compare token for token."""

from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 8}),
    "gemma2": (
        Gemma2Config,
        Gemma2ForCausalLM,
        {"head_dim": 8, "sliding_window": 12, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 5.0},
    ),
    "gemma3": (
        Gemma3TextConfig,
        Gemma3ForCausalLM,
        {
            "head_dim": 8,
            "sliding_window": 12,
            "query_pre_attn_scalar": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
}

# One family of full attention and one of windows shorter than the texts; the others run with the slow tests.
QUICK = ("llama", "gemma3")
by_family = pytest.mark.parametrize(
    "family", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]
)


def tiny(
    family: str,
    *,
    layers: int = 2,
    vocab: int = 61,
    seed: int = 0,
    scale: float = 0.35,
    attention: str = "sdpa",
    **more: Any,
) -> Any:
    """A random model."""
    config_class, model_class, extra = FAMILIES[family]
    options = {
        "vocab_size": vocab,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": scale,
        "eos_token_id": [3, 4],
        "bos_token_id": 1,
        "pad_token_id": None,
        **extra,
        **more,
    }
    if "layer_types" in options:
        options["layer_types"] = (options["layer_types"] * layers)[:layers]
    torch.manual_seed(seed)
    config = config_class(**options)
    config._attn_implementation = attention
    model = model_class(config).double().eval()
    model.generation_config.eos_token_id = options["eos_token_id"]
    model.generation_config.pad_token_id = 1000  # transformers guesses masks from it: an id that no text contains
    return model


def pair(family: str, **options: Any) -> tuple[Any, Any]:
    """A target of two layers, and a draft of one that shares its embeddings, so that it is right now and then."""
    target, draft = tiny(family, **options), tiny(family, layers=1, seed=1, **options)
    draft.get_input_embeddings().weight.data.copy_(target.get_input_embeddings().weight.data)
    draft.get_output_embeddings().weight.data.copy_(target.get_output_embeddings().weight.data)
    options = draft.generation_config
    options.num_assistant_tokens, options.num_assistant_tokens_schedule = 5, "constant"
    options.assistant_confidence_threshold = 0
    return target, draft


PROMPTS = [[5, 6, 7, 8, 9, 11], [7], [8, 9, 10, 33, 44, 55, 12, 13, 20, 21, 22, 23, 30, 31, 32, 40, 41], [13, 14]]
