"""Any metric of `evaluate` beside a task's own, by its name or its folder.

`evaluate` is imported when a metric is asked for: its import takes seconds and brings torch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any


@cache
def named(name: str) -> Callable[[str, str], dict[str, float]]:
    """A metric of `evaluate` by its name or its folder, as a function of one answer and its reference."""
    import evaluate

    try:
        loaded = evaluate.load(name)
    except Exception as error:  # a hub that fails has the exceptions of its HTTP library
        words = " ".join(str(error).split())
        raise ValueError(f"extra_metrics: evaluate cannot load {name} ({type(error).__name__}: {words})") from error
    short = name.rstrip("/").rsplit("/", 1)[-1].removesuffix(".py")

    def measure(answer: str, reference: str) -> dict[str, float]:
        results: dict[str, Any] = loaded.compute(predictions=[answer], references=[reference]) or {}
        numbers = {key: float(value) for key, value in results.items() if isinstance(value, int | float)}
        return {key if key == short else f"{short}.{key}": value for key, value in numbers.items()}

    return measure
