"""What a model does to its head's output: transformers multiplies, divides or caps it, by the model's configuration."""

from typing import Any

import torch
from torch import Tensor

# The power of `logits_scaling` by which the head's output is multiplied: Granite, which is not named, divides by it, and MiniCPM3
# divides the states before its head.
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
