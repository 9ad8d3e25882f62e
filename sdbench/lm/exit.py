"""Whether a model's forward pass can stop after its first layers and continue later: tested once, on a short text."""

import torch

from sdbench.errors import first_line, is_out_of_memory
from sdbench.lm.cache import RaggedCache
from sdbench.lm.model import LM
from sdbench.lm.probe import TEXT, closeness, probe_ids
from sdbench.probs import total_variation
from sdbench.types import PartialForward


@torch.inference_mode()
def can_continue(lm: LM, num_layers: int) -> bool:
    """Return whether the layers after the first `num_layers` need nothing but the output of these and the cache.

    Raise ValueError for a model whose first layers cannot run alone.
    """
    count = len(lm.listed_layers())
    ids, positions = probe_ids(lm, TEXT)[None], torch.arange(TEXT, device=lm.device)[None]
    cache, other = (RaggedCache(count, 1, TEXT) for _ in range(2))
    plan = lm.plan(positions, cache, TEXT)
    whole = lm.forward(ids, plan, cache)
    try:
        states = lm.begin(ids, plan, cache, num_layers)
        # Run another text in between, so that values that layers store outside the cache are then wrong and change the result.
        lm.forward_exit(ids.flip(1), plan, other, num_layers)
    except Exception as error:  # a model's code may raise anything if layers do not run
        if is_out_of_memory(error):
            raise
        name = f"the {lm.role} model of type {lm.config.model_type!r}"
        raise ValueError(f"{name} does not run its first {num_layers} layers alone ({first_line(error)})") from error
    try:
        rest = lm.forward_hidden(ids, plan, cache, begun=PartialForward(num_layers, (states,)))[0]
    except (LookupError, AttributeError, TypeError, ValueError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        return False  # a later layer reads what an earlier one has stored outside the cache
    return float(total_variation(*(x.double().softmax(-1) for x in (whole, rest))).max()) <= closeness(lm)
