"""What rules cost beside `Exact`, as committed; `scripts/bench_engine.py rules=all` makes the figures anew."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sdbench.config import config_dir
from sdbench.imports import import_object

RECORD = Path(__file__).parents[2] / "results/benchmarks/rules-llama-tiny-cpu-float32.json"
FIGURES = {figure["name"]: figure["median"] for figure in json.loads(RECORD.read_text())["figures"]}
MOST = {
    "a round of 32 rows, 4 families, over Exact alone": 1.3,
    "a round of 32 rows, all rules, over Exact alone": 2.0,
    "a round of 32 rows, diversed over the static ensemble": 1.15,
    "a round of 1 rows, diversed over the static ensemble": 1.1,
}
RAW = {
    "cascade-chow",
    "cascade-diff",
    "cascade-opt",
    "cascade-v1",
    "cascade-v2",
    "cascade-v3",
    "fsd-js",
    "fsd-kl",
    "fsd-tv",
}
# `sure` costs what the rule in it costs, and is for drafter=tiers.
NAMES = sorted({path.stem for path in (config_dir() / "verifier").glob("*.yaml")} - {"sure"})


@pytest.mark.results
@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("what", MOST)
def test_mixed_batches_cost_little(what, temperature):
    assert FIGURES[f"T={temperature}: {what}"] <= MOST[what]


@pytest.mark.results
@pytest.mark.parametrize("name", NAMES)
def test_a_rule_takes_a_tenth_of_a_round_or_says_why_not(name):
    tree = yaml.safe_load((config_dir() / "verifier" / f"{name}.yaml").read_text())
    shares = [FIGURES.get(f"T={temperature}: {name}, share of a round at batch 1") for temperature in (0, 1)]
    assert any(shares)
    if max(share for share in shares if share) > 0.1:
        assert "a tenth of a round" in " ".join((import_object(tree["_target_"]).__doc__ or "").split())


@pytest.mark.results
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("exact", "asd")])  # asd is for T = 0 alone
def test_a_rule_needs_little_memory(name):
    assert FIGURES[f"T=1: {name}, peak of memory over Exact's, V = 128,256"] <= (1.6 if name in RAW else 1.15)


@pytest.mark.slow
def test_rules_need_nothing_but_torch():
    """So that they load in a tenth of a second beyond it."""
    code = "import sys, torch; a = set(sys.modules); import sdbench.verify; print({m.split('.')[0] for m in set(sys.modules) - a})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{'sdbench'}"
