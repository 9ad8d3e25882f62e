"""Packed weights give the products of the weights themselves, follow every change of them, and leave the model as it was."""

import copy
import gc
from typing import Any

import pytest
import torch
from torch import nn

from sdbench.engine import Engine
from sdbench.engine.generate import generate
from sdbench.lm.model import LM
from sdbench.lm.packed import PackedWeights, has_instructions, reorder
from sdbench.lm.rounding import margin_of
from sdbench.verify import Exact
from tests.engine.models import PROMPTS, pair, tiny

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of PyTorch has no oneDNN")


@pytest.fixture
def packings(monkeypatch) -> list[tuple[int, ...]]:
    """The shapes of the weights that are packed from now on."""
    shapes: list[tuple[int, ...]] = []

    def counted(weight: torch.Tensor) -> Any:
        shapes.append(tuple(weight.shape))
        return reorder(weight)

    monkeypatch.setattr("sdbench.lm.packed.reorder", counted)
    return shapes


def logits_of(lm: LM, *, keep: int = 0) -> torch.Tensor:
    ids, positions = torch.arange(5, 26).view(3, 7), torch.arange(7).expand(3, -1)
    with torch.inference_mode():
        cache = lm.cache(3, 64)
        return lm.forward(ids, lm.plan(positions, cache, 64), cache, keep=keep)


def texts_of(engine: Engine, **options: Any) -> list[list[int]]:
    shown = {"max_new_tokens": 12, "num_draft": 3, "temperature": 0, "stop_ids": (), **options}
    return [list(text.tokens) for text in generate(None, None, PROMPTS, [Exact()], engine=engine, **shown)]


