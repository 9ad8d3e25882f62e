"""What each layer of a model lets a token see: asked of the model once, and held against its own logits.

So a model that the engine would serve wrongly (positions counted by its own cache, masks of its own making, attention that is
more than a mask) is refused by name instead.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from sdbench.lm.attention import ragged_attention
from sdbench.lm.cache import RaggedCache
from sdbench.lm.plan import CAUSAL, Sight, current
from sdbench.probs import total_variation

if TYPE_CHECKING:
    from sdbench.lm.model import LM

ASK = "sdbench_ask"  # attention that notes what it is told, and is then the engine's own
TEXT, PROMPTS, STEPS = 12, (5, 8), 4  # tokens of the text asked about; of it in two rows' prompts; and behind each
FAR = 100_000  # a mask function that holds here was not made for one length
# TV of the laws. In half precision rounding, and the routing of experts, go their own way; quantised weights compute in it.
CLOSE = {torch.float64: 1e-4, torch.float32: 0.02}
CLOSE_IF_HALF = 0.1

_known: WeakKeyDictionary[PreTrainedModel, Mapping[int, Sight]] = WeakKeyDictionary()


def look(lm: "LM") -> Mapping[int, Sight]:
    """What each layer sees. A model whose logits the engine does not reproduce is a ValueError."""
    if lm.model not in _known:
        try:
            sights, off = _ask(lm)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a model's code makes of a cache and masks that are not its own
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise ValueError(f"{_name(lm)} cannot be served over the engine's cache ({reason})") from error
        is_half = getattr(lm.model, "is_quantized", False) or lm.dtype not in CLOSE
        if off > (CLOSE_IF_HALF if is_half else CLOSE[lm.dtype]):
            raise ValueError(f"{_name(lm)} cannot be served: over the engine's cache its laws are {off:.2g} off in TV")
        _known[lm.model] = sights
    return _known[lm.model]


def _ask(lm: "LM") -> tuple[Mapping[int, Sight], float]:
    """What each layer sees, and how far the engine's law is from the model's own: the median over two ragged rows."""
    text = (torch.arange(TEXT, device=lm.device) * 7919 + 13) % max(1, lm.vocab_size * 4 // 5)
    told: dict[int, Sight] = {}
    with torch.inference_mode():
        own = lm.model(input_ids=text[None], use_cache=False).logits[0]
        cache = RaggedCache(lm.config.num_hidden_layers, len(PROMPTS), TEXT)
        for row, length in enumerate(PROMPTS):
            cache.write(row, lm.prefill(text[:length], sights=told, attention=ASK))
        far = text.new_full((1, 1, 1, 1), FAR)
        assert all(bool(sight.rule(0, 0, far, far)) for sight in told.values()), "a token sees itself"
        positions = torch.tensor(PROMPTS, device=lm.device)[:, None] + torch.arange(STEPS, device=lm.device)
        ours = lm.forward(text[positions], lm.plan(positions, cache, TEXT, sights=told), cache)
    off = total_variation(*(logits.double().softmax(-1) for logits in (own[positions], ours)))
    return told, float(off.median())


def _name(lm: "LM") -> str:
    return f"{lm.role} model of type {lm.config.model_type!r} ({type(lm.model).__name__})"


def _mask(*, mask_function: Any, local_size: int | None = None, **_: Any) -> Sight:
    return Sight(mask_function, local_size)


def _attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **more: Any) -> Any:
    told: Any = current().sights
    mask = attention_mask if isinstance(attention_mask, Sight) else CAUSAL
    told[int(module.layer_idx)] = mask  # pyright: ignore[reportArgumentType]
    return ragged_attention(module, query, key, value, mask, **more)


AttentionMaskInterface.register(ASK, _mask)
AttentionInterface.register(ASK, _attention)
