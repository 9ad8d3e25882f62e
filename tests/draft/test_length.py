"""Length policies: their rules by hand, blocks that end behind the token that ended them, and what is emitted."""

from typing import Any

import pytest
import torch

import sdbench
from sdbench.audit.command import AuditOptions
from sdbench.audit.native import audit
from sdbench.audit.pairs import PROMPTS as SHORT
from sdbench.audit.pairs import STOP, random_pair
from sdbench.audit.subject import AuditedRule, Subject
from sdbench.cli import compose_run
from sdbench.config import ConfigError
from sdbench.draft import NoDraft, VariableLength
from sdbench.draft.policies import POLICIES, AdaptiveLength, ConfidenceLength, HeuristicLength, ValueLength, policy_of
from sdbench.prepare.refuse import refuse_drafter_options
from sdbench.prepare.rules import build_parts
from sdbench.types import DraftBlock
from sdbench.verify import Ensemble, Exact
from tests.draft.heads import write_gate
from tests.draft.proofs import assert_drafts_change_no_text, by_batch, by_slow_family, models_of
from tests.engine.models import PROMPTS, pair

TEXTS = [[5, 6, 7, 8, 5, 6, 7, 8, 5, 6], [9, 9, 9, 9], [11, 12], *PROMPTS[:2]]
NAMES = [name for name in POLICIES if name != "constant"]


def rows(*values: Any) -> torch.Tensor:
    return torch.tensor(values)


def test_the_heuristic_adds_two_and_takes_one():
    policy, state = HeuristicLength(), torch.tensor([[torch.inf]] * 4)
    assert policy.most(state, rows(5, 5, 2, 0)).tolist() == [5, 5, 2, 0]
    state = policy.learn(state, torch.ones(4, 5), rows(5, 5, 1, 0), rows(5, 4, 0, 0))
    assert state[:, 0].tolist() == [7, 4, 1, torch.inf], "a round without a draft teaches nothing"
    assert policy.most(state, rows(5, 5, 5, 5)).tolist() == [5, 4, 1, 5]


def test_the_adaptive_threshold_is_the_one_with_the_least_cost():
    policy = AdaptiveLength(threshold=0.4)
    state = torch.tensor([policy.start])
    chance = rows([0.9, 0.8, 0.7, 0.3], [0.9, 0.8, 0.7, 0.3])
    state = policy.learn(state.repeat(2, 1), chance, rows(4, 2), rows(3, 2))
    assert policy.thresholds(state).tolist() == pytest.approx([0.4, 0.4]), "four examined tokens are too few"
    state = policy.learn(state, chance, rows(4, 4), rows(3, 4))
    fitted = policy.thresholds(state).tolist()
    assert fitted == pytest.approx([0.35, 0.4]), "between 0.3, refused, and 0.7, kept; without a refusal as given"
    single = policy.learn(torch.tensor([policy.start]), rows([0.2, 0.2, 0.2, 0.9]), rows(4), rows(3))
    single = policy.learn(single, rows([0.2, 0.2, 0.2, 0.9]), rows(4), rows(3))
    assert policy.thresholds(single).item() == 0, "what is kept though unlikely ends no block"


def test_value_compares_what_a_token_adds_with_what_it_costs():
    state = torch.tensor([ValueLength().start])
    sure = torch.full((1, 3), 0.95)
    assert ValueLength(price=0.1).goes_on(state, sure).item()
    assert not ValueLength(price=0.9).goes_on(state, sure).item()
    assert not ValueLength(price=0.1).goes_on(state, rows([0.05, 0.05])).item()
    refused = ValueLength().learn(state, torch.full((1, 1), 0.95), rows(1), rows(0))
    for _ in range(20):
        refused = ValueLength().learn(refused, torch.full((1, 1), 0.95), rows(1), rows(0))
    assert not ValueLength(price=0.1).goes_on(refused, sure[:, :1]).item(), "the row's own refusals count"


class Fixed:
    """Offers three tokens of probabilities .9, .2 and .9, whole or token by token."""

    def __init__(self, continues_drafts: bool) -> None:
        self.continues_drafts, self.begun = continues_drafts, 2

    def draft(self, context: Any, k: int, lengths: Any, u: Any, needs: Any) -> DraftBlock:
        first = int(context.lengths[0]) - self.begun if self.continues_drafts else 0
        q = torch.tensor([[[0.9, 0.1, 0.0], [0.8, 0.2, 0.0], [0.9, 0.1, 0.0]]])[:, first : first + k]
        return DraftBlock(rows([0, 1, 0])[:, first : first + k], q, lengths)


@pytest.mark.parametrize("continues", [True, False])
def test_the_token_that_ends_a_block_is_offered(continues):
    drafter = VariableLength(Fixed(continues), ConfidenceLength(0.5), sdbench.Engine(random_pair()[0]).warp())  # type: ignore[arg-type]
    drafter.state = torch.zeros(1, 0)
    context: Any = type("Text", (), {"tokens": rows([1, 1]), "lengths": rows(2), "longest": 2})
    block = drafter.draft(context, 3, rows(3), torch.full((1, 3), 0.5), frozenset())
    assert block.lengths.tolist() == [2]
    assert block.tokens[0, :2].tolist() == [0, 1]


@pytest.fixture(scope="module")
def models() -> Any:
    return pair("llama")


