"""How logits follow from a head's output: transformers multiplies, divides or caps it, depending on the configuration."""

from typing import Any

import torch
from torch import Tensor

# The power of `logits_scaling` that multiplies the head's output. The default is -1, because Granite divides by it. It is 0 for
# MiniCPM3, which divides the states before its head instead.
POWERS = {"hyperclovax": 1, "minicpm3": 0}


def scale_logits(logits: Tensor, config: Any) -> Tensor:
    """Return a model's logits from the output of its head, given its text configuration."""
    factor = getattr(config, "logit_scale", None)  # Cohere
    if factor is not None:
        logits = logits * factor
    scaling, power = getattr(config, "logits_scaling", None), POWERS.get(config.model_type, -1)
    if scaling is not None and power:
        logits = logits * scaling if power > 0 else logits / scaling
    cap = getattr(config, "final_logit_softcapping", None)  # Gemma 2
    return logits if cap is None else torch.tanh(logits / cap) * cap
