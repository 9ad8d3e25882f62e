"""The environment of a run: versions, commit, device, driver, load. No result depends on it."""

from __future__ import annotations

import dataclasses
import math
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdbench.config import NATIVE, Run
from sdbench.records.planned import subset_key

if TYPE_CHECKING:
    from sdbench.prepare.cells import Point
    from sdbench.prepare.pair_info import PairInfo
    from sdbench.tasks.base import DataTask

W_MEANS = "the weight of the target in v = w p + (1 - w) q: w = 1 is lossless, w = 0 keeps every drafted token"

SECRET = (
    "headers",
    "env",
)  # options of an engine whose values may be secret keys; they are hidden, because records and trackers are published
HIDDEN = "***"

PACKAGES = (
    "sdbench",
    "torch",
    "transformers",
    "datasets",
    "rouge_score",
    "sacrebleu",
    "numpy",
    "pyarrow",
    "hydra-core",
    "tokenizers",
    "accelerate",
    "bitsandbytes",
    "torchao",
    "flash-attn",
)


def environment(device: Any) -> dict[str, Any]:
    """Return the environment as plain data."""
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "host": platform.node(),
        "versions": {name: version_of_package(name) for name in PACKAGES},
        "commit": _commit(),
        "device": _device(device),
        "threads": _threads(),
        "load": os.getloadavg() if hasattr(os, "getloadavg") else None,
    }


def version_of_package(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the commit of a source tree, with a + if the tree has changes."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        git = ["git", "-C", str(root)]
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True)
        dirty = subprocess.run([*git, "diff", "--quiet", "HEAD"], capture_output=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip() + ("+" if dirty.returncode else "")


def _device(device: Any) -> dict[str, Any]:
    import torch

    facts: dict[str, Any] = {"type": device.type}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {"name": properties.name, "memory_bytes": properties.total_memory, "cuda": torch.version.cuda}
        facts["driver"] = _driver()
    elif device.type == "cpu":
        facts["name"] = _cpu_name()
    return facts


def _driver() -> str | None:
    try:
        words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.split("\n")[0].strip()


def gpus() -> list[str]:
    """Return name, memory and driver of the machine's NVIDIA devices; empty without a driver."""
    try:
        words = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def _cpu_name() -> str:
    path = Path("/proc/cpuinfo")
    if path.is_file():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _threads() -> int:
    import torch

    return torch.get_num_threads()


def config_of(run: Run, words: Sequence[str]) -> dict[str, Any]:
    """Return the resolved configuration as plain data, and the command. Values that may be secret are hidden in both."""
    plain = _plain(dataclasses.asdict(run))
    options = plain["engine"]["options"]
    for name in SECRET:
        if options.get(name):
            options[name] = dict.fromkeys(options[name], HIDDEN)
    return {**plain, "command": shlex.join(["python", "-m", "sdbench", *map(_without_secret, words)])}


def _without_secret(word: str) -> str:
    """Return a word of the command line, with its value hidden if the word sets a header or a variable of a server."""
    key, sign, _ = word.partition("=")
    names = key.lstrip("+").split(".")
    is_secret = names[0] == "engine" and len(names) > 1 and names[1] in SECRET
    return f"{key}{sign}{HIDDEN}" if is_secret and sign else word


def _plain(value: Any) -> Any:
    """Convert to JSON types; an infinite number becomes a string."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    is_word = isinstance(value, Path) or (isinstance(value, float) and not math.isfinite(value))
    return str(value) if is_word else value


def provenance(run: Run, task: DataTask, pair_info: PairInfo, planned: Sequence[Point]) -> dict[str, Any]:
    """Return what ran, and in which environment."""
    import torch

    from sdbench.prepare.pair import threads_of

    threads = {"threads": threads_of(pair_info)} if run.engine.name == NATIVE.name else {}  # set once weights are read
    return {
        **environment(torch.device(pair_info.metadata.device)),
        **threads,
        "checkpoints": dict(pair_info.checkpoints),
        "numerics": pair_info.numerics,
        "task": {**task.describe(), **task.environment()},
        "dataset_commit": task.dataset_commit,
        "planned": {
            "cells": [point.cell.key for point in planned],
            "examples": len(task.ids),
            "subset": subset_key(task.ids),
            "samples": run.samples,
        },
        "w": W_MEANS,
    }
