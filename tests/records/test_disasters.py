"""Kills at any instant, a full disk, a folder of somebody else, jobs that die with claims: none lost, none double."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import sdbench
from sdbench.records import Store
from sdbench.records.claims import Claims, digest, jobs_at_work
from sdbench.records.processes import is_running
from tests.patience import is_soon
from tests.records.equality import assert_same_records

ROOT = Path(__file__).parents[2]
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def start(module: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", f"tests.records.{module}", *map(str, args)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=ROOT, env=ENV)


def finish(module: str, *args: object) -> subprocess.CompletedProcess[str]:
    process = start(module, *args)
    out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def keys(folder: Path) -> set[tuple]:
    results = sdbench.read(folder)
    assert results.problems == ()
    assert len(results.tokens) == len(results.generations)
    return set(results.generations[["cell", "example", "sample"]].itertuples(index=False))


def kill_and_resume(folder: Path, *, kills: int, examples: int, seed: int) -> int:
    """Kills as many jobs as asked, each at a random instant of its work; how many of them had begun to write."""
    rng, before, num_writing = random.Random(seed), set(), 0
    for _ in range(kills):
        process = start("writer", folder, examples, 0, "gated")
        assert process.stdin is not None
        assert process.stdout is not None
        if rng.random() < 0.85:  # after one or two parts, inside the next one or what follows it: seconds play no part
            num_parts = rng.randint(1, 2)
            process.stdin.write("part\n" * (num_parts + 1))
            process.stdin.flush()
            for _ in range(1 + num_parts):  # it says that it is open, and each part
                process.stdout.readline()
            time.sleep(rng.uniform(0, 0.02))
        else:
            time.sleep(rng.uniform(0, 1))  # while it starts, opens or sweeps up after the one before
        process.kill()
        process.communicate()
        after = keys(folder) if (folder / "records").exists() else set()
        assert before <= after, "a finished record was lost"
        num_writing += len(after) > len(before)
        before = after
    done = finish("writer", folder, examples)
    assert done.returncode == 0, done.stderr
    return num_writing


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("kills", "examples"),
    [pytest.param(4, 12, marks=pytest.mark.slow), pytest.param(50, 80, marks=pytest.mark.long)],
    ids=["4 kills", "50 kills"],
)
def test_kills_at_random_instants_lose_nothing_and_double_nothing(tmp_path: Path, kills: int, examples: int):
    num_writing = kill_and_resume(tmp_path / "killed", kills=kills, examples=examples, seed=kills)
    assert finish("writer", tmp_path / "calm", examples).returncode == 0
    assert_same_records(tmp_path / "killed", tmp_path / "calm")
    assert num_writing >= kills // 2, "too few kills hit a job at work for the test to mean anything"


@pytest.mark.slow
def test_three_jobs_side_by_side_do_everything_once(tmp_path: Path):
    jobs = [start("writer", tmp_path / "many", 12, 0.01) for _ in range(3)]
    for job in jobs:
        _, err = job.communicate(timeout=120)
        assert job.returncode == 0, err
    assert finish("writer", tmp_path / "one", 12).returncode == 0
    assert_same_records(tmp_path / "many", tmp_path / "one")
    results = sdbench.read(tmp_path / "many")
    num_stored = sum(len(table) for table in results._tables["generations"].values())
    assert num_stored == len(results.generations), "claims kept every generation from being made twice"
    assert len(results.provenance) == 3


def test_a_disk_without_room_is_one_sentence_and_costs_nothing_written(tmp_path: Path):
    full = finish("disasters", "small_files", tmp_path, 20_000)
    assert full.returncode == 1
    assert full.stderr.startswith("StoreError: cannot write records in")
    assert "intact" in full.stderr
    assert full.stderr.count("\n") == 1
    assert len(keys(tmp_path)) == len(full.stdout.splitlines()) > 0
    assert not list((tmp_path / "records").glob(".tmp*"))


def test_a_full_disk_is_one_sentence_and_costs_nothing_written(tmp_path: Path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", disk], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(
            f"only root mounts a small disk ({mounted.stderr.strip()}); the test before this one, and tests/cli/test_ends.py, "
            "limit the size of files instead, for everyone"
        )
    try:
        full = finish("disasters", "fill", disk / "r")
        assert full.returncode == 1
        assert full.stderr.startswith("StoreError: cannot write records in")
        assert "no space left on device" in full.stderr
        assert full.stderr.count("\n") == 1
        written = keys(disk / "r")
        assert len(written) == len(full.stdout.splitlines()) > 0
        again = finish("disasters", "fill", disk / "r")
        assert again.stderr.startswith("StoreError: cannot write")
        assert keys(disk / "r") >= written
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("where", [".", "below/not/yet/there"])
def test_an_unwritable_folder_is_one_sentence(where: str):
    with tempfile.TemporaryDirectory() as name:  # not tmp_path: nobody may not even look below it
        folder = Path(name)
        with Store.open(folder):
            pass
        for path in (folder, folder / "records", folder / "claims"):
            path.chmod(0o555)
        refused = finish("disasters", "as_nobody", folder / where)
        assert refused.returncode == 1
        assert refused.stderr.startswith("StoreError: cannot write records in")
        assert "permission denied" in refused.stderr
        assert "results=" in refused.stderr
        assert refused.stderr.count("\n") == 1
        assert sdbench.read(folder).problems == ()
        for path in (folder, folder / "records", folder / "claims"):
            path.chmod(0o755)  # or an ordinary user could not remove it


def test_a_claim_of_a_killed_job_is_free_at_once_on_its_machine(tmp_path: Path):
    other = start("disasters", "hold", tmp_path, "unit")
    assert other.stdout is not None
    assert other.stdout.readline() == "True\n"
    with Store.open(tmp_path) as store:
        assert not store.claims.take("unit")
        other.send_signal(signal.SIGKILL)
        other.communicate()
        assert store.claims.take("unit")


@pytest.mark.slow
def test_a_heartbeat_keeps_a_claim_beyond_its_expiry_and_its_silence_ends_it(tmp_path: Path):
    other, mine = (Claims(tmp_path, beat_s=0.05, expire_s=2.0) for _ in range(2))
    assert other.take("unit")
    move_to_another_machine(other)
    time.sleep(2.5)
    assert not mine.take("unit")
    other._stop.set()  # frozen, or cut off from the file system
    other._thread.join()
    assert is_soon(lambda: mine.take("unit"))
    mine.close()


def move_to_another_machine(claims: Claims) -> None:
    """Let others take a job for one of another machine, whose process they cannot see."""
    facts = json.loads(claims._beat_file.read_text())
    claims._facts = json.dumps(facts | {"boot": "another machine", "pid": 1})
    claims._beat_file.write_text(claims._facts)


@pytest.mark.parametrize("jump_s", [-3600, 3600])
@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_clock_that_is_set_ends_no_claim(tmp_path: Path, jump_s: int, is_elsewhere: bool):
    """Of the file system, or of a laptop that was suspended: for up to a beat all heartbeats seem to be an hour off."""
    other, mine = Claims(tmp_path), Claims(tmp_path)
    assert other.take("unit")
    if is_elsewhere:
        move_to_another_machine(other)
    assert not mine.take("unit")
    os.utime(other._beat_file, (time.time() - jump_s,) * 2)
    assert not mine.take("unit")
    assert mine.num_alive() == 2
    other.close()
    assert mine.take("unit")
    mine.close()


def test_a_job_that_was_suspended_and_taken_for_dead_goes_on(tmp_path: Path):
    claims, other = Claims(tmp_path), Claims(tmp_path)
    assert other.take("unit")
    claims._beat_file.unlink()  # the other job swept it
    assert not claims.take("unit")
    assert other.is_alive(claims.job)
    claims.close()
    other.close()
    assert not list(tmp_path.iterdir())


def test_while_our_own_heartbeats_fail_nobody_else_is_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A file server that is away for ten minutes: no job can renew its heartbeat, and each looks before the others can."""
    mine, other = Claims(tmp_path), Claims(tmp_path)
    move_to_another_machine(other)
    assert mine.is_alive(other.job)
    now_s = time.monotonic()
    monkeypatch.setattr("sdbench.records.claims.time.monotonic", lambda: now_s + 600)
    assert mine.is_alive(other.job)
    for beat in range(41, 54):  # mine succeed again, and those of the other do not
        monkeypatch.setattr("sdbench.records.claims.time.monotonic", lambda beat=beat: now_s + 15 * beat)
        mine._beat()
    assert not mine.is_alive(other.job)
    mine.close()
    other.close()


