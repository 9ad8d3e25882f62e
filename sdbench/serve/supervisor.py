"""The supervisor between sdbench and a server: `python -I supervisor.py LOG GRACE_S -- COMMAND …`. Standard library only.

It runs the command until the command ends or its standard input is closed, which happens however sdbench ends.
Then it ends the server's process group and all other descendants: it is a subreaper, so orphans become its children.
"""

import contextlib
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
    """Run the command and return its exit code."""
    log, grace_s, command = argv[0], float(argv[1]), argv[3:]
    parent = os.getppid()
    os.setsid()  # Ctrl-C in the terminal then reaches only sdbench, which decides when the server ends
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, _close_stdin)
    _prctl(SUBREAPER, 1)
    with open(log, "ab") as output:
        try:
            server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=lambda: _prctl(DEATH_SIGNAL, signal.SIGKILL),
            )
        except OSError as error:
            output.write(f"{command[0]}: {error.strerror}\n".encode())
            return 127
        while server.poll() is None and not _is_ended() and os.getppid() == parent:
            pass
        end(server, grace_s)
        return server.returncode if server.returncode >= 0 else 128 - server.returncode


def end(server: subprocess.Popen[bytes], grace_s: float) -> None:
    """Send SIGTERM to the process group, SIGKILL after `grace_s`, then SIGKILL to every remaining descendant."""
    until = time.monotonic() + grace_s
    _signal_group(server.pid, signal.SIGTERM)
    while time.monotonic() < until and (server.poll() is None or _descendants(os.getpid())):
        time.sleep(POLL_S)
    _signal_group(server.pid, signal.SIGKILL)
    server.wait()
    while left := _descendants(os.getpid()):
        for pid in left:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
        time.sleep(POLL_S)


def _is_ended() -> bool:
    """Wait for a short time; return whether standard input has been closed."""
    try:
        ready, _, _ = select.select([0], [], [], POLL_S)
        return bool(ready) and not os.read(0, 1)
    except (OSError, ValueError):
        return True


def _close_stdin(*_: object) -> None:
    with contextlib.suppress(OSError):  # it is closed already if this is the second signal
        os.close(0)


def _signal_group(group: int, name: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, name)


def _descendants(pid: int) -> list[int]:
    """Return the ids of all running descendants of a process."""
    below: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, path.read_text().split()):
                below += [*_descendants(child), *([child] if _is_running(child) else [])]
    return below


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
