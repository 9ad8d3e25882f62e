"""Drafters that were trained on the target's states: texts, every rule, rows that move, folders, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest

import sdbench
from sdbench.card import write_trained
from sdbench.draft import class_of
from sdbench.types import DraftSetup
from sdbench.verify import Ensemble, Exact
from tests.draft import proofs
from tests.draft.heads import KINDS, random_heads, write_heads
from tests.draft.proofs import OPTIONS
from tests.engine.models import PROMPTS, by_family

by_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def target() -> Any:
    return proofs.target_of("gemma3", slice(1, 3))


@pytest.fixture
def head(tmp_path, target, kind) -> str:
    return write_heads(tmp_path / "heads", target, kind)


@by_kind
@by_family
def test_greedy_exact_is_the_target_token_for_token(family, kind, tmp_path):
    """Nothing was trained: what makes it lossless is the rule. The next test compares traces with steps as they are."""
    target = proofs.target_of(family, slice(1, 3))
    knobs = {"head": write_heads(tmp_path / "heads", target, kind)}
    settings = ((3, "off"), (1, "off"), (32, "off"), (3, "graphs"))
    proofs.assert_greedy_is_the_target(target, kind, [(knobs, size, capture) for size, capture in settings], least=0)


@by_kind
@pytest.mark.parametrize(
    ("temperature", "capture"),
    [
        (1.0, "trace"),
        *(pytest.param(*rest, marks=pytest.mark.slow) for rest in ((1.0, "graphs"), (0.0, "trace"), (0.0, "graphs"))),
    ],
)
def test_texts_do_not_depend_on_batches_captures_order_or_neighbours(target, head, kind, temperature, capture):
    proofs.assert_texts_stand_alone(target, kind, {"head": head}, temperature, capture)


@by_kind
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_every_rule_judges_these_drafts(target, head, kind, temperature):
    engine = sdbench.Engine(target)
    drafter = engine.drafter(kind, engine.warp(temperature), {"head": head})
    rules = [Exact(), Ensemble(w=0.5), Ensemble(w=0.0)]
    decoded = sdbench.generate(
        None, None, PROMPTS, rules, engine=engine, drafter=drafter, temperature=temperature, **OPTIONS
    )
    kept = [sum(sum(g.accepted) for g in decoded if g.verifier == n) for n in range(len(rules))]
    assert kept[0] <= kept[1] <= kept[2], "leniency keeps more"


@by_kind
def test_states_follow_their_row_through_moves_and_refills(target, head, kind):
    """More prompts than rows, families of rules: each text equals that of a batch of its own."""
    rules = [Exact(), Ensemble(w=0.5), Ensemble(w=0.2, mix="logit")]
    alone = proofs.decode(target, kind, {"head": head}, rules, batch_size=1)
    together = proofs.decode(target, kind, {"head": head}, rules, batch_size=2)
    assert [g.tokens for g in alone] == [g.tokens for g in together]
    assert [g.q for g in alone] == [pytest.approx(g.q, abs=1e-12) for g in together]


@by_kind
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"checkpoint": "sha256:1"}, "whose target is sha256:0, and this one is sha256:1"),
        ({"tokenizer_key": "1"}, "whose tokenizer differs"),
    ],
)
def test_heads_of_another_target_are_refused(head, kind, change, words):
    setup, drafter = DraftSetup(None, None, checkpoint="sha256:0", tokenizer_key="0", num_draft=4), class_of(kind)[0]
    drafter.check(setup, head)
    with pytest.raises(ValueError, match="head=") as error:
        drafter.check(replace(setup, **change), head)
    assert words in str(error.value)


@by_kind
def test_a_folder_without_heads_and_heads_of_another_width_are_refused(tmp_path, target, head, kind):
    drafter, setup = class_of(kind)[0], DraftSetup(None, None)
    with pytest.raises(ValueError, match=rf"sdbench.train {kind} model=NAME task=NAME, then drafter.head=FOLDER"):
        drafter.check(setup, str(tmp_path / "none"))
    with pytest.raises(ValueError, match="a head is needed"):
        drafter.check(setup, None)
    other = proofs.target_of("llama", slice(1, 3), hidden_size=64)
    with pytest.raises(ValueError, match=r"reads states of .* numbers, and this target's have 64"):
        drafter.check(DraftSetup(None, None, target_config=other.config), head)


@by_kind
def test_a_folder_that_lacks_a_tensor_is_refused(tmp_path, target, kind):
    weights = random_heads(target, kind)
    weights.pop("bias" if kind == "medusa" else "fuse")
    write_trained(tmp_path, kind, weights, {}, {})
    with pytest.raises(ValueError, match="is damaged: its tensors have the shapes"):
        class_of(kind)[0].check(DraftSetup(None, None), str(tmp_path))
