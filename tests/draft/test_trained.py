"""Drafters that were trained on the target's states: texts, every rule, rows that move, folders, and what is refused."""

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
import torch

import sdbench
from sdbench.audit.command import AuditOptions
from sdbench.audit.native import audit
from sdbench.audit.pairs import PROMPTS as SHORT
from sdbench.audit.pairs import STOP, random_pair
from sdbench.audit.source import Sampling
from sdbench.audit.subject import AuditedRule, Subject
from sdbench.card import write_trained
from sdbench.draft import class_of
from sdbench.draft.base import prefill_all
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


@pytest.mark.slow  # the contract of drafters has it too, for one family in the quick set
@by_kind
@by_family
def test_greedy_exact_is_the_target_token_for_token(family, kind, tmp_path):
    """Nothing was trained: what makes it lossless is the rule. The next test compares traces with steps as they are."""
    target = proofs.target_of(family, slice(1, 3))
    knobs = {"head": write_heads(tmp_path / "heads", target, kind)}
    settings = ((3, "off"), (1, "off"), (32, "off"), (3, "graphs"))
    proofs.assert_greedy_is_the_target(target, kind, [(knobs, size, capture) for size, capture in settings], least=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["medusa", *(pytest.param(k, marks=pytest.mark.slow) for k in KINDS if k != "medusa")])
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


@pytest.mark.slow
@by_kind
def test_states_follow_their_row_through_moves_and_refills(target, head, kind):
    """More prompts than rows, families of rules: each text equals that of a batch of its own."""
    rules = [Exact(), Ensemble(w=0.5), Ensemble(w=0.2, mix="logit")]
    alone = proofs.decode(target, kind, {"head": head}, rules, batch_size=1)
    together = proofs.decode(target, kind, {"head": head}, rules, batch_size=2)
    assert [g.tokens for g in alone] == [g.tokens for g in together]
    assert [g.q for g in alone] == [pytest.approx(g.q, abs=1e-12) for g in together]


@by_kind
def test_states_after_a_refill_are_those_of_a_fresh_start_and_follow_a_move(target, head, kind):
    """States, and keys and values of a layer's own cache, at the start of each round, to the bit."""

    class Watched(class_of(kind)[0]):  # pyright: ignore[reportGeneralTypeIssues]
        def states_of(self, row: int, length: int) -> list[torch.Tensor]:
            if kind == "medusa":
                return [self.states[row].clone()]
            newest = int(self.newest[row])
            layers = self.cache.read(row, length - 1 - newest).layers
            return [self.states[row, : newest + 1].clone(), *(x.clone() for layer in layers for x in layer)]

        def draft(self, context: Any, *args: Any) -> Any:
            self.lengths = context.lengths.tolist()
            self.seen.append([self.states_of(row, length) for row, length in enumerate(self.lengths)])
            return super().draft(context, *args)

        def move(self, source: int, row: int) -> None:
            before = self.states_of(source, 1)
            super().move(source, row)
            assert len(before) == len(self.states_of(row, 1))
            self.moves += [all(map(torch.equal, before, self.states_of(row, 1)))]

    def decoded(rows: int, *keys: int) -> Any:
        engine = sdbench.Engine(target)
        drafter: Any = engine.drafter(Watched, engine.warp(), {"head": head})
        drafter.seen, drafter.moves = [], []
        prompts, options = [PROMPTS[key] for key in keys], {"keys": keys, "batch_size": rows, **OPTIONS}
        rule = Ensemble(w=0.0)  # keeps all drafts, so the newest state is the last of a block
        sdbench.generate(None, None, prompts, [rule], engine=engine, drafter=drafter, **options)
        return drafter

    for first, second in permutations((0, 2)):
        refilled, fresh = decoded(1, first, second).seen, decoded(1, second).seen
        assert len(refilled) > len(fresh) > 1
        for ours, alone in zip(refilled[-len(fresh) :], fresh, strict=True):
            assert len(ours[0]) == len(alone[0])
            assert all(map(torch.equal, ours[0], alone[0]))
    moves = decoded(3, 0, 1, 2, 3).moves + decoded(4, 3, 2, 1, 0).moves
    assert moves
    assert all(moves)


@by_kind
def test_what_waits_of_a_prompt_is_one_state(target, head, kind):
    """Not the states of all its tokens, nor those of the prompts that were prefilled with it."""
    engine = sdbench.Engine(target)
    drafter: Any = engine.drafter(kind, engine.warp(), {"head": head})
    prompts = [torch.arange(5, 5 + size) for size in (1, 3, 30)]
    prefixes = engine.target.prefill_all([prompt[:-1] for prompt in prompts], needs=drafter.needs)
    width = target.config.hidden_size
    for prefix in prefill_all(drafter, prompts, prefixes):
        state = getattr(prefix, "state", prefix)
        assert state.untyped_storage().nbytes() == width * state.element_size()


@pytest.mark.slow
@by_kind
@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(1.0, top_p=0.8), Sampling(0.0)], ids=str)
def test_untrained_heads_pass_the_audit(tmp_path, kind, sampling):
    """On the audit's random target: what makes a drafter lossless is the rule, not its training."""
    target, _ = random_pair()
    rules = [AuditedRule("exact", Exact()), AuditedRule("ensemble", Ensemble(w=0.7))]
    knobs = {"head": write_heads(tmp_path / "heads", target, kind)}
    subject = Subject(
        rules, target, None, SHORT, sampling, drafter=kind, drafter_options=knobs, budget=4, num_draft=3, stops=(STOP,)
    )
    assert audit(subject, AuditOptions(tv=0.3)).verdict == "sound"


@by_kind
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"checkpoint": "sha256:1"}, "whose target is sha256:0; this run's target is sha256:1"),
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
    with pytest.raises(ValueError, match=r"reads states of width .*, but this target's have width 64"):
        drafter.check(DraftSetup(None, None, target_config=other.config), head)


@by_kind
def test_a_folder_that_lacks_a_tensor_is_refused(tmp_path, target, kind):
    weights = random_heads(target, kind)
    weights.pop("bias" if kind == "medusa" else "fuse")
    write_trained(tmp_path, kind, weights, {}, {})
    with pytest.raises(ValueError, match="is damaged: its tensors have the shapes"):
        class_of(kind)[0].check(DraftSetup(None, None), str(tmp_path))
