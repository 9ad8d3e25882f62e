"""When requests arrive at a server: at Poisson times, or at times from a file. All timed settings get the same times."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path

from sdbench.config import NATIVE, ConfigError, Run, show
from sdbench.config.timing import REQUESTS
from sdbench.files import digest_of
from sdbench.imports import import_object


@dataclass(frozen=True)
class Arrivals:
    """Which prompt is sent at which time. `times` are ascending seconds from the start; `examples` name the prompts."""

    rates: tuple[float, ...]  # requests per second at the time of each request, on average
    repeat: int
    times: tuple[float, ...]
    examples: tuple[str, ...]
    tokens: int | None = None  # length of every answer; None: the task decides
    has_cache: bool = False  # whether the server may have cached prompts that this loop has sent before
    kind: str = "rate"  # or "ramp", "trace"
    seed: int = 0  # of the run

    @cached_property
    def key(self) -> str:
        """A hash of everything that decides which prompt is sent at which time."""
        options = {"tokens": self.tokens} if self.tokens else {}
        options |= {"cache": True} if self.has_cache else {}
        return digest_of(json.dumps([self.repeat, self.times, self.examples, *([options] if options else [])]))

    @property
    def option(self) -> str:
        """The option of the command line that requests these arrivals."""
        return f"timing.{self.kind}"

    @cached_property
    def loop(self) -> str:
        """A hash of everything that decides the loop except its repeat: loops with the same hash are repeats of each other."""
        source = self.times if self.kind == "trace" else self.seed  # a trace has the same times in each repeat
        parts = [self.kind, source, self.rates, self.examples, self.tokens, self.has_cache]
        return digest_of(json.dumps(parts))


def refuse_timing(run: Run) -> None:
    """Raise if batches are requested of a server, or arrivals of an engine that cannot send them, or if a trace is unreadable."""
    if run.timing is None:
        return
    if run.timing.batch_size > 1 and run.engine.name != NATIVE.name:
        raise ConfigError(
            f"timing.batch_size={run.timing.batch_size} needs engine=native; a server is timed with several requests at a time by "
            f"engine.concurrency=[1,{run.timing.batch_size}]"
        )
    if not run.timing.is_open:
        return
    if not getattr(import_object(str(run.engine.target)), "takes_arrivals", False):
        option = next(name for name in ("rate", "ramp", "trace") if getattr(run.timing, name))
        raise ConfigError(
            f"timing.{option} sends requests to a server as they arrive, which engine={run.engine.name} does not do: use "
            "engine=http engine.url=URL, engine=vllm or engine=llamacpp"
        )
    rates = [*run.timing.rate, *run.timing.ramp]
    if run.timing.trace is not None:
        rates.append(mean_rate(read_trace(run.timing.trace)))
    for rate in (rate for rate in rates if rates.count(rate) > 1):
        raise ConfigError(
            f"two loops of this run have {rate:g} requests/s (timing.rate, timing.ramp or the mean of timing.trace), and a table "
            "has a row for each rate: leave this rate out of one of them, or give each loop a run with its own name="
        )


def arrivals_of(run: Run, examples: Sequence[str]) -> list[Arrivals]:
    """Return the arrivals of each repeat, for each rate and for the ramp and the trace. Prompts are sent in the order of the run,
    then again from the first.
    """
    timing = run.timing
    if timing is None:
        return []
    schedules = []
    for repeat in range(timing.repeats):
        count = timing.requests or REQUESTS
        by_rate = [("rate", (rate,) * count, poisson_times(rate, count, run.seed, repeat)) for rate in timing.rate]
        if timing.ramp:
            rates = tuple(rate for rate in timing.ramp for _ in range(count))
            by_rate.append(("ramp", rates, ramp_times(timing.ramp, count, run.seed, repeat)))
        if timing.trace is not None:
            times = read_trace(timing.trace)
            by_rate.append(("trace", (mean_rate(times),) * len(times), times))
        for kind, rates, times in by_rate:
            asks = tuple(examples[index % len(examples)] for index in range(len(times)))
            options = {"tokens": timing.tokens, "has_cache": timing.prefix_cache, "kind": kind, "seed": run.seed}
            schedules.append(Arrivals(rates, repeat, times, asks, **options))
    return schedules


def poisson_times(rate: float, count: int, seed: int | str, repeat: int) -> tuple[float, ...]:
    """Arrivals with exponential gaps, scaled so that the last one is at count / rate, as `vllm bench serve` does.

    The gaps of two rates differ only by a constant factor, so that chance does not add to the difference between two loads.
    """
    generator = random.Random(f"arrivals/{seed}/{repeat}")
    times = list(accumulate(generator.expovariate(1) for _ in range(count)))
    return tuple(round(time / times[-1] * count / rate, 9) for time in times)


def ramp_times(rates: Sequence[float], count: int, seed: int, repeat: int) -> tuple[float, ...]:
    """`count` Poisson arrivals at each rate, one rate after another without a pause."""
    times: list[float] = []
    for step, rate in enumerate(rates):
        begin = times[-1] if times else 0.0
        step_seed = seed if not step else f"{seed}/{step}"
        times += [round(begin + time, 9) for time in poisson_times(rate, count, step_seed, repeat)]
    return tuple(times)


def read_trace(file: str) -> tuple[float, ...]:
    """Read arrival times in seconds from a file: one number per line, or a JSON object with `arrival_s`. The first becomes 0."""
    try:
        lines = Path(file).expanduser().read_text().splitlines()
    except (OSError, UnicodeDecodeError, RuntimeError) as error:
        no_text = "it is not text" if isinstance(error, UnicodeDecodeError) else str(error)  # ~NAME of no user
        reason = getattr(error, "strerror", None) or no_text
        raise ConfigError(f"timing.trace={show(file)} cannot be read: {reason}") from None
    numbered = [(number, _time_of(file, number, line)) for number, line in enumerate(lines, 1) if line.strip()]
    for (_, earlier), (number, later) in pairwise(numbered):
        if later < earlier:
            raise ConfigError(
                f"timing.trace={show(file)} must ascend, and line {number} is {later:g} after {earlier:g}: sort its lines"
            )
    times = [round(time - numbered[0][1], 9) for _, time in numbered]
    if not times or times[-1] == 0:
        raise ConfigError(
            f"timing.trace={show(file)} has {len(set(times)) or 'no'} arrival time{'s' * (not times)}: "
            "give at least two different times in seconds, one a line"
        )
    return tuple(times)


def mean_rate(times: Sequence[float]) -> float:
    """Return the requests per second of a trace, to six digits."""
    return float(f"{(len(times) - 1) / times[-1]:.6g}")


def _time_of(file: str, number: int, line: str) -> float:
    try:
        time = json.loads(line)["arrival_s"] if line.lstrip().startswith("{") else line
        seconds = math.nan if isinstance(time, bool) else float(time)
    except (ValueError, TypeError, KeyError, OverflowError):
        seconds = math.nan
    if not math.isfinite(seconds):
        raise ConfigError(
            f"line {number} of timing.trace={show(file)} is not an arrival time: write seconds as 1.25, or "
            f'{{"arrival_s": 1.25}}, got {show(line.strip())}'
        )
    return seconds
