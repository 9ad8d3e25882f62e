"""Kills of the whole command at random instants: whatever they hit, the records end up as an undisturbed run's."""

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from nursery import Nursery, is_running, newest, wait_for_a_part

from sdbench.cli import main
from sdbench.records import read
from tests.patience import is_soon
from tests.records.equality import assert_same_records

NAME = "micro-gsm8k-tiny"


def are_gone(pids: list[int]) -> bool:
    return is_soon(lambda: not any(map(is_running, pids)))


def children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def kill_and_resume(nursery: Nursery, given: list[str], folder: Path, *, kills: int, seed: int) -> int:
    """Kills as many commands as asked; how many of them had begun to write. None leaves a process behind."""
    draw, num_writing = random.Random(seed), 0
    for _ in range(kills):
        before = newest(folder)
        pid = nursery.start(given)
        if draw.random() < 0.8:  # from the first new part on: loading takes its time, and a loaded machine more of it
            wait_for_a_part(folder, before, pid)
            time.sleep(draw.uniform(0, 0.15))
        else:
            time.sleep(draw.uniform(0, 1.5))
        others = children(pid)
        os.kill(pid, signal.SIGKILL)
        assert nursery.ended() == -signal.SIGKILL, nursery.said.read_text()[-2000:]
        assert are_gone(others), "a killed command left a process behind"
        num_writing += newest(folder) != before
    return num_writing


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("kills", "n"),
    [
        pytest.param(4, 80, marks=pytest.mark.slow),
        pytest.param(15, 400, marks=pytest.mark.long),
        pytest.param(50, 480, marks=pytest.mark.long),  # 50 commands of two seconds, and 3,000 texts twice
    ],
    ids=["4 kills", "15 kills", "50 kills"],
)
def test_kills_at_random_instants_lose_nothing_and_double_nothing(words, nursery, tmp_path, kills, n):
    options = {"n": n, "max_new_tokens": 24, "w": "[0.3,0.6,1]", "report": "off"}
    given = words(tmp_path / "killed", **options)
    num_writing = kill_and_resume(nursery, given, tmp_path / "killed" / NAME, kills=kills, seed=kills)
    assert num_writing >= kills // 4, "too few kills hit a command at work for the test to mean anything"
    held = len(read(tmp_path / "killed" / NAME).generations)
    assert 0 < held < 6 * n, "the last kill came before the end, and after the beginning"
    nursery.start(given)
    assert nursery.ended() == 0, nursery.said.read_text()[-2000:]
    assert main(words(tmp_path / "calm", **options)) == 0
    assert_same_records(tmp_path / "killed" / NAME, tmp_path / "calm" / NAME)


@pytest.mark.slow
def test_two_jobs_side_by_side_share_the_work(words, nursery, tmp_path, whole):
    assert nursery.side_by_side(words(tmp_path, report="off"), 2) == [0, 0]
    assert_same_records(tmp_path / NAME, whole)


@pytest.mark.slow
def test_three_jobs_make_a_third_of_a_small_sweep_each(words, nursery, tmp_path):
    """Counted in generations, as seconds are the machine's: one job that made all would make 2.2 times more than any here."""
    assert nursery.side_by_side(words(tmp_path, n=100, w="[0.3,0.6,1]", report="off"), 3) == [0, 0, 0]
    parts = (tmp_path / NAME / "records").glob("generations-*.parquet")
    made = Counter(run for path in parts for run in pq.read_table(path, columns=["run"])["run"].to_pylist())
    assert (len(made), made.total()) == (3, 100 * 5)  # w = 1 has the texts of lossless
    assert max(made.values()) <= made.total() / 2.2, made
