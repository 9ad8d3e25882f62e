"""By how much logits differ only because they are computed in calls of different shapes."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from sdbench.lm.cache import Prefix, RaggedCache
from sdbench.lm.layers import last_states
from sdbench.lm.memory import CHUNK
from sdbench.lm.model import LM

ROWS = 8  # most rows of the batch of a block; a batch is tried because kernels for many tokens round differently
MOST_STEPS = 8  # in steps of the dtype at the largest logit: a larger change between shapes is not taken for rounding


def explained_margin(lm: LM, text: Tensor, start: int, *, width: int = 6, rows: int = 1) -> float:
    """Return the largest difference of two logits that rounding explains, for text [L] after `start`, in a batch of `rows`.

    Each of the two may move by as much as a logit moves between a block of tokens and single tokens, in the engine as well as in
    the model's own forward pass, so that a fault of the engine's blocks is not taken for rounding. At most MOST_STEPS steps of
    the dtype are allowed.
    """
    return explained_by(*_moves(lm, text, start, width, rows), lm.dtype)


def explained_by(moves: float, largest: float, dtype: torch.dtype) -> float:
    """Return the difference of two logits that rounding explains, if each moves by `moves` and the largest logit is `largest`."""
    return 2 * min(moves, MOST_STEPS * torch.finfo(dtype).eps * largest)


@torch.inference_mode()  # without it packed weights would not be used
def margin_of(lm: LM, text: Tensor, first: int, second: int) -> float:
    """Return the difference of the logits of two tokens after text [L], whose last token is scored alone, as in plain decoding."""
    logits = logits_after(lm, text, lm.prefill_all([text[:-1]])[0], 1)[-1]
    return abs(float(logits[first] - logits[second]))


def rounding_of(lm: LM, text: Tensor, start: int, *, width: int = 6) -> float:
    """Return by how much rounding moves the logits of text [L] from `start` on between blocks and single tokens.

    Verification scores a block of `width` tokens, decoding by the target alone a single one. If two greedy texts diverge where
    the two largest logits differ by less than twice this value, rounding explains it, since each logit may move by the value.
    """
    return _moves(lm, text, start, width, 1)[0]


@torch.inference_mode()
def _moves(lm: LM, text: Tensor, start: int, width: int, rows: int) -> tuple[float, float]:
    """Return the largest difference between the logits of text [L] scored in blocks, in a batch of 1 or of `rows` equal texts, and
    those scored token by token; and the largest of the latter.

    The engine's difference is limited to that of the model's own forward pass, or to a step of the dtype if that is larger,
    because shapes that agree to the bit in one kernel may differ by a step in another.
    """
    if not 0 < start < len(text):
        raise ValueError(f"start must be between 1 and {len(text) - 1}, inside the text, got {start}")
    prefix, cache = lm.prefill_all([text[:start]])[0], model_cache(lm, text[:start])
    single, alone = logits_after(lm, text, prefix, 1), model_logits_after(lm, text, start, cache, 1)
    numbers = {1, min(rows, ROWS)}
    engine = max(float((logits_after(lm, text, prefix, width, num) - single).abs().max()) for num in numbers)
    model = max(float((model_logits_after(lm, text, start, cache, width, num) - alone).abs().max()) for num in numbers)
    largest = float(alone.abs().max())
    return min(engine, max(model, torch.finfo(lm.dtype).eps * largest)), largest


@torch.inference_mode()
def logits_after(lm: LM, text: Tensor, prefix: Prefix, width: int, rows: int = 1) -> Tensor:
    """Return the logits [L − start,V] after a prefix, in float32 or better, of one of `rows` equal texts."""
    cache, parts = RaggedCache(lm.config.num_hidden_layers, rows, len(text)), []
    for row in range(rows):
        cache.write(row, prefix)
    for positions in torch.arange(prefix.length, len(text), device=text.device).split(width):
        plan = lm.plan(positions.expand(rows, -1), cache, lm.kv_length(int(positions[-1]) + 1, cache))
        parts.append(lm.forward(text[positions].expand(rows, -1), plan, cache)[0])
    logits = torch.cat(parts)
    return logits if logits.dtype == torch.float64 else logits.float()


def model_cache(lm: LM, prompt: Tensor) -> Any:
    """Return the model's own cache of a prompt [L], from its own forward pass."""
    cache: Any = None
    hook = lm.head.register_forward_pre_hook(lambda _, inputs: last_states(inputs[0], 1))  # logits of the last token
    try:
        for chunk in prompt[None].split(CHUNK, 1):
            cache = lm.model(input_ids=chunk, past_key_values=cache, use_cache=True).past_key_values
    finally:
        hook.remove()
    return cache


def model_logits_after(lm: LM, text: Tensor, start: int, cache: Any, width: int, rows: int = 1) -> Tensor:
    """Return the same as `logits_after`, from the model's own forward pass over a copy of its own cache of text[:start]."""
    cache, parts = deepcopy(cache), []
    cache.batch_repeat_interleave(rows)
    for block in text[start:].split(width):
        parts.append(lm.model(input_ids=block.expand(rows, -1), past_key_values=cache, use_cache=True).logits[0])
    logits = torch.cat(parts)
    return logits if logits.dtype == torch.float64 else logits.float()
