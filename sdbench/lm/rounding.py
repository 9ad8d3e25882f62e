"""How far logits differ for no other reason than the shape of the call that computes them."""

import torch
from torch import Tensor

from sdbench.lm.cache import Prefix, RaggedCache
from sdbench.lm.model import LM

MOST_STEPS = 8  # of the dtype at the largest logit: what moves by more between two shapes is no rounding


def explained_margin(lm: LM, text: Tensor, start: int, *, width: int = 6) -> float:
    """Return the largest margin between two logits that rounding explains, from text [L] behind `start`.

    Each of the two may move by as much as a logit moves between a block of tokens and single ones, and by no more than
    MOST_STEPS steps of the dtype: where shapes disagree by more, the forward is at fault.
    """
    with torch.inference_mode():
        block, single = _both_shapes(lm, text, start, width)
    step = torch.finfo(lm.dtype).eps * float(single.abs().max())
    return 2 * min(float((block - single).abs().max()), MOST_STEPS * step)


def margin_of(lm: LM, text: Tensor, first: int, second: int) -> float:
    """Return how far the logits of two tokens behind text [L] are apart, its last token scored alone as in plain decoding."""
    with torch.inference_mode():
        logits = _score(lm, text, lm.prefill_all([text[:-1]])[0], 1)[-1]
        return abs(float(logits[first] - logits[second]))


def rounding_of(lm: LM, text: Tensor, start: int, *, width: int = 6) -> float:
    """Return the largest difference between the logits of text [L] from `start` on, scored in blocks and token by token.

    A block of `width` tokens is what verification scores, a token what the target alone does. Two greedy texts that part where
    the two largest logits are nearer than twice this part by rounding: each logit may move by it.
    """
    with torch.inference_mode():
        block, single = _both_shapes(lm, text, start, width)
        return float((block - single).abs().max())


def _both_shapes(lm: LM, text: Tensor, start: int, width: int) -> tuple[Tensor, Tensor]:
    """Return the logits [L − start,V] of text [L] behind a prefix, scored in blocks and token by token."""
    if not 0 < start < len(text):
        raise ValueError(f"start must be between 1 and {len(text) - 1}, inside the text, got {start}")
    prefix = lm.prefill_all([text[:start]])[0]
    return _score(lm, text, prefix, width), _score(lm, text, prefix, 1)


def _score(lm: LM, text: Tensor, prefix: Prefix, width: int) -> Tensor:
    """Return the logits [L − start,V] behind a prefix, in float32 or better."""
    cache, parts = RaggedCache(lm.config.num_hidden_layers, 1, len(text)), []
    cache.write(0, prefix)
    for positions in torch.arange(prefix.length, len(text), device=text.device).split(width):
        plan = lm.plan(positions[None], cache, lm.kv_length(int(positions[-1]) + 1, cache))
        parts.append(lm.forward(text[positions][None], plan, cache)[0])
    logits = torch.cat(parts)
    return logits if logits.dtype == torch.float64 else logits.float()
