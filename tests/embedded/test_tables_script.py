"""The script behind results/embedded: one table a pair, task and temperature, every score of each cell, nothing decoded twice."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]


def tables(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "scripts/embedded_tables.py", f"runs={folder}/runs", f"out={folder}/out", *words]
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=folder, check=False)


@pytest.mark.slow
def test_a_sweep_of_two_rows_makes_both_tables_with_the_score_for_substance(tmp_path):
    words = ("pairs=llama-tiny", "tasks=wmt-tiny", "parts=quality", "n=2")
    made = tables(tmp_path, *words)
    assert made.returncode == 0, made.stderr
    for name, temperature in (("llama-tiny-wmt-tiny", 1), ("llama-tiny-wmt-tiny-greedy", 0)):
        summary = pd.read_csv(tmp_path / "out" / name / "summary.csv")
        assert set(summary["temperature"]) == {temperature}
        assert len(summary[summary["verifier"] == "ensemble"]) == (7 if temperature else 12)
        assert summary.set_index("verifier").at["lossless", "also"] == "ensemble w=1"
        scores = pd.read_csv(tmp_path / "out" / name / "metrics.csv")
        assert {"bleu", "chrf2", "facts"} <= set(scores["metric"])
        assert set(scores["cell"]) <= set(summary["cell"])
    assert (tmp_path / "out/llama-tiny-wmt-tiny-greedy/pareto.svg").stat().st_size > 10_000
    records = sorted((tmp_path / "runs").rglob("*.parquet"))
    assert tables(tmp_path, *words).returncode == 0
    assert sorted((tmp_path / "runs").rglob("*.parquet")) == records


def test_a_mistaken_word_is_one_sentence(tmp_path):
    refused = tables(tmp_path, "pairs=llama")
    assert refused.returncode == 2
    assert refused.stderr == "embedded_tables: pairs must be among llama-tiny, qwen-tiny, gemma-tiny, got llama\n"
