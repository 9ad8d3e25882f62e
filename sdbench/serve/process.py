"""A server process under a supervisor: start it, wait until it is ready, report why it ended."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from sdbench.config import ConfigError

LAST_LINES = 12
POLL_S = 0.2
OPENER = build_opener(ProxyHandler({}))  # no proxy: the server runs on this machine
SUPERVISOR = Path(__file__).with_name("supervisor.py")


def ending_of(code: int) -> str:
    """Return an exit status as text: `code 1`, or `code 139 (SIGSEGV)` if a signal ended the process."""
    names = {128 + each: each.name for each in signal.Signals}
    return f"code {code} ({names[code]})" if code in names else f"code {code}"


@dataclass
class Server:
    """A server and its supervisor. `close` ends both; they also end when this process does."""

    url: str
    log: Path
    process: subprocess.Popen[bytes]
    grace_s: float
    started_s: float = 0.0
    pid: int | None = None  # of the command, once it is ready: the server, unless a wrapper starts it without exec

    @classmethod
    def start(cls, words: Sequence[str], url: str, log: Path, *, env: Mapping[str, str], grace_s: float) -> "Server":
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(b"")
        command = [sys.executable, "-I", str(SUPERVISOR), str(log), str(grace_s), "--", *words]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env={**os.environ, **env})
        return cls(url, log, process, grace_s)

    def wait_until_ready(self, path: str, start_s: float) -> None:
        """Wait until the health page answers; raise ConfigError with the end of the log if the server ends or takes too long."""
        begin = time.monotonic()
        while self.process.poll() is not None or not self._is_healthy(path):  # another server may answer
            code, reason = self.process.poll(), None
            if code is not None:
                reason = f"ended with {ending_of(code)} before it was ready"
            elif time.monotonic() - begin > start_s:
                reason = f"was not ready after engine.start_s={start_s:g} seconds"
            if reason is not None:
                raise ConfigError(f"the server at {self.url} {reason}{self.last_lines()}")
            time.sleep(POLL_S)
        self.started_s = time.monotonic() - begin
        self.pid = next(iter(_children(self.process.pid)), None)

    def _is_healthy(self, path: str) -> bool:
        try:
            with OPENER.open(self.url + path, timeout=5) as response:
                return response.status == 200
        except (URLError, OSError):
            return False

    def death(self, within_s: float = 0.0) -> str | None:
        """Return a sentence about how the server ended, or None if it still runs after this time."""
        until = time.monotonic() + within_s
        while (code := self.process.poll()) is None and time.monotonic() < until:
            time.sleep(POLL_S)
        return None if code is None else f"the server at {self.url} ended with {ending_of(code)}{self.last_lines()}"

    def has_ended(self) -> bool:
        """Return whether the server itself has ended. Its supervisor ends later if it still has to end the server's children."""
        return self.process.poll() is not None or self.pid not in (None, *_children(self.process.pid))

    def last_lines(self) -> str:
        """Return the end of the log, as the second half of a sentence."""
        lines = self.log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        if not lines:
            return f" and wrote nothing to {self.log}"
        return f"; its log {self.log} ends:\n" + "\n".join(f"  {line}" for line in lines)

    def close(self) -> None:
        """End the server and its children, and wait until they are gone."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
            self.process.wait(self.grace_s + 30)
        except subprocess.TimeoutExpired:
            self.process.kill()  # the kernel then kills the server too (PR_SET_PDEATHSIG)
            self.process.wait()


def _children(pid: int) -> list[int]:
    """Return the ids of the running children of a process, the oldest first; none if it has ended."""
    try:
        ids = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return [each for each in ids if Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[0] != "Z"]
    except OSError:
        return []
