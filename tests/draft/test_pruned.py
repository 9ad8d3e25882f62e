"""A target without some of its layers drafts: which layers go, texts and distributions, weights shared, nothing left changed."""

import copy
from math import acos, pi
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import sdbench
from sdbench.draft import pruned
from sdbench.engine import Engine
from sdbench.engines.native import timing
from sdbench.engines.native.decode import Decoder
from sdbench.lm.known import KnownPrefixes
from sdbench.lm.model import LM
from sdbench.lm.pruned import PrunedLM, angular_distances, sample_texts
from sdbench.probs import Warp
from sdbench.records import Store
from tests.contracts.parts import middle_rules
from tests.draft import proofs
from tests.draft.proofs import EXACT, LAYERS, NEW, OPTIONS
from tests.engine.models import PROMPTS, by_family, tiny
from tests.engine.test_invariance import same


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Any:
    monkeypatch.setattr(pruned, "CACHE", tmp_path / "pruned")
    return tmp_path / "pruned"


def target_of(family: str, **options: Any) -> Any:
    """Its second and third layer change little."""
    return proofs.target_of(family, slice(1, 3), **options)


@pytest.fixture(scope="module")
def target() -> Any:
    return target_of("gemma3")


def decode(target: Any, keep_layers: int, *rest: Any, **options: Any) -> Any:
    return proofs.decode(target, "pruned", {"keep_layers": keep_layers}, *rest, **options)


