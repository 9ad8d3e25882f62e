"""A distilled draft: losses that are what they are called, a draft that comes nearer, exact resumption, an ordinary folder."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from sdbench.probs import total_variation
from sdbench.train.distill import LOSSES

ROOT = Path(__file__).parents[2]
WORDS = ("model=llama-tiny", "task=gsm8k-tiny", "prompts=4", "max_new_tokens=24")


def distil(*words):
    command = [sys.executable, str(ROOT / "scripts" / "distill_draft.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.parametrize("name", list(LOSSES))
def test_a_step_down_each_loss_brings_the_draft_nearer(name):
    g = torch.Generator().manual_seed(0)
    p = torch.randn(50, 9, generator=g).softmax(-1)
    logits = torch.randn(50, 9, generator=g, requires_grad=True)
    loss = LOSSES[name](p, logits.softmax(-1))
    assert bool((loss >= -1e-6).all())
    torch.testing.assert_close(LOSSES[name](p, p), torch.zeros(50), atol=1e-6, rtol=0)
    loss.sum().backward()
    assert logits.grad is not None
    after = (logits - 0.1 * logits.grad).softmax(-1)
    before = total_variation(p, logits.softmax(-1))
    assert float(total_variation(p, after).detach().mean()) < float(before.detach().mean())


def test_the_gradient_of_overlap_is_that_of_tv_over_the_overlap():
    p, logits = torch.tensor([[0.98, 0.01, 0.01]]), torch.tensor([[-4.0, 3.0, 0.0]], requires_grad=True)
    grads = {}
    for name in ("tv", "overlap"):
        (grads[name],) = torch.autograd.grad(LOSSES[name](p, logits.softmax(-1)).sum(), logits)
    shared = torch.minimum(p, logits.softmax(-1)).sum().detach()
    torch.testing.assert_close(grads["overlap"] * shared, grads["tv"])
    assert float(grads["overlap"].norm()) > 10 * float(grads["tv"].norm())


def test_a_killed_distillation_ends_in_the_same_weights_in_an_ordinary_folder(tmp_path):
    whole = distil(*WORDS, "steps=24", f"out={tmp_path / 'whole'}")
    assert whole.returncode == 0, whole.stderr
    words = [*WORDS, "steps=24", f"out={tmp_path / 'torn'}"]
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "from sdbench.train import distill\n"
        "step = distill.Distillation._step\n"
        "def dies(self, n):\n"
        "    if n == 22: raise SystemExit(9)\n"
        "    return step(self, n)\n"
        "distill.Distillation._step = dies\n"
        "from sdbench.train.command import main\n"
        f"main('distil', {words!r}, '')\n"
    )
    died = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True)
    assert died.returncode == 9
    assert not (tmp_path / "torn").exists()
    again = distil(*words)
    assert again.returncode == 0, again.stderr
    models = [AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype="auto") for name in ("whole", "torn")]
    assert models[0].dtype == torch.bfloat16
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(a, b)
    card = json.loads((tmp_path / "whole/distilled.json").read_text())
    assert (card["loss"], card["steps"], card["task"]) == ("forward_kl", 24, "gsm8k-tiny")
    refused = distil(*WORDS, f"out={tmp_path / 'whole'}")
    assert refused.returncode == 2
    assert "holds a model already: give another out=, or delete it" in refused.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["loss=hinge"], "loss cannot be hinge"),
        (["temperature=0"], "temperature must be above 0: a draft is distilled on texts that it samples"),
        (["swaps=3"], "swaps is no option of this training"),
    ],
)
def test_bad_input_is_one_sentence(words, sentence, tmp_path):
    done = distil("model=llama-tiny", "task=gsm8k-tiny", *words, f"out={tmp_path / 'draft'}")
    assert done.returncode == 2
    assert sentence in done.stderr
    assert not (tmp_path / "draft").exists()
