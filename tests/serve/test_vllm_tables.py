"""The comparison of two engines: differences by example, equal within a margin only where their intervals say so."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scripts import vllm_cpu, vllm_tables
from sdbench import embedded
from sdbench.cli import main
from sdbench.metrics.stats import Estimate
from sdbench.records import read

ROOT = Path(__file__).parents[2]


@pytest.mark.filterwarnings("ignore:invalid value")  # a slot that was never examined has no rate
@pytest.mark.usefixtures("no_figures")
def test_a_run_differs_from_itself_in_nothing(served_words, tmp_path):
    words = served_words(tmp_path, verifier="ensemble", w="[0.5,1]", **{"verifier.greedy": "mixture"})
    assert main(words) == 0
    results = read(tmp_path / "micro-gsm8k-tiny")
    table = vllm_tables.compare(results, results)
    texts = table[table["measure"] == "equal_texts"]
    assert list(texts["verifier"]) == ["draft", "ensemble", "lossless", "target"], "at w = 0.5 the rule draws"
    assert (texts["native"] == 3).all()
    assert (texts["vllm"] == 3).all()
    assert (table["difference"].dropna() == 0).all()
    slots = table[table["measure"].str.startswith("acceptance_slot_")]
    assert set(slots["measure"]) == {f"acceptance_slot_{slot}" for slot in (1, 2, 3)}
    assert not table["is_equivalent"].dropna().any(), "three examples show nothing"


def test_a_gap_is_that_of_the_ratios_of_sums():
    first = pd.DataFrame({"a": [1.0, 3.0, 2.0], "b": [2.0, 4.0, 4.0]}, index=["x", "y", "z"])
    second = pd.DataFrame({"a": [4.0, 1.0], "b": [4.0, 4.0]}, index=["y", "x"])
    estimate = vllm_tables.gap(first, second, 1, level=0.95)
    assert estimate.n == 2
    assert estimate.value == pytest.approx(5 / 8 - 4 / 6)


@pytest.mark.parametrize(("low", "high", "is_equivalent"), [(-0.02, 0.029, True), (-0.02, 0.031, False)])
def test_equal_is_an_interval_within_the_margin(low, high, is_equivalent):
    gaps = [Estimate(0.0, -1.0, 1.0, 9), Estimate(0.0, low, high, 9)]
    assert vllm_tables.row_of("acceptance", (0.7, 0.7), gaps, 0.03)["is_equivalent"] is is_equivalent
    assert vllm_tables.row_of("tokens_per_round", (0.7, 0.7), gaps, None)["is_equivalent"] is None
    nothing = [Estimate(0.0, np.nan, np.nan, 1)] * 2
    assert vllm_tables.row_of("acceptance", (0.7, 0.7), nothing, 0.03)["is_equivalent"] is False


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "python names no interpreter"),
        (["python=p", "tasks=gsm9k"], "tasks must be among"),
        (["python=p", "temperatures=0.5"], "temperatures must be among 0, 1"),
        (["pythn=p"], "pythn is not an option"),
    ],
)
def test_a_slip_is_one_sentence(words, says, capsys):
    with pytest.raises(SystemExit) as ended:
        vllm_tables.main(words)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_servers_of_scripts_and_documents_have_room_for_every_text_of_the_tiny_pairs():
    """A shorter context is refused where a prompt with max_new_tokens does not fit, whatever the answers are."""
    sizes = {
        json.loads((embedded.path(pair, role) / "config.json").read_text())["max_position_embeddings"]
        for pair in embedded.PAIRS
        for role in ("target", "draft")
    }
    (size,) = sizes
    assert vllm_cpu.ARGS["max_model_len"] == size
    pages = [(ROOT / name).read_text() for name in ("docs/engines.md", "results/README.md")]
    lengths = re.findall(r"engine\.args\.max_model_len=(\d+)|--max-model-len (\d+)", " ".join(pages))
    assert len(lengths) == 5
    assert all(int(one or other) >= size for one, other in lengths)
