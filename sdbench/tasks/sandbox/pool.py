"""The pool of worker processes, and the choice of a backend by its self-test."""

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
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from . import selftest
from .confine import readable
from .worker import receive, send

BACKENDS = {"bwrap": "contained", "kernel": "contained", "rlimit": "limited", "none": "plain"}
AUTO = ("bwrap", "kernel")
DISK_BYTES = 64 << 20
IMPORTABLE = ("numpy",)  # beside the standard library: what answers to HumanEval and MBPP import most often
HERE = Path(__file__).parent
# The package's __init__ is not run: a worker starts in some 30 ms and has only this folder's modules.
START = (
    "import sys, types; p = types.ModuleType('sandbox'); p.__path__ = [sys.argv[1]]; sys.modules['sandbox'] = p; "
    "from sandbox.worker import main; main()"
)


class SandboxError(RuntimeError):
    """No backend passes its self-test on this machine, or the chosen one does not."""


@dataclass(frozen=True, slots=True)
class Program:
    """A solution, and tests to run after it with builtins and names that it cannot patch."""

    code: str
    tests: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """status: passed, failed, timeout, memory, crash, or error (of the sandbox itself); its reason; the start of the output."""

    status: str
    detail: str = ""
    output: str = ""


class Sandbox(AbstractContextManager):
    """Runs programs in parallel, isolated from each other. `proved` names the attacks of the self-test that failed here."""

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
        self.limits = {"memory_bytes": memory_bytes, "output_bytes": output_bytes}
        self.counts: Counter[str] = Counter()
        self._lock, self._idle = threading.Lock(), queue.SimpleQueue()
        self._home = tempfile.mkdtemp(prefix="sdbench-sandbox-")
        self._workers: list[_WorkerProcess] = []
        self._finalizer = weakref.finalize(self, _close, self._workers, self._home)
        try:
            self.packages = link_packages(self._home)
            folders = [folder for folders in self.packages.values() for folder in folders]
            self._options = {"packages": folders, "timeout_s": timeout_s, "disk_bytes": DISK_BYTES, **self.limits}
            self.backend, self.proved = self._choose(AUTO if backend == "auto" else (backend,))
            self._workers += [self._start(self.backend) for _ in range(workers - 1)]
        except BaseException:
            self._finalizer()
            raise
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="sandbox")

    @property
    def is_contained(self) -> bool:
        """False where the user chose rlimit or none: such results are marked."""
        return BACKENDS[self.backend] == "contained"

    def run(self, programs: Sequence[str | Program]) -> list[Outcome]:
        """Return outcomes in the order of the programs."""
        futures = [self.submit(program) for program in programs]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()  # after an error or Ctrl-C: those that have not begun

    def submit(self, program: str | Program) -> Future[Outcome]:
        """Run a program as soon as a worker is free, for example while the model decodes."""
        return self._threads.submit(self._run, program if isinstance(program, Program) else Program(program))

    def record(self) -> dict[str, Any]:
        """Return facts about the sandbox, for the records."""
        return {
            "sandbox": self.backend,
            "is_contained": self.is_contained,
            "sandbox_layers": list(self._workers[0].layers),
            "sandbox_proved": list(self.proved),
            "sandbox_packages": [*self.packages],
            **self.limits,
        }

    def close(self) -> None:
        """End the workers and remove their folders; also done when the object or the process ends."""
        self._threads.shutdown(cancel_futures=True)
        self._finalizer()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, program: Program) -> Outcome:
        worker = self._idle.get()
        try:
            outcome = worker.run(program)
        finally:
            self._idle.put(worker)
        with self._lock:
            self.counts[outcome.status] += 1
        return outcome

    def _start(self, backend: str) -> "_WorkerProcess":
        return _WorkerProcess(backend, self._home, self._options)

    def _choose(self, backends: Sequence[str]) -> tuple[str, tuple[str, ...]]:
        """Return the first backend that passes its self-test, and what that proved; its first worker is kept."""
        reasons = []
        for backend in backends:
            try:
                worker = self._start(backend)
            except SandboxError as error:
                reasons.append(f"{backend}: {error}")
                continue
            self._workers[:] = [worker]
            proved, open_ways = selftest.examine(lambda code, run=worker.run: run(Program(code)), self._home)
            if not open_ways or BACKENDS[backend] != "contained":
                return backend, proved
            worker.end()
            self._workers.clear()
            reasons.append(f"{backend}: a program could {', '.join(open_ways)}")
        raise SandboxError(
            f"no sandbox passes its self-test on this machine ({'; '.join(reasons)}): use Linux 5.13 or newer with Landlock "
            "and seccomp, or install bubblewrap where user namespaces are allowed; task.sandbox=rlimit and task.sandbox=none "
            "run generated code with little or no protection, and mark the result"
        )


