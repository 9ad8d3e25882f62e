"""Waiting for what comes in its own time: a test on a busy machine asks again and again instead of once."""

import time
from collections.abc import Callable


def is_soon(holds: Callable[[], bool], *, within_s: float = 30) -> bool:
    """Whether it holds at some moment within that time."""
    end = time.monotonic() + within_s
    while not (held := holds()) and time.monotonic() < end:
        time.sleep(0.01)
    return held
