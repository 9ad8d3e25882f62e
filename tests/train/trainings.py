"""The trainings' commands as a user gives them, and one that is killed on the way."""

import subprocess
import sys
from pathlib import Path

from nursery import Nursery

ROOT = Path(__file__).parents[2]
PAIR = ("model=llama-tiny", "task=gsm8k-tiny")

DIES = """
from sdbench.imports import import_object
from sdbench.train.options import RECIPES
training = import_object(RECIPES[{kind!r}].trainer)
step = training.step
def dies(self, n):
    if n == {at}: raise SystemExit(9)
    return step(self, n)
training.step = dies
"""


def train(kind, *words):
    """A process of its own, as a user starts it."""
    command = [sys.executable, "-m", "sdbench.train", kind, *PAIR, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def finished(nursery: Nursery, kind, *words):
    """A training in a fresh process whose libraries are loaded."""
    nursery.start(["train", kind, *PAIR, *words])
    assert nursery.ended() == 0, nursery.said.read_text()[-3000:]


def killed(nursery: Nursery, kind, at, *words):
    """The same training, dead before its step `at` is done."""
    nursery.start(["train", kind, *PAIR, *words], DIES.format(kind=kind, at=at))
    assert nursery.ended() == 9, nursery.said.read_text()[-3000:]
