"""scripts/real_near_ties.py on the records of a tiny pair, whose lossless texts are the target's own."""

from pathlib import Path

import pandas as pd
import pytest

from scripts import real_near_ties
from sdbench import embedded
from sdbench.cli import main

TARGET = Path(str(embedded.__file__)).parent / "llama-tiny/target"


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
