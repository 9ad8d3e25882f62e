"""A layer on the target's states drafts: which state and token each slot reads, whatever the blocks before had kept."""

from typing import Any

import pytest
import torch
from torch import Tensor

import sdbench
from sdbench.draft.mtp import MTP, Eagle
from sdbench.lm.layers import output_of
from sdbench.lm.model import LM
from sdbench.lm.state_model import StateLM, normalize
from sdbench.types import DraftSetup
from sdbench.verify import Ensemble, Exact
from tests.draft import proofs
from tests.draft.heads import random_heads, write_heads
from tests.draft.proofs import OPTIONS
from tests.engine.models import PROMPTS


def drafted_states(model: StateLM, states: Tensor, ids: list[int], drafts: list[int]) -> Tensor:
    """The states [K,d] behind a text whose tokens were given by states [n,d], by transformers' own forward, without a cache."""
    rows = []
    for token in drafts:
        with output_of(model.new_layers[-1]) as outputs:
            inputs = model.inputs(states, torch.tensor(ids))
            model.model.get_decoder()(inputs_embeds=inputs[None], use_cache=False)
        rows.append(normalize(model.weights, "final_norm", outputs[0][0, -1]))
        states, ids = torch.cat((states, rows[-1][None])), [*ids, token]
    return torch.stack(rows)


def states_before(target: Any, ids: list[int], join: Tensor | None = None) -> Tensor:
    """The states [n,d] that gave each token of a text, made of three layers' where `join` [d,3d] does; zero before the first."""
    zero = torch.zeros(1, target.config.hidden_size).double()
    if len(ids) == 1:
        return zero
    layers = target(torch.tensor([ids[:-1]]), output_hidden_states=True).hidden_states  # the first are the embeddings
    if join is None:
        return torch.cat((zero, layers[-1][0]))
    middle = target.config.num_hidden_layers // 2 + 1
    return torch.cat((zero, torch.cat((layers[2][0], layers[middle][0], layers[-1][0]), -1) @ join.T))


@pytest.mark.parametrize(
    ("kind", "family"),
    [("mtp", "llama"), ("eagle", "qwen3"), ("mtp", "gemma3"), ("eagle3", "llama"), ("eagle3", "qwen3")],
)
@torch.no_grad()
def test_each_slot_reads_the_state_that_gave_its_token_and_the_token(kind, family, tmp_path):
    """Off by one nowhere: q of every drafted token, recomputed without a cache, whatever the blocks before had kept."""
    target = proofs.target_of(family, slice(1, 3))
    warp = sdbench.Engine(target).warp(1.0)
    weights = random_heads(target, kind)
    model, num_kept = StateLM(LM(target), weights), set()
    knobs = {"head": write_heads(tmp_path, target, kind)}
    for g in proofs.decode(target, kind, knobs, [Ensemble(w=0.5)], batch_size=3, max_new_tokens=16):
        text, length, drafted = [*PROMPTS[g.prompt], *g.tokens], len(PROMPTS[g.prompt]), 0
        for width, accepted in zip(g.drafted, g.accepted, strict=True):
            drafts = list(g.draft_tokens[drafted : drafted + width])
            if drafts:
                ids = text[:length]
                states = drafted_states(model, states_before(target, ids, weights.get("join")), ids, drafts)
                law = warp.law(warp.logits(model.read_out(states)))
                wanted = law.gather(1, torch.tensor(drafts)[:, None])[:, 0]
                assert g.q[drafted : drafted + width] == pytest.approx(wanted.tolist(), abs=1e-9)
            length, drafted = length + accepted + 1, drafted + width
            num_kept.add(accepted)
    assert len(num_kept) > 2


def test_a_target_with_another_embedding_gets_another_model_of_its_states(tmp_path):
    target = proofs.target_of("llama", slice(1, 3))
    engine, options = sdbench.Engine(target), {"head": write_heads(tmp_path, target, "mtp")}

    def model() -> StateLM:
        return engine.drafter("mtp", engine.warp(1.0), options).model

    first = model()
    assert model() is first
    embedding = target.get_input_embeddings()
    embedding.weight = torch.nn.Parameter(2 * embedding.weight.detach(), requires_grad=False)
    assert model() is not first
    assert model().embed(torch.tensor([3])).equal(embedding(torch.tensor([3])))


def test_a_layer_that_knows_the_next_tokens_is_accepted():
    """A target that repeats its last token, and a layer that hands on the embedding it reads: every draft is right."""
    target = proofs.repeating_target()
    weights = random_heads(target, "eagle")
    for name, x in weights.items():
        if name == "fuse":
            width = len(x)
            x.copy_(torch.cat((torch.zeros(width, width), torch.eye(width)), 1))
        elif "o_proj" in name or "down_proj" in name:
            x.zero_()
    engine = sdbench.Engine(target)
    drafter = Eagle(engine.target, engine.warp(0.0), weights)
    decoded = sdbench.generate(
        None, None, PROMPTS, [Exact()], engine=engine, drafter=drafter, temperature=0.0, **OPTIONS
    )
    assert all(g.accepted == g.drafted for g in decoded)
    assert sum(sum(g.accepted) for g in decoded) > 3 * len(decoded)


def test_a_layer_of_another_architecture_is_refused(tmp_path):
    """The width alone is known before weights are read."""
    head = write_heads(tmp_path, proofs.target_of("llama", slice(1, 3)), "mtp")
    target = proofs.target_of("qwen2", slice(1, 3))
    MTP.check(DraftSetup(None, None, target_config=target.config), head)
    engine = sdbench.Engine(target)
    with pytest.raises(
        ValueError, match="is not a Qwen2DecoderLayer of this target's sizes: train a head for this target"
    ):
        engine.drafter("mtp", engine.warp(0.0), {"head": head})
