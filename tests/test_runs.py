"""What is missing is counted cell by cell, and what force asked for anew is missing."""

import pytest

import sdbench
from sdbench.records import Store
from sdbench.records.planned import subset_key
from sdbench.runs import state_of
from tests.records.synthetic import Shape, cell

CELLS = [cell("m", "gsm8k-tiny", "ensemble", w=w) for w in (0.3, 0.5)]


@pytest.fixture
def folder(tmp_path):
    """Four texts of each of two cells are planned; the first has six and the second two."""
    planned = {"cells": [one.key for one in CELLS], "examples": 4, "samples": 1}
    with Store.open(tmp_path / "r", config={}, provenance={"planned": planned}) as store:
        store.add_cells(CELLS)
        records = [Shape().decode(one, str(i)) for one, size in zip(CELLS, (6, 2), strict=True) for i in range(size)]
        store.append_generations(records)
    return tmp_path / "r"


def test_a_surplus_of_one_cell_does_not_hide_what_another_lacks(folder):
    state = state_of(folder)
    assert (state.held, state.missing) == (8, 2)
    assert "missing        2" in state.line


def test_cells_that_force_repeats_are_missing(folder):
    with Store.open(folder, config={}, provenance={}) as store:
        store.force([CELLS[0].key])
    state = state_of(folder)
    assert (state.held, state.missing) == (2, 4 + 2)
    assert len(sdbench.read(folder).generations) == 8, "they stay readable"


def test_more_samples_of_fewer_examples_are_counted_by_example(tmp_path):
    planned = {"cells": [CELLS[0].key], "examples": 2, "samples": 3}
    with Store.open(tmp_path / "r", config={}, provenance={"planned": planned}) as store:
        store.add_cells(CELLS[:1])
        store.append_generations([Shape().decode(CELLS[0], str(i)) for i in range(10)])
    assert state_of(tmp_path / "r").missing == 4, "ten examples with one sample each are two of the six texts"


def test_texts_of_another_subset_do_not_count(tmp_path):
    """After another task.seed, or another n, a cell holds texts of examples that the newest command does not ask for."""
    with Store.open(tmp_path / "r", config={}) as store:
        store.add_cells(CELLS[:1])
        store.append_generations([Shape().decode(CELLS[0], str(i)) for i in range(4)])
    planned = {"cells": [CELLS[0].key], "examples": 4, "samples": 1, "subset": subset_key("3456")}
    with Store.open(tmp_path / "r", config={}, provenance={"planned": planned}) as store:
        store.add_subset(list("3456"))
        store.append_failure(CELLS[0].key, "it broke")
    state = state_of(tmp_path / "r")
    assert (state.held, state.missing, state.failed) == (4, 3, 1)


def test_samples_beyond_those_of_the_newest_command_do_not_count(tmp_path):
    """A run of four samples was stopped with samples 0 and 3 of an example; the newest command asks for two."""
    planned = {"cells": [CELLS[0].key], "examples": 1, "samples": 2, "subset": subset_key("0")}
    with Store.open(tmp_path / "r", config={}, provenance={"planned": planned}) as store:
        store.add_cells(CELLS[:1])
        store.add_subset(["0"])
        store.append_generations([Shape().decode(CELLS[0], "0", sample) for sample in (0, 3)])
        store.append_failure(CELLS[0].key, "it broke", example="0")
    with Store.open(tmp_path / "r", config={}, provenance={"planned": planned}):
        pass
    state = state_of(tmp_path / "r")
    assert (state.held, state.missing, state.failed) == (2, 1, 1)


def test_texts_whose_tokens_are_lost_are_missing(folder):
    """The next run decodes them again."""
    (tokens,) = (folder / "records").glob("tokens-*")
    tokens.write_bytes(tokens.read_bytes()[:40])
    state = state_of(folder)
    assert (state.held, state.missing) == (0, 8)
