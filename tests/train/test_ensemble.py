"""DIVERSED's training: the sign of its acceptance term, credit and baseline, exact resumption, errors."""

import json
import shutil

import pytest
import torch

from sdbench.train.ensemble import TokenBatch, advantages, objective
from sdbench.verify import Head
from tests.train.trainings import finished, killed

WORDS = ("prompts=2", "samples=2", "max_new_tokens=24", "steps=12")


def batch(n=40, seed=0, advantage=0.0):
    g = torch.Generator().manual_seed(seed)
    p, q, tv = torch.rand(3, n, generator=g).unbind()
    return TokenBatch(torch.zeros(n, 1), p, q, tv, torch.full((n,), advantage), 4)


def test_a_step_down_the_acceptance_term_raises_expected_acceptance():
    """The public trainer has the sign reversed."""
    tokens = batch()
    score = torch.zeros(len(tokens.p), requires_grad=True)
    loss, w = objective(score, tokens, price=1.0)
    loss.backward()
    assert score.grad is not None
    after = torch.sigmoid(score - 10 * score.grad)
    before, now = (1 - w * tokens.tv).mean(), (1 - after * tokens.tv).mean()
    assert now > before + 1e-3


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_good_texts_tokens_become_likelier_and_a_bad_ones_less(advantage):
    tokens = batch(advantage=advantage)
    score = torch.zeros(len(tokens.p), requires_grad=True)
    loss, w = objective(score, tokens, price=0.0)
    loss.backward()
    assert score.grad is not None
    after = torch.sigmoid(score - score.grad)
    change = torch.log(after * tokens.p + (1 - after) * tokens.q) - torch.log(w * tokens.p + (1 - w) * tokens.q)
    assert bool((advantage * change >= 0).all())
    assert float((advantage * change).sum().detach()) > 0


def test_a_text_is_compared_with_the_others_of_its_prompt():
    assert advantages([1, 0, 0, 1, 1, 1], 3) == [1, -0.5, -0.5, 0, 0, 0]


@pytest.mark.slow
def test_a_killed_training_ends_in_the_same_weights(nursery, tmp_path):
    finished(nursery, "ensemble", *WORDS, f"out={tmp_path / 'whole'}")
    killed(nursery, "ensemble", 11, *WORDS, f"out={tmp_path / 'torn'}")
    assert not (tmp_path / "torn/head.json").exists()
    shutil.copytree(tmp_path / "torn", tmp_path / "short")
    finished(nursery, "ensemble", *WORDS, f"out={tmp_path / 'torn'}")
    heads = [Head.load(str(tmp_path / name), "ensemble") for name in ("whole", "torn")]
    for name, tensor in heads[0].weights.items():
        torch.testing.assert_close(heads[1].weights[name], tensor, rtol=0, atol=0)
    curves = [(tmp_path / name / "curve.csv").read_bytes() for name in ("whole", "torn")]
    assert curves[0] == curves[1]
    finished(
        nursery,
        "ensemble",
        *(word for word in WORDS if not word.startswith("steps=")),
        "steps=10",
        f"out={tmp_path / 'short'}",
    )
    assert len((tmp_path / "short/curve.csv").read_text().splitlines()) == 11, "steps that the head has not seen"
    card = json.loads((tmp_path / "whole/head.json").read_text())
    assert (card["model"], card["task"], card["temperature"], card["steps"]) == ("llama-tiny", "gsm8k-tiny", 1.0, 12)
    assert {card["target_quantization"], card["draft_quantization"]} == {None}
