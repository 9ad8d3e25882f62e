"""The pool of keepers, and the self-test that decides which backend may be used."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import selftest
from .confine import readable
from .keeper import receive, send
from .packages import link

BACKENDS = {"bwrap": "contained", "kernel": "contained", "rlimit": "limited", "none": "plain"}
AUTO = ("bwrap", "kernel")
DISK_BYTES = 64 << 20
HERE = Path(__file__).parent
# The package's own __init__ is not run: a keeper starts in some 30 ms and holds nothing but this folder's modules.
START = (
    "import sys, types; p = types.ModuleType('sandbox'); p.__path__ = [sys.argv[1]]; sys.modules['sandbox'] = p; "
    "from sandbox.keeper import main; main()"
)


class SandboxError(RuntimeError):
    """No backend holds here, or the one asked for does not."""


@dataclass(frozen=True, slots=True)
class Program:
    """A solution, and tests to run after it with builtins and names that it cannot patch."""

    code: str
    tests: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """passed, failed, timeout, memory, crash, or error (the sandbox's own trouble); why; how the output begins."""

    status: str
    detail: str = ""
    output: str = ""


class Sandbox:
    """Runs programs in parallel, each alone. `proved` names what the self-test tried here and could not do."""

    def __init__(
        self,
        backend: str = "auto",
        timeout_s: float = 3.0,
        workers: int = 2,
        memory_bytes: int = 1 << 30,
        output_bytes: int = 16 << 20,
    ) -> None:
        if backend not in ("auto", *BACKENDS):
            raise ValueError(f"sandbox must be one of auto, {', '.join(BACKENDS)}, got {backend!r}")
        if not (timeout_s > 0 and workers >= 1):
            raise ValueError(f"timeout_s and workers must be positive, got {timeout_s} and {workers}")
        self.timeout_s, self.memory_bytes, self.output_bytes = timeout_s, memory_bytes, output_bytes
        self.counts: Counter[str] = Counter()
        self._lock, self._idle = threading.Lock(), queue.SimpleQueue()
        self._home = tempfile.mkdtemp(prefix="sdbench-sandbox-")
        self._finalizer = weakref.finalize(self, shutil.rmtree, self._home, ignore_errors=True)
        self.packages = link(self._home)
        try:
            self.backend, self.proved, first = self._choose(AUTO if backend == "auto" else (backend,))
        except BaseException:
            self._finalizer()
            raise
        self.layers: tuple[str, ...] = first.layers
        self._keepers = [first, *(_Keeper(self._spec(self.backend)) for _ in range(workers - 1))]
        for keeper in self._keepers:
            self._idle.put(keeper)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="sandbox")
        self._finalizer.detach()
        self._finalizer = weakref.finalize(self, _close, self._keepers, self._home)

    @property
    def is_contained(self) -> bool:
        """False where the user asked for less by name: such results are marked."""
        return BACKENDS[self.backend] == "contained"

    def run(self, programs: Sequence[str | Program]) -> list[Outcome]:
        """Outcomes in the order of the programs."""
        return [future.result() for future in [self.submit(program) for program in programs]]

    def submit(self, program: str | Program) -> Future[Outcome]:
        """Begins as soon as a worker is free; to score while something else decodes."""
        return self._threads.submit(self._one, program if isinstance(program, Program) else Program(program))

    def record(self) -> dict[str, Any]:
        """What a reader of the results should know."""
        return {
            "sandbox": self.backend,
            "is_contained": self.is_contained,
            "sandbox_layers": list(self.layers),
            "sandbox_proved": list(self.proved),
            "sandbox_packages": [*self.packages],
            "memory_bytes": self.memory_bytes,
            "output_bytes": self.output_bytes,
        }

    def close(self) -> None:
        """Ends the keepers and removes their folders; also done when the object or the process ends."""
        self._threads.shutdown(cancel_futures=True)
        self._finalizer()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _one(self, program: Program) -> Outcome:
        keeper = self._idle.get()
        try:
            outcome = keeper.run(program)
        finally:
            self._idle.put(keeper)
        with self._lock:
            self.counts[outcome.status] += 1
        return outcome

    def _spec(self, backend: str) -> _Spec:
        folders = tuple(folder for folders in self.packages.values() for folder in folders)
        return _Spec(backend, self._home, folders, self.timeout_s, self.memory_bytes, self.output_bytes, DISK_BYTES)

    def _choose(self, backends: Sequence[str]) -> tuple[str, tuple[str, ...], _Keeper]:
        """The first backend that holds, what it proved, and its first keeper."""
        reasons = []
        for backend in backends:
            try:
                keeper = _Keeper(self._spec(backend))
            except SandboxError as error:
                reasons.append(f"{backend}: {error}")
                continue
            proved, open_ways = selftest.examine(lambda code, k=keeper: k.run(Program(code)), self._home)
            if not open_ways or BACKENDS[backend] != "contained":
                return backend, proved, keeper
            keeper.end()
            reasons.append(f"{backend}: a program could {', '.join(open_ways)}")
        raise SandboxError(
            f"no sandbox holds on this machine ({'; '.join(reasons)}): use Linux 5.13 or newer with Landlock "
            "and seccomp, or install bubblewrap where user namespaces are allowed; task.sandbox=rlimit and task.sandbox=none "
            "run generated code with little or no protection, and mark the result"
        )


