"""The two commands of the README: what they install, when, where results go, what they say when something is missing."""

import importlib
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]
PYTHON = """#!/usr/bin/env bash
# The interpreter of the tests, but pip only notes what it was asked for.
if [ "$1 $2" = "-m pip" ]; then
  echo "$*" >> "{root}/asked"
  [ ! -e "{root}/offline" ] || { echo "ERROR: No matching distribution found for torch==2.13.0"; exit 1; }
  exit 0
fi
exec "{python}" "$@"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The scripts beside an environment that is made, and empty."""
    root = tmp_path / "project"
    (root / ".venv/bin").mkdir(parents=True)
    shutil.copytree(ROOT / "scripts", root / "scripts")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, root)
    python = root / ".venv/bin/python"
    python.write_text(PYTHON.replace("{root}", str(root)).replace("{python}", sys.executable))
    python.chmod(0o755)
    return root


def bash(script: Path, *words: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | env
    return subprocess.run(
        ["bash", script, *words], cwd=cwd, env=os.environ | own, capture_output=True, text=True, check=False
    )


def calls_of(project: Path) -> list[str]:
    return (project / "asked").read_text().splitlines()


@pytest.mark.slow
def test_the_first_command_installs_once_and_ends_with_a_setting_to_ship(project, tmp_path):
    """A knee: at T = 0 acceptance rises by a fifth without loss, then what is said is lost. Two processes share the texts."""
    elsewhere = tmp_path / "a folder of mine"
    elsewhere.mkdir()
    done = bash(project / "scripts/run", cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    assert "installing the pinned dependencies" in done.stderr
    again = bash(project / "scripts/run", "--help", cwd=elsewhere)
    assert (again.returncode, again.stderr) == (0, ""), "the second time it is silent about itself"
    words = f"-m pip install --disable-pip-version-check --no-input -c {project}/constraints.txt -e {project}"
    assert calls_of(project) == [words]
    answer = next(line for line in done.stdout.splitlines() if line.startswith("llama-tiny on cnndm-tiny: "))
    # Where other work disturbs the clock, the speed-up may stay unproven; that the setting is safe does not depend on it.
    assert re.search(r": ship ensemble w=0\.[67] |; ensemble w=0\.[67] K=5 is safe .* not proven", answer), answer
    run = elsewhere / "results/llama-tiny-cnndm-tiny"
    assert len(list((run / "records").glob("run-*.json"))) == 2
    cells = pd.read_csv(run / "summary.csv")
    assert set(cells["n"].dropna()) == {150}  # plain generate is timed alone
    quality, acceptance = (cells.set_index("value")[name] for name in ("quality", "acceptance"))
    lossless = cells[cells["verifier"] == "lossless"].iloc[0]
    assert acceptance[0.7] >= lossless["acceptance"] + 0.1
    assert quality[0.7] >= lossless["quality"] - 1
    assert quality[0.5] <= lossless["quality"] - 5


def test_what_changes_the_dependencies_installs_again(project):
    for _ in range(2):
        assert bash(project / "scripts/run", "--help", cwd=project).returncode == 0
    with (project / "constraints.txt").open("a") as pins:
        pins.write("# one more\n")
    assert bash(project / "scripts/run", "--help", cwd=project, SDBENCH_PIP_ARGS="--pre --no-cache").returncode == 0
    assert len(calls_of(project)) == 2
    assert "--pre --no-cache" in calls_of(project)[1]


def test_a_failed_installation_says_why_and_where_its_log_is_and_is_tried_again(project):
    (project / "offline").touch()
    failed = bash(project / "scripts/run", "--help", cwd=project)
    assert failed.returncode == 1
    assert failed.stderr.splitlines()[1:] == [
        "ERROR: No matching distribution found for torch==2.13.0",
        f"sdbench: the installation failed; its log is {project}/.venv/setup.log",
    ]
    (project / "offline").unlink()
    assert bash(project / "scripts/run", "--help", cwd=project).returncode == 0


@pytest.mark.parametrize("script", ["run", "test"])
def test_without_a_python_that_is_new_enough_it_is_one_sentence(project, script):
    shutil.rmtree(project / ".venv")
    old = project / "python3.9"
    old.write_text("#!/usr/bin/env bash\nexit 1\n")
    old.chmod(0o755)
    refused = bash(project / f"scripts/{script}", cwd=project, PYTHON=str(old))
    assert refused.returncode == 1
    assert refused.stderr.startswith("sdbench: Python 3.11 or newer is missing")
    assert refused.stderr.count("\n") == 1


def test_the_harnesses_are_installed_once(project):
    for _ in range(2):
        done = bash(project / "scripts/parity", cwd=project)
        assert done.returncode == 0, done.stderr
    assert len(calls_of(project)) == 3
    assert all(call.startswith("-m pip --python .venv-parity/bin/python install -q") for call in calls_of(project))


def test_test_asks_for_format_lint_types_and_tests_in_this_order(project):
    for name in ("ruff", "pyright"):
        tool = project / ".venv/bin" / name
        tool.write_text(f'#!/usr/bin/env bash\necho {name} "$@"\n')
        tool.chmod(0o755)
    python = project / ".venv/bin/python"
    python.write_text(python.read_text().replace(f'exec "{sys.executable}"', "echo"))
    quick, slow = (bash(project / "scripts/test", *words, "-x", cwd=project) for words in ([], ["slow"]))
    assert quick.stdout.splitlines() == [
        "ruff format --check .",
        "ruff check .",
        "pyright",
        "-m pytest -n 2 --dist worksteal -x",
    ]
    assert slow.stdout.splitlines() == [
        "-m pytest -n 2 --dist worksteal -m (slow or browser or results) and not long and not gpu -x",
    ]
    assert f"-e {project}[dev,cluster," in calls_of(project)[0]


COMMANDS = sorted(path.stem for path in (ROOT / "scripts").glob("*.py") if "__main__" in path.read_text())
PARTS = {"vllm_steps", "bench_rules", "bench_drafters"}  # processes that another script starts


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in PARTS])
def test_every_script_starts_both_ways_and_knows_help(name, capsys, monkeypatch):
    """One process for all: torch is imported once. The path comes before any import of the project."""
    lines = (ROOT / "scripts" / f"{name}.py").read_text().splitlines()
    number = lines.index("sys.path.insert(0, str(Path(__file__).parents[1]))")
    assert not [line for line in lines[:number] if line.startswith(("from sdbench", "from scripts", "from tests"))]
    importlib.import_module(f"scripts.{name}")
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "scripts" / f"{name}.py"), run_name="__main__")
    assert not ended.value.code
    assert "python " in capsys.readouterr().out


def test_the_table_of_scripts_names_each():
    table = (ROOT / "scripts" / "README.md").read_text()
    for path in (ROOT / "scripts").iterdir():
        assert path.name in {"README.md", "__pycache__"} or f"`{path.name}`" in table, path.name
