"""The parent's side: one child interpreter a program, a few at a time, killed with all its group at the time-out."""

from __future__ import annotations

import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sdbench.tasks.sandbox import jail

Status = Literal["passed", "failed", "timeout", "memory", "crash", "error"]
BACKENDS = ("auto", "kernel+bwrap", "kernel", "bwrap", "rlimit", "none")
PROVES = ("connect", "write_outside", "fork", "kill_parent", "read_home", "environment", "proc")
PYTHON = os.path.realpath(sys.executable)
JAIL = str(Path(jail.__file__).resolve())
LIBRARY = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime", sys.base_prefix, JAIL)
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
DETAIL = 2000  # characters of a program's last words that are kept


class SandboxError(RuntimeError):
    """No backend holds here, or the one asked for does not start; says what to do."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a program; "error" is the sandbox's own failure, never the program's."""

    status: Status
    detail: str
    backend: str
    proved: tuple[str, ...]


class Sandbox:
    """Runs programs. `proved` names what the self-test saw fail; "rlimit" and "none" must be asked for by name."""

    def __init__(
        self,
        backend: str = "auto",
        timeout_s: float = 3.0,
        workers: int = 2,
        memory_bytes: int = 1 << 30,
        output_bytes: int = 16 << 20,
    ) -> None:
        if backend not in BACKENDS:
            raise ValueError(f"sandbox must be one of {', '.join(BACKENDS)}, got {backend!r}")
        if timeout_s <= 0 or workers < 1:
            raise ValueError(f"timeout_s and workers must be above 0, got {timeout_s} and {workers}")
        self.timeout_s, self.memory_bytes, self.output_bytes = timeout_s, memory_bytes, output_bytes
        self.proved: tuple[str, ...] = ()
        self.backend = backend
        self.backend, self.proved = self._strongest() if backend == "auto" else (backend, self._asked(backend))
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="sandbox")

    @property
    def is_proved(self) -> bool:
        return set(PROVES) <= set(self.proved)

    def submit(self, program: str) -> Future[Outcome]:
        """Run beside whatever else goes on."""
        return self._pool.submit(self._run, program)

    def run(self, programs: Sequence[str]) -> list[Outcome]:
        """Outcomes in the order of the programs."""
        return [future.result() for future in [self.submit(program) for program in programs]]

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _strongest(self) -> tuple[str, tuple[str, ...]]:
        found: dict[str, str] = {}
        for backend in ("kernel+bwrap", "kernel", "bwrap"):
            if "bwrap" in backend and shutil.which("bwrap") is None:
                found[backend] = "bubblewrap is not installed"
                continue
            self.backend = backend
            outcome, proved = self._self_test()
            if set(PROVES) <= set(proved):
                return backend, proved
            left = sorted(set(PROVES) - set(proved))
            found[backend] = outcome.detail if outcome.status != "passed" else f"does not stop {', '.join(left)}"
        reasons = "; ".join(f"{name}: {why.strip()}" for name, why in found.items())
        raise SandboxError(
            f"no sandbox holds on this machine ({reasons}). Use Linux 5.13 or newer with Landlock, or install "
            "bubblewrap; sandbox=rlimit or sandbox=none runs generated code without protection and marks the results"
        )

    def _asked(self, backend: str) -> tuple[str, ...]:
        if "bwrap" in backend and shutil.which("bwrap") is None:
            raise SandboxError(f"sandbox={backend} needs bubblewrap (the package bubblewrap of your system)")
        outcome, proved = self._self_test()
        if outcome.status == "error":
            raise SandboxError(f"sandbox={backend} does not start here: {outcome.detail.strip()}")
        return proved

    def _self_test(self) -> tuple[Outcome, tuple[str, ...]]:
        """Try each attack once, in one program; proved is what failed. A connect would find somebody listening."""
        with ExitStack() as stack:
            server = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
            outside = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sdbench-outside-")))
            program = PROBE.format(
                port=server.getsockname()[1],
                target=str(outside / "mark"),
                pid=os.getpid(),
                home=os.path.expanduser("~"),
                own={*ENVIRONMENT, "HOME", "TMPDIR", "PWD", "LC_CTYPE"},
            )
            outcome = self._run(program, is_probe=True)
            succeeded = set(outcome.detail.split("OPEN:")[-1].split()) if "OPEN:" in outcome.detail else set(PROVES)
            if (outside / "mark").exists():
                succeeded.add("write_outside")
        return outcome, tuple(name for name in PROVES if name not in succeeded)

    def _run(self, program: str, *, is_probe: bool = False) -> Outcome:
        with tempfile.TemporaryDirectory(prefix="sdbench-program-", ignore_cleanup_errors=True) as work:
            Path(work, "program.py").write_text(program, encoding="utf-8", errors="surrogatepass")
            try:
                status, detail = self._start(work)
            except OSError as error:
                status, detail = "error", str(error)
            return Outcome(status, detail if is_probe else detail[-DETAIL:], self.backend, self.proved)

    def _start(self, work: str) -> tuple[Status, str]:
        nonce = secrets.token_hex(16)
        orders = {
            "nonce": nonce,
            "work": work,
            "memory": self.memory_bytes if self.backend != "none" else resource_infinity(),
            "output": self.output_bytes,
            "cpu_s": int(self.timeout_s) + 1,
            "is_filtered": "kernel" in self.backend,
            "readable": [path for path in LIBRARY if os.path.exists(path)],
        }
        order_read, order_write = os.pipe()
        answer_read, answer_write = os.pipe()
        with open(os.path.join(work, "output"), "w+b") as output:
            try:
                child = subprocess.Popen(
                    self._command(work, order_read, answer_write),
                    cwd=work,
                    env={
                        "PATH": "/usr/bin:/bin",
                        "HOME": work,
                        "TMPDIR": work,
                        "LANG": "C.UTF-8",
                        "PYTHONHASHSEED": "0",
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=(order_read, answer_write),
                )
            finally:
                os.close(order_read)
                os.close(answer_write)
            with os.fdopen(order_write, "w") as pipe, suppress(BrokenPipeError):
                json.dump(orders, pipe)
            with os.fdopen(answer_read, "rb") as answers:
                code = self._wait(child)
                is_told = bytes.fromhex(nonce) in _available(answers.fileno())
            output.seek(max(0, output.seek(0, os.SEEK_END) - 4 * DETAIL))
            detail = output.read().decode("utf-8", "replace")
        return self._judge(code, is_told), detail

    def _wait(self, child: subprocess.Popen[bytes]) -> int | None:
        """The exit code, None at the time-out. A pidfd, since Popen.wait polls with a back-off of up to 50 ms."""
        descriptor = os.pidfd_open(child.pid)
        try:
            ready = select.select([descriptor], [], [], self.timeout_s)[0]
            return child.wait() if ready else None
        finally:
            os.close(descriptor)
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()

    def _judge(self, code: int | None, is_told: bool) -> Status:
        if code is None:
            return "timeout"
        if is_told and code == 0:
            return "passed"
        if code == jail.OUT_OF_MEMORY:
            return "memory"
        if code == jail.REFUSED:
            return "error"
        if code < 0 or code > 128:
            return "timeout" if code in (-signal.SIGXCPU, 128 + signal.SIGXCPU) else "crash"
        return "failed"

    def _command(self, work: str, order: int, answer: int) -> list[str]:
        inner = [PYTHON, "-I", "-S", "-B", JAIL, str(order), str(answer)]
        if "bwrap" not in self.backend:
            return inner
        bound = [word for path in LIBRARY if os.path.exists(path) for word in ("--ro-bind", path, path)]
        walls = ["--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
        places = ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", *bound, "--bind", work, work, "--chdir", work]
        return ["bwrap", *walls, *places, "--", *inner]


def resource_infinity() -> int:
    import resource

    return resource.RLIM_INFINITY


def _available(descriptor: int) -> bytes:
    """What the child has written, without waiting for other holders of the pipe's other end."""
    os.set_blocking(descriptor, False)
    with suppress(BlockingIOError):
        return os.read(descriptor, 4096)
    return b""


PROBE = """
import os, socket
succeeded = []
def attempt(name, attack):
    try:
        if attack():
            succeeded.append(name)
    except BaseException:
        pass
def connect():
    with socket.create_connection(("127.0.0.1", {port}), 1):
        return True
def write_outside():
    with open({target!r}, "w") as file:
        file.write("x")
    return os.path.exists({target!r}) and False
def fork():
    if os.fork() == 0:
        os._exit(0)
    return True
attempt("connect", connect)
attempt("write_outside", write_outside)
attempt("fork", fork)
attempt("kill_parent", lambda: os.kill({pid}, 0) is None)
attempt("read_home", lambda: os.listdir({home!r}) is not None)
attempt("environment", lambda: bool(set(os.environ) - {own}))
attempt("proc", lambda: len(open("/proc/{pid}/environ", "rb").read()) > 0)
print("OPEN:", *succeeded, flush=True)
"""