@dataclass(frozen=True, slots=True)
class _Spec:
    backend: str
    home: str
    packages: tuple[str, ...]  # folders that programs may read beside the standard library
    timeout_s: float
    memory_bytes: int
    output_bytes: int
    disk_bytes: int


class _Keeper:
    """This side of a keeper process. It is started anew if it should ever end."""

    def __init__(self, spec: _Spec) -> None:
        self.spec, self.layers = spec, ()
        self.work = tempfile.mkdtemp(prefix="work-", dir=spec.home)
        self.process = self._start()

    def run(self, program: Program) -> Outcome:
        for _ in range(2):
            stdin, stdout = self.process.stdin, self.process.stdout
            assert stdin is not None
            assert stdout is not None
            with suppress(OSError):  # a pipe whose keeper is gone: another is started below
                send(stdin, {"program": program.code, "tests": program.tests})
                if (answer := receive(stdout)) is not None:
                    return Outcome(**answer)
            self.end()
            self.work = tempfile.mkdtemp(prefix="work-", dir=self.spec.home)
            self.process = self._start()
        return Outcome("error", "the keeper of the sandbox ended twice while it ran this program")

    def end(self) -> None:
        """No program outlives its keeper: the kernel kills it."""
        self.process.kill()
        self.process.communicate()

    def _start(self) -> subprocess.Popen[bytes]:
        spec, python = self.spec, os.path.realpath(sys.executable)
        options = {
            "level": BACKENDS[spec.backend],
            "work": self.work,
            "packages": spec.packages,
            "timeout_s": spec.timeout_s,
            "memory_bytes": spec.memory_bytes,
            "output_bytes": spec.output_bytes,
            "disk_bytes": spec.disk_bytes,
        }
        command = [python, "-I", "-S", "-B", "-c", START, str(HERE), json.dumps(options)]
        if spec.backend == "bwrap":
            command = [*bubble(self.work, spec.packages), *command]
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                cwd="/",
                start_new_session=True,  # a Ctrl-C is the run's to handle
            )
        except OSError as error:
            raise SandboxError(f"{command[0]} does not start ({error})") from error
        assert process.stdout is not None
        hello = receive(process.stdout) or {}
        if "layers" not in hello:
            process.kill()
            _, errors = process.communicate()
            words = errors.decode(errors="replace").strip().splitlines()[-1:]
            raise SandboxError(hello.get("trouble") or (words[0] if words else "it ended at once"))
        self.layers = (*hello["layers"], *(["bubblewrap"] if spec.backend == "bwrap" else []))
        return process


def bubble(work: str, packages: Sequence[str]) -> list[str]:
    """bubblewrap around a keeper. Without --die-with-parent, which means the thread that started it."""
    program = shutil.which("bwrap")
    if program is None:
        raise SandboxError("bubblewrap is not installed")
    command = [program, "--unshare-all", "--new-session", "--cap-drop", "ALL", "--dev", "/dev", "--proc", "/proc"]
    command += ["--tmpfs", "/tmp"]
    for path in (*readable(), "/bin", "/usr/bin", str(HERE), *packages):
        if os.path.exists(path) and not path.startswith("/dev/"):
            command += ["--ro-bind", path, path]
    return [*command, "--bind", work, work, "--"]


def _close(keepers: list[_Keeper], home: str) -> None:
    for keeper in keepers:
        keeper.end()
    subprocess.run(["rm", "-rf", home], check=False)  # also trees too deep for shutil.rmtree
