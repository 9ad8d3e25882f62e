"""A setting has one name, and the settings one order: at the terminal, on the page, in results.json and in the figures."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import lxml.html
import pytest

from sdbench.passes.table import print_table
from sdbench.records import read
from sdbench.report.build import worked_out, write
from sdbench.report.figures.decode import time_split
from sdbench.report.figures.style import house_style
from tests.records.synthetic import sweep, write_synthetic

NAMES = ["target alone", "plain generate", "lossless K=3", "lossless K=5"]
NAMES += [f"ensemble w={w} K={k}" for k in (3, 5) for w in (0.7, 0.3)] + ["draft alone"]


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    home = tmp_path_factory.mktemp("names") / "home"
    return worked_out([write_synthetic(home, n=6, ws=(0.3, 0.7), num_drafts=(3, 5), timing_examples=3)])


@pytest.mark.slow
def test_the_json_s_names_are_those_of_the_page(work, tmp_path):
    report = write(work, tmp_path)
    tree = lxml.html.document_fromstring(report.page.read_text(encoding="utf-8"))
    rows = tree.xpath("//table[contains(@class, 'sortable')]")[0].xpath(".//tbody/tr/th/text()")
    assert [row.strip() for row in rows] == NAMES
    document = json.loads((tmp_path / "results.json").read_text())
    assert {name.partition("@")[2].partition(" T=")[0] for name in document["results"]} == set(NAMES) - {
        "plain generate"
    }, "it was timed only"


def test_the_terminal_s_names_are_those_of_the_page(work, capsys):
    cells = sweep("llama-tiny", "gsm8k-tiny", ws=(0.3, 0.7), num_drafts=(3, 5), temperature=1.0)
    named = SimpleNamespace(name="any")
    run = SimpleNamespace(model=named, task=named, temperature=1.0, num_draft=(3, 5), seed=0)
    print_table(run, cells, work.summaries[0])
    lines = [re.split(r"\s{2,}", line.strip())[0] for line in capsys.readouterr().out.splitlines()]
    untimed = [name for name in NAMES if name != "plain generate"]  # no cell of the run
    assert [line for line in lines if line in NAMES] == untimed


@pytest.mark.parametrize(("unit", "head"), [("share", "strict, of 100"), ("raw", "strict ")])
def test_the_terminal_says_of_100_only_of_a_metric_that_is_shown_so(work, unit, head, capsys):
    cells = sweep("llama-tiny", "gsm8k-tiny", ws=(0.3, 0.7), num_drafts=(3, 5), temperature=1.0)
    keys = {cell.key: cell for cell in cells}
    cells = [replace(cell, metrics=[{**each, "unit": unit} for each in cell.metrics]) for cell in cells]
    frame = work.summaries[0]
    frame = frame.assign(cell=frame["cell"].replace(dict(zip(keys, (cell.key for cell in cells), strict=True))))
    named = SimpleNamespace(name="any")
    print_table(SimpleNamespace(model=named, task=named, temperature=1.0, num_draft=(3, 5), seed=0), cells, frame)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "tokens/round" in line)
    assert head in line


def test_the_figures_names_are_those_of_the_page(work):
    (first,) = work.sweeps
    with house_style():
        figure = time_split(first)
    assert figure is not None
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    shown = [name for name in first.cells["short"] if name in names]
    assert names == shown
    assert {"w=0.7 K=3", "lossless K=5", "target alone"} <= set(names)
    assert all(long.endswith(short) for long, short in zip(first.cells["label"], first.cells["short"], strict=True))


def test_the_names_are_those_of_the_records(work):
    assert list(work.sweeps[0].cells["label"]) == NAMES
    assert set(read(work.results[0].path).cells["cell"]) == set(work.sweeps[0].cells.index)
