"""The target's forward pass of a round, as a step that can be captured."""

from collections.abc import Sequence

from torch import Tensor

from sdbench.lm.cache import RaggedCache
from sdbench.lm.model import LM, concatenate_states
from sdbench.probs import Warp
from sdbench.types import PartialForward


def score_block(
    target: LM,
    cache: RaggedCache,
    warp: Warp,
    wanted: Sequence[str],
    num_layers: int,
    keep: int,
    kv_length: int,
    ids: Tensor,
    positions: Tensor,
    *states: Tensor,
    out: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Run the target over ids [B,T] at these positions: the unread end of each text, and K drafts.

    Return its law after each of the last `keep` = K+1 ids, [B,K+1,V] or at temperature 0 ids [B,K+1], then what `wanted` names at
    the same positions. The first `num_layers` layers have run; `states` are their output. The law is written to `out` if given.
    """
    plan = target.plan(positions, cache, kv_length)
    with target.layer_states("layer_hidden" in wanted) as layer_states:
        begun = PartialForward(num_layers, states)
        raw, hidden = target.forward_hidden(ids, plan, cache, keep=keep, begun=begun)
    logits = warp.used(raw)
    extra = {"raw": logits, "target_hidden": hidden, "layer_hidden": concatenate_states(layer_states)}
    return warp.law(logits, out), *(extra[name][:, -keep:] for name in wanted)
