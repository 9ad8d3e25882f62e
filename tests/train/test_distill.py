"""A distilled draft: losses that are what they are called, a draft that comes nearer, exact resumption, an ordinary folder."""

import json
import re

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import sdbench.tasks
from sdbench import embedded
from sdbench.cli import main
from sdbench.draft.pruned import PrunedDrafter
from sdbench.prepare.distilled import distillation_of
from sdbench.probs import Warp, total_variation
from sdbench.train.distill import LOSSES, Distillation
from sdbench.train.recipes import LOSS_NAMES
from sdbench.train.trainer import WARM_UP, WarmAdamW
from sdbench.types import DraftSetup
from tests.train.trainings import PAIR, finished, killed, train

WORDS = ("prompts=4", "max_new_tokens=24", "steps=24")


def test_the_recipe_names_the_losses():
    assert tuple(LOSSES) == LOSS_NAMES


@pytest.mark.parametrize("name", list(LOSSES))
def test_a_step_down_each_loss_brings_the_draft_nearer(name):
    g = torch.Generator().manual_seed(0)
    p = torch.randn(50, 9, generator=g).softmax(-1)
    logits = torch.randn(50, 9, generator=g, requires_grad=True)
    loss = LOSSES[name](p.log(), logits.log_softmax(-1))
    assert bool((loss >= -1e-6).all())
    torch.testing.assert_close(LOSSES[name](p.log(), p.log()), torch.zeros(50), atol=1e-6, rtol=0)
    loss.sum().backward()
    assert logits.grad is not None
    after = (logits - 0.1 * logits.grad).softmax(-1)
    before = total_variation(p, logits.softmax(-1))
    assert float(total_variation(p, after).detach().mean()) < float(before.detach().mean())


@pytest.mark.parametrize("warp", [Warp(1.0), Warp(0.7), Warp(1.0, vocab_size=8)])
def test_losses_are_their_formulas_in_probabilities(warp):
    g = torch.Generator().manual_seed(0)
    raw = torch.randn(2, 200, 9, generator=g).double() * 2
    p, q = warp.law(raw)
    wanted = {
        "forward_kl": (p * (p / q).log()).sum(-1),
        "reverse_kl": (q * (q / p).log()).sum(-1),
        "tv": (p - q).abs().sum(-1) / 2,
        "overlap": -torch.minimum(p, q).sum(-1).log(),
    }
    for name, loss in LOSSES.items():
        torch.testing.assert_close(loss(*warp.log_law(raw)), wanted[name], rtol=0, atol=1e-12)
        torch.testing.assert_close(loss(*warp.log_law(raw.float())).double(), wanted[name], rtol=1e-6, atol=1e-6)


FAR = {
    "a gap of 40 logits": (Warp(1.0), 40.0),
    "400 nats at T = 0.1": (Warp(0.1), 40.0),
    "cut by top_k": (Warp(1.0, top_k=1), 3.0),
    "cut by top_p": (Warp(1.0, top_p=0.5), 3.0),
    "cut by both": (Warp(0.1, top_k=2, top_p=0.9), 3.0),
}


@pytest.mark.parametrize("case", FAR)
@pytest.mark.parametrize("name", list(LOSSES))
def test_gradients_are_finite_and_do_not_vanish_where_the_draft_gives_no_mass(name, case):
    """Those of reverse KL and TV have the factor q(x), which is 0 where the draft is most wrong: they vanish by definition."""
    warp, gap = FAR[case]
    target, draft = torch.tensor([[gap, 0.0, -1.0]]), torch.tensor([[0.0, gap, 0.5]], requires_grad=True)
    loss = LOSSES[name](warp.log_law(target), warp.log_law(draft)).sum()
    (gradient,) = torch.autograd.grad(loss, draft)
    assert bool(loss.isfinite())
    assert bool(gradient.isfinite().all())
    if name in ("forward_kl", "overlap"):
        assert float(gradient[0, 0]) < -0.4  # a step raises the target's token ...
        assert float(gradient[0, 1]) > 0.4  # ... and lowers the draft's


@pytest.mark.parametrize("w", [1.0, 0.7, 0.2])
def test_tv_is_the_loss_of_every_static_ensemble(w):
    """Σ min(q, v) = 1 − w·TV(p, q) for v = w·p + (1−w)·q, and so in its gradient, which goes through v as well."""
    g = torch.Generator().manual_seed(0)
    p = torch.randn(200, 9, generator=g).double().mul(2).softmax(-1)
    logits = torch.randn(200, 9, generator=g).double().requires_grad_(True)
    q = logits.softmax(-1)
    kept = torch.minimum(q, w * p + (1 - w) * q).sum(-1)
    tv = LOSSES["tv"](p.log(), logits.log_softmax(-1))
    torch.testing.assert_close(kept, 1 - w * tv, rtol=0, atol=1e-14)
    lenient, lossless = (torch.autograd.grad(x.sum(), logits, retain_graph=True)[0] for x in (-kept, tv))
    torch.testing.assert_close(lenient, w * lossless, rtol=0, atol=1e-14)


