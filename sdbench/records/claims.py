"""Which job works on what: claims on a shared file system that expire when their job dies.

A job is a file whose modification time its heartbeat renews. Its claims are a second file with one unit per line. Claims are
read and written under a lock: a file made with O_EXCL that names its job and is held only while they are read. A job is dead if
its process is gone (seen from the same machine), or if its heartbeat has not changed for `expire_s` of our own monotonic clock
since we first looked. That clock stops while our own heartbeats fail. No times of day are compared. So a clock that is set, a
machine that was suspended and a file server that was away cost no job its claims; but a job on another machine that died long
ago is dead only after we have watched it for `expire_s`. The claims and the lock of a dead job are free. Two jobs that take a dead
lock at the same instant may both claim a unit; the result is a duplicate, which readers drop. Network file systems may show time
stamps that are a minute old, hence the long default.
"""

import contextlib
import errno
import json
import os
import secrets
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from sdbench.files import digest_of, write_whole
from sdbench.records.processes import is_running, machine_boot, start_of_process

BEAT_S, EXPIRE_S = 15.0, 180.0
UNSIGNED_S = 10.0  # a lock is signed right after it is made; if it is not signed by then, its job died in between
LOCK_POLL_S = 0.01
STALE_TRIES = 5  # to read a file of another machine that is being replaced


class Claims:
    """This job's claims in one folder, and its heartbeat."""

    def __init__(self, folder: Path, *, beat_s: float = BEAT_S, expire_s: float = EXPIRE_S) -> None:
        self.folder, self.expire_s = folder, expire_s
        self.job = f"{os.getpid()}-{secrets.token_hex(6)}"
        self._boot = machine_boot()
        self._mine: set[str] = set()
        # File -> its modification time, and our watch when we first saw that time.
        self._seen: dict[Path, tuple[float, float]] = {}
        # Our watch at our last heartbeat, and the monotonic clock then. It stops two beats later, if no other beat follows.
        self._watch, self._most_s = (0.0, time.monotonic()), 2 * beat_s
        self._beat_file = self._job_file(self.job)
        folder.mkdir(parents=True, exist_ok=True)
        self._facts = json.dumps({"boot": self._boot, "pid": os.getpid(), "start": start_of_process(os.getpid())})
        self._beat_file.write_text(self._facts)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat_for_ever, args=(beat_s,), name="heartbeat", daemon=True)
        self._thread.start()

    def take(self, unit: str) -> bool:
        """Claim `unit`; return whether it is now ours. It may be free, ours already, or claimed by a dead job."""
        return unit in self.take_all([unit])

    def take_all(self, units: Iterable[str]) -> set[str]:
        """Claim `units`; return those that are now ours."""
        units = set(units)
        if not units <= self._mine:
            with self._lock():
                self._beat()  # another job may have taken this one for dead
                elsewhere = self._claimed_elsewhere()
                self._mine |= {unit for unit in units if digest(unit) not in elsewhere}
                self._write()
        return units & self._mine

    def release(self, *units: str) -> None:
        """Release the claims on these units."""
        if self._mine & set(units):
            self._mine -= set(units)
            with contextlib.suppress(OSError):
                self._write()

    @contextlib.contextmanager
    def hold(self, unit: str) -> Iterator[None]:
        """Claim `unit` as soon as no other job holds it, and release it afterwards."""
        while not self.take(unit):
            time.sleep(LOCK_POLL_S)
        try:
            yield
        finally:
            self.release(unit)

    def close(self) -> None:
        """Release all claims and stop the heartbeat."""
        self._stop.set()
        self._thread.join()
        self._mine.clear()
        for path in (self._claim_file(self.job), self._beat_file):
            with contextlib.suppress(OSError):
                path.unlink()

    def _claimed_elsewhere(self) -> set[str]:
        """Return what other living jobs hold, and delete the files of dead ones."""
        claimed: set[str] = set()
        for path in self.folder.glob("claims-*.txt"):
            job = path.stem.removeprefix("claims-")
            if job == self.job:
                continue
            if self.is_alive(job):
                claimed.update(claims_in(path))
            else:
                path.unlink(missing_ok=True)
        return claimed

    def _write(self) -> None:
        """Write our claims in one step: a reader sees the old or the new ones."""
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
        """Return whether a job may still be working."""
        path = self._job_file(job)
        try:
            beat_s = beat_of(path, boot=self._boot)
        except OSError:
            return True
        return beat_s is not None and self._unchanged_s(path, beat_s) < self.expire_s

    def num_alive(self) -> int:
        """Return how many jobs work on this folder, including this one."""
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
            return self._unchanged_s(path, path.stat().st_mtime) < min(self.expire_s, UNSIGNED_S)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):
                raise
            return True  # another job has just released or removed it: try again

    def _watched_s(self) -> float:
        """Return for how many seconds this job has been able to see heartbeats."""
        watched_s, beat_s = self._watch
        return watched_s + min(time.monotonic() - beat_s, self._most_s)

    def _unchanged_s(self, path: Path, time_s: float) -> float:
        """Return for how many seconds this job has seen a file with this modification time."""
        now_s = self._watched_s()
        if self._seen.get(path, (None,))[0] != time_s:
            self._seen[path] = time_s, now_s
        return now_s - self._seen[path][1]

    def _bury(self, path: Path) -> bool:
        """Move a dead lock out of the way. False if another job did so first."""
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

    def _beat_for_ever(self, beat_s: float) -> None:
        while not self._stop.wait(beat_s):
            with contextlib.suppress(OSError):  # a claim that cannot be renewed expires: at worst a duplicate
                self._beat()

    def _beat(self) -> None:
        try:
            os.utime(self._beat_file)
        except FileNotFoundError:  # this job was suspended for so long that another one took it for dead
            self._beat_file.write_text(self._facts)
        self._watch = self._watched_s(), time.monotonic()

    def _job_file(self, job: str) -> Path:
        return self.folder / f"job-{job}.json"

    def _claim_file(self, job: str) -> Path:
        return self.folder / f"claims-{job}.txt"


