"""Two processes with one thread each, whose gradients are summed: on a CPU this is faster than one process with two threads."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

# Otherwise glibc returns every large buffer to the system and gets it back page by page; oneDNN keeps its kernels.
CPU_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "4096",
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
}


@dataclass(frozen=True, slots=True)
class Rank:
    """A process of a training: its index among `world` processes, its device, and its micro-batches per step."""

    index: int = 0
    world: int = 1
    device: str = "cpu"
    micros: int = 2

    def add_up(self, tensors: list[Tensor]) -> None:
        """Replace each tensor by its sum over the ranks, with one message for all tensors."""
        if self.world == 1:
            return
        flat = torch.cat([t.flatten() for t in tensors])
        dist.all_reduce(flat)
        for t, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            t.copy_(part.view_as(t))


def is_rank() -> bool:
    """Return whether `start_ranks` started this process."""
    return "SDBENCH_RANK" in os.environ


@contextmanager
def join_ranks(out: Path) -> Iterator[Rank]:
    """Yield the rank that `start_ranks` gave this process, connected to the others."""
    if torch.cuda.is_available():
        yield Rank(device="cuda", micros=1)
        return
    index, world = int(os.environ.get("SDBENCH_RANK", 0)), int(os.environ.get("SDBENCH_WORLD", 1))
    torch.set_num_threads(1)
    if world > 1:
        store = f"file://{(out / 'ranks').resolve()}"
        dist.init_process_group("gloo", init_method=store, rank=index, world_size=world, timeout=timedelta(minutes=30))
    yield Rank(index=index, world=world, micros=4 // world)
    if world > 1:
        dist.destroy_process_group()


def start_ranks(command: Sequence[str], out: Path) -> int:
    """Run a Python command once per rank; return the first exit code that is not 0, or 0."""
    world = 1 if torch.cuda.is_available() else min(2, len(os.sched_getaffinity(0)))
    out.mkdir(parents=True, exist_ok=True)
    (out / "ranks").unlink(missing_ok=True)
    shared = os.environ | CPU_ENVIRONMENT | {"SDBENCH_WORLD": str(world)}
    processes = [
        subprocess.Popen([sys.executable, *command], env=shared | {"SDBENCH_RANK": str(index)})
        for index in range(world)
    ]
    codes = [process.wait() for process in processes]
    return next((code for code in codes if code), 0)
