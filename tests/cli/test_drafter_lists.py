"""A list of drafters in one folder: kills, `force` and a later addition each decode only what is missing."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from test_kills import kill_and_resume

from sdbench.cli import main
from sdbench.records import read
from tests.records.equality import assert_same_records

NAME = "micro-gsm8k-tiny"
SOME = ("model", "lookup", "early-exit")
ALL = (*SOME, "suffix", "hybrid", "pruned", "tiers", "retrieval", "intersection", "universal")
CELLS = 2  # of a drafter: lossless and one w


def listed(names: tuple[str, ...]) -> str:
    return f"[{','.join(names)}]"


@pytest.fixture
def corpus(tmp_path) -> list[str]:
    """The options of `retrieval`: a small text."""
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"Mia has {n} cards. Mia loses {n % 7}.\n" for n in range(100)))
    return [f"drafter.retrieval.corpus={path}"]


def num_decoded(folder: Path) -> Counter[str]:
    """Generations ever written, by who drafted, those that a later one replaces included."""
    drafter_of = dict(read(folder).cells[["cell", "drafter"]].fillna("alone").itertuples(index=False))
    cells = [pq.read_table(path, columns=["cell"])["cell"] for path in (folder / "records").glob("generations-*")]
    return Counter(drafter_of[cell] for column in cells for cell in column.to_pylist())


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("names", "kills", "n"),
    [pytest.param(SOME, 3, 24, marks=pytest.mark.slow), pytest.param(ALL, 6, 24, marks=pytest.mark.long)],
    ids=["three drafters", "all drafters"],
)
def test_a_killed_list_of_drafters_ends_as_an_undisturbed_one(words, nursery, tmp_path, corpus, names, kills, n):
    options = {"n": n, "max_new_tokens": 24, "w": "0.3", "report": "off", "drafter": listed(names)}
    more = corpus if "retrieval" in names else []
    given = [*words(tmp_path / "killed", **options), *more]
    num_writing = kill_and_resume(nursery, given, tmp_path / "killed" / NAME, kills=kills, seed=len(names))
    assert num_writing >= kills // 4, "too few kills hit a command at work for the test to mean anything"
    total = (CELLS * len(names) + 2) * n
    assert 0 < len(read(tmp_path / "killed" / NAME).generations) < total
    nursery.start(given)
    assert nursery.ended() == 0, nursery.said.read_text()[-2000:]
    assert main([*words(tmp_path / "calm", **options), *more]) == 0
    assert_same_records(tmp_path / "killed" / NAME, tmp_path / "calm" / NAME)
    assert set(num_decoded(tmp_path / "calm" / NAME)) == {*names, "alone"}


@pytest.mark.usefixtures("no_figures")
@pytest.mark.slow
def test_a_drafter_that_is_added_is_decoded_alone(words, tmp_path):
    options = {"n": 2, "w": "0.3"}
    assert main(words(tmp_path / "steps", drafter="[model,lookup]", **options)) == 0
    wanted = Counter({"model": 2 * CELLS, "lookup": 2 * CELLS, "alone": 2 * 2})
    assert num_decoded(tmp_path / "steps" / NAME) == wanted
    assert main(words(tmp_path / "steps", drafter="[model,lookup,early-exit]", **options)) == 0
    wanted["early-exit"] = 2 * CELLS
    assert num_decoded(tmp_path / "steps" / NAME) == wanted
    longer = [*words(tmp_path / "steps", drafter="[model,lookup]", **options), "drafter.lookup.longest=3"]
    assert main(longer) == 0
    wanted["lookup"] += 2 * CELLS
    assert num_decoded(tmp_path / "steps" / NAME) == wanted, "another option of one drafter makes its cells anew"
    assert main(words(tmp_path / "once", drafter="[early-exit,lookup,model]", **options)) == 0
    assert main([*words(tmp_path / "once", drafter="[model,lookup]", **options), "drafter.lookup.longest=3"]) == 0
    assert_same_records(tmp_path / "steps" / NAME, tmp_path / "once" / NAME)


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_force_repeats_the_cells_of_its_own_command(words, tmp_path):
    """The target and the draft alone are cells of every command; those of a drafter that it does not name are left."""
    options = {"n": 2, "w": "0.3"}
    for folder in ("forced", "calm"):
        assert main(words(tmp_path / folder, drafter="[model,lookup]", **options)) == 0
    before = num_decoded(tmp_path / "forced" / NAME)
    assert main(words(tmp_path / "forced", drafter="[lookup]", force="true", **options)) == 0
    assert_same_records(tmp_path / "forced" / NAME, tmp_path / "calm" / NAME)
    assert num_decoded(tmp_path / "forced" / NAME) - before == {"lookup": 2 * CELLS, "alone": 2 * 2}


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_killed_force_goes_on_without_force(words, nursery, tmp_path):
    """Until its successor is written each old record stays readable, and the resumed command makes the rest."""
    options: dict[str, Any] = {"n": 20, "w": "0.3", "report": "off", "drafter": "[model,lookup]"}
    given = words(tmp_path / "forced", **options)
    assert main(given) == 0
    total = (2 * CELLS + 2) * options["n"]
    forced = words(tmp_path / "forced", **{**options, "force": "true"})
    assert kill_and_resume(nursery, forced, tmp_path / "forced" / NAME, kills=2, seed=1) >= 1
    cut = read(tmp_path / "forced" / NAME)
    assert len(cut.generations) == total > len(cut.held())
    num_before = num_decoded(tmp_path / "forced" / NAME).total()
    nursery.start(given)
    assert nursery.ended() == 0, nursery.said.read_text()[-2000:]
    assert len(read(tmp_path / "forced" / NAME).held()) == total
    assert num_decoded(tmp_path / "forced" / NAME).total() - num_before == total - len(cut.held())
    assert main(words(tmp_path / "calm", **options)) == 0
    assert_same_records(tmp_path / "forced" / NAME, tmp_path / "calm" / NAME)
