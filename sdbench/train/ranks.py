"""Two one-thread processes and a summed gradient: on a CPU faster than two threads in one."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from sdbench.train.place import Place

# glibc otherwise gives every large buffer back and faults it in again; oneDNN keeps its kernels.
CPU_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "4096",
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
}


@contextmanager
def place(out: Path) -> Iterator[Place]:
    """The place that `start` gave this process."""
    if torch.cuda.is_available():
        yield Place(device="cuda", micros=1)
        return
    rank, world = int(os.environ.get("SDBENCH_RANK", 0)), int(os.environ.get("SDBENCH_WORLD", 1))
    torch.set_num_threads(1)
    if world > 1:
        store = f"file://{(out / 'ranks').resolve()}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=timedelta(minutes=30))
    yield Place(rank=rank, world=world, micros=4 // world)
    if world > 1:
        dist.destroy_process_group()


def start(script: Path, arguments: list[str], out: Path) -> int:
    """Run the script once per rank; the first bad exit code, or 0."""
    world = 1 if torch.cuda.is_available() else min(2, len(os.sched_getaffinity(0)))
    out.mkdir(parents=True, exist_ok=True)
    (out / "ranks").unlink(missing_ok=True)
    command = [sys.executable, str(script), *arguments]
    ranks = [
        subprocess.Popen(
            command, env=os.environ | CPU_ENVIRONMENT | {"SDBENCH_RANK": str(r), "SDBENCH_WORLD": str(world)}
        )
        for r in range(world)
    ]
    codes = [p.wait() for p in ranks]
    return next((code for code in codes if code), 0)
