"""scripts/zoo_tables.py: every rule of a run has its row, its order and its retention, and a mistaken word is one sentence."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from scripts import zoo_tables

ROOT = Path(__file__).parents[2]


def script(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/zoo_tables.py"), *words]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=env)


def test_a_mistaken_word_is_one_sentence(tmp_path):
    done = script("pair=llama-tiny", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("zoo_tables: pair is not an option")


@pytest.mark.long
def test_a_zoo_of_two_texts_has_every_rule_on_its_planes(tmp_path):
    done = script("runs=qwen-tiny/wmt-tiny", "temperatures=0", "n=2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    folder = tmp_path / "results/zoo/qwen-tiny-wmt-tiny-T0"
    committed = pd.read_csv(ROOT / "results/zoo/qwen-tiny-wmt-tiny-T0/summary.csv")
    rows = pd.read_csv(folder / "summary.csv")
    assert list(rows) == list(committed)
    assert rows["also"].dropna().tolist() == committed["also"].dropna().tolist() == ["ensemble w=1"]
    assert sorted(rows["verifier"] + rows["knobs"].fillna("")) == sorted(
        committed["verifier"] + committed["knobs"].fillna("")
    )
    for name in ("front.csv", "order.csv", "retention.csv", "pareto.svg", "pareto_speed.svg"):
        assert (folder / name).stat().st_size > 100
    assert "ensemble" in (tmp_path / "results/zoo/README.md").read_text()


@pytest.mark.results
def test_the_committed_tables_are_those_of_the_csv_files():
    folder = ROOT / "results/zoo"
    text, _, made = (folder / "README.md").read_text().partition(zoo_tables.MARKER)
    assert made.strip() == zoo_tables.text_of(folder).strip()
    rows = pd.read_csv(folder / "llama-tiny-gsm8k-tiny-T1/summary.csv")

    def row_of(rule: str, value: float | None) -> pd.Series:
        is_at = rows["value"].isna() if value is None else rows["value"] == value
        return rows[(rows["verifier"] == rule) & is_at].iloc[0]

    for rule, value in (("typical", 0.05), ("mars", 0.3), ("lenience", 0.2)):
        kept = row_of(rule, value)
        assert 0.93 <= round(kept["acceptance"], 2) <= 0.94
        assert 4.8 <= round(kept["tokens_per_round"], 1) <= 4.9
        assert 2.9 <= round(kept["speedup"], 1) <= 3.0
        assert kept["difference"] >= 0
    lossless, ensemble = row_of("lossless", None), row_of("ensemble", 0.2)
    assert [round(lossless[name], 2) for name in ("acceptance", "tokens_per_round", "speedup")] == [0.70, 2.85, 1.54]
    assert [round(ensemble[name], 2) for name in ("acceptance", "difference")] == [0.95, -0.48]
    assert round(row_of("ensemble", 0.95)["difference"], 3) == -0.105
    assert "loses 48 points" in text


@pytest.mark.results
def test_every_committed_setting_says_its_knob_and_value():
    without = {"block", "exact-match", "lossless", "target", "draft", "generate"}
    for path in (ROOT / "results/zoo").glob("*/summary.csv"):
        rows = pd.read_csv(path)
        swept = rows[~rows["verifier"].isin(without)]
        assert swept[["knob", "value"]].notna().all(axis=None)
        assert not swept.duplicated(["verifier", "knob", "value"]).any()
