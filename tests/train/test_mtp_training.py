"""The layers of drafter=mtp, eagle, eagle3 or block are trained: unrolled as it drafts, agreement that rises, exact resumption."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sdbench.card import CARD, WEIGHTS
from sdbench.cli import main
from sdbench.lm.model import LM
from sdbench.train.block import BlockTraining
from sdbench.train.drafter_recipes import BlockRecipe, Eagle3Recipe, EagleRecipe, MTPRecipe
from sdbench.train.mtp import Eagle3Training, EagleTraining, MTPTraining
from tests.draft import proofs
from tests.draft.test_block import block_states
from tests.draft.test_mtp import drafted_states, states_before
from tests.train.trainings import PAIR, finished, killed

WORDS = ("prompts=4", "rows=16", "max_new_tokens=24")
TEXTS = [([5, 6, 7], [8, 9, 11, 33, 44]), ([7], [13, 14, 20]), ([1, 2], [3, 4, 5, 6])]


@pytest.mark.parametrize(
    ("kind", "recipe", "family"),
    [
        (MTPTraining, MTPRecipe, "llama"),
        (EagleTraining, EagleRecipe, "gemma2"),
        (MTPTraining, MTPRecipe, "gemma3"),
        (Eagle3Training, Eagle3Recipe, "llama"),
    ],
)
@torch.no_grad()
def test_training_unrolls_the_layer_as_it_drafts(kind, recipe, family, tmp_path):
    """The states of each pass, for texts of different lengths together, are those of every round that may draft from them."""
    target = proofs.target_of(family, slice(1, 3))
    setup: Any = SimpleNamespace(decoder=SimpleNamespace(engine=SimpleNamespace(target=LM(target))))
    training, depth = kind(setup, recipe(), tmp_path), 3
    join = training.weights.get("join")
    if join is not None:  # as after a step: at first the last layer's state alone counts
        join += 0.1 * torch.randn(join.shape, generator=torch.Generator().manual_seed(0))
    by_pass = {k: drafted for k, drafted, _ in training.unroll(TEXTS, depth)}
    rows = [0] * depth
    for prompt, answer in TEXTS:
        text = [*prompt, *answer]
        for k in range(depth):
            for end in range(len(prompt), len(text) - k):  # a round that knows so many tokens
                ids, drafts = text[:end], text[end : end + k + 1]
                wanted = drafted_states(
                    training.model, states_before(target, ids, None if join is None else join.double()), ids, drafts
                )[-1]
                torch.testing.assert_close(by_pass[k][rows[k]], wanted, rtol=0, atol=1e-5)
                rows[k] += 1
    assert rows == [len(by_pass[k]) for k in range(depth)]


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@torch.no_grad()
def test_training_makes_the_blocks_that_are_drafted(family, tmp_path):
    """The states of each position, for texts of different lengths together, are those of every round that may draft them."""
    target = proofs.target_of(family, slice(1, 3))
    setup: Any = SimpleNamespace(decoder=SimpleNamespace(engine=SimpleNamespace(target=LM(target))))
    training, depth = BlockTraining(setup, BlockRecipe(positions=4), tmp_path), 4
    by_position = {k: drafted for k, drafted, _ in training.unroll(TEXTS, depth)}
    rows = [0] * depth
    for prompt, answer in TEXTS:
        text = [*prompt, *answer]
        for end in range(len(prompt), len(text)):
            blocks = block_states(training.model, states_before(target, text[:end]), text[:end], depth)
            for k in range(min(depth, len(text) - end)):
                torch.testing.assert_close(by_position[k][rows[k]], blocks[k], rtol=0, atol=1e-5)
                rows[k] += 1
    assert rows == [len(by_position[k]) for k in range(depth)]


@pytest.mark.parametrize("kind", [MTPTraining, EagleTraining, Eagle3Training])
@torch.no_grad()
def test_a_training_starts_from_copies_of_the_targets_weights(kind, tmp_path):
    target = LM(proofs.target_of("llama", slice(1, 3)).float())
    setup: Any = SimpleNamespace(decoder=SimpleNamespace(engine=SimpleNamespace(target=target)))
    before = [x.clone() for x in target.model.parameters()]
    for weight in kind(setup, MTPRecipe(), tmp_path).weights.values():
        weight.add_(1)
    assert all(torch.equal(x, y) for x, y in zip(before, target.model.parameters(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["mtp", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("eagle", "eagle3", "block"))]
)
def test_a_layer_agrees_with_the_target_and_a_killed_training_ends_in_the_same(kind, nursery, tmp_path):
    words = [*WORDS, "steps=24", *(["passes=2"] if kind != "block" else [])]
    finished(nursery, kind, *words, f"out={tmp_path / 'whole'}")
    killed(nursery, kind, 22, *words, f"out={tmp_path / 'torn'}")
    assert not (tmp_path / "torn" / CARD).exists()
    finished(nursery, kind, *words, f"out={tmp_path / 'torn'}")
    whole, torn = (load_file(tmp_path / name / WEIGHTS) for name in ("whole", "torn"))
    assert all(torch.equal(whole[name], torn[name]) for name in whole)
    card = json.loads((tmp_path / "whole" / CARD).read_text())
    assert len(card["agreement"]) == 5
    assert card["agreement"][0] > 0.1
    assert list(card["checkpoints"]) == ["target"], "the draft of the pair does not matter"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mtp", "eagle", "eagle3", "block"])
def test_a_run_drafts_with_a_layer_that_was_hardly_trained_and_is_lossless(kind, tmp_path, capsys):
    assert main(["train", kind, *PAIR, *WORDS, "steps=1", "model.draft=null", f"out={tmp_path / 'head'}"]) == 0
    words = ["task=gsm8k-tiny", "n=6", "temperature=0", "max_new_tokens=32", "verifier=exact", "num_draft=3"]
    run = ["timing=off", "model.draft=null", f"drafter={kind}", f"drafter.head={tmp_path / 'head'}", "report=off"]
    assert main(["model=llama-tiny", *words, *run, f"results={tmp_path}"]) == 0
    assert "lossless K=3 equals the target alone in 6 of 6 texts (float32)" in capsys.readouterr().out
