"""scripts/real_near_ties.py on the records of a tiny pair, whose lossless texts are the target's own."""

from pathlib import Path

import pandas as pd
import pytest

from scripts import real_near_ties
from sdbench import embedded
from sdbench.cli import main

TARGET = Path(str(embedded.__file__)).parent / "llama-tiny/target"
TABLES = sorted((Path(__file__).parents[2] / "results/real").glob("*/near_ties.csv"))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("near-ties")
    words = ["model=llama-tiny", "task=gsm8k-tiny", "verifier=exact", "temperature=0", "n=2", "max_new_tokens=8"]
    assert main([*words, "timing=off", "report=off", f"results={folder}", "name=run"]) == 0
    return folder / "run"


def test_where_no_text_differs_the_table_is_empty_and_nothing_is_beyond_rounding(run, tmp_path, capsys, monkeypatch):
    assert len(real_near_ties.differing(run)) == 0
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert real_near_ties.main([str(run), str(TARGET)]) == 0
    assert capsys.readouterr().out == "no text differs\n"
    table = pd.read_csv("near_ties.csv")
    assert len(table) == 0
    assert set(table.columns) == {*real_near_ties.COLUMNS, "is_rounding"}


def test_a_text_of_a_float32_run_that_differs_is_judged_by_the_rounding_of_float32(tmp_path, monkeypatch):
    """Before, such a run ended in an IndexError: its own dtype was taken for the reference's."""
    text = {
        "example": "x",
        "sample": 0,
        "num_draft": 3,
        "prompt": "Q: 2 + 3?\nA:",
        "target": [5, 6, 7],
        "lossless": [5, 9, 7],
    }
    monkeypatch.setattr(real_near_ties, "differing", lambda folder: pd.DataFrame([text]))
    out = tmp_path / "near_ties.csv"
    assert real_near_ties.main(["run", str(TARGET), "dtype=float32", f"out={out}"]) == 1
    (row,) = pd.read_csv(out).to_dict("records")
    assert (row["token"], row["num_draft"], row["is_rounding"]) == (2, 3, False)
    assert 0 <= row["rounding"] < 1e-3 < row["gap"]


@pytest.mark.results
@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.parent.name)
def test_each_committed_text_that_differs_is_rounding(path):
    table, (run,) = pd.read_csv(path), pd.read_csv(path.with_name("equal_texts.csv")).itertuples()
    scores, summary = pd.read_parquet(path.with_name("scores.parquet")), pd.read_csv(path.with_name("summary.csv"))
    (lossless,) = summary["cell"][summary["verifier"] == "lossless"]
    texts = scores[scores["cell"] == lossless].set_index("example")
    assert len(table) == table["example"].nunique() == run.num - run.num_equal
    assert len(texts) == run.num
    assert ((table["token"] - 1) <= texts["tokens"][table["example"].astype(str)].to_numpy()).all()
    assert table["is_rounding"].all()
    assert (table["gap"] <= 2 * table["rounding"]).all()


@pytest.mark.results
def test_the_tables_are_those_of_four_tasks():
    assert [path.parent.name for path in TABLES] == ["humaneval", "mbpp", "wmt", "xsum"]
