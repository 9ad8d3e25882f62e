"""Who works on what: claims that expire when their job dies, over any shared file system.

A job is a file whose modification time its heartbeat renews, and what it has claimed is one more file: a line a unit. Claims are
read and written under a lock, a file made with O_EXCL that names its job and is held for as long as it takes to read them.
A job is dead when its process is gone (seen from the same machine), or when its beat is `expire_s` older than our own
*on the same file system*, so hosts' clocks are never compared. A dead job's claims are free, and so is its lock. Two jobs that
take one dead lock at the same instant may both claim a unit: a duplicate, which reading drops. Network file systems may show
stamps a minute old, hence the long default.
"""

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from sdbench.files import digest_of, write_whole

BEAT_S, EXPIRE_S = 15.0, 180.0
UNSIGNED_S = 10.0  # a lock is signed right after it is made; one that is not by then has lost its job in between
LOCK_POLL_S = 0.01


def machine_boot() -> str:
    """This boot of this machine as this container sees its processes: only there does a process id mean anything."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def start_of_process(pid: int) -> str:
    """When a process started, in ticks, so that a reused id is not taken for it; "" where the system does not say."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def is_running(pid: int, start: str) -> bool:
    """Whether that very process still runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return not start or start_of_process(pid) == start


class Claims:
    """This job's claims in one folder, and its heartbeat."""

    def __init__(self, folder: Path, *, beat_s: float = BEAT_S, expire_s: float = EXPIRE_S) -> None:
        self.folder, self.expire_s = folder, expire_s
        self.job = f"{os.getpid()}-{secrets.token_hex(6)}"
        self._boot = machine_boot()
        self._mine: set[str] = set()
        self._beat_file = self._job_file(self.job)
        folder.mkdir(parents=True, exist_ok=True)
        facts = {"boot": self._boot, "pid": os.getpid(), "start": start_of_process(os.getpid())}
        self._beat_file.write_text(json.dumps(facts))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat_for_ever, args=(beat_s,), name="heartbeat", daemon=True)
        self._thread.start()

    def take(self, unit: str) -> bool:
        """Whether `unit` is now ours (or was): claimed by nobody, or by a job that died."""
        return unit in self.take_all([unit])

    def take_all(self, units: Iterable[str]) -> set[str]:
        """Those of `units` that are now ours (or were)."""
        units = set(units)
        if not units <= self._mine:
            with self._lock():
                elsewhere = self._claimed_elsewhere()
                self._mine |= {unit for unit in units if digest(unit) not in elsewhere}
                self._write()
        return units & self._mine

    def release(self, *units: str) -> None:
        """Give them back."""
        if self._mine & set(units):
            self._mine -= set(units)
            with contextlib.suppress(OSError):
                self._write()

    def close(self) -> None:
        """Give everything back and stop the heartbeat."""
        self._stop.set()
        self._thread.join()
        self._mine.clear()
        for path in (self._claim_file(self.job), self._beat_file):
            with contextlib.suppress(OSError):
                path.unlink()

    def _claimed_elsewhere(self) -> set[str]:
        """What living jobs hold; the file of a dead one goes."""
        claimed: set[str] = set()
        for path in self.folder.glob("claims-*.txt"):
            job = path.stem.removeprefix("claims-")
            if job == self.job:
                continue
            if self.is_alive(job):
                with contextlib.suppress(FileNotFoundError):
                    claimed.update(path.read_text().split())
            else:
                path.unlink(missing_ok=True)
        return claimed

    def _write(self) -> None:
        """Our claims, in one step: a reader sees the old or the new."""
        path = self._claim_file(self.job)
        if not self._mine:
            path.unlink(missing_ok=True)
            return
        write_whole(path, "\n".join(sorted(map(digest, self._mine))), part=path.with_suffix(".new"))

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        path = self.folder / "lock"
        while True:
            try:
                fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
            except FileExistsError:
                if self._is_held(path) or not self._bury(path):
                    time.sleep(LOCK_POLL_S)
                continue
            break
        try:
            with os.fdopen(fd, "w") as file:
                file.write(self.job)
            yield
        finally:
            path.unlink(missing_ok=True)

    def is_alive(self, job: str) -> bool:
        """Whether a job may still be working."""
        return is_working(self._job_file(job), boot=self._boot, now=self._now, expire_s=self.expire_s)

    def num_alive(self) -> int:
        """How many jobs work on this folder, this one among them."""
        jobs = [path.stem.removeprefix("job-") for path in self.folder.glob("job-*.json")]
        return max(1, sum(job == self.job or self.is_alive(job) for job in jobs))

    def sweep(self, records: Path, tmp_prefix: str) -> None:
        """Remove what dead jobs left: claims, heartbeats, temporary files."""
        alive: dict[str, bool] = {}
        for path in [*self.folder.iterdir(), *records.glob(f"{tmp_prefix}*")]:
            if path.name == "lock":
                job = self._owner(path)
            elif path.name.startswith(tmp_prefix):
                job = path.name.removeprefix(tmp_prefix).rpartition("-")[0]
            else:
                job = path.stem.removeprefix("job-").removeprefix("claims-")
            if job and not alive.setdefault(job, self.is_alive(job)):
                with contextlib.suppress(OSError):
                    path.unlink()

    def _is_held(self, path: Path) -> bool:
        owner = self._owner(path)
        if owner:
            return self.is_alive(owner)
        try:
            return self._now() - path.stat().st_mtime < min(self.expire_s, UNSIGNED_S)
        except FileNotFoundError:
            return False

    def _bury(self, path: Path) -> bool:
        """Move a dead lock out of the way; False if somebody else did, and so is ahead of us."""
        grave = path.with_name(f"grave-{self.job}")
        try:
            os.rename(path, grave)
            grave.unlink()
        except FileNotFoundError:
            return False
        return True

    def _owner(self, path: Path) -> str:
        try:
            return path.read_text()
        except OSError:
            return ""

    def _now(self) -> float:
        """The file system's own clock."""
        os.utime(self._beat_file)
        return self._beat_file.stat().st_mtime

    def _beat_for_ever(self, beat_s: float) -> None:
        while not self._stop.wait(beat_s):
            with contextlib.suppress(OSError):  # a claim that cannot be renewed expires: a duplicate at worst
                os.utime(self._beat_file)

    def _job_file(self, job: str) -> Path:
        return self.folder / f"job-{job}.json"

    def _claim_file(self, job: str) -> Path:
        return self.folder / f"claims-{job}.txt"


