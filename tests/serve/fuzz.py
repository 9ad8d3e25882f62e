"""Requests with any rule of `configs/verifier` and any knobs, sound or broken, as a careless client would send them."""

import json
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

from sdbench.config import config_dir
from sdbench.imports import import_object

VALUES = [*[0, 1, 0.5] * 8, -1, 2, 2.5, 0.5, 1e308, -1e308, 10**30, 1e-320, None, True, "nan", "", "mixture", "ratio"]


@cache
def targets() -> list[str]:
    files = [path.read_text() for path in (config_dir() / "verifier").glob("*.yaml")]
    return sorted(line.split()[1] for text in files for line in text.splitlines() if line.startswith("_target_:"))


def any_knobs(count: int, seed: int = 0) -> Iterator[tuple[dict[str, Any], bool]]:
    """`count` pairs of a request's `vllm_xargs` and whether it is greedy."""
    generator = random.Random(seed)
    for _ in range(count):
        target = generator.choice(targets())
        fields = list(getattr(import_object(target), "__dataclass_fields__", {}))
        values = {field: generator.choice(VALUES) for field in fields if generator.random() < 0.7}
        yield {"sdbench_rule": target, "sdbench_knobs": json.dumps(values)}, generator.random() < 0.5