@by_family
def test_greedy_exact_is_the_target_token_for_token(family):
    settings = ((1, 3, "off"), (2, 1, "off"), (2, 32, "off"), (2, 3, "trace"), (3, 3, "graphs"))
    tried = [({"keep_layers": count}, size, capture) for count, size, capture in settings]
    proofs.assert_greedy_is_the_target(target_of(family), "pruned", tried)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, pytest.param(0.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("capture", ["trace", pytest.param("graphs", marks=pytest.mark.slow)])
def test_texts_do_not_depend_on_batches_captures_order_or_neighbours(target, temperature, capture):
    proofs.assert_texts_stand_alone(target, "pruned", {"keep_layers": 2}, temperature, capture)


@pytest.mark.parametrize("top_p", [None, 0.8])
def test_q_is_the_distribution_of_the_model_without_these_layers(target, top_p):
    """By transformers' own means: a model of two layers that gets the weights of the first and the last."""
    kinds = [target.config.layer_types[number] for number in (0, 3)]
    small = tiny("gemma3", layers=2, layer_types=kinds)
    weights = {name: x for name, x in target.state_dict().items() if ".layers." not in name}
    for number, source in enumerate((0, 3)):
        prefix = f"model.layers.{source}."
        weights |= {
            name.replace(prefix, f"model.layers.{number}."): x
            for name, x in target.state_dict().items()
            if name.startswith(prefix)
        }
    small.load_state_dict(weights)
    proofs.assert_q_is_the_law_of(small, target, decode(target, 2, top_p=top_p), top_p)


@by_family
def test_every_weight_is_the_targets_and_nothing_of_it_changes(family):
    target = target_of(family)
    config, layers = copy.deepcopy(target.config.to_dict()), list(target.model.layers)
    lm = LM(target)
    model = PrunedLM(lm, range(1, 3))
    tensors = {x.data_ptr() for x in (*target.parameters(), *target.buffers())}
    assert {x.data_ptr() for x in (*model.model.parameters(), *model.model.buffers())} <= tensors
    assert model.config.num_hidden_layers == len(model.layers) == len(model.cache(2, 8).ragged) == 2
    assert target.config.to_dict() == config
    assert all(a is b for a, b in zip(target.model.layers, layers, strict=True))
    assert [layer.self_attn.layer_idx for layer in layers] == [0, 1, 2, 3]
    target.get_input_embeddings().weight.data.mul_(2)
    ids = torch.tensor([[5, 6, 7]])
    before = model.model(ids).logits
    target.get_input_embeddings().weight.data.div_(2)
    assert not torch.equal(before, model.model(ids).logits), "what changes the target changes its draft"


def test_an_exception_leaves_the_target_as_it_was(target, monkeypatch):
    config, layers, wanted = copy.deepcopy(target.config.to_dict()), list(target.model.layers), decode(target, 2)

    def fail(*_: Any) -> None:
        raise RuntimeError("a layer fails")

    for where in ("forward", "draft"):
        engine = sdbench.Engine(target, capture="off")
        drafter: Any = engine.drafter("pruned", engine.warp(), {"keep_layers": 2})
        if where == "forward":
            drafter.model.layers[1].register_forward_pre_hook(fail)
        else:
            monkeypatch.setattr(drafter, "_propose", fail)
        with pytest.raises(RuntimeError, match="a layer fails"):
            sdbench.generate(None, None, PROMPTS, EXACT, engine=engine, drafter=drafter, **OPTIONS)
    hook = target.model.layers[3].register_forward_hook(fail)
    try:
        with pytest.raises(RuntimeError, match="a layer fails"):
            angular_distances(engine.target, [torch.tensor([5, 6])], 2)
    finally:
        hook.remove()
    assert target.config.to_dict() == config
    assert all(a is b for a, b in zip(target.model.layers, layers, strict=True))
    assert not any(vars(layer)[name] for layer in layers for name in ("_forward_hooks", "_forward_pre_hooks"))
    for a, b in zip(decode(target, 2), wanted, strict=True):
        same(a, b)


def test_distances_are_those_of_the_states_around_the_layers():
    """The definition, token by token, from the states that transformers returns."""
    target, text = target_of("llama"), [5, 6, 7, 8, 9]
    states = target(torch.tensor([text]), output_hidden_states=True).hidden_states[:-1]  # the last is behind the norm
    for count in (1, 2, 3):
        measured = angular_distances(LM(target), [torch.tensor(text)], count)
        assert len(measured) == LAYERS - count + 1
        for start in range(LAYERS - count):
            angles = [
                acos(float((a @ b / (a.norm() * b.norm())).detach())) / pi
                for a, b in zip(states[start][0], states[start + count][0], strict=True)
            ]
            assert measured[start] == pytest.approx(sum(angles) / len(angles), abs=1e-9)


def test_the_layers_that_change_least_go_and_are_measured_once(cache, monkeypatch):
    def drafter_of(target: Any, **options: Any) -> Any:
        engine = sdbench.Engine(target)
        return engine.drafter("pruned", engine.warp(), {"keep_layers": 2, **options})

    target = target_of("llama")
    first = drafter_of(target)
    assert first.facts["dropped_layers"] == [1, 2]
    assert first.facts["angular_distances"] == drafter_of(copy.deepcopy(target)).facts["angular_distances"]
    assert len(list(cache.iterdir())) == 1
    drafter_of(target, calibration_texts=3)
    drafter_of(target_of("llama", seed=5))
    assert len(list(cache.iterdir())) == 3, "other texts and other weights are measured anew"
    for path in cache.iterdir():
        path.write_text("torn")
    assert drafter_of(target).facts == first.facts
    monkeypatch.setattr(pruned, "angular_distances", None)
    assert drafter_of(target).facts == first.facts, "read from the cache"


def test_distances_of_a_packed_target_follow_a_change_of_its_weights(cache):
    """A change through `.data` leaves the version; no text is decoded between the change and the measurement."""
    target = target_of("llama").float()

    def distances_of(engine: sdbench.Engine) -> Any:
        return engine.drafter("pruned", engine.warp(), {"keep_layers": 2}).facts["angular_distances"]

    engine = sdbench.Engine(target, packed=True)
    before = distances_of(engine)
    target.model.layers[1].mlp.down_proj.weight.data.mul_(50)
    for path in cache.iterdir():
        path.unlink()
    after = distances_of(engine)
    for path in cache.iterdir():
        path.unlink()
    assert after == pytest.approx(distances_of(sdbench.Engine(target)), abs=1e-3)
    assert max(abs(x - y) for x, y in zip(before, after, strict=True)) > 0.01


@pytest.mark.slow
def test_an_engine_keeps_its_pruned_draft_and_forgets_its_cache(target):
    engine = sdbench.Engine(target, capture="trace")
    drafter: Any = engine.drafter("pruned", engine.warp(), {"keep_layers": 2})
    sdbench.generate(None, None, PROMPTS, EXACT, engine=engine, drafter=drafter, **OPTIONS)
    again: Any = engine.drafter("pruned", engine.warp(), {"keep_layers": 2})
    assert again.model is drafter.model
    assert drafter.model._kept is not None
    engine.forget()
    assert drafter.model._kept is None


def test_sampled_texts_are_the_same_each_time_and_the_targets():
    lm = LM(target_of("llama"))
    texts = sample_texts(lm, 5, 7)
    assert texts.shape == (5, 7)
    assert torch.equal(texts, sample_texts(lm, 5, 7))
    assert len(set(texts[:, 0].tolist())) == 5


def test_the_records_name_the_layers(target, tmp_path):
    engine = sdbench.Engine(target)
    drafter: Any = engine.drafter("pruned", engine.warp(), {"keep_layers": 2, "length": "confidence"})
    facts = drafter.facts
    with Store.open(tmp_path, provenance={"host": "here"}) as store:
        store.add_drafter(facts)
    assert sdbench.read(tmp_path).provenance[store.run] == {"host": "here", "drafters": [facts]}
    assert facts["dropped_layers"] == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_every_rule_judges_these_drafts(target, temperature):
    rules = middle_rules(temperature, OPTIONS["num_draft"])
    decoded = decode(target, 2, rules, temperature=temperature, batch_size=16)
    for rule, g in ((rules[g.verifier], g) for g in decoded):
        assert len(g.tokens) == NEW, rule
        assert sum(g.accepted) + sum(origin != "accepted" for origin in g.origins) == NEW


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"keep_layers": 0}, "keep_layers must be a whole number from 1 to 3, as the target has 4 layers, got 0"),
        ({"keep_layers": 4}, "keep_layers must be a whole number from 1 to 3, as the target has 4 layers, got 4"),
        ({"keep_layers": "two"}, "keep_layers must be a whole number from 1 to 3, as the target has 4 layers, got two"),
        ({"calibration_texts": 0}, "calibration_texts must be a whole number of at least 1, got 0"),
        ({"calibration_tokens": 1.5}, "calibration_tokens must be a whole number of at least 1, got 1.5"),
        ({"calibration": "no.txt"}, "calibration=no.txt is a text file, and there is no tokenizer to read it with"),
    ],
)
def test_options_that_cannot_be_are_refused(target, options, sentence):
    engine = sdbench.Engine(target)
    with pytest.raises(ValueError, match=sentence):
        engine.drafter("pruned", engine.warp(), options)