def test_the_gradient_of_overlap_is_that_of_tv_over_the_overlap():
    p, logits = torch.tensor([[0.98, 0.01, 0.01]]), torch.tensor([[-4.0, 3.0, 0.0]], requires_grad=True)
    grads = {}
    for name in ("tv", "overlap"):
        (grads[name],) = torch.autograd.grad(LOSSES[name](p.log(), logits.log_softmax(-1)).sum(), logits)
    shared = torch.minimum(p, logits.softmax(-1)).sum().detach()
    torch.testing.assert_close(grads["overlap"] * shared, grads["tv"])
    assert float(grads["overlap"].norm()) > 10 * float(grads["tv"].norm())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_small_steps_are_not_lost_in_half_precision(dtype):
    """In bfloat16 the next number below 1 is 0.996, so that a step of 0.001 taken there would change nothing."""
    weight = torch.ones(3, dtype=dtype, requires_grad=True)
    optimiser = WarmAdamW({"x": weight}, rate=0.001)
    for step in range(100):
        (weight.sum() * 2).backward()
        if step == 50:  # resume from a checkpoint
            gradient, state = weight.grad, optimiser.state()
            weight = torch.ones(3, dtype=dtype, requires_grad=True)
            weight.grad, optimiser = gradient, WarmAdamW({"x": weight}, rate=0.001)
            optimiser.restore(state)
        optimiser.step(step)
    moved = sum(min(1.0, (step + 1) / WARM_UP) for step in range(100)) * 0.001
    torch.testing.assert_close(
        weight.double(), torch.full((3,), 1 - moved).double(), rtol=0, atol=torch.finfo(dtype).eps + 1e-5
    )
    assert weight.dtype == dtype


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "more"),
    [("pruned", ["model.draft=null", "keep_layers=9"]), pytest.param("draft", [], marks=pytest.mark.slow)],
)
def test_agreement_is_measured_on_rows_beyond_those_that_are_trained_on(kind, more, tmp_path, capsys, monkeypatch):
    trained_on, step = set(), Distillation.step

    def look(self, number):
        trained_on.update(self.training_keys)
        assert not trained_on & set(self.held_out_keys)
        return step(self, number)

    monkeypatch.setattr(Distillation, "step", look)
    out = tmp_path / "draft"
    words = [*PAIR, *more, "rows=8", "prompts=2", "steps=2", "max_new_tokens=12", f"out={out}"]
    assert main(["train", kind, *words]) == 0
    assert len(trained_on) == 8
    ((loss, agreement),) = re.findall(r"step 2/2 forward_kl (\S+), held-out agreement (\S+)", capsys.readouterr().out)
    card, course = (json.loads((out / name).read_text()) for name in ("distilled.json", "training.json"))
    assert float(agreement) == pytest.approx(card["agreement"][0], abs=0.0051)
    assert course["reports"][-1]["agreement"] == card["agreement"]
    assert float(loss) == pytest.approx(course["losses"][-1], abs=1e-4)
    assert (course["rows"], course["held_out"]) == (8, 32)


@pytest.mark.long  # test_ensemble.py kills a training in the slow set
@pytest.mark.parametrize(("kind", "more"), [("draft", ()), ("pruned", ("keep_layers=3",))])
def test_a_killed_distillation_ends_in_the_same_weights_in_an_ordinary_folder(nursery, tmp_path, kind, more):
    words = [*WORDS, *more]
    finished(nursery, kind, *words, f"out={tmp_path / 'whole'}")
    killed(nursery, kind, 22, *words, f"out={tmp_path / 'torn'}")
    assert not (tmp_path / "torn").exists()
    finished(nursery, kind, *words, f"out={tmp_path / 'torn'}")
    models = [AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype="auto") for name in ("whole", "torn")]
    assert models[0].dtype == torch.bfloat16
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(a, b)
    card = json.loads((tmp_path / "whole/distilled.json").read_text())
    assert (card["loss"], card["steps"], card["task"]) == ("forward_kl", 24, "gsm8k-tiny")


@pytest.mark.slow
def test_healing_brings_a_pruned_target_nearer_to_the_whole(tmp_path):
    """The layers that `drafter=pruned` keeps, before and after a few steps, on texts that neither was trained on."""
    target = AutoModelForCausalLM.from_pretrained(embedded.path("llama-tiny", "target"), dtype=torch.float32).eval()
    engine = sdbench.Engine(target)
    plain = PrunedDrafter.build(DraftSetup(engine.target, engine.warp(1.0)), 6).model.model
    train("pruned", "prompts=8", "steps=24", "keep_layers=6", "max_new_tokens=48", f"out={tmp_path / 'healed'}")
    healed = AutoModelForCausalLM.from_pretrained(tmp_path / "healed", dtype=torch.float32)
    assert healed.config.num_hidden_layers == 6
    assert (distillation_of(tmp_path / "healed") or {})["keep_layers"] == 6
    tokenizer = AutoTokenizer.from_pretrained(embedded.path("llama-tiny", "target"))
    rows = [example.row for example in sdbench.tasks.load("gsm8k-tiny", n=16).examples()]
    ids = torch.tensor([tokenizer(f"{row['question']}\n{row['answer']}")["input_ids"][:48] for row in rows])
    with torch.no_grad():
        p, q, r = (model(ids).logits.softmax(-1) for model in (target, plain, healed))
    assert float(total_variation(p, r).mean()) < float(total_variation(p, q).mean()) - 0.05
