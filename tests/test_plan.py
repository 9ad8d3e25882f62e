"""The subtraction, shards, and work shared between jobs."""

import threading
from pathlib import Path

import pytest

import sdbench
from sdbench import plan
from sdbench.plan import Item, Shard
from sdbench.records import Store
from tests.records.synthetic import Shape, sweep, timings


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


@pytest.mark.parametrize("count", [1, 3, 8])
def test_shards_are_disjoint_and_complete(count: int):
    parts = [Shard.parse(f"{i}/{count}").of(names(20)) for i in range(count)]
    assert sorted(x for part in parts for x in part) == sorted(names(20))


def test_a_shard_keeps_its_examples_when_n_grows():
    assert list(Shard(2, 4).of(names(30)))[:5] == list(Shard(2, 4).of(names(20)))


@pytest.mark.parametrize("text", ["8/8", "1", "-1/4", "a/b", "1/0", "", "1/2/3"])
def test_a_bad_shard_is_one_sentence(text: str):
    with pytest.raises(ValueError, match="shard must be"):
        Shard.parse(text)


def test_alone_every_item_is_handed_out_once(tmp_path: Path):
    with Store.open(tmp_path) as store:
        todo = plan.missing(CELLS, names(5), 2, store.held())
        seen: list[Item] = []
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
    done: list[list[Item]] = [[], []]

    def job(mine: list[Item]) -> None:
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
            held: list[Item] = []
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
        shares = plan.share(store, todo, poll_s=0.01)
        first = next(shares)
        assert first == todo[3:]
        store.append_generations(make(first))
        other.close()
        assert next(shares) == todo[:3]


def test_a_cell_is_timed_when_one_pass_on_this_machine_has_all_of_it(tmp_path: Path):
    with Store.open(tmp_path) as store:
        store.add_cells(CELLS)
        for cell, pass_id, examples in [(CELLS[0], "a", 2), (CELLS[1], "a", 1), (CELLS[1], "b", 1)]:
            for i in range(examples):
                record = SHAPE.decode(cell, f"{i}" if pass_id == "a" else "1")
                store.append_timings(timings(cell, record, pass_id=pass_id, repeats=2, shape=SHAPE))
    results = sdbench.read(tmp_path)
    assert plan.timed_cells(results, CELLS, names(2), 2, machine="cpu-2x") == {CELLS[0].key}
    assert plan.timed_cells(results, CELLS, names(2), 2, machine="another") == set()
    assert plan.timed_cells(results, CELLS, names(2), 3, machine="cpu-2x") == set()
