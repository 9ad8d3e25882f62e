"""A rule, a drafter and a task of two files each in a copy of the tree: nothing else is edited, and everything finds them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_COPIED = (
    ".git",
    ".venv",
    ".venv-parity",
    "results",
    "outputs",
    "multirun",
    "__pycache__",
    ".*_cache",
    ".hypothesis",
)
PARTS = {
    "verifier": ("verify", "rule", "MyRule"),
    "drafter": ("draft", "drafter", "MyDrafter"),
    "task": ("tasks", "task", "MyTask"),
}
SUITES = ["tests/contracts", "tests/test_config.py", "tests/test_architecture.py", "tests/verify/test_laws.py"]
LONG_SUITES = [
    "tests/verify",
    "tests/draft",
    "tests/audit",
    "tests/tasks",
    "tests/test_experiments.py",
    "tests/test_docs.py",
]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Return a copy of the tree with the parts of docs/examples as parts of the package, under other names."""
    copy = tmp_path_factory.mktemp("tree") / "sdbench"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*NOT_COPIED), symlinks=True)
    examples = ROOT / "docs" / "examples"
    for group, (room, noun, kind) in PARTS.items():
        source = (examples / f"my_{noun}.py").read_text()
        source = source.replace('.with_name("my_task.jsonl")', '.parents[2] / "docs/examples/my_task.jsonl"')
        (copy / "sdbench" / room / f"added_{noun}.py").write_text(source)
        text = (examples / "configs" / group / f"my-{noun}.yaml").read_text()
        text = text.replace(f"my_{noun}.{kind}", f"sdbench.{room}.added_{noun}.{kind}")
        (copy / "configs" / group / f"added-{noun}.yaml").write_text(
            text.replace(f"name: my-{noun}", f"name: added-{noun}")
        )
    return copy


def run(tree, *words, timeout=550):
    env = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=tree, env=env, capture_output=True, text=True, check=False, timeout=timeout
    )
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr


def test_contracts_configuration_and_architecture_hold(tree):
    run(
        tree,
        "pytest",
        "-q",
        "-x",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "-k",
        "added or test_architecture",
        *SUITES,
        "--ignore=tests/contracts/test_two_files.py",
        timeout=1100,
    )


def test_the_zoo_has_the_rule(tree):
    words = (
        "experiment=zoo",
        "model=llama-tiny",
        "task=gsm8k-tiny",
        "n=2",
        "max_new_tokens=16",
        "timing=off",
        "report=off",
    )
    run(tree, "sdbench", *words)
    cells = (tree / "results/zoo-llama-tiny-gsm8k-tiny-T1.0/summary.csv").read_text()
    assert "added-rule" in cells


def test_the_audit_takes_rule_and_drafter(tree):
    assert "added-rule" in run(tree, "sdbench.audit", "verifier=added-rule", "drafter=added-drafter", "tv=0.3")


def test_a_run_of_all_three_draws_the_page(tree):
    words = (
        "verifier=added-rule",
        "drafter=added-drafter",
        "task=added-task",
        "n=3",
        "max_new_tokens=16",
        "name=three",
    )
    run(tree, "sdbench", *words)
    assert (tree / "results/three/report.html").is_file()


@pytest.mark.long
def test_the_other_quick_tests_hold(tree):
    (tree / "results").mkdir(exist_ok=True)  # tests of committed figures read them
    listed = subprocess.run(["git", "ls-files", "results"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in {Path(line).parts[1] for line in listed.splitlines()}:
        (tree / "results" / name).symlink_to(ROOT / "results" / name)
    present = [suite for suite in (*SUITES, *LONG_SUITES) if (tree / suite).exists()]
    code = "not section_in_the_same_order"  # a drafter that is added here also gets a section of docs/drafters.md
    run(tree, "pytest", "-q", "-x", "-n", "2", "-p", "no:cacheprovider", "-k", code, *present, timeout=3600)
