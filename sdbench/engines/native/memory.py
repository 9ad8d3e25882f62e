"""Out of memory: a sentence where models load, fewer rows where they decode."""

from __future__ import annotations

import re
import time
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sdbench.prepare.pair import PairMetadata

UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
LOW_BYTES = (
    2**29
)  # of the system, or an eighth of what it had free; with less left it may end the process at the next allocation
CHECK_S = 0.5  # between two looks
ASKED = re.compile(r"allocate\D{0,20}([\d.]+) (bytes|KiB|MiB|GiB)")


def out_of_memory(error: Exception, metadata: PairMetadata, free: int | None) -> str | None:
    """A sentence for what an allocator could not give; None for any other error. `free`: bytes before loading."""
    match = ASKED.search(str(error))
    is_memory = isinstance(error, MemoryError) or "out of memory" in str(error).lower() or match is not None
    if not is_memory:
        return None
    need = sum(part.bytes(metadata.dtype, metadata.quantization(role)) for role, part in metadata.checkpoints.items())
    names = " and ".join(checkpoint.id for checkpoint in metadata.checkpoints.values())
    missing = max(need - (free or need), float(match[1]) * UNITS[match[2]] if match else 0.0)
    how_much = f"about {missing / 2**30:.2f} GiB were missing" if missing else "how much was missing is not known"
    had = "" if free is None else f" of {free / 2**30:.1f} GiB that were free on {metadata.device}"
    return (
        f"out of memory while loading {names}: {how_much}{had}, for {need / 2**30:.2f} GiB of weights; use dtype=bfloat16, "
        "model.quantization=bnb-nf4, model.device_map=auto over more GPUs, or a smaller pair"
    )


class MemoryGuard:
    """A hook of the decode loop on a CPU, where no allocator says that memory runs out: the system ends the process instead.

    Before that it raises what an allocator raises elsewhere, and the engine goes on with half the rows. A single row goes on.
    """

    def __init__(self) -> None:
        from sdbench.lm.load import free_bytes

        self._free_bytes, self._checked_s = partial(free_bytes, "cpu"), 0.0
        self._low_bytes = min(LOW_BYTES, (self._free_bytes() or 0) // 8)

    def __call__(self, phase: str, num_rows: int) -> AbstractContextManager[object]:
        import torch

        now_s = time.monotonic()
        if phase in ("admit", "round") and num_rows > 1 and now_s - self._checked_s >= CHECK_S:
            self._checked_s, free = now_s, self._free_bytes()
            if free is not None and free < self._low_bytes:
                raise torch.OutOfMemoryError(f"the system has {free // 2**20} MiB left")
        return nullcontext()
