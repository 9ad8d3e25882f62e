"""Records: what is written is read, whatever is torn, doubled, newer, forced or failed in between."""

import dataclasses
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sdbench
from sdbench.engines import latency
from sdbench.metrics.summary import summarise
from sdbench.records import Cell, GenerationRecord, SchemaError, Store, cell_key, measured
from sdbench.records import store as store_module
from sdbench.records.compact import compact, small_parts
from sdbench.records.measured import CallRecord, OpenLoadRecord, PartingRecord, PooledRecord
from sdbench.records.parts import commit_table
from sdbench.records.schema import generation_tables
from sdbench.records.snapshot import take_snapshot
from sdbench.report.sweep import Sweep, sweeps_of
from tests.records.equality import assert_same_records
from tests.records.synthetic import Shape, cell, sweep, timings, write_synthetic

SHAPE = Shape(max_new_tokens=10)
ENSEMBLE = cell("llama-tiny", "gsm8k-tiny", "ensemble", w=0.5)
TARGET = cell("llama-tiny", "gsm8k-tiny", "target")


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """Syncing guards against a loss of power, which no test here has; the kill tests sync for real."""
    monkeypatch.setattr("os.fsync", lambda _: None)


def records(point: Cell = ENSEMBLE, examples: int = 4, samples: int = 1) -> list[GenerationRecord]:
    return [SHAPE.decode(point, f"{i}", s) for i in range(examples) for s in range(samples)]


def part(folder: Path, kind: str, place: int = 0) -> Path:
    return sorted((folder / "records").glob(f"{kind}-*"))[place]


def write(folder: Path, *batches: list[GenerationRecord], cells: tuple[Cell, ...] = (ENSEMBLE,)) -> Path:
    with Store.open(folder, config={"n": 4}, provenance={"w": "the target's weight"}) as store:
        store.add_cells(cells)
        for batch in batches:
            store.append_generations(batch)
    return folder


