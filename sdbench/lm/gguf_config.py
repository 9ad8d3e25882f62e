"""What decides a model's attention and transformers does not read from a GGUF file.

Not covered: the share of rotated dimensions where it differs from the architecture's usual one.
"""

from __future__ import annotations

from collections.abc import Collection
from math import isclose
from typing import Any

from sdbench.config import ConfigError

# Layers of the models whose queries are scaled by hidden size / heads. No file says so; llama.cpp goes by the layers, too.
SCALED_BY_SIZE = {"gemma2": 46, "gemma3_text": 62}


# Options of a configuration whose weights a file may have, and the name of such a weight there.
BIASES = {"attention_bias": "attn_q.bias", "mlp_bias": "ffn_gate.bias"}


def set_unread(id: str, config: Any, base: float | None, tensors: Collection[str] = ()) -> str:
    """Set in a configuration what transformers has not read; return the settings, such as "rope_theta=1000000.0", or "".

    base: that of the rotary positions in the file. ConfigError if it is not the configuration's and cannot be set. tensors: the
    names of the weights in the file.
    """
    settings: dict[str, Any] = {}
    for option, weight in BIASES.items():
        if getattr(config, option, None) is False and any(name.endswith(f".{weight}") for name in tensors):
            settings[option] = True
            setattr(config, option, True)
    if config.num_hidden_layers == SCALED_BY_SIZE.get(config.model_type):
        config.query_pre_attn_scalar = config.hidden_size // config.num_attention_heads
        settings["query_pre_attn_scalar"] = config.query_pre_attn_scalar
    parameters: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    nested = [kind["rope_theta"] for kind in parameters.values() if isinstance(kind, dict)]
    bases = nested or ([parameters["rope_theta"]] if "rope_theta" in parameters else [])
    if base is not None and not any(isclose(base, other, rel_tol=1e-6) for other in bases):
        if nested or not bases:
            raise ConfigError(
                f"{id} has rotary positions of base {base}, which transformers does not read from GGUF for this architecture: "
                "give the publisher's own repository"
            )
        parameters["rope_theta"] = settings["rope_theta"] = base
    return ", ".join(f"{name}={value}" for name, value in settings.items())
