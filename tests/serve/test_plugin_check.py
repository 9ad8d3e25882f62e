"""`python -m sdbench.serve.plugin --check PYTHON`: what an environment for the plug-in must have."""

import sys
from pathlib import Path

import pytest

from sdbench.serve import plugin
from sdbench.serve.plugin import main

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("missing", ["sdbench", "sdbench_vllm"])
def test_a_package_that_is_missing_there_is_named_and_a_checkout_does_not_count(missing, tmp_path, monkeypatch, capsys):
    for name in {"vllm", "sdbench", "sdbench_vllm"} - {missing}:
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "__init__.py").touch()
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/site exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    monkeypatch.chdir(ROOT)
    assert main(["--check", str(python)]) == 2
    message = capsys.readouterr().err
    assert f" has no {missing}: " in message
    assert f"{python} -m pip install --no-deps . plugins/vllm installs both" in message


def test_a_check_that_does_not_end_is_one_sentence(tmp_path, monkeypatch, capsys):
    for name in ("vllm", "sdbench", "sdbench_vllm"):
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "__init__.py").touch()
    (tmp_path / "site" / "sdbench_vllm" / "__main__.py").write_text("import time; time.sleep(60)")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/site exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(plugin, "CHECK_S", 2)
    assert main(["--check", str(python)]) == 2
    assert capsys.readouterr().err == f"sdbench: {python} -m sdbench_vllm did not end in 2 s\n"
