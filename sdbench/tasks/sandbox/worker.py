"""A worker process, small and trusted: it forks a child for each program, times it and reports its outcome.

It stands between the run and the programs so that the run, which may hold gigabytes and threads, never forks, and so
that a program's parent is a process without secrets. A message on stdin or stdout is a line of JSON.
"""

import contextlib
import json
import marshal
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from . import confine

TICK_S = 0.05
STARVED = 100  # times the limit: the wall time after which a program is ended even if it only waited for a processor
HEAD = 2000  # bytes of output that are returned


def send(pipe: IO[bytes], message: dict[str, Any]) -> None:
    pipe.write(json.dumps(message).encode() + b"\n")
    pipe.flush()


def receive(pipe: IO[bytes]) -> dict[str, Any] | None:
    """Return the next message, or None when the other end is closed."""
    line = pipe.readline()
    return json.loads(line) if line.endswith(b"\n") else None


class Worker:
    """Runs one program at a time in one folder, which it empties after each."""

    def __init__(
        self,
        *,
        level: str,  # contained, limited or plain
        work: str,
        packages: list[str],  # readable folders; imports look in the first
        timeout_s: float,
        memory_bytes: int,
        output_bytes: int,
        disk_bytes: int,
    ) -> None:
        self.level, self.work, self.timeout_s, self.disk_bytes = level, work, timeout_s, disk_bytes
        self.limits = (memory_bytes, output_bytes, int(timeout_s) + 1)
        boot = Path(__file__).with_name("boot.py").read_text(encoding="utf-8")
        self.argv = [os.path.realpath(sys.executable), "-s", "-S", "-P", "-B", "-c", boot]
        self.environment = {"PATH": "/usr/bin:/bin", "HOME": work, "TMPDIR": work, "LANG": "C.UTF-8"}
        self.environment |= {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": "".join(packages[:1])}
        self.confinement, self.layers = None, [] if level == "plain" else ["rlimits"]
        if level == "contained":
            landlock = confine.landlock_version()
            self.confinement = confine.Confinement(
                work, self.argv, self.environment, landlock=landlock > 0, packages=packages
            )
            self.layers += ["no_new_privs", "no capabilities", "seccomp"]
            self.layers += [f"landlock {landlock}"] if landlock else []
        with contextlib.suppress(OSError, AttributeError):
            confine.control(confine.SUBREAPER, 1)

    def run(self, program: str, tests: str) -> dict[str, Any]:
        """Return status, detail and the start of the output."""
        number = os.urandom(16)
        with tempfile.TemporaryFile() as request, tempfile.TemporaryFile() as output:
            request.write(number + marshal.dumps((program, tests)))
            request.seek(0)
            child, report, trouble = self._start(request.fileno(), output.fileno())
            with open(report, "rb") as report_pipe, open(trouble, "rb") as trouble_pipe:
                problem = trouble_pipe.read()  # ends when the child becomes the interpreter
                verdict = self._watch(child)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
                _, status, usage = os.wait4(child, 0)
                self._end_orphans()
                os.set_blocking(report, False)
                answer = report_pipe.read() or b""
            output.seek(0)
            text = output.read(HEAD).decode(errors="replace")
            written = os.fstat(output.fileno()).st_size
        self._empty()
        if problem:
            return {"status": "error", "detail": problem.decode(errors="replace"), "output": text}
        code, cpu_s = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
        if code in (-signal.SIGXCPU, -signal.SIGKILL) and cpu_s >= self.timeout_s:
            verdict = "timeout"  # the kernel ended it before `_watch` did
        status, detail = self._judge(answer == number, answer, verdict, code, text)
        if status == "failed" and written >= self.limits[1] and self.level != "plain":
            detail += f" (output over {self.limits[1]} bytes)"
        return {"status": status, "detail": detail, "output": text}

    def _start(self, request: int, output: int) -> tuple[int, int, int]:
        """Fork; return the child's id and the descriptors of its report and of errors before the program starts."""
        (report, report_end), (trouble, trouble_end) = os.pipe(), os.pipe()
        child = os.fork()
        if child:
            os.close(report_end)
            os.close(trouble_end)
            return child, report, trouble
        try:
            self._become(request, report_end, output)
        except BaseException as error:  # noqa: BLE001  (reported to the parent, whatever it is)
            os.write(confine.high(trouble_end), f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(121)

    def _become(self, request: int, report: int, output: int) -> None:
        os.setsid()
        confine.control(confine.PDEATHSIG, signal.SIGKILL) if sys.platform == "linux" else None
        nothing = os.open(os.devnull, os.O_RDONLY)
        given = [confine.high(descriptor) for descriptor in (nothing, output, output, request, report)]
        for number, descriptor in enumerate(given):
            os.dup2(descriptor, number, inheritable=True)
        os.chdir(self.work)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        if self.level != "plain":
            confine.limit(*self.limits)
        if self.confinement is not None:
            self.confinement.enter()
        os.execve(self.argv[0], self.argv, self.environment)

    def _watch(self, child: int) -> str | None:
        """Wait for the child; return None when it ended by itself, else why it must be ended."""
        start, poller = time.monotonic(), select.poll()
        pidfd = os.pidfd_open(child)
        poller.register(pidfd, select.POLLIN)
        poller.register(0, 0)  # only POLLHUP: the run has ended
        try:
            while True:
                left = start + self.timeout_s - time.monotonic()
                ready = dict(poller.poll(1000 * (min(left, TICK_S) if left > 0 else TICK_S)))
                if pidfd in ready:
                    return None
                if ready:
                    return "abandoned"
                wall = time.monotonic() - start
                if wall >= self.timeout_s and (
                    wall - waited_s(child) >= self.timeout_s or wall >= STARVED * self.timeout_s
                ):
                    return "timeout"
                if self.level != "plain" and size_of(self.work) + unlinked_bytes(child, self.work) > self.disk_bytes:
                    return "disk"
        finally:
            os.close(pidfd)

    def _judge(self, is_passed: bool, answer: bytes, verdict: str | None, code: int, text: str) -> tuple[str, str]:
        """Return status and detail, from the child's answer, why it was ended, its exit code and its output."""
        if is_passed:
            return "passed", ""
        if verdict == "timeout":
            return "timeout", f"not done after {self.timeout_s:g} s"
        if verdict == "disk":
            return "failed", f"wrote more than {self.disk_bytes} bytes"
        if answer.startswith(b"T"):
            return "failed", f"tampering: {answer[1:80].decode(errors='replace')}"
        if answer.startswith(b"F"):
            kind, _, words = answer[1:600].decode(errors="replace").partition("\n")
            return ("memory" if kind == "MemoryError" else "failed"), f"{kind}: {words}"
        if answer:
            return "failed", "tampering: a forged report"
        if code == -signal.SIGKILL:
            return "memory", "killed by the system, which was out of memory"
        if code < 0:
            names = {number.value: number.name for number in signal.Signals}
            return "crash", names.get(-code, f"signal {-code}")  # most real-time signals have no name
        if "MemoryError" in text[-300:]:
            return "memory", "the interpreter ran out of memory"
        return "failed", f"left with code {code} before the tests had ended"

    def _end_orphans(self) -> None:
        """End processes that outlived their parent, where programs may fork: they became children of this process."""
        if self.level == "contained":
            return
        children = Path(f"/proc/self/task/{os.getpid()}/children")
        while children.exists() and (pids := children.read_text().split()):
            for pid in pids:
                os.kill(int(pid), signal.SIGKILL)
                os.waitpid(int(pid), 0)

    def _empty(self) -> None:
        """Empty the work folder; trees too deep for Python are removed by rm."""
        if not os.listdir(self.work):
            return
        for entry in os.scandir(self.work):
            with contextlib.suppress(OSError, RecursionError):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)
        if left := [os.path.join(self.work, name) for name in os.listdir(self.work)]:
            subprocess.run(["chmod", "-R", "u+rwx", "--", *left], check=False, stderr=subprocess.DEVNULL)
            subprocess.run(["rm", "-rf", "--", *left], check=True)


def waited_s(pid: int) -> float:
    """Return the seconds that a process was ready to run without a processor; 0 where the kernel does not count them."""
    try:
        with open(f"/proc/{pid}/schedstat") as stat:
            return int(stat.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def size_of(folder: str) -> int:
    """Return the bytes in a folder's files; a huge number for more than 20,000 entries or paths too long to walk."""
    total, entries, folders = 0, 0, [folder]
    while folders:
        path = folders.pop()
        if entries > 20_000 or len(path) > 2_000:
            return 1 << 62
        with contextlib.suppress(OSError), os.scandir(path) as listing:
            for entry in listing:
                entries += 1
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


def unlinked_bytes(pid: int, folder: str) -> int:
    """Return the bytes of the folder's deleted files that a process still has open or mapped."""
    total = 0
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            file = os.stat(f"/proc/{pid}/fd/{name}")
            total += 0 if file.st_nlink else file.st_blocks * 512
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            if folder in line and line.endswith("(deleted)\n"):
                begin, end = (int(address, 16) for address in line.split(maxsplit=1)[0].split("-"))
                total += end - begin
    return total


def main() -> None:
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    try:
        worker = Worker(**json.loads(sys.argv[2]))
    except Exception as error:  # noqa: BLE001  (a backend that cannot start says why, and the next one is tried)
        send(answers, {"trouble": f"{type(error).__name__}: {error}"})
        return
    send(answers, {"layers": worker.layers, "pid": os.getpid()})
    while (message := receive(requests)) is not None:
        send(answers, worker.run(message["program"], message["tests"]))
