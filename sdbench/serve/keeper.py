"""Between the harness and a server: `python -I keeper.py LOG GRACE_S -- COMMAND …` runs the command until it ends by
itself or the keeper's standard input does, as it does when the harness is gone, however it went. Then the whole process group
of the server is ended, and whatever left that group too: orphans below the keeper become its own. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

SUBREAPER, DEATH_SIGNAL = 36, 1  # prctl(2)
POLL_S = 0.1


def main(argv: list[str]) -> int:
    """The code that the command ended with."""
    log, grace_s, command = argv[0], float(argv[1]), argv[3:]
    harness = os.getppid()
    os.setsid()  # a Ctrl-C in the terminal is the harness's: it says when the server ends
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, lambda *_: os.close(0) if _is_open() else None)
    _prctl(SUBREAPER, 1)
    with open(log, "ab") as said:
        try:
            server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
                preexec_fn=_dies_with_us,
            )
        except OSError as error:
            said.write(f"{command[0]}: {error.strerror}\n".encode())
            return 127
        while server.poll() is None and not _is_ended() and os.getppid() == harness:
            pass
        end(server, grace_s)
        return server.returncode if server.returncode >= 0 else 128 - server.returncode


def end(server: subprocess.Popen[bytes], grace_s: float) -> None:
    """TERM to the group, KILL after the grace, then to every descendant that is left."""
    until = time.monotonic() + grace_s
    _signal_group(server.pid, signal.SIGTERM)
    while time.monotonic() < until and (server.poll() is None or _descendants(os.getpid())):
        time.sleep(POLL_S)
    _signal_group(server.pid, signal.SIGKILL)
    server.wait()
    while left := _descendants(os.getpid()):
        for pid in left:
            _kill(pid)
        time.sleep(POLL_S)


def _is_ended() -> bool:
    """Waits a little; whether standard input is at its end."""
    try:
        ready, _, _ = select.select([0], [], [], POLL_S)
        return bool(ready) and not os.read(0, 1)
    except (OSError, ValueError):
        return True


def _is_open() -> bool:
    try:
        os.fstat(0)
    except OSError:
        return False
    return True


def _signal_group(group: int, name: signal.Signals) -> None:
    try:
        os.killpg(group, name)
    except ProcessLookupError:
        return


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, os.WNOHANG)
    except (ProcessLookupError, ChildProcessError):
        return


def _descendants(pid: int) -> list[int]:
    """Processes below this one that still run; those that have ended are collected where they are our own."""
    below: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(word) for word in path.read_text().split()]
        except OSError:
            continue
        for child in children:
            below += [*_descendants(child), *([child] if _is_running(child) else [])]
    return below


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _dies_with_us() -> None:
    _prctl(DEATH_SIGNAL, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
