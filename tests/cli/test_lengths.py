"""task.length and task.pad_to through the whole command: keys, records, figure, and what is refused."""

import pandas as pd
import pytest

from sdbench.cli import main
from sdbench.records import read

ALONE = ["timing=off", "verifier=exact", "max_new_tokens=12", "n=2"]


@pytest.fixture(scope="module")
def lengths(tmp_path_factory):
    home = tmp_path_factory.mktemp("lengths")
    for length, report in ((150, "report=false"), (300, "report=true")):
        words = ["task=long-tiny", f"task.length={length}", f"results={home}", report]
        assert main(["model=llama-tiny", *words, *ALONE]) == 0
    return home / "llama-tiny-long-tiny"


@pytest.mark.slow
def test_lengths_are_cells_of_their_own_in_one_folder(lengths):
    results = read(lengths)
    assert results.cells.groupby("verifier")["cell"].nunique().to_dict() == {"draft": 2, "lossless": 2, "target": 2}
    tokens = results.generations.groupby("cell")["prompt_tokens"].agg(["min", "max"])
    assert sorted(tokens["max"].map(lambda most: 150 if most <= 150 else 300).tolist()) == [150] * 3 + [300] * 3
    assert (tokens["max"] - tokens["min"] < 30).all()
    described = {content["task"]["padding"]["to"] for content in results.cells["content"]}
    assert described == {150, 300}


@pytest.mark.slow
def test_the_folders_report_has_the_figure_and_its_table(lengths):
    assert (lengths / "figures" / "inputs.svg").is_file()
    table = pd.read_csv(lengths / "tables" / "inputs.csv")
    assert set(table["padded_to"]) == {150, 300}
    assert (table["input_tokens"].between(120, 300)).all()
    page = (lengths / "report.html").read_text()
    assert "padded to 150" in page
    assert "padded to 300" in page


REFUSED = {
    (
        "task=long-tiny",
        "task.length=1000",
    ): "task.length=1000 is more than the 928 tokens that a prompt may have beside max_new_tokens=96",
    (
        "task=long-tiny",
        "task.length=20",
    ): "task.length=20 is shorter than the longest prompt of task=long-tiny, which has",
    ("task=long-tiny", "task.entropy=some"): "task.entropy cannot be some (choices: low, mixed, high)",
    ("task=long-tiny", "task.pad_to=200"): "task.pad_to is not an option",
    ("task=gsm8k-tiny", "task.pad_to=600"): "task.pad_to=600 is more than the 512 tokens that a prompt may have",
    (
        "task=gsm8k-tiny",
        "task.pad_to=10",
    ): "task.pad_to=10 is shorter than the longest prompt of task=gsm8k-tiny, which has",
    ("task=gsm8k-tiny", "task.pad_to=0"): "pad_to must be a whole number",
}


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_an_impossible_length_is_one_sentence(words, tmp_path, capsys):
    assert main(["model=llama-tiny", *words, f"results={tmp_path}", "n=2", "timing=off"]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1, message
    assert REFUSED[words] in message
    assert not list(tmp_path.iterdir())
