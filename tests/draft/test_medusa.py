"""Medusa heads draft: texts, distributions, the state that is read, folders of heads, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import sdbench
from sdbench.card import write_trained
from sdbench.draft.medusa import KIND, Medusa, guess
from sdbench.lm.model import LM
from sdbench.types import DraftSetup
from sdbench.verify import Ensemble, Exact
from tests.draft import proofs
from tests.draft.proofs import OPTIONS
from tests.engine.models import FAMILIES, PROMPTS

HEADS = 4


def random_heads(width: int, seed: int = 0, scale: float = 0.3) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(HEADS, width, width, generator=generator) * scale
    return {"weight": weight, "bias": torch.randn(HEADS, width, generator=generator) * scale}


def write_heads(folder: Any, target: Any, **more: Any) -> str:
    width = target.config.get_text_config().hidden_size
    card = {"model": "toy", "checkpoints": {"target": "sha256:0"}, "tokenizer": "0", **more}
    write_trained(folder, KIND, random_heads(width), {}, card)
    return str(folder)


@pytest.fixture(scope="module")
def target() -> Any:
    return proofs.target_of("gemma3", slice(1, 3))


@pytest.fixture
def head(tmp_path, target) -> str:
    return write_heads(tmp_path / "heads", target)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_exact_is_the_target_token_for_token(family, tmp_path):
    target = proofs.target_of(family, slice(1, 3))
    knobs = {"head": write_heads(tmp_path / "heads", target)}
    settings = ((3, "off"), (1, "off"), (32, "off"), (3, "trace"), (3, "graphs"))
    proofs.assert_greedy_is_the_target(
        target, "medusa", [(knobs, size, capture) for size, capture in settings], least=0
    )


@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("capture", ["trace", "graphs"])
def test_texts_do_not_depend_on_batches_captures_order_or_neighbours(target, head, temperature, capture):
    proofs.assert_texts_stand_alone(target, "medusa", {"head": head}, temperature, capture)


@pytest.mark.parametrize("top_p", [None, 0.8])
def test_each_head_reads_the_state_that_gave_the_last_token(target, head, top_p):
    """Off by one nowhere: q of every drafted token, recomputed from the states of transformers' own forward."""
    warp = sdbench.Engine(target).warp(1.0, None, top_p)
    weights = {name: x.double() for name, x in random_heads(target.config.hidden_size).items()}
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
    target = proofs.target_of("llama", slice(0, 4))
    for layer in target.model.layers:
        layer.self_attn.o_proj.weight.data.zero_()
        layer.mlp.down_proj.weight.data.zero_()
    target.lm_head.weight.data[:] = torch.nn.functional.normalize(target.model.embed_tokens.weight.data)
    zeros = {name: x.zero_() for name, x in random_heads(target.config.hidden_size).items()}
    engine = sdbench.Engine(target)
    drafter = Medusa(engine.target, engine.warp(0.0), zeros)
    decoded = sdbench.generate(
        None, None, PROMPTS, [Exact()], engine=engine, drafter=drafter, temperature=0.0, **OPTIONS
    )
    assert all(g.accepted[1:] == g.drafted[1:] for g in decoded)
    assert sum(len(g.accepted) for g in decoded) > 2 * len(decoded)


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_every_rule_judges_these_drafts(target, head, temperature):
    engine = sdbench.Engine(target)
    drafter = engine.drafter("medusa", engine.warp(temperature), {"head": head})
    rules = [Exact(), Ensemble(w=0.5), Ensemble(w=0.0)]
    decoded = sdbench.generate(
        None, None, PROMPTS, rules, engine=engine, drafter=drafter, temperature=temperature, **OPTIONS
    )
    kept = [sum(sum(g.accepted) for g in decoded if g.verifier == n) for n in range(len(rules))]
    assert kept[0] <= kept[1] <= kept[2], "leniency keeps more"


def test_a_block_has_at_most_as_many_tokens_as_there_are_heads(target, head):
    decoded = proofs.decode(target, "medusa", {"head": head}, num_draft=HEADS + 3)
    assert max(max(g.drafted) for g in decoded) == HEADS


def test_a_state_follows_its_row_through_moves_and_refills(target, head):
    """More prompts than rows, families of rules: each text equals that of a batch of its own."""
    rules = [Exact(), Ensemble(w=0.5), Ensemble(w=0.2, mix="logit")]
    alone = proofs.decode(target, "medusa", {"head": head}, rules, batch_size=1)
    together = proofs.decode(target, "medusa", {"head": head}, rules, batch_size=2)
    assert [g.tokens for g in alone] == [g.tokens for g in together]
    assert [g.q for g in alone] == [pytest.approx(g.q, abs=1e-12) for g in together]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"checkpoint": "sha256:1"}, "whose target is sha256:0, and this one is sha256:1"),
        ({"tokenizer_key": "1"}, "whose tokenizer is another"),
        ({"num_draft": HEADS + 1}, f"has {HEADS} heads: give a num_draft of at most {HEADS}, got {HEADS + 1}"),
    ],
)
def test_heads_of_another_target_and_too_few_of_them_are_refused(head, change, words):
    setup = DraftSetup(None, None, checkpoint="sha256:0", tokenizer_key="0", num_draft=HEADS)
    Medusa.check(setup, head)
    with pytest.raises(ValueError, match="head=") as error:
        Medusa.check(replace(setup, **change), head)
    assert words in str(error.value)


def test_a_folder_without_heads_and_heads_of_another_width_are_refused(tmp_path, target, head):
    with pytest.raises(ValueError, match=r"sdbench.train medusa model=NAME task=NAME, then drafter.head=FOLDER"):
        Medusa.check(DraftSetup(None, None), str(tmp_path / "none"))
    with pytest.raises(ValueError, match="a head is needed"):
        Medusa.check(DraftSetup(None, None), None)
    other = proofs.target_of("llama", slice(1, 3), hidden_size=64)
    with pytest.raises(ValueError, match=r"reads states of .* numbers, and this target's have 64"):
        Medusa.check(DraftSetup(None, None, target_config=other.config), head)
