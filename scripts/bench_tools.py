"""Common code of benchmarks: a stopwatch for hooks of engine and models, and the peak memory of a call in a new process."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from sdbench.engine import Engine
from sdbench.engine.loop import no_hook
from sdbench.lm.hook import ModelHook, no_model_hook
from sdbench.lm.model import LM
from sdbench.words import exit_on_mistake, parse_words

WARM_UPS = 10  # calls of the target


class Call(NamedTuple):
    """A phase of the loop, its rows and seconds; `inner_s` are the seconds of the phases within it."""

    phase: str
    num_rows: int
    seconds: float
    inner_s: float


@dataclass
class Stopwatch:
    """A hook of the loop (engine/loop.py) that keeps the seconds of its phases, by a clock."""

    wait: Callable[[], None]
    clock: Callable[[], float] = time.perf_counter
    calls: list[Call] = field(default_factory=list)
    _inner_s: list[float] = field(default_factory=lambda: [0.0])

    @contextmanager
    def __call__(self, phase: str, num_rows: int = 0) -> Iterator[None]:
        self.wait()
        self._inner_s.append(0.0)
        started = self.clock()
        try:
            yield
        finally:
            self.wait()
            seconds = self.clock() - started
            self.calls.append(Call(phase, num_rows, seconds, self._inner_s.pop()))
            self._inner_s[-1] += seconds

    def seconds(self, phase: str) -> float:
        return sum(call.seconds for call in self.calls if call.phase == phase)


@contextmanager
def time_engines(stopwatch: Stopwatch, engines: Sequence[Engine], models: Sequence[LM] = ()) -> Iterator[Stopwatch]:
    """Let a stopwatch time the phases of these engines, and the calls of these models as "target model" and so on."""
    for engine in engines:
        engine.hook = stopwatch
    try:
        with hook_models(models, lambda lm, inputs, call: stopwatch(f"{lm.role} model")):
            yield stopwatch
    finally:
        for engine in engines:
            engine.hook = no_hook


@contextmanager
def hook_models(models: Sequence[LM], hook: ModelHook) -> Iterator[None]:
    """Add a hook to these models within the `with` block."""
    for lm in models:
        lm.hook = hook
    try:
        yield
    finally:
        for lm in models:
            lm.hook = no_model_hook


def peaks_over(script: str, first: str, names: Sequence[str], device: str) -> dict[str, float]:
    """Return the peak of memory that `script` prints for each name, divided by that of `first`.

    Each peak is measured in a new process that returns freed memory to the system at once. Otherwise the peak would include memory
    that the allocator keeps, whose amount differs by 20 % between runs.
    """
    peaks: dict[str, float] = {}
    for name in [first, *names] if names else []:
        command, env = [sys.executable, script, name, f"device={device}"], {"MALLOC_MMAP_THRESHOLD_": "131072"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | env)
        if done.returncode:
            sys.exit(f"bench_engine: the memory of {name} could not be measured: {done.stderr[-300:]}")
        peaks[name] = float(done.stdout.split()[-1])
    return {name: peaks[name] / peaks[first] for name in names}


def print_peak(script: str, text: str | None, noun: str, peak_bytes: Callable[[str, str], float]) -> None:
    """Print what `peak_bytes` returns for the name and device of the command line, on one thread."""
    with exit_on_mistake(script, text, sys.argv[1:]):
        words = parse_words(sys.argv[1:], {"device": "cpu"})
        if len(words.paths) != 1:
            raise ValueError(f"give the name of one {noun}, got {len(words.paths)} names")
    torch.set_num_threads(1)
    print(peak_bytes(words.paths[0], words.options.get("device", "cpu")))


def target_s(bench: Any, num_rows: int, width: int, length: int) -> float:
    """Return the median seconds of a call of the target on `width` tokens after texts of `length`, run as a round runs it."""
    lm = LM(bench.target)
    lm.patience = 1
    cache = lm.cache(num_rows, length + width + 1)
    ids = torch.full((num_rows, width), 5, device=lm.device)
    positions = length + torch.arange(width, device=lm.device).expand(num_rows, -1)
    kv_length = lm.kv_length(length + width, cache)

    def step(length: int, ids: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (lm.forward(ids, lm.plan(positions, cache, length), cache),)

    def call() -> int:
        return len(cache.steps(step, "call", kv_length, ids, positions))

    with torch.inference_mode():
        times = [bench.seconds(call)[1] for _ in range(WARM_UPS + 10 * bench.repeats)]
    return sorted(times[WARM_UPS:])[5 * bench.repeats]


def random_llama(device: str, **sizes: int) -> Any:
    """Return a Llama with random weights that never ends a text."""
    import transformers

    library: Any = transformers
    return library.LlamaForCausalLM(library.LlamaConfig(**sizes, eos_token_id=None)).to(device).eval()


def resident_bytes() -> int:
    """Return the bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def forget_peak() -> None:
    """Reset the peak of memory, so that building the models does not count."""
    Path("/proc/self/clear_refs").write_text("5")
