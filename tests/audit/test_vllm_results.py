"""What the audit says of texts that vLLM sampled; `python -m scripts.audit_vllm` draws them anew where vLLM is installed."""

import json
from pathlib import Path

import pytest

from scripts import audit_vllm

RESULTS = Path(__file__).parents[2] / "results" / "audit"
TREE = json.loads((RESULTS / "vllm.json").read_text())
CASES = {case["name"]: case for case in TREE["cases"]}


@pytest.mark.results
@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("alone", "sound"),
        ("speculating", "violated"),
        ("plugin-w1", "sound"),
        ("plugin-w05", "violated"),
        ("wrong-residual", "violated"),
    ],
)
def test_the_audit_finds_the_garbage_and_the_planted_fault_and_passes_what_is_right(name, verdict):
    case = CASES[name]
    assert case["verdict"] == verdict
    assert [row["claim"] for row in case["rows"]] == ["prefixes", "pit"]
    assert case["texts"] == TREE["n"] * TREE["prompts"]


@pytest.mark.results
def test_garbage_is_no_small_difference():
    effects = {name: max(row["effect"]["value"] for row in case["rows"]) for name, case in CASES.items()}
    assert effects["speculating"] > 0.5
    assert max(effects["alone"], effects["plugin-w1"]) < 0.05
    assert TREE["expands"] is False, "the cause, asked without a model"


@pytest.mark.results
def test_the_page_is_that_of_the_figures():
    assert (RESULTS / "vllm.md").read_text() == audit_vllm.page(TREE)
    assert set(CASES) == {case.name for case in audit_vllm.CASES}


@pytest.mark.parametrize(
    ("words", "says"), [([], "python names no interpreter"), (["python=p", "n=0"], "n must be a number above 0")]
)
def test_a_slip_is_one_sentence(words, says, capsys):
    with pytest.raises(SystemExit) as ended:
        audit_vllm.main(words)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err
