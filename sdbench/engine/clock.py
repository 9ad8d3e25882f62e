"""Seconds, read only after the device has finished."""

from time import perf_counter
from typing import Literal

import torch

from sdbench.types import Timing

Mode = Literal["off", "rounds", "split"]


class Clock:
    """Laps of the loop. "off" never synchronises; "rounds" once a round; "split" also between draft, verify and the rest."""

    def __init__(self, device: torch.device, mode: Mode = "off") -> None:
        self.device, self.mode = device, mode
        self.laps: dict[str, float] = {}
        self._last = 0.0

    def start(self) -> None:
        """The beginning of a round, or of a prefill."""
        self.laps = {}
        self._last = self._now(self.mode != "off")

    def lap(self, name: str) -> None:
        """The end of a part, read in mode "split" only."""
        if self.mode == "split":
            now = self._now(True)
            self.laps[name] = now - self._last
            self._last = now

    def stop(self) -> float:
        """Seconds since the start."""
        if self.mode == "off":
            return 0.0
        rest = self._now(True) - self._last
        self.laps["rest"] = rest
        return sum(self.laps.values())

    def _now(self, is_synchronised: bool) -> float:
        if is_synchronised and self.device.type != "cpu":
            getattr(torch, self.device.type).synchronize()
        return perf_counter()


def timing(prefill_s: float, rounds: list[dict[str, float]], mode: Mode) -> Timing | None:
    """What a row's laps add up to."""
    if mode == "off":
        return None
    seconds = tuple(sum(laps.values()) for laps in rounds)
    split = {}
    if mode == "split":
        split = {f"{name}_s": sum(laps.get(name, 0.0) for laps in rounds) for name in ("draft", "verify", "rest")}
    return Timing(prefill_s, sum(seconds), prefill_s + seconds[0], seconds, **split)
