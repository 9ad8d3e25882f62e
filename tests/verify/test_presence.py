"""A rule that needs no head is present: at T = 0 and T = 1, if it is for both, it passes the audit in a mixed batch, on a trained
and on the random pair, and has its rows in results/zoo for each of the three pairs. One with a head ships with one, passes the
audit on its pair, and is compared in results/learned. `sure` is no rule for the draft model's drafts: tests/draft/test_tiers.py.
"""

import json
from pathlib import Path

import pandas as pd
import pytest
import yaml

from scripts import audit_matrix
from sdbench.config import config_dir
from sdbench.verify import Head
from tests.contracts.parts import parts

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (config_dir() / "verifier").glob("*.yaml"))
TEMPERATURES = {"zero": ["0"], "above_zero": ["1"]}  # of a rule with this limit


def trees(name: str) -> dict[str, object]:
    return yaml.safe_load((config_dir() / "verifier" / f"{name}.yaml").read_text())


RUNS = ("gemma-tiny-humaneval-tiny", "llama-tiny-gsm8k-tiny", "qwen-tiny-wmt-tiny")
LEARNED = {  # the kind of its head, the table, and what it is called there
    "diversed": ("ensemble", "ensemble", "published"),
    "judge": ("judge", "judge", "mined"),
}
WITHOUT_HEAD = [name for name in NAMES if "head" not in trees(name) and name != "sure"]  # which needs drafter=tiers


def temperatures(name: str) -> list[str]:
    named = next(named for named in parts("verifier") if named.name == name)
    return TEMPERATURES.get(named.make(**named.settings()[0]).limits.temperature, ["0", "1"])


@pytest.mark.results
@pytest.mark.parametrize("name", WITHOUT_HEAD)
def test_it_has_its_rows_in_the_zoo(name):
    """`exact` is every run's lossless baseline."""
    for temperature in temperatures(name):
        runs = sorted((ROOT / "results/zoo").glob(f"*-T{temperature}/summary.csv"))
        assert [run.parent.name for run in runs] == [f"{run}-T{temperature}" for run in RUNS]
        for run in runs:
            rows = pd.read_csv(run)
            own = rows[rows["verifier"] == ("lossless" if name == "exact" else name)]
            assert len(own), f"{name} in {run.parent.name}"
            assert (own["n"] == 200).all()
            assert own["acceptance"].between(0, 1).all()
            assert own["quality"].notna().all()


@pytest.mark.results
@pytest.mark.parametrize("pair", ["", "-llama-tiny"])
@pytest.mark.parametrize("name", WITHOUT_HEAD)
def test_it_passes_the_audit(name, pair):
    """`python -m scripts.audit_matrix` wrote what is read here."""
    lines = json.loads((ROOT / f"results/audit/matrix{pair}.json").read_text())["lines"]
    own = [line for line in lines if line["rule"] == name]
    assert {line["verdict"] for line in own} <= {"sound", "not applicable"}
    assert {line["temperature"] for line in own if line["verdict"] == "sound"} >= set(temperatures(name))


@pytest.mark.slow
@pytest.mark.parametrize("temperature", ["0", pytest.param("1", marks=pytest.mark.long)])
def test_it_passes_the_audit_today(temperature):
    """All of them in one batch of the random pair, at a coarser power than the committed matrix has."""
    lines = audit_matrix.run("model", temperature, "", WITHOUT_HEAD, tv=0.3)
    verdicts = {line["rule"]: line["verdict"] for line in lines}
    able = {name for name in WITHOUT_HEAD if temperature in temperatures(name)}
    assert {name for name, verdict in verdicts.items() if verdict == "sound"} == able
    assert set(verdicts.values()) <= {"sound", "not applicable"}


@pytest.mark.results
@pytest.mark.parametrize("name", LEARNED)
def test_a_rule_with_a_head_is_present(name):
    """One ships, and this very one passes the audit on its pair at T = 0 and 1 and is compared on 500 examples."""
    kind, part, trained = LEARNED[name]
    label = Head.load("embedded:llama-tiny/gsm8k-tiny", kind).label
    lines = json.loads((ROOT / "results/audit/matrix-llama-tiny.json").read_text())["lines"]
    own = [(line["temperature"], line["verdict"], line["head"]) for line in lines if line["rule"] == name]
    assert sorted(own) == [("0", "sound", label), ("1", "sound", label)]
    table = pd.read_csv(ROOT / f"results/learned/llama-tiny-gsm8k-tiny-{part}.csv")
    assert (table["n"] >= 500).all()
    stored = json.loads((ROOT / "results/learned" / f"llama-tiny-gsm8k-tiny-{part}.json").read_text())
    assert stored[trained]["head"] == label
