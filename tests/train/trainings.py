"""The trainings' commands as a user gives them, and one that is killed on the way."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAIR = ("model=llama-tiny", "task=gsm8k-tiny")

KILLED = """
import sys
sys.path.insert(0, {root!r})
from sdbench.cli import main as front_door
from sdbench.imports import import_object
from sdbench.train.options import RECIPES
training = import_object(RECIPES[{kind!r}].trainer)
step = training.step
def dies(self, n):
    if n == {at}: raise SystemExit(9)
    return step(self, n)
training.step = dies
front_door(['train', {kind!r}, *{words!r}])
"""


def train(kind, *words):
    command = [sys.executable, "-m", "sdbench.train", kind, *PAIR, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def finished(kind, *words):
    done = train(kind, *words)
    assert done.returncode == 0, done.stderr
    return done


def killed(kind, at, *words):
    """The same training, dead before its step `at` is done."""
    code = KILLED.format(root=str(ROOT), kind=kind, at=at, words=[*PAIR, *words])
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 9, done.stderr
