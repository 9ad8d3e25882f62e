"""A command line in a process of its own that tells what it cost and what it imported: counts hold on a busy machine too."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# What a run imports only if it names it: tasks and models of lm-evaluation-harness, servers, .gguf files.
NAMED = frozenset({"lm_eval", "sdbench.lm_eval", "sdbench.tasks.lm_eval", "sdbench.tasks.harness", "aiohttp", "gguf"})
NAMED |= {"sdbench.tasks.harness_scores", "sdbench.serve", "sdbench.engines.served", "sdbench.lm.gguf_tensors"}
HEAVY = NAMED | {"torch", "transformers", "datasets", "pandas", "pyarrow", "numpy"}
SCRIPT = """
import atexit, json, sys, time
place = sys.argv.pop(1)
def tell():
    with open(place, "w") as file:
        json.dump([time.process_time(), sorted(sys.modules)], file)
atexit.register(tell)
from sdbench.cli import main
sys.exit(main(sys.argv[1:]))
"""


@dataclass(frozen=True)
class Watched:
    """How a command ended; `seconds` are the processor's."""

    code: int
    out: str
    err: str
    seconds: float
    modules: frozenset[str]


def sdbench(words: list[str], *, cwd: Path, env: Mapping[str, str] | None = None) -> Watched:
    with tempfile.NamedTemporaryFile("r", suffix=".json") as place:
        command = [sys.executable, "-c", SCRIPT, place.name, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=env)
        seconds, modules = json.loads(Path(place.name).read_text())
    return Watched(done.returncode, done.stdout, done.stderr, seconds, frozenset(modules))
