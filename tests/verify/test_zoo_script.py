"""scripts/zoo_tables.py: every rule of a run has its row, its order and its retention, and a mistaken word is one sentence."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]


def script(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/zoo_tables.py"), *words]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=env)


def test_a_mistaken_word_is_one_sentence(tmp_path):
    done = script("pair=llama-tiny", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("zoo_tables: pair is not an option")


@pytest.mark.slow
def test_a_zoo_of_two_texts_has_every_rule_on_its_planes(tmp_path):
    done = script("runs=qwen-tiny/wmt-tiny", "temperatures=0", "n=2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    folder = tmp_path / "results/zoo/qwen-tiny-wmt-tiny-T0"
    committed = pd.read_csv(ROOT / "results/zoo/qwen-tiny-wmt-tiny-T0/summary.csv")
    rows = pd.read_csv(folder / "summary.csv")
    assert list(rows) == list(committed)
    assert sorted(rows["verifier"] + rows["knobs"].fillna("")) == sorted(
        committed["verifier"] + committed["knobs"].fillna("")
    )
    for name in ("front.csv", "order.csv", "retention.csv", "pareto.svg", "pareto_speed.svg"):
        assert (folder / name).stat().st_size > 100
    assert "| ensemble |" in (tmp_path / "results/zoo/README.md").read_text()
