"""The notebook runs from its first cell to its last, on made-up records (quick) and on those it makes itself (slow)."""

import math
import os
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pandas as pd
import pytest
from nbclient import NotebookClient

from sdbench.report.figures import DRAW
from tests.records.synthetic import write_synthetic

PATH = Path(__file__).parents[1] / "notebooks" / "explore.ipynb"


def executed(folder, where):
    """The notebook after a run in a kernel of its own; `folder` None: it makes its records."""
    book = nbformat.read(PATH, as_version=4)
    client = NotebookClient(book, timeout=1200, kernel_name="python3", resources={"metadata": {"path": str(where)}})
    environment = {name: value for name, value in os.environ.items() if name != "SDBENCH_FOLDER"}
    environment |= {} if folder is None else {"SDBENCH_FOLDER": str(folder)}
    with client.setup_kernel(env=environment):
        for index, cell in enumerate(book.cells):
            client.execute_cell(cell, index)
    return book


def outputs(book):
    return [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]


def check(book):
    """Five pictures, the table of the laws, an answer with its marks, three margins, and no complaint."""
    cells = outputs(book)
    assert sum("image/png" in output.get("data", {}) for output in cells) == 5
    assert any("acceptance_law" in output.get("data", {}).get("text/html", "") for output in cells)
    assert not [output for output in cells if output.get("name") == "stderr"]
    printed = "".join(output.text for output in cells if output.get("name") == "stdout")
    assert re.search(r"\d+ cells, \d+ generations; one answer at w = 0\.\d", printed)
    assert re.findall(
        r"^margin (\d+): llama-tiny on \w+-tiny: (?:ship|stay|none|do not speculate)", printed, re.MULTILINE
    ) == [
        "5",
        "15",
        "25",
    ]


@pytest.mark.slow
def test_it_runs_on_a_folder_of_ones_own(tmp_path):
    folder = write_synthetic(tmp_path / "llama-tiny-gsm8k-tiny", n=60, ws=(0.3, 0.6, 1.0), timing_examples=0)
    check(executed(folder, tmp_path))


@pytest.mark.slow
def test_a_greedy_folder_without_an_ensemble_shows_what_it_has(tmp_path):
    folder = write_synthetic(tmp_path / "greedy", n=20, ws=(), epsilons=(0.3,), temperature=0.0, timing_examples=0)
    cells = outputs(executed(folder, tmp_path))
    printed = "".join(output.text for output in cells if output.get("name") == "stdout")
    assert "; one answer of lossless:\n" in printed
    for name in ("laws", "bound", "predicted"):
        assert f"The figure {name} is left out: these records do not have what it shows.\n" in printed
    assert not any(output.get("data", {}).get("text/plain") == "None" for output in cells)
    assert sum("image/png" in output.get("data", {}) for output in cells) == 2


def code_of(number):
    """The source of a cell that runs code, without the commands of IPython."""
    cells = [cell.source for cell in nbformat.read(PATH, as_version=4).cells if cell.cell_type == "code"]
    return re.sub(r"^%.*$", "", cells[number], flags=re.MULTILINE)


@pytest.mark.parametrize(("origins", "printed"), [([0, 1, 2, 3], " a[ b]( c)< d>"), (None, " a b c d")], ids=str)
def test_an_answer_is_printed_with_sure_drafts_and_without_known_origins(origins, printed, monkeypatch, capsys):
    """The rule `sure` keeps drafts unjudged; a server may not report which tokens were drafted."""
    cells = pd.DataFrame({"cell": ["c"], "num_draft": [5], "verifier": ["sure"], "w": [math.nan], "model": ["m"]})
    tokens = pd.DataFrame({"cell": ["c"], "ids": [[0, 1, 2, 3]], "origin": [origins]})
    results = SimpleNamespace(
        cells=cells, tokens=tokens, generations=tokens, vocabulary={"m": [" a", " b", " c", " d"]}
    )
    monkeypatch.setenv("SDBENCH_FOLDER", "anywhere")
    monkeypatch.setattr("sdbench.read", lambda folder: results)
    exec(code_of(0), {})
    assert capsys.readouterr().out == f"1 cells, 1 generations; one answer of sure:\n{printed}\n"


def test_every_figure_that_is_left_out_is_named(capsys):
    definition = re.search(r"^def show\(.*?(?=^\S)", code_of(1), re.MULTILINE | re.DOTALL)
    assert definition is not None
    drawn = SimpleNamespace(DRAW=dict.fromkeys(DRAW, lambda sweep: None))
    names = {"figures": drawn, "house_style": nullcontext, "sweep": None}
    exec(definition[0], names)
    shown = re.findall(r"^show\((.*)\)", "\n".join(map(code_of, range(5))), re.MULTILINE)
    assert len(shown) == 5
    for name in shown:
        eval(f"show({name})", names)
        assert f"The figure {name.strip(chr(34))} is left out" in capsys.readouterr().out


@pytest.mark.long  # its quick stand-in is above
def test_it_makes_its_own_records(tmp_path):
    check(executed(None, tmp_path))


def test_it_is_ten_cells_that_can_be_read_without_running_and_name_no_places():
    book = nbformat.read(PATH, as_version=4)
    nbformat.validate(book)
    assert [cell.cell_type for cell in book.cells] == ["markdown", "code"] * 5
    check(book)
    printed = "".join(output.text for output in outputs(book) if output.get("name") == "stdout")
    assert "ship ensemble w=" in printed, "a reader sees a recommendation"
    text = PATH.read_text(encoding="utf-8")
    assert not re.search(r"/(home|root|work|tmp|Users|mnt)/", text)
    assert len(text) < 1_500_000


def test_it_uses_public_names_alone():
    source = "\n".join(cell.source for cell in nbformat.read(PATH, as_version=4).cells if cell.cell_type == "code")
    modules = set(re.findall(r"^(?:from|import) (sdbench[\w.]*)", source, re.MULTILINE))
    assert all(module.split(".")[1:2] in ([], ["metrics"], ["report"]) for module in modules)
    assert not re.search(r"\b_[a-z]\w*|torch|transformers", source)
