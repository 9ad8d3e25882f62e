"""Memory: estimate what a job needs, explain why models do not load, and stop before the system kills the process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from sdbench.errors import ALLOCATION, is_out_of_memory
from sdbench.lm.memory import ModelShape, PeakBytes, peak_bytes
from sdbench.lm.stored import WIDTHS
from sdbench.types import needs_of

if TYPE_CHECKING:
    from sdbench.engines.job import Job
    from sdbench.prepare.pair import PairMetadata

UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
# With less free memory than this, or than an eighth of the free memory at first if that is less, the system may kill the process.
LOW_BYTES = 2**29
CHECK_S = 0.5  # between two checks


def out_of_memory(error: Exception, metadata: PairMetadata, free: int | None) -> str | None:
    """Return a sentence for an allocation that failed; None for any other error. `free`: free bytes before loading."""
    if not is_out_of_memory(error):
        return None
    match, need = ALLOCATION.search(str(error)), metadata.num_bytes
    names = " and ".join(checkpoint.id for checkpoint in metadata.checkpoints.values())
    missing = max(need - (free or need), float(match[1]) * UNITS[match[2]] if match else 0.0)
    how_much = f"about {missing / 2**30:.2f} GiB were missing" if missing else "how much was missing is not known"
    had = "" if free is None else f" of {free / 2**30:.1f} GiB that were free on {metadata.device}"
    return (
        f"out of memory while loading {names}: {how_much}{had}, for {need / 2**30:.2f} GiB of weights; use dtype=bfloat16, "
        "model.quantization=bnb-nf4, or a smaller pair"
    )


class MemoryGuard:
    """A hook of the decode loop on a CPU, where the system kills a process that runs out of memory instead of failing an
    allocation.

    The hook raises an out-of-memory error before that, so that the engine continues with half the rows. A single row continues.
    """

    def __init__(self) -> None:
        from sdbench.lm.load import free_bytes

        self._free_bytes, self._checked_s = partial(free_bytes, "cpu"), 0.0
        self._low_bytes = min(LOW_BYTES, (self._free_bytes() or 0) // 8)

    def __call__(self, phase: str, num_rows: int) -> AbstractContextManager[object]:
        now_s = time.monotonic()
        if phase in ("admit", "round") and num_rows > 1 and now_s - self._checked_s >= CHECK_S:
            self._checked_s, free = now_s, self._free_bytes()
            if free is not None and free < self._low_bytes:
                import torch

                raise torch.OutOfMemoryError(f"the system has {free // 2**20} MiB left")
        return nullcontext()


def peak_of(job: Job, num_rows: int) -> PeakBytes:
    """Return the peak memory of a job's largest batch, from the shapes of its models, as if each were on one device."""
    from sdbench.draft import cache_share
    from sdbench.lm.capture import default_mode

    run, metadata = job.run, job.pair_info.metadata
    shapes: dict[str, ModelShape] = {}
    for role in metadata.checkpoints:
        width = WIDTHS[str(job.pair_info.numerics[f"{role}_dtype"]).removeprefix("torch.")]
        config, kind = job.pair_info.configs[role], metadata.device.partition(":")[0]
        mode = default_mode(config, kind, is_packed=bool(run.model.packed))
        weights = metadata.bytes_of(role)
        if run.model.packed and run.timing is not None and (role == "target" or run.timing.assisted):
            weights = 2 * metadata.read_bytes_of(role)  # transformers' `generate` reads the weights themselves
        shapes[role] = ModelShape.of(config, weights, width, mode)
    needs = {name for point in job.planned for name in needs_of(point.rule)}
    return peak_bytes(
        shapes["target"],
        shapes.get("draft"),
        num_rows=num_rows,
        length=job.longest,
        num_draft=max(run.num_draft),
        temperature=run.temperature,
        top_p=run.top_p,
        sorted_ids=sorted_ids_of(job.pair_info.configs.values(), metadata.device, is_packed=bool(run.model.packed)),
        keeps_logits="raw" in needs or ("raw_if_greedy" in needs and run.temperature == 0),
        keeps_prompts=True,
        cache_share=cache_share(run.drafters, job.pair_info.configs["target"].get_text_config()),
        num_cores=os.cpu_count() or 1,
        is_cpu=metadata.device == "cpu",
    )


def sorted_ids_of(configs: Iterable[Any], device: str, *, is_packed: bool) -> int | None:
    """Return how many of the largest logits top_p sorts; None for all: on a GPU, in traced steps, or with a small vocabulary."""
    from sdbench.lm.capture import NARROW
    from sdbench.probs import HEADS

    texts = [config.get_text_config() for config in configs]
    is_traced = not is_packed and any(config.hidden_size < NARROW for config in texts)
    has_few = any(config.vocab_size < 2 * HEADS[-1] for config in texts)
    return None if device != "cpu" or is_traced or has_few else HEADS[-1]