def linears(model: nn.Module) -> int:
    return sum(type(module) is nn.Linear for module in model.modules())


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3"])
@pytest.mark.parametrize(("dtype", "off"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
def test_logits_are_those_of_the_weights_themselves(family, dtype, off):
    if not has_instructions(dtype):
        pytest.skip(f"this CPU has no instructions for {dtype}, in which packed weights are refused")
    model = tiny(family).to(dtype)
    for keep in (0, 1):
        plain, packed = (
            logits_of(LM(model, capture="off", packed=store), keep=keep) for store in (None, PackedWeights())
        )
        assert (plain - packed).abs().max() <= off * plain.abs().max()


def test_every_linear_layer_multiplies_by_its_packed_weight_and_the_model_is_left_as_it_was(packings, monkeypatch):
    model = tiny("llama").float()
    lm, ran = LM(model, packed=PackedWeights()), []
    monkeypatch.setattr("torch.nn.functional.linear", lambda *_: ran.append("dense"))
    assert len(packings) == linears(model)
    logits_of(lm)
    with torch.inference_mode():
        assert lm.read_out(torch.zeros(2, lm.config.hidden_size)).shape == (2, lm.vocab_size)
    assert not ran
    assert len(packings) == linears(model), "packed once"
    assert not any("forward" in vars(module) for module in model.modules())


def test_gradients_are_those_without_packing():
    """Trainings of heads read the target's head with gradients; the packed product has none."""
    model, states = tiny("llama").float(), torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    gradients = []
    for store in (None, PackedWeights()):
        lm, x = LM(model, capture="off", packed=store), states[:, : model.config.hidden_size].clone().requires_grad_()
        lm.read_out(x).logsumexp(-1).sum().backward()
        gradients.append(x.grad)
    assert gradients[0].abs().max() > 0
    assert torch.equal(*gradients)


def test_a_failing_forward_leaves_the_model_as_it_was():
    model = tiny("llama").float()
    lm = LM(model, packed=PackedWeights())
    cache = lm.cache(1, 64)
    plan = lm.plan(torch.tensor([[0]]), cache, 64)
    with torch.inference_mode(), pytest.raises(IndexError):
        lm.forward(torch.tensor([[10**6]]), plan, cache)
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("is_early", [True, False])
def test_a_forward_that_somebody_has_replaced_runs_and_stays(is_early):
    model = tiny("llama").float()
    layer, ran = model.model.layers[0].mlp.up_proj, []

    def replacement(x: torch.Tensor) -> torch.Tensor:
        ran.append(x.shape)
        return -nn.functional.linear(x, layer.weight)

    lm = None if is_early else LM(model, capture="off", packed=PackedWeights())
    layer.forward = replacement
    packed = logits_of(lm or LM(model, capture="off", packed=PackedWeights()))
    assert len(ran) >= 1
    assert vars(layer)["forward"] is replacement
    plain = logits_of(LM(model, capture="off"))
    assert (packed - plain).abs().max() <= 1e-5 * plain.abs().max()


def test_texts_are_those_without_packing():
    target, draft = (model.float() for model in pair("llama"))
    plain, packed = (Engine(target, draft, capture="off", packed=is_packed) for is_packed in (False, True))
    assert texts_of(packed) == texts_of(plain)
    assert texts_of(packed, batch_size=1) == texts_of(packed, batch_size=4)


def replaced(linear: nn.Linear) -> None:
    linear.weight = nn.Parameter(-linear.weight.detach(), requires_grad=False)


def moved(linear: nn.Linear) -> None:
    linear.weight.data = -linear.weight.data


def changed_in_place(linear: nn.Linear) -> None:
    with torch.no_grad():
        linear.weight.mul_(-1)


def changed_unseen(linear: nn.Linear) -> None:
    linear.weight.data.mul_(-1)  # the version stays


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("change", [replaced, moved, changed_in_place, changed_unseen])
def test_a_changed_weight_is_packed_again(change, is_shared):
    model = tiny("llama").float()
    if is_shared:
        model.share_memory()  # a mapped file in which writing leaves no trace
    lm = LM(model, capture="off", packed=PackedWeights())
    before = logits_of(lm)
    change(model.model.layers[0].mlp.up_proj)
    after, plain = logits_of(lm), logits_of(LM(model, capture="off"))
    assert (before - plain).abs().max() > 0.01
    assert (after - plain).abs().max() <= 1e-5 * plain.abs().max()


def test_a_layer_whose_class_multiplies_otherwise_is_refused(monkeypatch):
    model, forward = tiny("llama").float(), nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: 1.01 * forward(self, x))
    with pytest.raises(ValueError, match="packed weights give another product than a linear layer of the model"):
        LM(model, capture="off", packed=PackedWeights())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_that_are_zero_or_nan_are_packed(dtype):
    if not has_instructions(dtype):
        pytest.skip("this CPU has no instructions for bfloat16, in which packed weights are refused")
    model = tiny("llama").to(dtype)
    for value in (0.0, float("nan")):
        model.model.layers[0].mlp.up_proj.weight.data.fill_(value)
        PackedWeights().layers_of(model)


def test_a_change_that_is_not_one_of_a_linear_weight_packs_nothing_again(packings):
    """Such as the frequencies of a LongRoPE model, which every forward pass writes."""
    model = tiny("llama").float()
    lm = LM(model, capture="off", packed=PackedWeights())
    logits_of(lm)
    num_packed = len(packings)
    model.model.rotary_emb.inv_freq.mul_(1)
    logits_of(lm)
    assert len(packings) == num_packed > 0


def test_copies_go_with_the_last_layers_that_use_them():
    model, packed = tiny("llama").float(), PackedWeights()
    first, second = packed.layers_of(model), packed.layers_of(copy.deepcopy(model))
    num_copies = len(packed._copies)
    again = packed.layers_of(model)
    assert len(packed._copies) == num_copies, "weights that both share have one copy"
    del second
    gc.collect()
    assert len(packed._copies) == num_copies // 2
    del first, again


def test_a_weight_changed_between_two_calls_of_one_stream_is_packed_again():
    """Within a stream the fingerprint is not taken again; the version of a weight is looked at in every product."""
    model = tiny("llama").float()
    lm = LM(model, capture="off", packed=PackedWeights())
    ids, positions = torch.arange(5, 26).view(3, 7), torch.arange(7).expand(3, -1)
    with torch.inference_mode():
        cache = lm.cache(3, 64)
        plan = lm.plan(positions, cache, 64)
        before = lm.forward(ids, plan, cache)
        changed_in_place(model.model.layers[0].mlp.up_proj)
        after = lm.forward(ids, plan, cache)
    plain = logits_of(LM(model, capture="off"))
    assert (before - plain).abs().max() > 0.01
    assert (after - plain).abs().max() <= 1e-5 * plain.abs().max()


def test_a_draft_over_the_targets_weights_shares_their_packed_copies(packings):
    target = tiny("llama").float()
    engine = Engine(target, packed=True)
    assert len(packings) == linears(target)
    pruned = Engine(target, capture="off")
    assert texts_of(engine, drafter="pruned") == texts_of(pruned, drafter="pruned")
    assert len(packings) == linears(target)


def test_the_margin_of_two_tokens_is_computed_from_packed_weights(monkeypatch):
    """Other kernels round otherwise than those of the run whose texts are compared."""
    lm = LM(tiny("llama").float(), capture="off", packed=PackedWeights())
    monkeypatch.setattr(nn.functional, "linear", lambda *_: pytest.fail("a weight was multiplied as it is"))
    assert margin_of(lm, torch.arange(5, 26), 7, 8) > 0


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        (torch.float64, {}, "packed weights must be bfloat16, float16 or float32, got float64"),
        (
            torch.float32,
            {"capture": "trace"},
            "packed weights need steps that run eagerly: use capture='off', got 'trace'",
        ),
    ],
)
def test_what_cannot_be_packed_is_one_sentence(kind, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        Engine(tiny("llama").to(kind), packed=True, **options)
