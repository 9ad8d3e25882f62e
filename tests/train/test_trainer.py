"""When a training writes its result."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sdbench.card import CARD, WEIGHTS, write_trained
from sdbench.engines.native import decode
from sdbench.engines.native.decode import Decoder
from sdbench.train.trainer import Trainer


class Counting(Trainer):
    """Its weights are the same whatever it did; its card has the number of steps, and its seconds as all trainings have."""

    name, checkpoint_every, report_every = "counting", 1, 1

    def step(self, step: int) -> int:
        return self.setup.decoder.batch_size

    def progress(self) -> str:
        return ""

    def save(self) -> None:
        card = {"steps": len(self.rows), "rows": self.rows, "seconds": self.steps.seconds}
        write_trained(self.out, "gate", {"weight": torch.ones(1)}, {}, card)


def train(out: Path, steps: int, batch_size: int | None = 8) -> dict[str, Any]:
    job: Any = SimpleNamespace(run=SimpleNamespace(batch_size=batch_size), longest=100)
    no_pair: Any = None
    setup: Any = SimpleNamespace(identity=lambda recipe: {}, decoder=Decoder(job, no_pair, None))
    recipe: Any = SimpleNamespace(num_steps=steps)
    Counting(setup, recipe, out)()
    return json.loads((out / CARD).read_text())


def test_the_result_of_a_finished_training_stays_as_it_is(tmp_path):
    card = train(tmp_path, 2)
    assert train(tmp_path, 2) == card
    assert train(tmp_path, 3)["steps"] == 3


def test_a_training_goes_on_with_the_batch_size_with_which_it_began(tmp_path, monkeypatch, capsys):
    for steps, num_rows in ((2, 64), (3, 5)):
        monkeypatch.setattr(decode, "rows_that_fit", lambda *_, num_rows=num_rows: num_rows)
        card = train(tmp_path, steps, None)
    assert card["rows"] == [64] * 3
    assert "ignored" not in capsys.readouterr().err
    assert train(tmp_path, 4, 5)["rows"] == [64] * 4
    assert "batch_size=5 is ignored: the training began with batch_size=64" in capsys.readouterr().err


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
