"""What every training shares: numbered steps, a checkpoint now and then, a line now and then, exact resumption."""

import json
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from sdbench.config import ConfigError, show
from sdbench.files import replace_on_success

State = Mapping[str, Any]


@dataclass(slots=True)
class Steps:
    """Steps first…last of a training, whose state lies in `path`. Where it ends before the recipe does, the next run goes on."""

    name: str
    count: int  # of the recipe
    path: Path
    what: Mapping[str, Any] = field(default_factory=dict)  # all that decides a step: a checkpoint of another is refused
    is_first: bool = True  # of the ranks: it alone writes and speaks
    checkpoint_every: int = 250
    report_every: int = 50
    first: int = 0
    before_s: float = 0.0  # on the clock until the checkpoint that this goes on from
    seen: int = 0
    began: float = field(default_factory=time.monotonic)

    def resume(self, device: str = "cpu") -> dict[str, Any] | None:
        """The state of the checkpoint; None where there is none. That of another training is a ConfigError."""
        if not self.path.exists():
            return None
        state = torch.load(self.path, map_location=device, weights_only=True) if is_whole(self.path) else {}
        if "what" not in state:
            raise ConfigError(f"{self.path} is torn or of an older version: delete it, and training begins anew")
        own = json.loads(json.dumps(self.what))
        for name, value in json.loads(state["what"]).items():
            if own.get(name) != value:
                raise ConfigError(
                    f"{self.path} is of a training with {name}={show(value)}, and this one has {name}={show(own.get(name))}: "
                    "give another out=, or delete it"
                )
        if state["step"] > self.count:
            raise ConfigError(
                f"{self.path} has {state['step']} steps already, and steps={self.count}: give another out="
            )
        self.first, self.before_s = state["step"], state["seconds"]
        return state

    def run(self, last: int, state: Callable[[], State]) -> Iterator[int]:
        """The steps that are left until `last`; behind each, what is due is stored. `state` is called where it is."""
        if last < self.first:
            raise ConfigError(
                f"{self.path} has {self.first} steps already, and {last} are asked for: delete it, or ask for more"
            )
        for step in range(self.first, last):
            yield step
            self.seen += 1
            if self.is_due(step, last):
                self._store(state(), step + 1)

    def is_due(self, step: int, last: int) -> bool:
        """Whether something is to be stored behind this step."""
        return self.is_first and ((step + 1) % self.checkpoint_every == 0 or step + 1 == last)

    @property
    def seconds(self) -> float:
        return self.before_s + time.monotonic() - self.began

    def report(self, step: int, told: Callable[[], str]) -> None:
        """A line, where one is due."""
        if self.is_first and ((step + 1) % self.report_every == 0 or step + 1 == self.count):
            step_s = (time.monotonic() - self.began) / (self.seen + 1)
            left = step_s * (self.count - step - 1) / 60
            print(
                f"{self.name} step {step + 1}/{self.count} {told()} {step_s * 1e3:.0f} ms/step {left:.1f} min left",
                flush=True,
            )

    def _store(self, state: State, step: int) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        state = {**state, "step": step, "seconds": self.seconds, "what": json.dumps(self.what)}
        # Always one name: what a kill left, perhaps of many gigabytes, is overwritten.
        with replace_on_success(self.path, self.path.with_suffix(".part")) as part:
            torch.save(state, part)


def is_whole(path: Path) -> bool:
    """Whether every byte of a checkpoint is the one that was written: its directory stands at its end, with a sum for each part."""
    if not zipfile.is_zipfile(path):
        return False
    try:
        with zipfile.ZipFile(path) as file:
            return file.testzip() is None
    except (zipfile.BadZipFile, OSError, ValueError):
        return False
