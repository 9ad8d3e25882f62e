"""Find out from the model what each layer lets a token attend to, and check the result against the model's own logits.

The check refuses, by name, a model that the engine would run wrongly: one that counts positions by its cache, builds masks
itself, or has attention that is more than a mask.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from sdbench.errors import first_line, is_out_of_memory
from sdbench.lm.attention import NAME, ragged_attention
from sdbench.lm.cache import RaggedCache
from sdbench.lm.fingerprint import fingerprint
from sdbench.lm.layers import last_states
from sdbench.lm.mapped import unchanged_files
from sdbench.lm.plan import CAUSAL, LayerMask, current
from sdbench.probs import total_variation

if TYPE_CHECKING:
    from sdbench.lm.model import LM

PROBE = "sdbench_probe"  # attention that records its mask, then runs the engine's attention
TEXT, SHORT, STEPS = 12, 5, 4  # tokens of the probe's text, of the shorter row's prompt, and after each prompt
FAR = 100_000  # mask functions are also checked at this position, to detect one that holds only for one length
# Largest TV of the distributions. In half precision rounding and the routing of experts differ; quantised weights compute in it.
CLOSE = {torch.float64: 1e-4, torch.float32: 0.02}
CLOSE_IF_HALF = 0.1

_known: WeakKeyDictionary[PreTrainedModel, tuple[Hashable, Mapping[int, LayerMask]]] = WeakKeyDictionary()


def probe(lm: LM) -> Mapping[int, LayerMask]:
    """Return the mask of each layer. ValueError if the engine does not reproduce the model's logits."""
    now = fingerprint(lm.model, unchanged_files() if lm.packed else ())
    before, layer_masks = _known.get(lm.model, (None, {}))
    if before != now:
        name = f"{lm.role} model of type {lm.config.model_type!r} ({type(lm.model).__name__})"
        try:
            layer_masks, off = _measure(lm)
        except Exception as error:  # a model's code may raise anything if the cache and the masks are not its own
            if is_out_of_memory(error):
                raise
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise ValueError(
                f"{name} does not run with sdbench's KV cache ({reason}): choose another model, or decode with engine=vllm"
            ) from error
        if off > closeness(lm):
            raise ValueError(
                f"{name} gives other distributions with sdbench's KV cache than without it (total variation {off:.2g}): choose "
                "another model, or decode with engine=vllm"
            )
        _known[lm.model] = now, layer_masks
    return layer_masks


def _measure(lm: LM) -> tuple[Mapping[int, LayerMask], float]:
    """Return the mask of each layer, and the TV between the engine's and the model's distributions, the larger of two rows.

    If the model's limit allows, the long row is longer than the sliding window, to detect a mask that cuts too late.
    """
    length = text_length(lm)
    text = probe_ids(lm, length)
    starts = SHORT, length - STEPS
    lm.attention, lm.layer_masks = PROBE, {}
    with torch.inference_mode():
        # Logits only at the last positions: those of a whole window over a large vocabulary would take a gigabyte.
        hook = lm.head.register_forward_pre_hook(lambda _, inputs: last_states(inputs[0], STEPS))
        try:
            with lm.products.in_use():  # the weights themselves may not be in memory
                theirs = [
                    lm.model(input_ids=text[None, : n + STEPS], use_cache=False).logits[0, -STEPS:] for n in starts
                ]
        finally:
            hook.remove()
        cache = RaggedCache(lm.config.num_hidden_layers, len(starts), length)
        for row, start in enumerate(starts):
            cache.write(row, lm.prefill_all([text[:start]])[0])
        lm.attention = NAME
        far = text.new_full((1, 1, 1, 1), FAR)
        assert all(bool(mask.function(0, 0, far, far)) for mask in lm.layer_masks.values()), "a token sees itself"
        positions = torch.tensor(starts, device=lm.device)[:, None] + torch.arange(STEPS, device=lm.device)
        ours = lm.forward(text[positions], lm.plan(positions, cache, length), cache)
    off = total_variation(*(logits.double().softmax(-1) for logits in (torch.stack(theirs), ours)))
    return lm.layer_masks, float(off.mean(-1).max())


def probe_ids(lm: LM, length: int) -> Tensor:
    """Return a text [L] of ids spread over the vocabulary."""
    return (torch.arange(length, device=lm.device) * 7919 + 13) % max(1, lm.vocab_size * 4 // 5)


def closeness(lm: LM) -> float:
    """Return the largest TV that two ways to compute a model's distributions may have."""
    return CLOSE_IF_HALF if getattr(lm.model, "is_quantized", False) else CLOSE.get(lm.dtype, CLOSE_IF_HALF)


def text_length(lm: LM) -> int:
    """Return the length of the probe's text: past the sliding window, if the model's limit allows."""
    window = getattr(lm.config, "sliding_window", None) or 0
    longest = window + 2 * STEPS
    return max(TEXT, longest) if lm.limit is None or longest <= lm.limit else TEXT


def _mask(*, mask_function: Any, local_size: int | None = None, **_: Any) -> LayerMask:
    return LayerMask(mask_function, local_size)


def _attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **more: Any) -> Any:
    layer_masks: Any = current().layer_masks
    mask = attention_mask if isinstance(attention_mask, LayerMask) else CAUSAL
    layer_masks[int(module.layer_idx)] = mask  # pyright: ignore[reportArgumentType]
    return ragged_attention(module, query, key, value, mask, **more)


AttentionMaskInterface.register(PROBE, _mask)
AttentionInterface.register(PROBE, _attention)