def test_a_process_of_another_user_is_running_where_proc_hides_it(monkeypatch: pytest.MonkeyPatch):
    def refuse(_pid: int, _signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr("sdbench.records.processes.os.kill", refuse)
    for start, is_same in (("", True), ("123", True), ("124", False)):
        monkeypatch.setattr("sdbench.records.processes.start_of_process", lambda _pid, start=start: start)
        assert is_running(4711, "123") is is_same


def test_a_claims_file_that_is_replaced_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On NFS an open file becomes stale."""
    mine, other = Claims(tmp_path), Claims(tmp_path)
    assert other.take("unit")
    read, stale = Path.read_text, [1, 1]

    def read_text(path: Path, *args: object) -> str:
        if path.name.startswith("claims-") and stale:
            raise OSError(errno.ESTALE, stale.pop())
        return read(path, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "read_text", read_text)
    assert not mine.take("unit")
    assert not stale
    stale += [1] * 5
    with pytest.raises(OSError, match="1"):
        mine.take("unit")
    mine.close()
    other.close()


def test_a_claim_given_back_is_free(tmp_path: Path):
    one, two = Claims(tmp_path), Claims(tmp_path)
    assert one.take("unit")
    assert one.take("unit"), "ours is ours"
    assert not two.take("unit")
    one.release("unit")
    assert two.take("unit")
    one.close()
    two.close()
    assert not list(tmp_path.iterdir())


def test_a_lock_whose_job_died_before_signing_it_expires(tmp_path: Path):
    claims = Claims(tmp_path, expire_s=0.2)
    (tmp_path / "lock").touch()
    assert claims.take("unit")
    claims.close()
    assert not list(tmp_path.iterdir())


def test_a_lock_of_a_dead_job_is_taken(tmp_path: Path):
    claims = Claims(tmp_path)
    (tmp_path / "lock").write_text("4-dead")
    assert claims.take("unit")
    claims.close()


HOURS_S = 5 * 3600


def leave_heartbeat(folder: Path, age_s: float) -> Path:
    """Leave the heartbeat of a dead job on another boot."""
    heartbeat = folder / "job-4-dead.json"
    heartbeat.write_text(json.dumps({"boot": "node another boot", "pid": 4, "start": ""}))
    os.utime(heartbeat, (time.time() - age_s,) * 2)
    return heartbeat


@pytest.mark.parametrize("age_s", [HOURS_S, -HOURS_S], ids=["past", "future"])
def test_what_a_job_of_another_machine_left_is_free_once_it_was_watched(tmp_path: Path, age_s: float):
    """From the future: the machine lost power with its clock ahead, and the clock has been set right since."""
    with Store.open(tmp_path, expire_s=0.3) as store:
        claims, lock = store.claims, tmp_path / "claims" / "lock"
        leave_heartbeat(claims.folder, age_s)
        (claims.folder / "claims-4-dead.txt").write_text(digest("unit"))
        (store.records / ".tmp-4-dead-part").touch()
        lock.write_text("4-dead")
        assert claims._is_held(lock)
        assert is_soon(lambda: not claims._is_held(lock))
        lock.write_text("")
        os.utime(lock, (time.time() - age_s,) * 2)
        assert claims._is_held(lock), "one that was not signed"
        assert is_soon(lambda: not claims._is_held(lock))
        lock.unlink()
        assert claims.take("unit")
        assert claims.num_alive() == 1
        store.compact()
    assert not list(tmp_path.rglob("*4-dead*")), "nothing of it stays"


def test_a_heartbeat_from_the_future_hides_no_job_at_work(tmp_path: Path):
    claims = Claims(tmp_path)
    heartbeat = leave_heartbeat(tmp_path, -HOURS_S)
    assert [name.partition(":")[2] for name in jobs_at_work(tmp_path)] == [str(os.getpid())]
    claims.close()
    assert jobs_at_work(tmp_path) == ["node:4"], (
        "the file system's clock may be ahead of ours: the newest heartbeat counts"
    )
    os.utime(heartbeat, (time.time() - HOURS_S,) * 2)
    assert jobs_at_work(tmp_path) == []


def test_many_claims_are_one_file(tmp_path: Path):
    one, two = Claims(tmp_path), Claims(tmp_path)
    units = [f"unit {i}" for i in range(3000)]
    assert one.take_all(units[:2048]) == set(units[:2048])
    assert len(list(tmp_path.iterdir())) == 3, "two heartbeats and one file of claims"
    assert two.take_all(units) == set(units[2048:])
    one.release(*units[:10])
    assert two.take_all(units[:20]) == set(units[:10])
    one.close()
    two.close()


def test_jobs_at_work_are_named_and_the_dead_are_not(tmp_path: Path):
    claims, other = Claims(tmp_path), Claims(tmp_path)
    assert claims.num_alive() == 2
    assert len(jobs_at_work(tmp_path)) == 2
    facts = json.loads(other._beat_file.read_text())
    other._beat_file.write_text(json.dumps(facts | {"start": "1"}))
    assert claims.num_alive() == 1
    assert [name.partition(":")[2] for name in jobs_at_work(tmp_path)] == [str(os.getpid())]
    claims.close()
    other.close()


def test_a_process_id_used_again_is_not_the_old_job(tmp_path: Path):
    claims, other = Claims(tmp_path), Claims(tmp_path)
    other.take("unit")
    facts = json.loads(other._beat_file.read_text())
    other._beat_file.write_text(json.dumps(facts | {"start": "1"}))
    assert claims.take("unit")
    claims.close()
    other.close()


def test_what_is_claimed_but_not_finished_is_given_back(tmp_path: Path):
    one, items = Store.open(tmp_path), [("cell", "0", 0), ("cell", "1", 0)]
    with Store.open(tmp_path) as two:
        assert one.take(items) == items
        assert two.take(items) == []
        assert two.left_to_others(items) == items
        one.close()
        assert two.take(items) == items


def test_a_heartbeat_that_vanishes_while_jobs_are_named_is_a_job_that_has_ended(tmp_path: Path):
    """It is listed, and gone when it is read."""
    claims = Claims(tmp_path)
    (tmp_path / "job-9-gone.json").symlink_to(tmp_path / "nothing")
    assert [name.partition(":")[2] for name in jobs_at_work(tmp_path)] == [str(os.getpid())]
    claims.close()
    assert jobs_at_work(tmp_path) == []
