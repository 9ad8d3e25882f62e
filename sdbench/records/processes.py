"""Which process on which machine: ids that tell jobs apart, and whether one of them is still running."""

import contextlib
import os
import socket
from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")


def machine_boot() -> str:
    """Return an id of this boot of this machine and of the container's process namespace, within which process ids are unique."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(BOOT.read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def kernel_boot() -> str:
    """Return an id of this boot of the kernel, which the containers of a machine share; without one, the machine's name."""
    try:
        return BOOT.read_text().strip()
    except OSError:
        return socket.gethostname()


def start_of_process(pid: int) -> str:
    """Return when a process started, in ticks, to detect a reused id; "" if the system does not report it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def is_running(pid: int, start: str) -> bool:
    """Return whether that very process is still running."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user; /proc may hide when it started
        return start_of_process(pid) in ("", start)
    return not start or start_of_process(pid) == start