def test_the_latency_pass_times_a_pruned_draft_that_is_captured_at_once_and_keeps_no_prompt(target, monkeypatch):
    """The draft of a run is built before the pass, and shares the target's weights but not its cache of prompts."""
    engine = Engine(target, None)
    engine.target.known = KnownPrefixes()
    drafter = engine.drafter("pruned", Warp(0.0), {"keep_layers": 2})
    (model,) = engine.target.pruned.values()
    assert model.known is not None
    assert model.patience > 1
    engine.capture_at_once()
    assert model.patience == 1
    decoder = Decoder(SimpleNamespace(), SimpleNamespace(), None)
    decoder.__dict__["engine"] = engine
    seen = []
    monkeypatch.setattr(timing, "time_plan", lambda *_: seen.append((engine.target.known, model.known)))
    decoder.time(SimpleNamespace())
    assert seen == [(None, None)]
    other = engine.drafter("pruned", Warp(0.0), {"keep_layers": 3})
    assert len(engine.target.pruned) == 1, "one at a time"
    assert drafter is not other


def test_a_pruned_draft_leaves_trained_layers_where_they_are(target):
    engine = Engine(target, None)
    engine.target.pruned["eagle"] = trained = SimpleNamespace(forget=lambda: None)
    engine.drafter("pruned", Warp(0.0), {"keep_layers": 2})
    assert engine.target.pruned["eagle"] is trained
