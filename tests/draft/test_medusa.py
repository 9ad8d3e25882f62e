"""Medusa heads draft: distributions, the state that is read, how many they are."""

from typing import Any

import pytest
import torch

import sdbench
from sdbench.draft.medusa import Medusa, guess
from sdbench.lm.model import LM
from sdbench.types import DraftSetup
from sdbench.verify import Ensemble, Exact
from tests.draft import proofs
from tests.draft.heads import HEADS, random_heads, write_heads
from tests.draft.proofs import OPTIONS
from tests.engine.models import PROMPTS


@pytest.fixture(scope="module")
def target() -> Any:
    return proofs.target_of("gemma3", slice(1, 3))


@pytest.fixture
def head(tmp_path, target) -> str:
    return write_heads(tmp_path / "heads", target)


@pytest.mark.parametrize("top_p", [None, 0.8])
def test_each_head_reads_the_state_that_gave_the_last_token(target, head, top_p):
    """Off by one nowhere: q of every drafted token, recomputed from the states of transformers' own forward."""
    warp = sdbench.Engine(target).warp(1.0, None, top_p)
    weights = random_heads(target)
    lm, num_rounds = LM(target), 0
    for g in proofs.decode(target, "medusa", {"head": head}, [Ensemble(w=0.5)], top_p=top_p, batch_size=3):
        text, length, drafted = [*PROMPTS[g.prompt], *g.tokens], len(PROMPTS[g.prompt]), 0
        for width, accepted in zip(g.drafted, g.accepted, strict=True):
            newest = torch.zeros(target.config.hidden_size).double()  # behind a prompt of one token there is no state
            if length > 1:
                newest = target(torch.tensor([text[: length - 1]]), output_hidden_states=True).hidden_states[-1][0, -1]
            law = warp.law(warp.logits(lm.read_out(guess(weights, newest, width))))
            tokens = torch.tensor(g.draft_tokens[drafted : drafted + width])
            wanted = law.gather(1, tokens[:, None])[:, 0]
            assert g.q[drafted : drafted + width] == pytest.approx(wanted.tolist(), abs=1e-9)
            length, drafted, num_rounds = length + accepted + 1, drafted + width, num_rounds + 1
    assert num_rounds > len(PROMPTS)


def test_heads_that_know_the_next_tokens_are_accepted():
    """A target that repeats its last token, and untrained heads, which guess what its own head does: from the second round on
    every draft is right.
    """
    target = proofs.repeating_target()
    engine = sdbench.Engine(target)
    drafter = Medusa(engine.target, engine.warp(0.0), random_heads(target, scale=0))
    decoded = sdbench.generate(
        None, None, PROMPTS, [Exact()], engine=engine, drafter=drafter, temperature=0.0, **OPTIONS
    )
    assert all(g.accepted[1:] == g.drafted[1:] for g in decoded)
    assert sum(len(g.accepted) for g in decoded) > 2 * len(decoded)


def test_a_block_has_at_most_as_many_tokens_as_there_are_heads(target, head):
    decoded = proofs.decode(target, "medusa", {"head": head}, num_draft=HEADS + 3)
    assert max(max(g.drafted) for g in decoded) == HEADS
    with pytest.raises(
        ValueError, match=f"drafts at most {HEADS} tokens: give a num_draft of at most {HEADS}, got {HEADS + 1}"
    ):
        Medusa.check(DraftSetup(None, None, num_draft=HEADS + 1), head)
