"""What each layer of a model lets a token see: asked of the model once, and held against its own logits.

So a model that the engine would serve wrongly (positions counted by its own cache, masks of its own making, attention that is
more than a mask) is refused by name instead.
"""

from collections.abc import Hashable, Mapping
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from sdbench.errors import first_line
from sdbench.lm.attention import ragged_attention
from sdbench.lm.cache import RaggedCache
from sdbench.lm.fingerprint import fingerprint
from sdbench.lm.plan import CAUSAL, Sight, current
from sdbench.probs import total_variation

ASK = "sdbench_ask"  # attention that notes what it is asked to show, and is then the engine's own
TEXT, SHORT, STEPS = 12, 5, 4  # tokens of the text asked about; of the shorter row's prompt; and behind each prompt
FAR = 100_000  # a mask function that holds here was not made for one length
# TV of the laws. In half precision rounding, and the routing of experts, go their own way; quantised weights compute in it.
CLOSE = {torch.float64: 1e-4, torch.float32: 0.02}
CLOSE_IF_HALF = 0.1

_known: WeakKeyDictionary[PreTrainedModel, tuple[Hashable, Mapping[int, Sight]]] = WeakKeyDictionary()


class Serves(Protocol):
    """What is asked here of an `lm.LM`, which asks here what its layers see."""

    model: PreTrainedModel
    config: Any
    role: str
    vocab_size: int
    limit: int | None
    device: torch.device
    dtype: torch.dtype

    def prefill(self, prompt: Tensor, *, sights: Any, attention: str) -> Any: ...

    def plan(self, positions: Tensor, cache: RaggedCache, length: int, *, sights: Any) -> Any: ...

    def forward(self, ids: Tensor, plan: Any, cache: RaggedCache) -> Tensor: ...


def look(lm: Serves) -> Mapping[int, Sight]:
    """What each layer sees. A model whose logits the engine does not reproduce is a ValueError."""
    now = fingerprint(lm.model)
    before, sights = _known.get(lm.model, (None, {}))
    if before != now:
        try:
            sights, off = _ask(lm)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a model's code makes of a cache and masks that are not its own
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise ValueError(f"{_name(lm)} cannot be served over the engine's cache ({reason})") from error
        is_quantized = getattr(lm.model, "is_quantized", False)
        if off > (CLOSE_IF_HALF if is_quantized else CLOSE.get(lm.dtype, CLOSE_IF_HALF)):
            raise ValueError(f"{_name(lm)} cannot be served: over the engine's cache its laws are {off:.2g} off in TV")
        _known[lm.model] = now, sights
    return sights


def _ask(lm: Serves) -> tuple[Mapping[int, Sight], float]:
    """What each layer sees, and how far the engine's law is from the model's own: the worse of a short and a long row.

    The long row ends beyond every sliding window, so that a mask that begins to cut late is seen.
    """
    length = text_length(lm)
    text = (torch.arange(length, device=lm.device) * 7919 + 13) % max(1, lm.vocab_size * 4 // 5)
    starts = SHORT, length - STEPS
    sights: dict[int, Sight] = {}
    with torch.inference_mode():
        own = [lm.model(input_ids=text[None, : n + STEPS], use_cache=False).logits[0, -STEPS:] for n in starts]
        cache = RaggedCache(lm.config.num_hidden_layers, len(starts), length)
        for row, start in enumerate(starts):
            cache.write(row, lm.prefill(text[:start], sights=sights, attention=ASK))
        far = text.new_full((1, 1, 1, 1), FAR)
        assert all(bool(sight.rule(0, 0, far, far)) for sight in sights.values()), "a token sees itself"
        positions = torch.tensor(starts, device=lm.device)[:, None] + torch.arange(STEPS, device=lm.device)
        ours = lm.forward(text[positions], lm.plan(positions, cache, length, sights=sights), cache)
    off = total_variation(*(logits.double().softmax(-1) for logits in (torch.stack(own), ours)))
    return sights, float(off.mean(-1).max())


def text_length(lm: Serves) -> int:
    """Of the text asked about: past the sliding window, where the model's limit allows a longer text."""
    window = getattr(lm.config, "sliding_window", None) or 0
    longest = window + 2 * STEPS
    return max(TEXT, longest) if lm.limit is None or longest <= lm.limit else TEXT


def _name(lm: Serves) -> str:
    return f"{lm.role} model of type {lm.config.model_type!r} ({type(lm.model).__name__})"


def _mask(*, mask_function: Any, local_size: int | None = None, **_: Any) -> Sight:
    return Sight(mask_function, local_size)


def _attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **more: Any) -> Any:
    sights: Any = current().sights
    mask = attention_mask if isinstance(attention_mask, Sight) else CAUSAL
    sights[int(module.layer_idx)] = mask  # pyright: ignore[reportArgumentType]
    return ragged_attention(module, query, key, value, mask, **more)


AttentionMaskInterface.register(ASK, _mask)
AttentionInterface.register(ASK, _attention)
