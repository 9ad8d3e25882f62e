"""Host time, read after the device has finished its work. Without timing, the device is not synchronised."""

import time

import torch

from sdbench.engine.row import Decoding
from sdbench.types import Timing


class Clock:
    """`is_on`: whole rounds are timed; `is_split`: their parts (draft, verify, rest) too, which needs more synchronisation."""

    def __init__(self, device: torch.device, mode: bool | str | None) -> None:
        if mode not in (None, False, True, "split"):
            raise ValueError(f'timing must be True, False or "split", got {mode!r}')
        self.is_on, self.is_split = bool(mode), mode == "split"
        self._wait = None if device.type == "cpu" else torch.get_device_module(device).synchronize

    def read(self) -> float:
        """Return the time once the device has finished; 0 when off."""
        if not self.is_on:
            return 0.0
        if self._wait is not None:
            self._wait()
        return time.perf_counter()

    def split(self) -> float:
        """Return a reading inside a round."""
        return self.read() if self.is_split else 0.0

    def timing(self, row: Decoding) -> Timing | None:
        if not self.is_on:
            return None
        first_s, split_s = row.prefill_s + sum(row.rounds_s[:1]), row.split_s if self.is_split else ()
        seconds = row.prefill_s, sum(row.rounds_s), first_s, tuple(row.rounds_s), *split_s
        return Timing(*seconds, reads_prompt=row.reads_prompt)
