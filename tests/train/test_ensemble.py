"""DIVERSED's training: the sign of its acceptance term, credit and baseline, exact resumption, errors."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sdbench.train.ensemble import Batch, left_out, objective
from sdbench.verify import Head

ROOT = Path(__file__).parents[2]
WORDS = ("model=llama-tiny", "task=gsm8k-tiny", "prompts=2", "samples=2", "max_new_tokens=24")


def train(*words):
    command = [sys.executable, str(ROOT / "scripts" / "train_ensemble.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def batch(n=40, seed=0, advantage=0.0):
    g = torch.Generator().manual_seed(seed)
    p, q, tv = torch.rand(3, n, generator=g).unbind()
    return Batch(torch.zeros(n, 1), p, q, tv, torch.full((n,), advantage), 4)


def test_a_step_down_the_acceptance_term_raises_expected_acceptance():
    """The public trainer has the sign reversed."""
    told = batch()
    score = torch.zeros(len(told.p), requires_grad=True)
    loss, w = objective(score, told, price=1.0, texts=4, count=len(told.p))
    loss.backward()
    assert score.grad is not None
    after = torch.sigmoid(score - 10 * score.grad)
    before, now = (1 - w * told.tv).mean(), (1 - after * told.tv).mean()
    assert now > before + 1e-3


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_good_texts_tokens_become_likelier_and_a_bad_ones_less(advantage):
    told = batch(advantage=advantage)
    score = torch.zeros(len(told.p), requires_grad=True)
    loss, w = objective(score, told, price=0.0, texts=4, count=len(told.p))
    loss.backward()
    assert score.grad is not None
    after = torch.sigmoid(score - score.grad)
    change = torch.log(after * told.p + (1 - after) * told.q) - torch.log(w * told.p + (1 - w) * told.q)
    assert bool((advantage * change >= 0).all())
    assert float((advantage * change).sum().detach()) > 0


def test_a_text_is_compared_with_the_others_of_its_prompt():
    assert left_out([1, 0, 0, 1, 1, 1], 3) == [1, -0.5, -0.5, 0, 0, 0]


def test_a_killed_training_ends_in_the_same_weights(tmp_path):
    whole = train(*WORDS, "steps=12", f"out={tmp_path / 'whole'}")
    assert whole.returncode == 0, whole.stderr
    words = [*WORDS, "steps=12", f"out={tmp_path / 'torn'}"]
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "from sdbench.train import ensemble\n"
        "step = ensemble.EnsembleTraining._step\n"
        "def dies(self, n):\n"
        "    if n == 11: raise SystemExit(9)\n"
        "    return step(self, n)\n"
        "ensemble.EnsembleTraining._step = dies\n"
        "from sdbench.train.command import main\n"
        f"main('ensemble', {words!r}, '')\n"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True).returncode == 9
    assert not (tmp_path / "torn/head.json").exists()
    again = train(*WORDS, "steps=12", f"out={tmp_path / 'torn'}")
    assert again.returncode == 0, again.stderr
    heads = [Head.load(str(tmp_path / name), "ensemble") for name in ("whole", "torn")]
    for name, tensor in heads[0].weights.items():
        torch.testing.assert_close(heads[1].weights[name], tensor, rtol=0, atol=0)
    curves = [(tmp_path / name / "curve.csv").read_bytes() for name in ("whole", "torn")]
    assert curves[0] == curves[1]
    card = json.loads((tmp_path / "whole/head.json").read_text())
    assert (card["model"], card["task"], card["temperature"], card["steps"]) == ("llama-tiny", "gsm8k-tiny", 1.0, 12)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["samples=1"], "samples must be at least 2, since a text is compared with its fellows, got 1"),
        (["temperature=0"], "temperature must be above 0: texts that are all the same teach nothing"),
        (["steps=many"], "steps must be a number, got many"),
        (["task=wmt-tiny"], "reward=bleu of task=wmt-tiny is no value of one text between bounds: give reward= one of"),
        (["task=nope"], "task"),
        (["features=[moon]"], "features cannot hold moon"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(words, sentence, tmp_path):
    done = train("model=llama-tiny", "task=gsm8k-tiny", *words, f"out={tmp_path / 'head'}")
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "head").exists()
