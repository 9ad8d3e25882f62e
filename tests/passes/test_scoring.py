"""Workers that the system kills: a new pool once, then one sentence; no text is lost."""

import os
import signal

import pytest

from sdbench import tasks
from sdbench.passes.scoring import Scorers
from sdbench.records import GenerationRecord
from sdbench.types import EngineError


class Written:
    """Keeps what a store would append."""

    def __init__(self):
        self.records = []

    def append_generations(self, records):
        self.records += records


@pytest.fixture
def scorers():
    task = tasks.load("gsm8k-tiny", n=4)
    running = Scorers(task, workers=1)
    running.start()
    yield task, running
    running.close()


def put_all(task, running, written):
    for example in task.examples():
        ends = {"prompt_tokens": 1, "text": "#### 1", "finish": "eos", "ids": (1,)}
        record = GenerationRecord("c", example.id, 0, **ends, origin=None, rounds=None, draft_ids=None)
        running.put(record, example, written, pytest.fail)


def kill_workers(running):
    """Kill them as the system does when memory is short, and wait until the pool knows."""
    running._submit(os.getpid).result()
    for process in list(running._pool._processes.values()):
        os.kill(process.pid, signal.SIGKILL)
        process.join()


def test_a_killed_worker_costs_no_text(scorers):
    task, running = scorers
    written = Written()
    kill_workers(running)
    put_all(task, running, written)
    running.drain(written, pytest.fail)
    assert sorted(record.example for record in written.records) == sorted(task.ids)
    assert all(record.scores for record in written.records)


def test_a_second_killed_worker_is_one_sentence(scorers):
    task, running = scorers
    written = Written()
    kill_workers(running)
    put_all(task, running, written)
    running.drain(written, pytest.fail)
    kill_workers(running)
    put_all(task, running, written)
    with pytest.raises(EngineError, match="killed twice"):
        running.drain(written, pytest.fail)
    assert len(written.records) == len(task.ids), "what was scored before is kept"


class UnpicklableError(Exception):
    """An error that cannot be made again from its message."""

    def __init__(self, one, two):
        super().__init__(f"{one} {two}")


class Fragile:
    """A task whose metric fails on some texts."""

    def __init__(self, task):
        self.task = task

    def score_all(self, pairs, truncated):
        if any(text == "#### 2" for _, text in pairs):
            raise AttributeError("'NoneType' object has no attribute 'group'")
        if any(text == "#### 1" for _, text in pairs):
            raise UnpicklableError("two", "arguments")
        if any(text == "#### 0" for _, text in pairs):
            raise SystemExit("exit() in a metric")
        return self.task.score_all(pairs, truncated)


def test_a_text_whose_score_fails_costs_no_other_text_of_its_batch():
    task, written, failures = tasks.load("gsm8k-tiny", n=4), Written(), []
    running = Scorers(Fragile(task), workers=1)
    try:
        for number, example in enumerate(task.examples()):
            ends = {"prompt_tokens": 1, "text": f"#### {number}", "finish": "eos", "ids": (1,)}
            record = GenerationRecord("c", example.id, 0, **ends, origin=None, rounds=None, draft_ids=None)
            running.put(record, example, written, pytest.fail)
        running.drain(written, lambda *failure: failures.append(failure))
    finally:
        running.close()
    ids = list(task.ids)
    assert [record.example for record in written.records] == ids[3:]
    assert sorted(failures) == sorted(
        [
            ("c", ids[0], "scoring failed: SystemExit: exit() in a metric"),
            ("c", ids[1], "scoring failed: UnpicklableError: two arguments"),
            ("c", ids[2], "scoring failed: AttributeError: 'NoneType' object has no attribute 'group'"),
        ]
    )
