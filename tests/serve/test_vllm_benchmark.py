"""The committed costs of our client and our plug-in beside vLLM's own; scripts/bench_vllm.py measures them anew."""

import json
from pathlib import Path

import pytest

from scripts import bench_vllm

RESULTS = Path(__file__).parents[2] / "results" / "benchmarks"
TREE = json.loads((RESULTS / "vllm.json").read_text())


@pytest.mark.results
def test_the_client_keeps_the_tokens_a_second_of_vllms_own():
    client = TREE["client"]
    assert len(client["pairs"]) >= 5
    assert client["ratio"] == bench_vllm.spread(client["pairs"])
    assert client["ratio"]["median"] >= 0.98
    assert all(abs(ours / theirs - 1) < 0.01 for ours, theirs in client["tokens"]), "the same texts up to near-ties"


@pytest.mark.results
def test_a_step_with_the_plugin_costs_at_most_a_tenth_more():
    assert set(TREE["steps"]) == {"T = 0", "T = 1", "T = 1, a seed for each request"}
    for step in TREE["steps"].values():
        assert len(step["pairs"]) >= 5
        assert step["ratio"] == bench_vllm.spread(step["pairs"])
        assert step["ratio"]["median"] <= 1.10


@pytest.mark.results
def test_the_page_is_that_of_the_figures():
    assert (RESULTS / "vllm.md").read_text() == bench_vllm.page(TREE)


def test_a_slip_is_one_sentence(capsys):
    with pytest.raises(SystemExit) as ended:
        bench_vllm.main(["repeats=5"])
    assert ended.value.code == 2
    assert "python names no interpreter" in capsys.readouterr().err