def test_a_cell_key_is_the_same_in_another_process():
    code = (
        "from sdbench.records import cell_key; print(cell_key({'w': 1, 'stops': ('a',), 'x': {'b': 0.3, 'a': None}}))"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert other == cell_key({"x": {"a": None, "b": 0.1 + 0.2}, "stops": ["a"], "w": np.float64(1.0)})


@pytest.mark.parametrize(
    "change",
    [
        {"w": 0.6},
        {"num_draft": 4},
        {"temperature": 0.9},
        {"task": "wmt-tiny"},
        {"law": "sampled/2"},
        {"knobs": {"mix": "logit"}},
        {"checkpoints": {"target": "other@1", "draft": "b@2"}},
        {"protocol": "chat/1"},
        {"content": {"seed": 1}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_determines_the_content_changes_the_key(change):
    assert dataclasses.replace(ENSEMBLE, **change).key != ENSEMBLE.key


def test_labels_do_not_change_the_key():
    assert dataclasses.replace(ENSEMBLE, model="alias", metric="flexible", is_lossless=True).key == ENSEMBLE.key
    assert dataclasses.replace(ENSEMBLE, w=1).key == dataclasses.replace(ENSEMBLE, w=1.0).key


def test_true_is_not_one_and_nan_is_refused():
    assert cell_key({"x": True}) != cell_key({"x": 1})
    with pytest.raises(ValueError, match="finite"):
        cell_key({"x": float("nan")})


def test_a_cell_survives_its_file(tmp_path: Path):
    assert Cell.from_json(json.loads(json.dumps(ENSEMBLE.to_json()))).key == ENSEMBLE.key


def test_what_is_written_is_read(tmp_path: Path):
    wanted = records(examples=3, samples=2)
    results = sdbench.read(write(tmp_path, wanted))
    assert results.problems == ()
    rows, tokens, rounds = results.generations, results.tokens, results.rounds
    for n, record in enumerate(wanted):
        row, arrays = rows.iloc[n], tokens.iloc[n]
        assert (row["cell"], row["example"], row["sample"]) == (record.cell, record.example, record.sample)
        assert (row["model"], row["verifier"], row["w"], row["num_draft"]) == ("llama-tiny", "ensemble", 0.5, 5)
        assert (row["text"], row["finish"], row["tokens"]) == (record.text, record.finish, len(record.ids))
        assert row["accepted"] + row["replaced"] + row["bonus"] == row["tokens"]
        assert row["strict"] == record.scores["strict"]
        assert row["tv_sum"] == pytest.approx(sum(record.tv), abs=1e-12)
        assert row["is_truncated"] == record.flags["is_truncated"]
        for name in ("ids", "origin", "draft_ids", "p", "q", "tv", "expected", "bias"):
            np.testing.assert_array_equal(arrays[name], getattr(record, name))
        own = rounds[(rounds["example"] == record.example) & (rounds["sample"] == record.sample)]
        np.testing.assert_array_equal(own["accepted"], record.rounds.accepted)
        assert list(own["round"]) == list(range(len(own)))
    assert results.config == {"n": 4}
    assert [entry["w"] for entry in results.provenance.values()] == ["the target's weight"]


def test_what_was_not_measured_is_null(tmp_path: Path):
    greedy = cell("llama-tiny", "gsm8k-tiny", "ensemble", w=0.5, temperature=0)
    results = sdbench.read(write(tmp_path, records(greedy), cells=(greedy,)))
    assert results.generations["bias_sum"].isna().all()
    assert results.generations["tv_sum"].notna().all()
    assert all(value is None for value in results.tokens["bias"])


def test_an_empty_folder_reads_as_empty_frames(tmp_path: Path):
    results = sdbench.read(write(tmp_path, cells=()))
    for name in ("generations", "rounds", "tokens", "timings", "calls", "cells"):
        assert len(getattr(results, name)) == 0, name
    assert {"decode_s", "machine", "w"} <= set(results.timings.columns)


def test_a_folder_without_records_is_refused_in_a_sentence(tmp_path: Path):
    with pytest.raises(ValueError, match="is not a results folder"):
        sdbench.read(tmp_path)


def test_a_metric_may_not_take_a_column_of_every_record(tmp_path: Path):
    bad = dataclasses.replace(records()[0], scores={"tokens": 1.0})
    with Store.open(tmp_path) as store, pytest.raises(ValueError, match="'tokens'"):
        store.append_generations([bad])


def test_the_first_of_two_duplicates_wins_with_its_own_tokens(tmp_path: Path):
    first = records()
    second = [dataclasses.replace(r, text="later", ids=np.zeros_like(r.ids)) for r in first]
    results = sdbench.read(write(tmp_path, first, second))
    assert list(results.generations["text"]) == [r.text for r in first]
    for row, record in zip(results.tokens["ids"], first, strict=True):
        np.testing.assert_array_equal(row, record.ids)


def test_neither_order_nor_parts_show(tmp_path: Path):
    whole = records(examples=6) + records(TARGET, examples=6)
    write(tmp_path / "a", whole, cells=(ENSEMBLE, TARGET))
    write(tmp_path / "b", *[[r] for r in reversed(whole)], cells=(TARGET, ENSEMBLE))
    assert_same_records(tmp_path / "a", tmp_path / "b")


def test_no_batch_process_or_host_outside_timings_and_provenance(tmp_path: Path):
    results = sdbench.read(write_synthetic(tmp_path, n=3, timing_examples=2))
    for name in ("generations", "rounds", "tokens", "cells"):
        words = {"machine", "pass_id", "run", "epoch", "stem", "host", "pid", "batch", "load"}
        assert not words & set(getattr(results, name).columns), name
    assert all(
        c.endswith(("_s", "_at")) for c in results.timings.columns if c.startswith(("prefill", "decode", "start"))
    )


def torn_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def torn_empty(path: Path) -> None:
    path.write_bytes(b"")


def torn_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[60] ^= 0xFF
    path.write_bytes(data)


def torn_text(path: Path) -> None:
    """Damage the column of texts of a part of generations; no other column is touched."""
    group = pq.read_metadata(path).row_group(0)
    (text,) = (c for c in map(group.column, range(group.num_columns)) if c.path_in_schema == "text")
    data = bytearray(path.read_bytes())
    data[text.data_page_offset + text.total_compressed_size // 2] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("tear", [torn_half, torn_empty, torn_bit])
@pytest.mark.parametrize("kind", ["generations", "tokens"])
def test_a_torn_part_is_reported_costs_no_other_and_is_repaired(tmp_path: Path, kind: str, tear):
    whole = records(examples=6)
    write(tmp_path / "whole", whole)
    folder = write(tmp_path / "torn", whole[:3], whole[3:])
    tear(part(folder, kind))
    results = sdbench.read(folder)
    if kind == "generations":
        assert list(results.generations["example"]) == ["3", "4", "5"]
    else:
        assert len(results.generations) == 6
    assert list(results.tokens["example"]) == ["3", "4", "5"]
    assert any(kind in problem.name for problem in results.problems)
    with Store.open(folder) as store:
        assert sdbench.read(folder).held() == store.held(), "readers and the next run count the same texts as missing"
        left = {(r.cell, r.example, r.sample) for r in whole} - store.held()
        if kind == "tokens" and tear is torn_bit:  # its footer is whole: counts are held, arrays need force
            store.force([ENSEMBLE.key])
            store.append_generations(whole[3:])
        else:
            assert {key[1] for key in left} == {"0", "1", "2"}
        store.append_generations(whole[:3])
    assert_same_records(folder, tmp_path / "whole", is_problem_free=False)


@pytest.mark.parametrize("tear", [torn_half, torn_empty])
@pytest.mark.parametrize("kind", ["generations", "tokens"])
def test_a_dead_part_is_repaired_once_and_then_nobody_meets_it_again(tmp_path: Path, kind: str, tear):
    whole = records(examples=6)
    write(tmp_path / "whole", whole)
    folder = write(tmp_path / "torn", whole[:3], whole[3:])
    name = part(folder, kind).name
    tear(part(folder, kind))
    with Store.open(folder) as store:
        assert sdbench.read(folder).held() == store.held()
        missing = [r for r in whole if (r.cell, r.example, r.sample) not in store.held()]
        assert len(missing) == 3
        store.append_generations(missing[:2])
        if kind == "tokens":  # texts and scores that nothing has replaced stay readable
            assert name in store.compact()
            assert len(sdbench.read(folder).generations) == 6
        store.append_generations(missing[2:])
        set_aside = store.compact()
    assert any(one.partition("-")[2] == name.partition("-")[2] for one in set_aside)
    assert (folder / "records" / f".torn-{name}").exists()
    assert_same_records(folder, tmp_path / "whole")
    with Store.open(folder) as store:
        assert not [r for r in whole if (r.cell, r.example, r.sample) not in store.held()]
        assert store.compact() == []


def test_damage_in_the_texts_of_a_part_is_repaired(tmp_path: Path):
    whole = records(examples=6)
    write(tmp_path / "whole", whole)
    folder = write(tmp_path / "torn", whole[:3], whole[3:])
    name = part(folder, "generations").name
    torn_text(part(folder, "generations"))
    assert list(sdbench.read(folder).generations["example"]) == ["3", "4", "5"]
    with Store.open(folder) as store:
        assert {key[1] for key in store.held()} == {"3", "4", "5"}
        store.append_generations(whole[:3])
        assert store.compact() == [name]
    assert_same_records(folder, tmp_path / "whole")


def test_a_part_set_aside_by_a_run_of_other_cells_is_a_problem_until_its_texts_are_there_again(tmp_path: Path):
    def run(point: Cell) -> list[str]:
        planned = {"cells": [point.key], "examples": 4, "samples": 1}
        with Store.open(tmp_path, config={}, provenance={"planned": planned}) as store:
            store.add_cells([point])
            store.append_generations([r for r in records(point) if (r.cell, r.example, r.sample) not in store.held()])
            return store.compact()

    assert run(ENSEMBLE) == []
    name = part(tmp_path, "generations").name
    torn_half(part(tmp_path, "generations"))
    assert run(TARGET) == [name]
    (problem,) = sdbench.read(tmp_path).problems
    assert (problem.kind, problem.name) == ("missing", f".torn-{name}")
    assert run(TARGET) == []
    assert len(sdbench.read(tmp_path).problems) == 1
    assert run(ENSEMBLE) == []
    assert sdbench.read(tmp_path).problems == ()


def test_a_part_that_the_disk_does_not_give_now_is_not_set_aside(tmp_path: Path, monkeypatch):
    folder = write(tmp_path, records(examples=6))
    broken = part(folder, "generations")

    def fails(path, *args, **kwargs):
        if Path(path) == broken:
            raise OSError(5, "Input/output error")
        return schema_of(path, *args, **kwargs)

    schema_of = pq.read_schema
    with Store.open(folder) as store, monkeypatch.context() as patch:
        patch.setattr(pq, "read_schema", fails)
        store._footers.clear()
        assert store.compact() == []
    assert broken.exists()


def test_parts_that_do_not_fit_into_memory_are_not_set_aside(tmp_path: Path, monkeypatch):
    """As under a limit of address space; pyarrow's error is one of its own kind too."""

    def fail(*_, **__):
        raise pa.lib.ArrowMemoryError("malloc of size 64 failed")

    folder = write(tmp_path, *[[r] for r in records(examples=3)])
    before = sorted((folder / "records").glob("*.parquet"))
    with Store.open(folder) as store, monkeypatch.context() as patch:
        patch.setattr(pq.ParquetFile, "read", fail)
        assert {problem.kind for problem in sdbench.read(folder).problems} == {"unread"}
        assert store.compact() == []
    assert sorted((folder / "records").glob("*.parquet")) == before
    assert sdbench.read(folder).problems == ()


def test_a_torn_cell_file_is_reported_and_written_again(tmp_path: Path):
    folder = write(tmp_path, records())
    torn_half(part(folder, "cell"))
    results = sdbench.read(folder)
    assert {problem.kind for problem in results.problems} == {"torn", "missing"}
    assert len(results.generations) == 4
    write(folder)
    assert sdbench.read(folder).problems == ()


def test_settings_that_two_jobs_add_to_a_cell_are_both_kept(tmp_path: Path, monkeypatch):
    lossless, settings = (
        cell("m", "gsm8k-tiny", "lossless"),
        [cell("m", "gsm8k-tiny", "ensemble", w=w) for w in (1.0, 0.99)],
    )
    write(tmp_path, cells=(lossless,))
    with Store.open(tmp_path) as store, Store.open(tmp_path) as other:
        second = threading.Thread(target=other.add_cells, args=([lossless.with_repeated(settings[1])],))
        take = store._snapshot

        def and_another_job_begins():
            snapshot = take()
            second.start()
            second.join(timeout=0.5)
            return snapshot

        monkeypatch.setattr(store, "_snapshot", and_another_job_begins)
        store.add_cells([lossless.with_repeated(settings[0])])
        second.join()
    kept = json.loads(part(tmp_path, "cell").read_text())["also"]
    assert set(kept) == {setting.key for setting in settings}


@pytest.mark.parametrize("kind", ["generations", "cell"])
def test_a_newer_schema_is_refused_in_a_sentence(tmp_path: Path, kind: str):
    path = part(write(tmp_path, records()), kind)
    if kind == "cell":
        path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 99}))
    else:
        table = pq.read_table(path)
        pq.write_table(table.replace_schema_metadata({"sdbench.schema": "99"}), path)
    for use in (sdbench.read, Store.open):
        with pytest.raises(SchemaError, match=r"newer sdbench .records schema 99.*upgrade") as caught:
            use(tmp_path)
        assert "\n" not in str(caught.value)


def test_a_kill_between_the_two_renames_leaves_no_record_and_no_problem(tmp_path: Path):
    folder = write(tmp_path, records())
    part(folder, "generations").unlink()
    (folder / "records" / ".tmp-1-abc-def").write_bytes(b"half a part")
    results = sdbench.read(folder)
    assert (len(results.generations), len(results.tokens), results.problems) == (0, 0, ())
    with Store.open(folder) as store:
        assert store.held() == set()
    assert not list((folder / "records").glob(".tmp*")), "what a dead job left is swept"


@pytest.mark.slow
def test_a_kill_inside_compaction_doubles_and_loses_nothing(tmp_path: Path):
    batches = [[r] for r in records(examples=5)]
    folder, before = write(tmp_path / "a", *batches), write(tmp_path / "b", *batches)
    old = {path.name: path.read_bytes() for path in (folder / "records").glob("*.parquet")}
    with Store.open(folder) as store:
        store.compact()
    assert len(list((folder / "records").glob("generations-*"))) == 1
    for name, data in old.items():  # killed before the last deletions: some of the old parts are still there
        (folder / "records" / name).write_bytes(data)
        assert_same_records(folder, before)
    with Store.open(folder) as store:
        store.append_generations(records(examples=6)[5:])
        store.compact()
    assert len(sdbench.read(folder).generations) == 6


def test_readers_see_everything_while_parts_are_merged(tmp_path: Path):
    folder = write(tmp_path, *[[r] for r in records(examples=10)])
    stop, counts = threading.Event(), []

    def look() -> None:
        while not stop.is_set():
            results = sdbench.read(folder)
            counts.append((len(results.generations), len(results.tokens)))

    reader = threading.Thread(target=look)
    reader.start()
    with Store.open(folder) as store:
        for i in range(10, 40):
            store.append_generations(records(examples=i + 1)[i:])
            if i % 3 == 0:
                store.compact()
    stop.set()
    reader.join()
    assert counts
    assert all(a >= 10 and b == a for a, b in counts)
    assert sorted(counts) == counts, "nothing seen once is ever lost"
    assert len(sdbench.read(folder).generations) == 40


def test_parts_merged_between_a_look_and_a_reading_are_looked_for_again(tmp_path: Path, monkeypatch):
    folder = write(tmp_path, *[[r] for r in records(examples=5)])
    with Store.open(folder) as store, Store.open(folder) as other:
        snapshot = store_module.take_snapshot

        def then_merged(*args, **kwargs):
            taken = snapshot(*args, **kwargs)
            monkeypatch.undo()
            other.compact()
            return taken

        monkeypatch.setattr(store_module, "take_snapshot", then_merged)
        assert len(store.held()) == 5
    assert len(list((folder / "records").glob("generations-*"))) == 1


def test_a_listing_that_missed_a_merge_is_made_again(tmp_path: Path, monkeypatch):
    folder = write(tmp_path, *[[r] for r in records(examples=5)])
    listdir = os.listdir

    def torn(path):  # the merged part comes where the listing has been, the old ones go where it has not
        before = listdir(path)
        monkeypatch.undo()
        with Store.open(folder) as other:
            other.compact()
        return [name for name in before if name in listdir(path)]

    monkeypatch.setattr(os, "listdir", torn)
    assert len(sdbench.read(folder).generations) == 5


def test_tokens_are_those_of_the_generations_though_parts_were_merged_and_more_written(tmp_path: Path):
    folder = write(tmp_path, *[[r] for r in records(examples=3)])
    results, whole = sdbench.read(folder), sdbench.read(folder).tokens
    with Store.open(folder) as store:
        store.append_generations(records(examples=6)[3:])
        store.compact()
    assert results.tokens.equals(whole)
    assert list(results.tokens["example"]) == list(results.generations["example"])


def test_a_long_run_merges_its_own_parts_on_the_way(tmp_path: Path):
    with Store.open(tmp_path) as store:
        store.add_cells([ENSEMBLE])
        for record in records(examples=70):
            store.append_generations([record])
    assert len(list((tmp_path / "records").glob("generations-*"))) < 10
    assert len(sdbench.read(tmp_path).generations) == 70


def test_force_keeps_the_old_until_the_new_is_there(tmp_path: Path):
    old = [dataclasses.replace(r, text="old") for r in records()]
    new = [dataclasses.replace(r, text="new") for r in records()]
    folder = write(tmp_path, old)
    with Store.open(folder) as store:
        store.force([ENSEMBLE.key], token="job 7")
        assert store.held() == set()
        store.append_generations(new[:2])
    results = sdbench.read(folder)
    assert list(results.generations["text"]) == ["new", "new", "old", "old"]
    assert [(p.kind, p.message[:1]) for p in results.problems] == [("forced", "2")]
    with Store.open(folder) as store:  # requeued: the same token goes on
        store.force([ENSEMBLE.key], token="job 7")
        assert {key[1] for key in store.held()} == {"0", "1"}
        store.append_generations(new[2:])
    assert set(sdbench.read(folder).generations["text"]) == {"new"}
    assert sdbench.read(folder).problems == ()
    with Store.open(folder) as store:  # forced again by another command
        store.force([ENSEMBLE.key])
        assert store.held() == set()


def test_what_another_process_forces_is_missing_here_too(tmp_path: Path):
    """Processes that share a folder may open it before one of them has recorded its force=true."""
    folder = write(tmp_path, records())
    with Store.open(folder) as first, Store.open(folder) as second:
        assert first.held()
        second.force([ENSEMBLE.key])
        assert first.held() == set()
        first.append_generations(records())
        assert first.held() == second.held() != set()


def test_jobs_of_one_launch_force_what_they_share_once(tmp_path: Path):
    """`-m num_draft=3,5 force=true`: the jobs share the folder, and of their cells the target and the draft alone."""
    rules = [cell("llama-tiny", "gsm8k-tiny", "ensemble", w=w) for w in (0.3, 0.7)]
    folder = write(tmp_path, *(records(point) for point in (TARGET, *rules)), cells=(TARGET, *rules))
    with Store.open(folder) as first, Store.open(folder) as second:
        first.force([TARGET.key, rules[0].key], token="a launch")
        first.append_generations(records(TARGET))
        second.force([TARGET.key, rules[1].key], token="a launch")
        assert {key[0] for key in second.held()} == {TARGET.key}
        assert [second.epoch_of(point.key) for point in (TARGET, *rules)] == [1, 1, 1]
        second.force([TARGET.key], token="another launch")
        assert second.epoch_of(TARGET.key) == 2
    with Store.open(folder) as store:
        store.force([TARGET.key, rules[0].key, rules[1].key], token="a launch")
        assert [store.epoch_of(point.key) for point in (TARGET, *rules)] == [2, 1, 1]


def test_force_files_of_earlier_versions_count(tmp_path: Path):
    folder = write(tmp_path, records())
    (folder / "records" / "force-0123.json").write_text(
        json.dumps({"schema": 1, "cells": [ENSEMBLE.key], "epoch": 3, "run": "x"})
    )
    with Store.open(folder) as store:
        assert store.epoch_of(ENSEMBLE.key) == 3
        assert not store.held()
        store.force([ENSEMBLE.key], token="job 7")
        assert store.epoch_of(ENSEMBLE.key) == 4


def test_a_failure_is_reported_until_a_record_makes_it_good(tmp_path: Path):
    folder = write(tmp_path, records(examples=1))
    with Store.open(folder) as store:
        store.append_failure(ENSEMBLE.key, "ValueError: out of range", example="2")
    assert ["out of range" in p.message for p in sdbench.read(folder).problems] == [True]
    write(folder, records(examples=2))
    assert len(sdbench.read(folder).problems) == 1
    write(folder, records(examples=3))
    assert sdbench.read(folder).problems == ()
    with Store.open(folder) as store:
        store.compact()
    assert sdbench.read(folder).problems == (), "merged parts keep the run that wrote a text"


def test_other_texts_of_the_run_that_failed_do_not_make_a_failure_good(tmp_path: Path):
    with Store.open(tmp_path) as store:
        store.add_cells([ENSEMBLE])
        store.append_failure(ENSEMBLE.key, "ValueError: out of range")
        store.append_generations(records(examples=1))  # decoded before the failure and scored after it
    assert ["out of range" in p.message for p in sdbench.read(tmp_path).problems] == [True]


def test_a_failure_ends_when_another_process_has_written_the_text(tmp_path: Path):
    """Of two processes on a folder the one that began first may write what the other gave up."""
    planned = {"planned": {"cells": [ENSEMBLE.key], "examples": 2, "samples": 1}}
    with Store.open(tmp_path, config={}, provenance=planned) as first:
        with Store.open(tmp_path, config={}, provenance=planned) as second:
            second.add_cells([ENSEMBLE])
            second.append_failure(ENSEMBLE.key, "a dead worker", example="1")
            second.append_failure(ENSEMBLE.key, "out of memory")
        first.append_generations(records(examples=1))
        assert [p.message for p in sdbench.read(tmp_path).problems] == ["a dead worker", "out of memory"]
        first.append_generations(records(examples=2)[1:])
    assert sdbench.read(tmp_path).problems == ()


def test_the_prices_of_a_pass_are_those_of_the_run_that_went_on_with_it_last(tmp_path: Path):
    def price(kind: str, tokens: float, seconds: float) -> CallRecord:
        return CallRecord("a", "cpu", "pair", kind, tokens, seconds, 20, "")

    for prices in (
        [price("target", 1, 3.0), price("verify", 5.5, 4.0)],
        [price("target", 1, 2.0), price("verify", 5.4, 3.0)],
    ):
        with Store.open(tmp_path) as store:
            store.append(prices)
    with Store.open(tmp_path) as store:
        store.compact()
        store.append([dataclasses.replace(price("target", 1, 9.0), pass_id="b")])
    calls = sdbench.read(tmp_path).calls
    assert calls[["pass_id", "kind", "seconds"]].to_numpy().tolist() == [
        ["a", "target", 2.0],
        ["a", "verify", 3.0],
        ["b", "target", 9.0],
    ]


def test_a_timing_counts_once_in_its_pass_and_machine(tmp_path: Path):
    record = records()[0]
    taken = timings(ENSEMBLE, record, pass_id="a", repeats=2, shape=SHAPE)
    elsewhere = [dataclasses.replace(t, machine="gpu") for t in taken]
    with Store.open(tmp_path) as store:
        store.add_cells([ENSEMBLE])
        for batch in (taken, taken, elsewhere):
            store.append(batch)
    frame = sdbench.read(tmp_path).timings
    assert len(frame) == 6
    assert frame["draft_s"].notna().sum() == frame["is_split"].sum() == 2


def test_timings_from_before_cached_prompts_were_marked_have_none(tmp_path: Path):
    taken = timings(ENSEMBLE, records()[0], pass_id="a", repeats=1, shape=SHAPE)
    with Store.open(tmp_path) as store:
        store.add_cells([ENSEMBLE])
        store.append(taken)
    path = part(tmp_path, "timings")
    pq.write_table(pq.read_table(path).drop_columns(["is_cached"]), path)
    with Store.open(tmp_path) as store:
        store.append([dataclasses.replace(t, example="new", is_cached=True) for t in taken])
    frame = sdbench.read(tmp_path).timings
    assert frame["is_cached"].dtype == bool
    assert frame.groupby("example")["is_cached"].unique().map(list).to_dict() == {"0": [False], "new": [True]}


def test_token_texts_are_kept_once_a_tokenizer_and_written_again_where_torn(tmp_path: Path):
    asked = []

    def texts(*words: str):
        return lambda: asked.append(words) or list(words)

    with Store.open(tmp_path) as store:
        for _ in range(2):
            store.add_vocabulary("llama-tiny", "key 1", texts(" a", "\n", ""))
        store.add_vocabulary("qwen-tiny", "key 1", texts("b"))
    assert sdbench.read(tmp_path).vocabulary == {"llama-tiny": [" a", "\n", ""], "qwen-tiny": ["b"]}
    torn_half(part(tmp_path, "vocabulary"))
    results = sdbench.read(tmp_path)
    assert results.vocabulary == {"qwen-tiny": ["b"]}
    assert [problem.kind for problem in results.problems] == ["torn"]
    with Store.open(tmp_path) as store:
        store.add_vocabulary("llama-tiny", "key 1", texts(" a", "\n", ""))
        store.add_vocabulary("qwen-tiny", "key 2", texts("c", "d"))
    results = sdbench.read(tmp_path)
    assert results.vocabulary == {"llama-tiny": [" a", "\n", ""], "qwen-tiny": ["c", "d"]}
    assert (len(asked), results.problems) == (4, ())


def test_prompts_and_references_are_kept_once_an_example(tmp_path: Path):
    told = []

    def texts(example: str) -> tuple[str, str]:
        told.append(example)
        return f"prompt {example}", f"reference {example}"

    for ids in (["0", "1"], ["0", "1", "2"]):
        with Store.open(tmp_path) as store:
            store.add_examples("asked 1", ids, texts)
    with Store.open(tmp_path) as store:
        store.add_examples("asked 2", ["0"], texts)
    frame = sdbench.read(tmp_path).examples
    assert told == ["0", "1", "2", "0"]
    assert list(zip(frame["asked"], frame["example"], strict=True)) == [
        *(("asked 1", i) for i in "012"),
        ("asked 2", "0"),
    ]
    assert (frame["prompt"] == "prompt " + frame["example"]).all()
    assert (frame["reference"] == "reference " + frame["example"]).all()


def test_cells_that_differ_in_the_rule_alone_were_asked_the_same():
    a, b, c = (cell("llama-tiny", task, "ensemble", w=w) for task, w in (("gsm8k", 0.3), ("gsm8k", 0.7), ("wmt", 0.3)))
    assert a.asked == b.asked != c.asked


def test_a_headline_that_a_task_changes_is_that_of_all_its_cells(tmp_path: Path):
    """Not of those alone that a later command names: two headlines in one sweep would be compared with each other."""
    write(tmp_path, records(), cells=(ENSEMBLE, TARGET))
    declared = ({"name": "strict", "unit": "share"}, {"name": "flexible", "unit": "share"})
    write(tmp_path, cells=(dataclasses.replace(TARGET, metric="strict", metrics=list(declared)),))
    cells = sdbench.read(tmp_path).cells
    assert set(cells["cell"]) == {ENSEMBLE.key, TARGET.key}
    assert set(cells["metric"]) == {"strict"}
    assert all([one["name"] for one in metrics] == ["strict", "flexible"] for metrics in cells["metrics"])


def test_frames_go_out_as_parquet(tmp_path: Path):
    results = sdbench.read(write_synthetic(tmp_path / "r", n=2, timing_examples=1))
    for path in results.export(tmp_path / "out"):
        assert len(pq.read_table(path)) == len(getattr(results, path.stem))


@pytest.mark.slow
def test_a_hundred_thousand_generations_are_read_and_summarised(tmp_path: Path):
    cells = sweep("llama-tiny", "gsm8k-tiny", ws=tuple(i / 10 for i in range(7)), num_drafts=(5,), temperature=1.0)
    base = [Shape(max_new_tokens=24).decode(c, f"{i}") for c in cells for i in range(50)]
    generations, tokens = generation_tables(base, epochs={}, run="r")
    with Store.open(tmp_path) as store:
        store.add_cells(cells)
    for n in range(200):
        example = pa.array([f"{n}-{record.example}" for record in base])
        for kind, table in (("tokens", tokens), ("generations", generations)):
            table = table.set_column(1, "example", example)
            commit_table(tmp_path / "records" / f"{kind}-20260101T000000.{n:06d}-0a.parquet", table)
    frame = summarise(sdbench.read(tmp_path))
    assert frame["num_generations"].sum() == 100_000
    assert (frame["acceptance_low"] < frame["acceptance"]).sum() == len(cells) - 2, "two baselines draft nothing"


def test_a_latency_pass_is_described_by_the_last_run_that_had_one(tmp_path: Path):
    for timing in ({"batch_size": 8}, None):
        with Store.open(tmp_path, config={"timing": timing, "command": f"timing={timing}"}):
            pass
    results = sdbench.read(tmp_path)
    assert results.config["timing"] is None
    assert results.timed_config_of(["x"])["timing"] == {"batch_size": 8}


def test_each_temperature_is_described_by_a_run_of_its_cells(tmp_path: Path):
    """Not by the last run of the folder: its batch size, and its command that times settings, are those of other cells."""
    points = [cell("a", "gsm8k-tiny", "ensemble", w=0.3, temperature=temperature) for temperature in (0.0, 1.0)]
    for number, point in enumerate(points, start=1):
        with Store.open(tmp_path, config={"timing": {"batch_size": number}}) as store:
            store.add_cells([point])
            record = Shape().decode(point, "0")
            store.append_generations([record])
            store.append(timings(point, record, pass_id=f"{number}", repeats=1, shape=Shape()))
    with Store.open(tmp_path, config={"timing": None}) as store:
        store.append_generations([Shape().decode(points[0], "1")])
    results = sdbench.read(tmp_path)
    sizes = [results.timed_config_of([point.key])["timing"]["batch_size"] for point in points]
    assert sizes == [1, 2]
    assert [sweep.batch_size for sweep in sweeps_of([results], [summarise(results)])] == [1, 2]


def test_a_run_that_timed_nothing_does_not_tell_how_many_texts_were_timed_together(tmp_path: Path):
    """It decoded more texts, and was to time batches, but failed before the first: the speeds are those of the run before."""
    point, shape = cell("a", "gsm8k-tiny", "target"), Shape()
    for number, size in enumerate((1, 8)):
        with Store.open(tmp_path, config={"timing": {"batch_size": size}}) as store:
            store.add_cells([point])
            record = shape.decode(point, str(number))
            store.append_generations([record])
            if size == 1:
                store.append(timings(point, record, pass_id="1", repeats=1, shape=shape))
    results = sdbench.read(tmp_path)
    assert results.timed_config_of([point.key])["timing"] == {"batch_size": 1}
    (sweep_,) = sweeps_of([results], [summarise(results)])
    assert sweep_.batch_size == 1


def test_speeds_of_a_newer_pass_of_other_batches_are_not_those_of_a_complete_pass(tmp_path: Path, capsys):
    point, shape = cell("a", "gsm8k-tiny", "target"), Shape()
    with Store.open(tmp_path, config={}) as store:
        store.add_cells([point])
        for number, unit in enumerate(("0", "0+1")):
            (timed, _) = timings(point, shape.decode(point, unit), pass_id=f"{number}", repeats=1, shape=shape)
            store.append([dataclasses.replace(timed, started_at=float(number))])
    for units, is_warned in ((["0+1", "2+3"], False), (["0", "1"], True)):
        latency.warn_of_newer_pass(sdbench.read(tmp_path), [point.key], "cpu-2x", units)
        assert ("a newer pass with another timing.batch_size" in capsys.readouterr().err) == is_warned


def test_bounds_of_goodput_are_those_of_the_last_run_whose_requests_arrived_at_a_rate(tmp_path: Path):
    """A closed loop after it erased them, and goodput then counted every answer."""
    bounds = ({"rate": [2.0], "slo": {"ttft": 1}}, {"trace": "t", "slo": {"ttft": 0.5}}, {"rate": [], "slo": {}}, None)
    for timing in bounds:
        with Store.open(tmp_path, config={"timing": timing}):
            pass
    results = sdbench.read(tmp_path)
    assert results.open_config_of([])["timing"] == bounds[1], "runs that name no cells"
    empty = results.cells
    assert Sweep(results, "", "", "m", "t", 0.0, empty, empty).slo == {"ttft": 0.5}


def test_bounds_of_goodput_are_those_of_the_last_run_of_the_same_sweep(tmp_path: Path):
    """A sweep at another temperature came after it, and its bounds counted for both. Other bounds alone write no records."""
    points = [cell("a", "gsm8k-tiny", "ensemble", w=0.3, temperature=temperature) for temperature in (0.0, 1.0)]
    for number, seconds in ((0, 3), (0, 1), (1, 2)):
        timing = {"rate": [2.0], "slo": {"ttft": seconds}}
        planned = {"cells": [points[number].key], "examples": 1, "samples": 1}
        with Store.open(tmp_path, config={"timing": timing}, provenance={"planned": planned}) as store:
            if seconds > 1:
                store.add_cells([points[number]])
                store.append_generations([Shape().decode(points[number], "0")])
    results = sdbench.read(tmp_path)
    sweeps = sweeps_of([results], [summarise(results)])
    assert [sweep.slo for sweep in sweeps] == [{"ttft": 1}, {"ttft": 2}]


def test_pooled_counts_from_before_force_are_left_out_once_a_text_is_new(tmp_path: Path):
    """Records without an epoch are of epoch 0, and a cell that was not forced keeps its own."""
    counts = {"source": "server", "texts": 2, "tokens": 20, "steps": 4.0, "drafted": 12.0}
    old = [PooledRecord(c.key, accepted=3.0, block=f"old {c.verifier}", **counts) for c in (ENSEMBLE, TARGET)]
    with Store.open(tmp_path, config={}, provenance={}) as store:
        store.add_cells([ENSEMBLE, TARGET])
        store.append_generations([*records(), *records(TARGET)])
        table = measured.plain_table(old, "pooled", run="r").drop_columns(["epoch"])
        commit_table(tmp_path / "records" / "pooled-20260101T000000.000000-0a.parquet", table)
    assert sorted(sdbench.read(tmp_path).pooled["block"]) == ["old ensemble", "old target"]
    with Store.open(tmp_path, config={}, provenance={}) as store:
        store.force([ENSEMBLE.key])
        assert (store.epoch_of(ENSEMBLE.key), store.epoch_of(TARGET.key)) == (1, 0)
        assert len(sdbench.read(tmp_path).pooled) == 2, "nothing is new yet"
        store.append_generations(records(examples=1))
        assert sdbench.read(tmp_path).pooled["block"].tolist() == ["old target"], "of the old server"
        store.append([PooledRecord(ENSEMBLE.key, accepted=9.0, block="new", epoch=1, **counts)])
    assert sorted(sdbench.read(tmp_path).pooled["block"]) == ["new", "old target"]


def test_margins_of_texts_from_before_force_do_not_count_for_new_ones(tmp_path: Path):
    """Records without an epoch are of epoch 0, and a text that is not decoded anew keeps its own."""
    old = [PartingRecord(ENSEMBLE.key, example, 0, 7, 9.0, 0.1) for example in ("0", "1")]

    def held() -> list[tuple[str, float, int]]:
        frame = sdbench.read(tmp_path).partings[["example", "margin", "epoch"]]
        return sorted(frame.itertuples(index=False, name=None))

    with Store.open(tmp_path, config={}, provenance={}) as store:
        store.add_cells([ENSEMBLE])
        store.append_generations(records(examples=2))
        table = measured.plain_table(old, "partings", run="r").drop_columns(["epoch"])
        commit_table(tmp_path / "records" / "partings-20260101T000000.000000-0a.parquet", table)
        assert held() == [("0", 9.0, 0), ("1", 9.0, 0)]
        store.force([ENSEMBLE.key])
        assert held() == [("0", 9.0, 0), ("1", 9.0, 0)], "nothing is new yet"
        store.append_generations(records(examples=1))
        assert held() == [("1", 9.0, 0)]
        store.append([dataclasses.replace(old[0], margin=0.05, epoch=1)])
        assert held() == [("0", 0.05, 1), ("1", 9.0, 0)]
        store.compact()
    assert held() == [("0", 0.05, 1), ("1", 9.0, 0)]


def test_open_loads_from_before_their_gaps_are_read_beside_new_ones(tmp_path: Path):
    """Also once parts are merged: null for what was not recorded, an empty list for an answer in one chunk."""

    def loads(*gaps: tuple[float, ...] | None, begin: int = 0) -> list[OpenLoadRecord]:
        seconds = {"arrival_s": 0.0, "sent_s": 0.0, "first_token_s": 1.0, "last_token_s": 2.0, "under_way": 1}
        load = OpenLoadRecord("p", "m", TARGET.key, "0", 0, 2.0, "s", request=0, tokens=9, **seconds)
        return [dataclasses.replace(load, request=begin + i, gaps_s=each) for i, each in enumerate(gaps)]

    def held() -> list[list[float] | None]:
        frame = sdbench.read(tmp_path).open_loads.sort_values("request")
        return [None if each is None else list(each) for each in frame["gaps_s"]]

    old = measured.plain_table(loads(None, None), "open_loads", run="r").drop_columns(["gaps_s"])
    with Store.open(tmp_path, config={}, provenance={}) as store:
        store.add_cells([TARGET])
        commit_table(tmp_path / "records" / "open_loads-20260101T000000.000000-0a.parquet", old)
        assert held() == [None, None]
        store.append(loads((0.5, 0.25), (), None, begin=2))
        assert held() == [None, None, [0.5, 0.25], [], None]
    snapshot = take_snapshot(tmp_path / "records")
    assert compact(snapshot, tmp_path / "records", "open_loads", small_parts(snapshot, "open_loads"), owner="")
    assert len(list((tmp_path / "records").glob("open_loads-*"))) == 1
    assert held() == [None, None, [0.5, 0.25], [], None]
