"""The target's first layers draft over its own cache: texts, distributions, what runs, what is stored, what is left as it was."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import sdbench
from sdbench.draft import NoDraft
from sdbench.draft.early_exit import EarlyExit
from sdbench.lm.exit import can_continue
from sdbench.lm.layers import decoder_layers
from sdbench.lm.model import LM
from sdbench.types import DraftSetup
from sdbench.verify import Exact
from tests.contracts.parts import middle_rules
from tests.draft import proofs
from tests.draft.proofs import LAYERS, NEW, OPTIONS
from tests.engine.models import PROMPTS, by_family
from tests.lm.test_peak_memory import measured_peak
from tests.lm.test_probe import SERVED, random_model


def target_of(family: str, **options: Any) -> Any:
    """Its last two layers change little, so that an exit before them is right now and then."""
    return proofs.target_of(family, slice(2, None), **options)


@pytest.fixture(scope="module")
def target() -> Any:
    return target_of("gemma3")


def decode(target: Any, exit_layer: int, *rest: Any, **options: Any) -> Any:
    return proofs.decode(target, "early-exit", {"exit_layer": exit_layer}, *rest, **options)


@by_family
def test_greedy_exact_is_the_target_token_for_token(family):
    settings = ((1, 3, "off"), (2, 1, "off"), (2, 32, "off"), (2, 3, "trace"), (3, 3, "off"))
    tried = [({"exit_layer": layer}, size, capture) for layer, size, capture in settings]
    proofs.assert_greedy_is_the_target(target_of(family), "early-exit", tried)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, pytest.param(0.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("capture", ["trace", pytest.param("graphs", marks=pytest.mark.slow)])
def test_texts_do_not_depend_on_batches_captures_order_or_neighbours(target, temperature, capture):
    proofs.assert_texts_stand_alone(target, "early-exit", {"exit_layer": 2}, temperature, capture)


@pytest.mark.parametrize("top_p", [None, 0.8])
def test_q_is_the_distribution_of_the_truncated_model(target, top_p):
    """By transformers' own means: the same weights under a configuration with fewer layers."""
    truncated = copy.deepcopy(target)
    truncated.config.num_hidden_layers = 2
    proofs.assert_q_is_the_law_of(truncated, target, decode(target, 2, top_p=top_p), top_p)


@pytest.mark.parametrize("policy", [{}, {"length": "confidence", "length_threshold": 0.9}])
def test_verification_goes_on_where_the_draft_has_stopped(target, policy):
    """Rows × tokens that each layer computes in rounds: the first layers each drafted token once, the others what was offered."""
    computed = [0] * LAYERS

    def count(number: int) -> Any:
        def hook(_: Any, inputs: Any) -> None:
            computed[number] += inputs[0].shape[0] * inputs[0].shape[1]

        return hook

    engine = sdbench.Engine(target, capture="off")
    drafter = engine.drafter("early-exit", engine.warp(0.0), {"exit_layer": 2, **policy})
    hooks = [layer.mlp.register_forward_pre_hook(count(n)) for n, layer in enumerate(target.model.layers)]
    try:
        engine.hook = lambda phase, _: Resets(computed) if phase == "admit" else Nothing()
        decoded = sdbench.generate(
            None, None, PROMPTS[:1], [Exact()], engine=engine, drafter=drafter, temperature=0.0, **OPTIONS
        )
    finally:
        for hook in hooks:
            hook.remove()
    offered = decoded[0].drafted or ()
    num_verified = sum(drafted + 1 for drafted in offered)
    assert computed[2:] == [num_verified] * 2
    if policy:  # whole blocks are drafted, and cut
        assert min(offered) < OPTIONS["num_draft"]
        assert num_verified < computed[0] <= (OPTIONS["num_draft"] + 1) * len(offered)
    else:
        assert computed[:2] == computed[2:]


class Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: Any) -> None: ...


class Resets(Nothing):
    """What a prefill has computed does not count."""

    def __init__(self, computed: list[int]) -> None:
        self.before, self.computed = list(computed), computed

    def __exit__(self, *_: Any) -> None:
        self.computed[:] = self.before


