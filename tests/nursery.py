"""Runs whole commands without the price of a start: libraries are loaded once, each command runs in a fork of its own.

Nothing is computed before a fork, so a child is a fresh process whose imports are done. Usage, from a test:
`Nursery()` starts it; `start(words)` gives the id of a running command, `ended()` waits and gives how it ended;
`side_by_side(words, 3)` runs three of them at once. `before` is Python that such a process runs first, for example to plant a
fault.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOT_OF_A_RUN = ("sdbench.train", "sdbench.lm_eval", "sdbench.trackers", "sdbench.evaluate_adapter")
PARTS_EVERY_S = 0.02  # small parts, so that many instants are inside a write


class Nursery:
    """The test's side."""

    def __init__(self, said: Path) -> None:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, __file__, str(said)]
        self.said = said
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def start(self, words: Sequence[str], before: str = "") -> int:
        """The process id of a command."""
        self._request([words], before)
        return self._read()

    def ended(self) -> int:
        """The exit code of the command, or minus the signal that ended it."""
        return self._read()

    def side_by_side(self, words: list[str], count: int) -> list[int]:
        """How `count` of the same command end that run at once."""
        self._request([words] * count)
        _ = [self._read() for _ in range(count)]
        return [self._read() for _ in range(count)]

    def close(self) -> None:
        """Ends it and what still runs in it."""
        nursery = self._process.pid
        running = Path(f"/proc/{nursery}/task/{nursery}/children").read_text().split()
        for pid in [nursery, *map(int, running)]:
            os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def _request(self, commands: Sequence[Sequence[str]], before: str = "") -> None:
        assert self._process.stdin is not None
        print(json.dumps({"commands": commands, "before": before}), file=self._process.stdin, flush=True)

    def _read(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


def newest(folder: Path) -> str:
    """The name of the last part, which holds the time at which it was written."""
    names = os.listdir(folder / "records") if (folder / "records").is_dir() else []
    return max((name for name in names if name.startswith("generations-")), default="")


def wait_for_a_part(folder: Path, before: str, pid: int) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end and newest(folder) == before and is_running(pid):
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    path = Path(f"/proc/{pid}/stat")
    return path.exists() and path.read_text().rpartition(")")[2].split()[0] != "Z"


def serve(said: str) -> None:
    """The other side: a fork for each command of a line."""
    load()
    for line in sys.stdin:
        request = json.loads(line)
        pids = [fork(words, request["before"], said) for words in request["commands"]]
        print(*pids, sep="\n", flush=True)
        for pid in pids:
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def fork(words: list[str], before: str, said: str) -> int:
    """The process id of a command."""
    pid = os.fork()
    if pid == 0:
        run(words, before, said)
    return pid


def load() -> None:
    """Everything that a command imports, much of it only when it is needed."""
    import torch
    import transformers.models.llama.modeling_llama  # noqa: F401 - the micro pair's

    import sdbench
    import sdbench.passes.scoring

    torch.set_num_threads(1)
    for module in pkgutil.walk_packages(sdbench.__path__, "sdbench."):
        if not module.name.startswith(NOT_OF_A_RUN) and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    sdbench.passes.scoring.EVERY_S = PARTS_EVERY_S


def run(words: list[str], before: str, said: str) -> None:
    """A command in a fork: it never comes back."""
    from sdbench.cli import main

    for path, stream in ((os.devnull, 0), (os.devnull, 1), (said, 2)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
    try:
        exec(before, {})
        code = main(words)
    except SystemExit as end:
        code = int(end.code or 0)
    os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