def claims_in(path: Path) -> list[str]:
    """Return the claims in a file that its job may replace at any moment. On NFS that makes an open file stale."""
    for tries_left in reversed(range(STALE_TRIES)):
        try:
            return path.read_text().split()
        except FileNotFoundError:
            break
        except OSError as error:
            if error.errno != errno.ESTALE or not tries_left:
                raise
    return []


def digest(unit: str) -> str:
    return digest_of(unit, digits=32)


def beat_of(heartbeat: Path, *, boot: str) -> float | None:
    """Return the time of a heartbeat file; None if its job has ended or its process is seen to be gone."""
    try:
        with open(heartbeat) as file:  # opening, not stat: network file systems revalidate on open
            beat_s, text = os.fstat(file.fileno()).st_mtime, file.read()
    except FileNotFoundError:
        return None
    with contextlib.suppress(ValueError, KeyError):
        facts = json.loads(text)
        if facts["boot"] == boot and not is_running(facts["pid"], facts["start"]):
            return None
    return beat_s


def jobs_at_work(folder: Path, *, expire_s: float = EXPIRE_S) -> list[str]:
    """Return host and process of each job that works on a results folder, given its claims folder. Writes nothing."""
    names: list[str] = []
    boot, heartbeats = machine_boot(), sorted(folder.glob("job-*.json"))
    # A single look cannot tell whether heartbeats change: their age counts, by this machine's clock, or if no heartbeat is near it,
    # by the newest heartbeat, since the file system's clock may be ahead.
    now = time.time()
    beats: list[float] = []
    for path in heartbeats:
        with contextlib.suppress(FileNotFoundError):  # of a job that has just ended
            beats.append(path.stat().st_mtime)
    if not any(abs(now - beat) < expire_s for beat in beats):
        now = max([now, *beats])
    for path in heartbeats:
        with contextlib.suppress(OSError, ValueError, KeyError):
            beat = beat_of(path, boot=boot)
            if beat is not None and abs(now - beat) < expire_s:
                facts = json.loads(path.read_text())
                names.append(f"{facts['boot'].split()[0]}:{facts['pid']}")
    return names
