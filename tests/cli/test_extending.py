"""The commands of docs/extending.md, each as a reader would type it: a rule, a drafter and a task from outside the package."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sdbench.cli.compose import Composer
from sdbench.records import Results, read

ROOT = Path(__file__).parents[2]
LINES = [line.strip() for line in (ROOT / "docs" / "extending.md").read_text().splitlines()]
COMMANDS = [shlex.split(line) for line in LINES if line.startswith("PYTHONPATH=docs/examples python -m sdbench")]


def test_rule_drafter_and_task_are_run_by_yaml_and_by_class():
    given = {word.partition("=")[0] for command in COMMANDS for word in command}
    assert given >= {"verifier", "drafter", "task", "verifier._target_", "drafter._target_", "task._target_"}


def test_a_class_on_the_command_line_takes_no_name_and_no_option_from_the_default_file():
    """Also where the run has options of the same name: `name` and `n` below are the run's, not the task's."""
    words = [
        "task._target_=my_task.MyTask",
        "verifier._target_=my_rule.MyRule",
        "drafter._target_=my_drafter.MyDrafter",
    ]
    run = Composer().run([*words, "drafter.ngram=3", "name=own", "n=2", "seed=1"])
    assert (run.task.name, run.task.options) == ("mytask", {})
    assert ([rule.name for rule in run.verifiers], run.drafters[0].name, run.drafters[0].options) == (
        ["myrule"],
        "mydrafter",
        {"ngram": 3},
    )


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[-1])
def test_a_command_runs_as_it_stands(command: list[str], tmp_path):
    variable, _, *words = command
    path = f"{ROOT}{os.pathsep}{variable.partition('=')[2]}"
    is_drawn = command is COMMANDS[0]
    small = ["n=3", "max_new_tokens=24", "timing=off", "name=run", f"results={tmp_path}"]
    small += [] if is_drawn else ["report=off"]
    done = subprocess.run(
        [sys.executable, *words, *small],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    results = read(tmp_path / "run")
    assert not results.problems
    assert (tmp_path / "run" / "report.html").exists() == is_drawn
    for word in words:
        check(word, results)


def check(word: str, results: Results) -> None:
    """That a part of one's own was used, and its version and source are in the key."""
    pairs = results.cells[~results.cells["verifier"].isin(["target", "draft"])]
    versions = [content["versions"] for content in pairs["content"]]
    group, _, name = word.partition("=")
    if group == "verifier.eps":
        own = results.cells[results.cells["verifier"].isin(["my-rule", "myrule"])]
        assert sorted(own["knob_eps"]) == [0.1, 0.4]
        assert all(content["versions"]["verifier"].startswith("1 source:") for content in own["content"])
    if group == "drafter._target_" or word == "drafter=my-drafter":
        assert all(each["drafter"].startswith("1 source:") for each in versions)
        assert results.generations["drafted"].sum() > 0
    if group == "task._target_" or word == "task=my-task":
        assert all(each["task"].startswith("1 source:") for each in versions)
        assert set(results.cells["metric"]) == {"exact"}
        assert results.generations["exact"].notna().all()
    if word == "model.draft=null":
        assert "draft" not in set(results.cells["verifier"])
    if name == "[ensemble,my-rule]":
        assert {"ensemble", "my-rule"} <= set(results.cells["verifier"])
