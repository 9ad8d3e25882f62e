"""How far logits differ for no other reason than the shape of the call that computes them."""

import torch
from torch import Tensor

from sdbench.lm.cache import Prefix, RaggedCache
from sdbench.lm.model import LM

ROWS = (
    8  # at most, of the batch that a block is scored in: a kernel for many tokens rounds differently from one for few
)
MOST_STEPS = 8  # of the dtype at the largest logit: what moves by more between two shapes is no rounding


def explained_margin(lm: LM, text: Tensor, start: int, *, width: int = 6, rows: int = 1) -> float:
    """Return the largest margin between two logits that rounding explains, from text [L] behind `start`, in a batch of `rows`.

    Each of the two may move by as much as a logit moves between a block of tokens and single ones, and by no more than
    MOST_STEPS steps of the dtype: where shapes disagree by more, the forward is at fault.
    """
    moves, largest = _moves(lm, text, start, width, rows)
    return 2 * min(moves, MOST_STEPS * torch.finfo(lm.dtype).eps * largest)


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
    return _moves(lm, text, start, width, 1)[0]


@torch.inference_mode()
def _moves(lm: LM, text: Tensor, start: int, width: int, rows: int) -> tuple[float, float]:
    """Return the largest difference between logits of text [L] scored in blocks, alone or as each of `rows` texts, and token by
    token; and the largest of the latter.
    """
    if not 0 < start < len(text):
        raise ValueError(f"start must be between 1 and {len(text) - 1}, inside the text, got {start}")
    prefix = lm.prefill_all([text[:start]])[0]
    single = _score(lm, text, prefix, 1)
    blocks = (_score(lm, text, prefix, width, num) for num in {1, min(rows, ROWS)})
    return max(float((block - single).abs().max()) for block in blocks), float(single.abs().max())


def _score(lm: LM, text: Tensor, prefix: Prefix, width: int, rows: int = 1) -> Tensor:
    """Return the logits [L − start,V] behind a prefix, in float32 or better, of one of `rows` equal texts."""
    cache, parts = RaggedCache(lm.config.num_hidden_layers, rows, len(text)), []
    for row in range(rows):
        cache.write(row, prefix)
    for positions in torch.arange(prefix.length, len(text), device=text.device).split(width):
        plan = lm.plan(positions.expand(rows, -1), cache, lm.kv_length(int(positions[-1]) + 1, cache))
        parts.append(lm.forward(text[positions].expand(rows, -1), plan, cache)[0])
    logits = torch.cat(parts)
    return logits if logits.dtype == torch.float64 else logits.float()
