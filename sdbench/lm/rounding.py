"""How far logits differ for no other reason than the shape of the call that computes them."""

import torch
from torch import Tensor

from sdbench.lm.cache import Prefix, RaggedCache
from sdbench.lm.model import LM


def rounding_of(lm: LM, text: Tensor, start: int, *, width: int = 6) -> float:
    """Return the largest difference between the logits of text [L] from `start` on, scored in blocks and token by token.

    A block of `width` tokens is what verification scores, a token what the target alone does. Two greedy texts that part where
    the two largest logits are nearer than twice this part by rounding: each logit may move by it.
    """
    if not 0 < start < len(text):
        raise ValueError(f"start must be between 1 and {len(text) - 1}, inside the text, got {start}")
    with torch.inference_mode():
        prefix = lm.prefill_all([text[:start]])[0]
        block, single = (_score(lm, text, prefix, step) for step in (width, 1))
        return float((block - single).abs().max())


def _score(lm: LM, text: Tensor, prefix: Prefix, width: int) -> Tensor:
    """Return the logits [L − start,V] behind a prefix, in float32 or better."""
    cache, parts = RaggedCache(lm.config.num_hidden_layers, 1, len(text)), []
    cache.write(0, prefix)
    for positions in torch.arange(prefix.length, len(text), device=text.device).split(width):
        plan = lm.plan(positions[None], cache, lm.kv_length(int(positions[-1]) + 1, cache))
        parts.append(lm.forward(text[positions][None], plan, cache)[0])
    logits = torch.cat(parts)
    return logits if logits.dtype == torch.float64 else logits.float()
