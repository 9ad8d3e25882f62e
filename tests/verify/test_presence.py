"""A rule that needs no head has its rows in results/zoo, at T = 0 and T = 1 where it is for both; the README names the others."""

import re
from pathlib import Path

import pandas as pd
import pytest
import yaml

from sdbench.config import config_dir

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (config_dir() / "verifier").glob("*.yaml"))
ONE_TEMPERATURE = {"asd": "0", "mentored": "1"}  # their limits


def trees(name: str) -> dict[str, object]:
    return yaml.safe_load((config_dir() / "verifier" / f"{name}.yaml").read_text())


WITHOUT_HEAD = [name for name in NAMES if "head" not in trees(name)]


def temperatures(name: str) -> list[str]:
    return [ONE_TEMPERATURE[name]] if name in ONE_TEMPERATURE else ["0", "1"]


@pytest.mark.parametrize("name", WITHOUT_HEAD)
def test_it_has_its_rows_in_the_zoo(name):
    """`exact` is every run's lossless baseline."""
    for temperature in temperatures(name):
        runs = sorted((ROOT / "results/zoo").glob(f"*-T{temperature}/summary.csv"))
        assert runs
        for run in runs:
            rows = pd.read_csv(run)
            own = rows[rows["verifier"] == ("lossless" if name == "exact" else name)]
            assert len(own), f"{name} in {run.parent.name}"
            assert (own["n"] == 200).all()
            assert own["acceptance"].between(0, 1).all()
            assert own["quality"].notna().all()


def test_the_readme_names_what_is_missing():
    text = " ".join((ROOT / "README.md").read_text().split())
    (said,) = re.findall(r"count as \*missing\*: ([^.]*)\.", text)
    assert sorted(re.findall(r"`([a-z0-9-]+)`", said)) == sorted(set(NAMES) - set(WITHOUT_HEAD))