class _WorkerProcess:
    """The pool's end of a worker process, which is restarted if it ends."""

    def __init__(self, backend: str, home: str, options: dict[str, Any]) -> None:
        self.backend, self.home, self.options = backend, home, options
        self.layers: tuple[str, ...] = ()
        self.process = self._start()

    def run(self, program: Program) -> Outcome:
        for _ in range(2):
            if self.process.returncode is not None:  # ended below, or a restart failed, as it may for want of memory
                self.process = self._start()
            stdin, stdout = self.process.stdin, self.process.stdout
            assert stdin is not None
            assert stdout is not None
            with suppress(OSError):  # a pipe whose worker is gone: another is started for the next try
                send(stdin, {"program": program.code, "tests": program.tests})
                if (answer := receive(stdout)) is not None:
                    return Outcome(**answer)
            self.end()
        return Outcome("error", "the worker of the sandbox ended twice while it ran this program")

    def end(self) -> None:
        """End the worker; the kernel then kills its program."""
        self.process.kill()
        self.process.communicate()

    def _start(self) -> subprocess.Popen[bytes]:
        work = tempfile.mkdtemp(prefix="work-", dir=self.home)
        options = json.dumps({**self.options, "level": BACKENDS[self.backend], "work": work})
        command = [os.path.realpath(sys.executable), "-I", "-S", "-B", "-c", START, str(HERE), options]
        if self.backend == "bwrap":
            command = [*bubblewrap(work, self.options["packages"]), *command]
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
        pipe = subprocess.PIPE
        try:  # in a session of its own: only the run handles a Ctrl-C
            process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, cwd="/", start_new_session=True
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
        self.layers = (*hello["layers"], *(["bubblewrap"] if self.backend == "bwrap" else []))
        return process


def bubblewrap(work: str, packages: Sequence[str]) -> list[str]:
    """Return the bubblewrap command for a worker. --die-with-parent is left out: it would follow a thread, not the process."""
    program = shutil.which("bwrap")
    if program is None:
        raise SandboxError("bubblewrap is not installed")
    command = [program, "--unshare-all", "--new-session", "--cap-drop", "ALL", "--dev", "/dev", "--proc", "/proc"]
    command += ["--tmpfs", "/tmp"]
    for path in (*readable(), "/bin", "/usr/bin", str(HERE), *packages):
        if os.path.exists(path) and not path.startswith("/dev/"):
            command += ["--ro-bind", path, path]
    return [*command, "--bind", work, work, "--"]


def link_packages(home: str) -> dict[str, tuple[str, ...]]:
    """Return package -> folders that must be readable for it: one with links, where imports look, and the real ones."""
    links = Path(home, "packages")
    links.mkdir()
    links.chmod(0o755)
    folders: dict[str, tuple[str, ...]] = {}
    for name in IMPORTABLE:
        spec = find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            continue
        folder = Path(os.path.realpath(next(iter(spec.submodule_search_locations))))
        beside = folder.with_name(f"{name}.libs")  # where wheels put their shared libraries
        real = [path for path in (folder, beside) if path.is_dir()]
        for path in real:
            (links / path.name).symlink_to(path)
        folders[name] = (str(links), *map(str, real))
    return folders


def _close(workers: list[_WorkerProcess], home: str) -> None:
    for worker in workers:
        worker.end()
    subprocess.run(["rm", "-rf", home], check=False)  # also trees too deep for shutil.rmtree
