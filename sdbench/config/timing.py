"""Options of the latency pass: closed loops, and open loops in which requests arrive at a server at given times."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sdbench.config import checks
from sdbench.config.checks import ConfigError, refuse_unknown, show

# Bounds as in `vllm bench serve --goodput`: time to first token, time per token, end to end. A larger number of seconds needs its
# unit, because without one it probably means milliseconds.
LONGEST_S = {"ttft": 20.0, "tpot": 1.0, "e2el": 100.0}
REQUESTS = 64  # at each rate


@dataclass(frozen=True, slots=True)
class TimingOptions:
    """Options of the latency pass.

    cells, examples, repeats, batch_size: how many cells of the sweep are timed, on how many examples, how often, in what batches
    assisted                            : whether transformers' assisted generation is timed too

    A server can also be timed under load:

    rate, ramp, trace : requests per second; rates that follow each other in one loop; a file with arrival times
    requests          : the number of requests at each rate; None: REQUESTS
    slo               : the limits in seconds that a good request keeps
    tokens            : the length of every answer; None: until the answer ends by itself
    prefix_cache      : whether the server may cache prompts that were sent before in the same loop
    """

    cells: int = 3
    examples: int = 8
    repeats: int = 1
    batch_size: int = 1
    assisted: bool = False
    rate: tuple[float, ...] = ()
    ramp: tuple[float, ...] = ()
    trace: str | None = None
    requests: int | None = None
    slo: Mapping[str, float] = field(default_factory=dict)
    tokens: int | None = None
    prefix_cache: bool = False

    @classmethod
    def check(cls, tree: object) -> TimingOptions | None:
        """Return the options, or None for timing=off; raise ConfigError for a mistake in them."""
        if tree is False or tree is None or tree == "off":
            return None
        if tree is True or tree == "on":
            return cls()
        if not isinstance(tree, Mapping):
            raise ConfigError(f"timing must be off or options such as timing.examples=20, got {show(tree)}")
        refuse_unknown("timing.", tree, cls.__dataclass_fields__)
        counts = ("cells", "examples", "repeats", "batch_size")
        timing = cls(
            **{key: checks.integer(f"timing.{key}", tree[key], 1) for key in counts if key in tree},
            assisted=checks.switch("timing.assisted", tree.get("assisted", False)),
            rate=_check_rates("rate", tree.get("rate")),
            ramp=_check_ramp(tree.get("ramp")),
            trace=None if tree.get("trace") is None else checks.string("timing.trace", tree["trace"]),
            requests=checks.optional_integer("timing.requests", tree.get("requests"), 1),
            slo=_check_bounds(tree.get("slo")),
            tokens=None if tree.get("tokens") is None else checks.integer("timing.tokens", tree["tokens"], 1),
            prefix_cache=checks.switch("timing.prefix_cache", tree.get("prefix_cache", False)),
        )
        if timing.batch_size > timing.examples:
            raise ConfigError(
                f"timing.batch_size={timing.batch_size} needs at least as many examples: "
                f"write timing.examples={timing.batch_size} or more"
            )
        if timing.assisted and timing.batch_size > 1:
            raise ConfigError(
                "timing.assisted=true needs timing.batch_size=1: assisted generation takes one text at a time"
            )
        _refuse_without_rate(timing)
        return timing

    @property
    def is_open(self) -> bool:
        """Return whether there is an open loop, in which requests arrive at given times."""
        return bool(self.rate or self.ramp) or self.trace is not None


def _refuse_without_rate(timing: TimingOptions) -> None:
    """Raise for an option of open loops if no requests arrive at a rate to which it could apply."""
    for name in ("slo", "tokens", "prefix_cache"):
        if getattr(timing, name) and not timing.is_open:
            raise ConfigError(
                f"timing.{name} needs requests that arrive at a rate: add timing.rate=[0.5,1], or timing.trace=FILE"
            )
    if timing.requests is not None and not (timing.rate or timing.ramp):
        instead = "add timing.rate=[0.5,1], or" if timing.trace is None else "timing.trace has its own number;"
        raise ConfigError(
            f"timing.requests={timing.requests} sets how many requests are sent at each rate of timing.rate or timing.ramp, and "
            f"neither is given: {instead} remove timing.requests"
        )


def _check_rates(name: str, value: object) -> tuple[float, ...]:
    """Return rates in requests per second; empty if none are given."""
    rates = [] if value is None else checks.as_list(f"timing.{name}", value)
    return tuple(checks.number(f"timing.{name}", rate, 0, 10**6, is_open=True) for rate in rates)


def _check_ramp(value: object) -> tuple[float, ...]:
    """Return the rates that follow each other in one loop."""
    rates = _check_rates("ramp", value)
    if rates and (len(rates) < 2 or len(rates) < len(value)):  # type: ignore[arg-type]
        raise ConfigError(f"timing.ramp must be two or more different rates, as [0.5,1,2], got {show(value)}")
    return rates


def _check_bounds(tree: object) -> dict[str, float]:
    """Return the bounds as {name: seconds}; empty if none are given."""
    if tree is None:
        return {}
    if not isinstance(tree, Mapping):
        raise ConfigError(f"timing.slo must be limits by name, as {{ttft: 0.5, tpot: 50ms}}, got {show(tree)}")
    refuse_unknown("timing.slo.", tree, LONGEST_S)
    return {str(name): _seconds_of(f"timing.slo.{name}", value, LONGEST_S[name]) for name, value in tree.items()}


def _seconds_of(key: str, value: object, longest_s: float) -> float:
    """Return seconds from a number up to `longest_s`, or from a text with its unit, such as 500ms or 0.5s."""
    if not isinstance(value, str):
        if isinstance(value, int | float) and not isinstance(value, bool) and longest_s < value < 10**6:
            raise ConfigError(
                f"{key}={show(value)} has no unit and would be {show(value)} seconds: write {show(value)}ms, or {show(value)}s if "
                "that is meant"
            )
        return checks.number(key, value, 0, longest_s, is_open=True)
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*(ms|s)", value.strip())
    if match is None:
        raise ConfigError(f"{key} must be seconds as 0.5, or a number with its unit as 500ms, got {show(value)}")
    return checks.number(key, float(match[1]) / (1000 if match[2] == "ms" else 1), 0, 10**6, is_open=True)
