"""Layers draft a whole block in one forward: what each slot reads and sees, whatever the blocks before had kept."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

import sdbench
from sdbench.draft.block import BlockDrafter
from sdbench.lm.layers import output_of
from sdbench.lm.model import LM
from sdbench.lm.state_model import StateLM, fuse, normalize
from sdbench.types import DraftSetup
from sdbench.verify import Ensemble, Exact
from tests.draft import proofs
from tests.draft.heads import HEADS, random_heads, write_heads
from tests.draft.proofs import OPTIONS
from tests.draft.test_mtp import states_before
from tests.engine.models import PROMPTS


def block_states(model: StateLM, states: Tensor, ids: list[int], k: int) -> Tensor:
    """The states [K,d] of a block behind a text whose tokens were given by states [n,d], by transformers' own forward."""
    cache, decoder, length = DynamicCache(), model.model.get_decoder(), len(ids)
    with output_of(model.new_layers[-1]) as outputs:
        decoder(inputs_embeds=model.inputs(states, torch.tensor(ids))[None], past_key_values=cache)
        if k > 1:
            fused = fuse(model.weights, states[-1:].expand(k - 1, -1), model.weights["mask"][: k - 1])
            position = torch.arange(length, length + k - 1)
            masks = [block_mask(model, layer, position, length) for layer in range(len(model.new_layers))]
            types = getattr(model.config, "layer_types", None)
            mask: Any = masks[0] if types is None else dict(zip(types, masks, strict=True))
            decoder(inputs_embeds=fused[None], position_ids=position[None], past_key_values=cache, attention_mask=mask)
    whole = torch.cat([outputs[0][0, -1:], *(x[0] for x in outputs[1:])])
    return normalize(model.weights, "final_norm", whole)


def block_mask(model: StateLM, layer: int, position: Tensor, length: int) -> Tensor:
    """What slots behind a text see, [1,1,K−1,n+K−1]: its tokens within the layer's window, and each other."""
    window = getattr(model.config, "sliding_window", None)
    types = getattr(model.config, "layer_types", None)
    is_sliding = types is not None and types[layer] == "sliding_attention"
    reach = window if is_sliding else 1 << 30
    slot = torch.arange(length + len(position))
    seen = (position[:, None] - slot < reach) | (slot >= length)
    return torch.zeros((), dtype=model.dtype).where(seen, -torch.inf)[None, None]


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
@torch.no_grad()
def test_a_block_is_one_forward_over_the_text_and_trained_vectors(family, tmp_path):
    """Off by one nowhere: q of every drafted token, recomputed with a mask of the test's own, whatever blocks before had kept."""
    target = proofs.target_of(family, slice(1, 3))
    warp = sdbench.Engine(target).warp(1.0)
    model, num_kept = StateLM(LM(target), random_heads(target, "block")), set()
    knobs = {"head": write_heads(tmp_path, target, "block")}
    for g in proofs.decode(target, "block", knobs, [Ensemble(w=0.5)], batch_size=3, max_new_tokens=16):
        text, length, drafted = [*PROMPTS[g.prompt], *g.tokens], len(PROMPTS[g.prompt]), 0
        for width, accepted in zip(g.drafted, g.accepted, strict=True):
            if width:
                ids = text[:length]
                law = warp.law(warp.logits(model.read_out(block_states(model, states_before(target, ids), ids, width))))
                wanted = law.gather(1, torch.tensor(g.draft_tokens[drafted : drafted + width])[:, None])[:, 0]
                assert g.q[drafted : drafted + width] == pytest.approx(wanted.tolist(), abs=1e-9)
            length, drafted = length + accepted + 1, drafted + width
            num_kept.add(accepted)
    assert len(num_kept) > 2


@torch.no_grad()
def test_slots_of_a_block_see_later_ones(tmp_path):
    """The second layer reads what the first made of them: q of a token changes with a vector behind it, except for the first."""
    target = proofs.target_of("llama", slice(1, 3))
    weights = random_heads(target, "block")
    ids, states = PROMPTS[0], states_before(target, PROMPTS[0])
    before = block_states(StateLM(LM(target), weights), states, ids, HEADS)
    weights["mask"][-1] *= -1
    after = block_states(StateLM(LM(target), weights), states, ids, HEADS)
    assert torch.equal(before[0], after[0])
    assert (before[1:-1] != after[1:-1]).any(-1).all()


def test_layers_that_know_the_next_tokens_are_accepted():
    """A target that repeats its last token, and layers that hand on the state they read: from the second round on every draft is
    right, since the state that gave the last token is read in every slot.
    """
    target = proofs.repeating_target()
    weights = random_heads(target, "block")
    for name, x in weights.items():
        if name == "fuse":
            x.copy_(torch.cat((torch.eye(len(x)), torch.zeros(len(x), len(x))), 1))
        elif "o_proj" in name or "down_proj" in name:
            x.zero_()
        elif "norm" in name:
            x.fill_(1)
    engine = sdbench.Engine(target)
    drafter = BlockDrafter(engine.target, engine.warp(0.0), weights)
    decoded = sdbench.generate(
        None, None, PROMPTS, [Exact()], engine=engine, drafter=drafter, temperature=0.0, **OPTIONS
    )
    assert all(g.accepted[1:] == g.drafted[1:] for g in decoded)
    assert sum(len(g.accepted) for g in decoded) > 2 * len(decoded)


def test_a_block_has_at_most_as_many_tokens_as_were_trained(tmp_path):
    target = proofs.target_of("llama", slice(1, 3))
    head = write_heads(tmp_path, target, "block")
    decoded = proofs.decode(target, "block", {"head": head}, num_draft=HEADS + 3)
    assert max(max(g.drafted) for g in decoded) == HEADS
    with pytest.raises(ValueError, match=f"drafts at most {HEADS} tokens: give a num_draft of at most {HEADS}"):
        BlockDrafter.check(DraftSetup(None, None, num_draft=HEADS + 1), head)


def test_a_target_of_fewer_layers_is_refused(tmp_path):
    head = write_heads(tmp_path, proofs.target_of("llama", slice(1, 3)), "block")
    engine = sdbench.Engine(proofs.tiny("llama", layers=1))
    with pytest.raises(ValueError, match="the head has 2 layers, and the target 1: train a head for this target"):
        engine.drafter("block", engine.warp(0.0), {"head": head})