@by_slow_family
@by_batch
@pytest.mark.parametrize("length", NAMES)
@pytest.mark.parametrize("drafter", ["model", pytest.param("suffix", marks=pytest.mark.slow)])
def test_greedy_exact_is_the_target_alone(family, batch_size, capture, length, drafter, tmp_path):
    """Blocks that are drafted token by token, and whole ones that are cut."""
    options = {"length": length, **({"length_head": write_gate(tmp_path)} if length == "gate" else {})}
    engine = sdbench.Engine(*models_of(family), capture=capture)
    built = engine.drafter(drafter, engine.warp(0.0), options)
    assert_drafts_change_no_text(family, engine, built, batch_size)


@pytest.mark.parametrize("length", NAMES)
@pytest.mark.parametrize("drafter", ["model", "suffix"])
def test_texts_are_the_targets_and_do_not_depend_on_the_batch(models, length, drafter, tmp_path):
    options_of_length = {"length_head": write_gate(tmp_path)} if length == "gate" else {}

    def decode(temperature: float, batch_size: int, prompts: Any = TEXTS, keys: Any = None) -> list[Any]:
        engine = sdbench.Engine(*models)
        built = engine.drafter(drafter, engine.warp(temperature=temperature), {"length": length, **options_of_length})
        options: dict[str, Any] = {"temperature": temperature, "max_new_tokens": 10, "stop_ids": (), "num_draft": 4}
        return sdbench.generate(
            None, None, prompts, [Exact(), Ensemble(w=0.5)], keys=keys, drafter=built, engine=engine,
            batch_size=batch_size, **options,
        )  # fmt: skip

    alone = sdbench.generate(
        models[0], None, TEXTS, [Exact()], drafter=NoDraft(), temperature=0.0, max_new_tokens=10, stop_ids=()
    )
    greedy = decode(0.0, 3)
    assert [g.tokens for g in greedy if g.verifier == 0] == [g.tokens for g in alone]
    for temperature, expected in ((0.0, greedy), (1.0, decode(1.0, 1))):
        swapped = decode(temperature, 32, TEXTS[::-1], range(len(TEXTS))[::-1])
        texts = {(g.prompt, g.verifier): (g.tokens, g.drafted) for g in expected}
        assert {(len(TEXTS) - 1 - g.prompt, g.verifier): (g.tokens, g.drafted) for g in swapped} == texts
        assert max(max(g.drafted) for g in expected) > 0


def test_rounds_are_counted_by_the_threshold_that_was_fitted(models):
    engine = sdbench.Engine(*models)
    drafter = engine.drafter("model", engine.warp(temperature=1.0), {"length": "adaptive", "length_threshold": 0.33})
    decoded = sdbench.generate(
        None, None, TEXTS, [Exact()], drafter=drafter, engine=engine, batch_size=2, max_new_tokens=40, stop_ids=()
    )
    assert sum(drafter.counts.values()) == sum(count > 0 for g in decoded for count in g.drafted)
    assert drafter.counts["rounds_at_0.33"] >= len(TEXTS), "the first round of a text is at the threshold given"
    assert len(drafter.counts) > 1


class Dropping(VariableLength):
    """The fault: the token that ended the block is not offered."""

    def draft(self, context: Any, k: int, lengths: Any, u: Any, needs: Any) -> DraftBlock:
        block = super().draft(context, k, lengths, u, needs)
        slots = (block.lengths - 1).clamp_min(0)[:, None]
        is_unsure = self.chance.gather(1, slots)[:, 0] < self.policy.threshold  # type: ignore[attr-defined]
        return DraftBlock(block.tokens, block.q, block.lengths - (is_unsure & (block.lengths > 0)).long())


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "verdict"), [(VariableLength, "sound"), (Dropping, "violated")])
def test_the_audit_sees_a_token_that_was_drawn_and_dropped(kind, verdict):
    models = random_pair()
    subject = Subject([AuditedRule("exact", Exact())], *models, SHORT, stops=(STOP,))
    subject.helper = kind(subject.helper, ConfidenceLength(0.4), subject.engine.warp())
    options = AuditOptions(samples=1500, tv=1, claims=("losslessness",))
    assert audit(subject, options).verdict == verdict


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["drafter.length=fast"], "drafter=model: length=fast is not a length policy"),
        (["drafter.length=confidence", "drafter.length_threshold=0"], r"length_threshold must be in \(0, 1\], got 0"),
        (["drafter.length=adaptive", "drafter.length_threshold=1.5"], r"length_threshold must be in \(0, 1\], got 1.5"),
        (["drafter.length=value", "drafter.length_price=no"], r"length_price must be in \(0, 1\], got "),
        (["drafter.length=heuristic", "num_draft=[1,4]"], "length=heuristic takes a num_draft of at least 2, got num_draft=1"),
        (["drafter.length_price=0.1"], "length_price is not an option of length=constant: remove it"),
        (["drafter=gate", "drafter.length=value"], "length_threshold is not an option of length=value: .* set it to null"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_are_refused_before_weights(words, sentence):
    run = compose_run(words)
    with pytest.raises(ConfigError, match=sentence):
        refuse_drafter_options(run, build_parts(run))


@pytest.mark.parametrize(
    "words", [["drafter.length=confidence"], ["drafter.length=value", "drafter.length_threshold=null"]]
)
def test_options_of_a_drafters_file_that_are_null_are_those_of_no_policy(words):
    run = compose_run(["drafter=gate", *words])  # its file has length_head: null
    refuse_drafter_options(run, build_parts(run))


def test_constant_is_as_if_nothing_were_given():
    assert compose_run(["drafter.length=constant"]).drafters == compose_run([]).drafters
    assert type(policy_of("constant", {})) is POLICIES["constant"]
