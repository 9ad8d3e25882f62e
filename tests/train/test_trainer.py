"""When a training writes its result."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sdbench.card import CARD, WEIGHTS, write_trained
from sdbench.train.trainer import Trainer


class Counting(Trainer):
    """Its weights are the same whatever it did; its card has the number of steps, and its seconds as all trainings have."""

    name, checkpoint_every, report_every = "counting", 1, 1

    def step(self, step: int) -> int:
        return step

    def progress(self) -> str:
        return ""

    def save(self) -> None:
        card = {"steps": len(self.rows), "seconds": self.steps.seconds}
        write_trained(self.out, "gate", {"weight": torch.ones(1)}, {}, card)


def train(out: Path, steps: int) -> dict[str, Any]:
    setup: Any = SimpleNamespace(identity=lambda recipe: {})
    recipe: Any = SimpleNamespace(num_steps=steps)
    Counting(setup, recipe, out)()
    return json.loads((out / CARD).read_text())


def test_the_result_of_a_finished_training_stays_as_it_is(tmp_path):
    card = train(tmp_path, 2)
    assert train(tmp_path, 2) == card
    assert train(tmp_path, 3)["steps"] == 3


@pytest.mark.parametrize("damage", [lambda out: (out / CARD).unlink(), lambda out: (out / WEIGHTS).write_bytes(b"")])
def test_a_result_that_is_missing_or_damaged_is_written_again(tmp_path, damage):
    card = train(tmp_path, 2)
    damage(tmp_path)
    assert train(tmp_path, 2)["weights"] == card["weights"]
    assert (tmp_path / WEIGHTS).stat().st_size > 0


def test_a_result_of_fewer_steps_is_written_again(tmp_path, monkeypatch):
    train(tmp_path, 2)
    with monkeypatch.context() as patch:
        patch.setattr(Counting, "save", lambda self: None)  # a kill between the last checkpoint and the result
        assert train(tmp_path, 3)["steps"] == 2
    assert train(tmp_path, 3)["steps"] == 3
