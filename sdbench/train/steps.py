"""Common code of all trainings: numbered steps, checkpoints, progress lines, exact resumption."""

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
from sdbench.train.failed_files import explain_failed_write


@dataclass(slots=True)
class Steps:
    """The steps of a training, with a checkpoint at `path` from which an interrupted training continues."""

    name: str
    count: int  # number of steps in the recipe
    path: Path
    identity: Mapping[str, Any] = field(
        default_factory=dict
    )  # everything that decides the steps; a checkpoint with another identity is refused
    is_first: bool = True  # whether this is the first rank: only that one writes and prints
    checkpoint_every: int = 250
    report_every: int = 50
    first: int = 0
    before_s: float = 0.0  # seconds of training before the checkpoint
    num_run: int = 0
    began: float = field(default_factory=time.monotonic)
    settled: float = 0.0  # when the first step ended; it may take longer, to prepare what all steps read

    def resume(self, device: str = "cpu") -> dict[str, Any] | None:
        """Return the state in the checkpoint, or None if there is none; raise ConfigError if it belongs to another training."""
        if not self.path.exists():
            return None
        state = torch.load(self.path, map_location=device, weights_only=True) if is_whole(self.path) else {}
        if "identity" not in state:
            raise ConfigError(f"{self.path} is damaged or of an older version: delete it to start the training again")
        identity = json.loads(json.dumps(self.identity))
        for name, value in json.loads(state["identity"]).items():
            if identity.get(name) != value:
                raise ConfigError(
                    f"{self.path} belongs to a training with {name}={show(value)}, and this one has "
                    f"{name}={show(identity.get(name))}: give another out=, or delete it"
                )
        self.first, self.before_s = state["step"], state["seconds"]
        return state

    def run(self, last: int, state: Callable[[], Mapping[str, Any]]) -> Iterator[int]:
        """Yield the steps from the checkpoint up to `last`; after each, store `state()` if a checkpoint is due."""
        if last < self.first:
            raise ConfigError(
                f"{self.path} already has {self.first} steps, more than {last}: raise steps=, or delete it"
            )
        for step in range(self.first, last):
            yield step
            self.settled = self.settled or time.monotonic()
            self.num_run += 1
            if self.is_due(step, last):
                self._store(state(), step + 1)

    def is_due(self, step: int, last: int) -> bool:
        """Return whether a checkpoint follows this step."""
        return self.is_first and ((step + 1) % self.checkpoint_every == 0 or step + 1 == last)

    @property
    def seconds(self) -> float:
        return self.before_s + time.monotonic() - self.began

    def report(self, step: int, text_of: Callable[[], str]) -> None:
        """Print a line of progress if one is due."""
        if self.is_first and ((step + 1) % self.report_every == 0 or step + 1 == self.count):
            since, count = (self.settled, self.num_run) if self.num_run else (self.began, 1)
            step_s = (time.monotonic() - since) / count
            left = step_s * (self.count - step - 1) / 60
            progress = f"{self.name} step {step + 1}/{self.count} {text_of()}"
            print(f"{progress} {step_s * 1e3:.0f} ms/step {left:.1f} min left", flush=True)

    def _store(self, state: Mapping[str, Any], step: int) -> None:
        state = {**state, "step": step, "seconds": self.seconds, "identity": json.dumps(self.identity)}
        with explain_failed_write(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # The temporary file has a fixed name, so that the next run overwrites one left by a killed process.
            with replace_on_success(self.path, self.path.with_suffix(".part")) as part, open(part, "wb") as file:
                torch.save(state, file)


def is_whole(path: Path) -> bool:
    """Return whether a checkpoint is complete: its zip directory, at the end of the file, has a checksum of each part."""
    try:
        with zipfile.ZipFile(path) as file:
            return file.testzip() is None
    except (zipfile.BadZipFile, OSError, ValueError):
        return False