def digest(unit: str) -> str:
    return digest_of(unit, digits=32)


def is_working(heartbeat: Path, *, boot: str, now: Callable[[], float], expire_s: float) -> bool:
    """Whether the job of a heartbeat file may still be working; `now` is a clock of its file system."""
    try:
        with open(heartbeat) as file:  # opening, not stat: network file systems revalidate on open
            beat, text = os.fstat(file.fileno()).st_mtime, file.read()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    with contextlib.suppress(ValueError, KeyError):
        facts = json.loads(text)
        if facts["boot"] == boot and not is_running(facts["pid"], facts["start"]):
            return False
    return now() - beat < expire_s


def jobs_at_work(folder: Path, *, expire_s: float = EXPIRE_S) -> list[str]:
    """Host and process of each job that works on a results folder, from its claims folder; nothing is written there."""
    names: list[str] = []
    boot, heartbeats = machine_boot(), sorted(folder.glob("job-*.json"))
    # Without a beat of its own to read the file system's clock from: this machine's, or the newest beat.
    now = max([time.time(), *(path.stat().st_mtime for path in heartbeats)])
    for path in heartbeats:
        with contextlib.suppress(OSError, ValueError, KeyError):
            if is_working(path, boot=boot, now=lambda: now, expire_s=expire_s):
                facts = json.loads(path.read_text())
                names.append(f"{facts['boot'].split()[0]}:{facts['pid']}")
    return names
