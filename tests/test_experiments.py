"""Experiments: each makes the records that a table or figure asks for, and the commands for what is missing do too."""

import shlex
import subprocess
import sys

import pytest

import sdbench
from sdbench.config import config_dir
from sdbench.report import paper
from sdbench.report.paper import cells as paper_cells
from sdbench.report.paper import numbers as paper_numbers
from sdbench.report.paper.cells import ALL, TINY, WS
from sdbench.run.command import Command, parse
from sdbench.run.compose import Composer
from sdbench.run.help import text

FOLDER = config_dir() / "experiment"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


@pytest.fixture(scope="module")
def composer() -> Composer:
    return Composer()


def runs_of(composer, *words):
    return [composer.run(job) for job in composer.jobs(Command(words))]


def settings_of(run):
    """What paper_cells.lines_of asks for, as this run makes it."""
    ws = [setting["w"] for setting in run.verifiers[0].settings]
    return {("target", None, 0), ("draft", None, 0)} | {
        line for k in run.num_draft for line in (("lossless", None, k), *(("ensemble", w, k) for w in ws))
    }


@pytest.mark.parametrize("asked", ALL, ids=lambda asked: asked.name)
def test_an_experiment_makes_what_its_table_asks_for(composer, asked):
    runs = runs_of(composer, f"experiment={asked.experiment}")
    assert {(run.model.name, run.task.name) for run in runs} == {(m, t) for m in asked.models for t in asked.tasks}
    for run in runs:
        assert run.temperature == asked.temperature
        assert set(paper_cells.lines_of(asked)) <= settings_of(run)
        assert run.verifiers[0].settings[0].get("mix", "prob") == "prob"
        if asked.name.startswith("table"):
            assert run.task.options["protocol"] == "diversed"


TWIN = ("-m", "experiment=diversed-tiny", "temperature=1.0,0.1,0.0")


def test_the_tiny_twin_makes_all_of_it(composer):
    assert {run.temperature for run in runs_of(composer, "experiment=diversed-tiny")} == {1.0}
    runs = [composer.run(job) for job in composer.jobs(parse(TWIN))]
    assert len({run.folder for run in runs}) == len(runs) == 12
    assert {run.model.name for run in runs} == {"llama-tiny"}
    made = {(run.task.name, run.temperature): settings_of(run) for run in runs}
    for asked in ALL:
        for task in asked.tasks:
            assert set(paper_cells.lines_of(asked)) <= made[task + TINY, asked.temperature]


def test_the_command_for_what_is_missing_makes_it(composer):
    empty = paper_numbers.measured([])
    for asked in ALL:
        for lacking in paper_cells.missing(asked, empty, {}):
            command = parse(shlex.split(lacking.command)[3:])
            (run,) = [composer.run(job) for job in composer.jobs(command)]
            assert (run.model.name, run.task.name, run.temperature) == (lacking.model, lacking.task, asked.temperature)
            assert set(paper_cells.lines_of(asked)) <= settings_of(run)
        tiny = paper_cells.command_of(asked, "llama-tiny", asked.tasks[0] + TINY, {})
        (run,) = [composer.run(job) for job in composer.jobs(parse(shlex.split(tiny)[3:]))]
        assert set(paper_cells.lines_of(asked)) <= settings_of(run)
        assert (run.model.name, run.timing) == ("llama-tiny", None)


def test_a_study_is_narrowed_by_pair_task_and_n(composer):
    (run,) = runs_of(composer, "experiment=diversed-table2", "model=qwen", "task=xsum", "n=7")
    assert (run.model.name, run.task.name, run.n, run.temperature) == ("qwen", "xsum", 7, 0.1)


def test_help_and_readme_name_every_experiment():
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    listed = next(line for line in text().splitlines() if line.strip().startswith("experiment=") and "NAME" not in line)
    assert listed.split("=", 1)[1].split() == NAMES
    assert [name for name in NAMES if f"| `{name}` |" not in readme] == []
    assert {asked.experiment for asked in ALL} < set(NAMES)


def test_the_settings_of_a_table_belong_to_the_default_sweep(composer):
    run = composer.run(())
    assert set(WS) <= {round(setting["w"], 6) for setting in run.verifiers[0].settings}


@pytest.mark.long  # its quick stand-in: test_the_tiny_twin_makes_all_of_it
def test_the_tiny_twin_fills_the_paper(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "sdbench", *TWIN],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    paper.build_paper([tmp_path / "results"], tmp_path / "figures", resamples=500)
    results = [sdbench.read(folder) for folder in paper.folders_of([tmp_path / "results"])]
    cells = paper_numbers.measured(results, resamples=500)
    lacking = [one for asked in ALL for one in paper_cells.missing(asked, cells, {})]
    assert {one.model for one in lacking} == {"llama", "qwen"}
