"""The subtraction, shards, and work shared between jobs."""

import threading
from pathlib import Path

import pytest

import sdbench
from sdbench import plan
from sdbench.plan import WorkItem
from sdbench.records import Store
from tests.records.synthetic import Shape, sweep


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)


CELLS = sweep("llama-tiny", "gsm8k-tiny", ws=(0.0, 1.0), num_drafts=(3,), temperature=1.0)
SHAPE = Shape(max_new_tokens=8)
BY_KEY = {cell.key: cell for cell in CELLS}


def make(items):
    return [SHAPE.decode(BY_KEY[item.cell], item.example, item.sample) for item in items]


def names(n):
    return [f"{i}" for i in range(n)]


def test_missing_is_the_sweep_less_what_is_held():
    held = {(CELLS[0].key, "0", 0), (CELLS[1].key, "1", 1)}
    todo = plan.missing(CELLS, names(2), 2, held)
    assert set(todo) | held == set(plan.items(CELLS, names(2), 2))
    assert not set(todo) & held
    assert len(todo) == len(CELLS) * 2 * 2 - 2


def test_a_sweep_goes_prompt_by_prompt():
    order = [item.example for item in plan.missing(CELLS, names(3), 2, set())]
    assert order == sorted(order)


@pytest.mark.parametrize("change", ["n", "w", "sample", "nothing"])
def test_what_is_added_is_all_that_is_missing(tmp_path: Path, change: str):
    with Store.open(tmp_path) as store:
        first = plan.missing(CELLS[:-1], names(3), 1, store.held())
        store.append_generations(make(first))
        n, samples = 3 + (change == "n"), 1 + (change == "sample")
        cells = CELLS if change == "w" else CELLS[:-1]
        todo = plan.missing(cells, names(n), samples, store.held())
    new = {
        "n": set(plan.items(cells, ["3"], 1)),
        "w": set(plan.items(CELLS[-1:], names(3), 1)),
        "sample": {i for i in plan.items(cells, names(3), 2) if i.sample == 1},
        "nothing": set(),
    }
    assert set(todo) == new[change]


def test_alone_every_item_is_handed_out_once(tmp_path: Path):
    with Store.open(tmp_path) as store:
        todo = plan.missing(CELLS, names(5), 2, store.held())
        seen: list[WorkItem] = []
        for items in plan.share(store, todo, prompts=2):
            seen += items
            store.append_generations(make(items))
    assert seen == todo


def test_items_in_flight_are_not_handed_out_again(tmp_path: Path):
    """The runner scores beside the decoding, so records may come after the next share is asked for."""
    with Store.open(tmp_path) as store:
        todo = plan.missing(CELLS, names(6), 1, store.held())
        shares = list(plan.share(store, todo, prompts=2))
        assert [item for items in shares for item in items] == todo
        store.append_generations(make(todo))
        assert store.held() == set(todo)


def test_two_jobs_share_a_sweep_without_doing_anything_twice(tmp_path: Path):
    done: list[list[WorkItem]] = [[], []]

    def job(mine: list[WorkItem]) -> None:
        with Store.open(tmp_path) as store:
            store.add_cells(CELLS)
            todo = plan.missing(CELLS, names(12), 1, store.held())
            for items in plan.share(store, todo, prompts=2, poll_s=0.01):
                mine += items
                store.append_generations(make(items))

    jobs = [threading.Thread(target=job, args=(mine,)) for mine in done]
    [thread.start() for thread in jobs]
    [thread.join() for thread in jobs]
    assert sorted(done[0] + done[1]) == sorted(plan.items(CELLS, names(12), 1))
    assert len(sdbench.read(tmp_path).generations) == len(CELLS) * 12


def test_jobs_that_wait_for_each_other_write_what_they_hold_first(tmp_path: Path):
    """Scores come back late: the last of both jobs' generations would otherwise stay in their hands for ever."""
    met = threading.Barrier(2, timeout=20)

    def job() -> None:
        with Store.open(tmp_path) as store:
            store.add_cells(CELLS)
            held: list[WorkItem] = []
            todo = plan.missing(CELLS, names(12), 1, store.held())
            for items in plan.share(store, todo, prompts=2, poll_s=0.01):
                if items and not held:
                    met.wait()
                held += items
                if not items:
                    store.append_generations(make(held))
                    held = []
            store.append_generations(make(held))

    jobs = [threading.Thread(target=job, daemon=True) for _ in range(2)]
    [thread.start() for thread in jobs]
    [thread.join(30) for thread in jobs]
    assert not any(thread.is_alive() for thread in jobs)
    assert len(sdbench.read(tmp_path).generations) == len(CELLS) * 12


def test_what_failed_here_is_neither_waited_for_nor_tried_again(tmp_path: Path):
    with Store.open(tmp_path) as store:
        todo = plan.missing(CELLS, names(4), 1, store.held())
        handed = 0
        for items in plan.share(store, todo, prompts=1, poll_s=0.01):
            handed += len(items)
            good = [item for item in items if item.cell != CELLS[0].key]
            if len(good) < len(items):
                store.append_failure(CELLS[0].key, "ValueError: no such rule")
            store.append_generations(make(good))
    assert handed == 1 + (len(CELLS) - 1) * 4
    assert [problem.kind for problem in sdbench.read(tmp_path).problems if problem.kind == "failure"] == ["failure"]


def test_an_item_of_a_job_that_ends_without_it_is_taken_over(tmp_path: Path):
    other = Store.open(tmp_path)
    with Store.open(tmp_path) as store:
        todo = plan.missing(CELLS, names(2), 1, store.held())
        assert other.take(todo[:3]) == todo[:3]
        shares = plan.share(store, todo, fewest=8, poll_s=0.01)
        first = next(shares)
        assert first == todo[3:]
        store.append_generations(make(first))
        other.close()
        assert next(shares) == todo[:3]


@pytest.mark.parametrize("jobs", [2, 3, 5])
def test_jobs_beside_each_other_get_equal_work(jobs: int):
    """Equal jobs by turns, the first a share earlier, as on a cluster: what the busiest does decides when all is done."""
    left, done = 150, [0] * jobs
    done[0] = plan.share_size(left, 1, fewest=16, most=512)
    assert done[0] == 38
    left -= done[0]
    while left:
        first = done.index(min(done))
        size = plan.share_size(left, jobs, fewest=16, most=512)
        done[first] += size
        left -= size
    assert sum(done) == 150
    assert 150 / max(done) >= min(2.2, jobs - 0.2)


def test_a_share_is_never_more_than_is_left_or_allowed():
    assert plan.share_size(3, 1, fewest=8, most=512) == 3
    assert plan.share_size(10_000, 1, fewest=8, most=512) == 512
    assert plan.share_size(1, 9, fewest=1, most=512) == 1