def test_no_byte_of_keys_and_values_is_stored_twice():
    target = target_of("llama", max_position_embeddings=2048).requires_grad_(False)
    prompts = [[5 + n % 50 for n in range(1000)] for _ in range(2)]
    engine = sdbench.Engine(target, capture="off")

    def call(drafter: Any) -> None:
        options: dict[str, Any] = {"max_new_tokens": 6, "num_draft": 4, "stop_ids": (), "temperature": 0.0}
        sdbench.generate(None, None, prompts, [Exact()], engine=engine, drafter=drafter, **options)

    early = engine.drafter("early-exit", engine.warp(0.0), {"exit_layer": 2})
    assert measured_peak(lambda: call(early)) <= 1.02 * measured_peak(lambda: call(NoDraft()))


def test_the_model_and_its_configuration_are_left_as_they_were(target):
    """After a run, and after an exception in a layer that drafts, or behind one that does not run."""
    config, modules = copy.deepcopy(target.config.to_dict()), list(target.model.layers)
    wanted = decode(target, 2)

    def is_unchanged() -> bool:
        layers = list(target.model.layers)
        return (
            target.config.to_dict() == config
            and all(a is b for a, b in zip(layers, modules, strict=True))
            and not any("forward" in vars(layer) for layer in layers)
        )

    assert is_unchanged()
    for where in (0, 3):
        calls = 0

        def fail(_: Any, inputs: Any) -> None:
            nonlocal calls
            calls += inputs[0].shape[1] == 1  # behind the prefill
            if calls == 3:
                raise RuntimeError("a layer fails")

        hook = target.model.layers[where].register_forward_pre_hook(fail)
        try:
            with pytest.raises(RuntimeError, match="a layer fails"):
                decode(target, 2)
        finally:
            hook.remove()
        assert is_unchanged()
    assert [g.tokens for g in decode(target, 2)] == [g.tokens for g in wanted]


class Sharing(nn.Module):
    """A layer that keeps its result beside the cache, and the last layer that adds it."""

    def __init__(self, first: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.kept: Any = None
        run_first, run_last = first.forward, last.forward

        def keep(*args: Any, **kwargs: Any) -> Any:
            self.kept = run_first(*args, **kwargs)
            return self.kept

        def add(*args: Any, **kwargs: Any) -> Any:
            return run_last(*args, **kwargs) + self.kept

        first.forward, last.forward = keep, add


@pytest.mark.slow
def test_where_layers_share_more_than_states_verification_recomputes():
    target = target_of("llama")
    Sharing(target.model.layers[0], target.model.layers[3])
    assert not can_continue(LM(target), 2)
    alone = [
        target.generate(torch.tensor([p]), do_sample=False, max_new_tokens=NEW, eos_token_id=None)[0, len(p) :].tolist()
        for p in PROMPTS
    ]
    for capture in ("off", "trace"):
        assert [list(g.tokens) for g in decode(target, 2, temperature=0.0, capture=capture)] == alone
    assert "forward" in vars(target.model.layers[0]), "what a library has replaced is put back"


@pytest.mark.parametrize("kind", SERVED)
def test_verification_goes_on_behind_the_exit_of_other_architectures_too(kind):
    model = random_model(kind, SERVED[kind])
    assert can_continue(LM(model), 1)


@by_family
def test_layers_are_found_in_their_order(family):
    target = target_of(family)
    assert decoder_layers(target, LAYERS) == list(target.model.layers)
    assert decoder_layers(target, LAYERS + 1) == []


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_every_rule_judges_these_drafts(target, temperature):
    rules = middle_rules(temperature, OPTIONS["num_draft"])
    decoded = decode(target, 2, rules, temperature=temperature, batch_size=16)
    for rule, g in ((rules[g.verifier], g) for g in decoded):
        assert len(g.tokens) == NEW, rule
        assert sum(g.accepted) + sum(origin != "accepted" for origin in g.origins) == NEW


@pytest.mark.parametrize("exit_layer", [0, 4, -1, 1.5, "two"])
def test_an_exit_outside_the_layers_is_refused(target, exit_layer):
    sentence = f"exit_layer must be a whole number from 1 to 3, as the target has 4 layers, got {exit_layer}"
    with pytest.raises(ValueError, match=sentence):
        sdbench.Engine(target).drafter("early-exit", sdbench.Engine(target).warp(), {"exit_layer": exit_layer})


def test_by_default_a_quarter_of_the_layers_drafts(target):
    engine = sdbench.Engine(target)
    assert EarlyExit.build(DraftSetup(engine.target, engine.warp())).exit_layer == 1
