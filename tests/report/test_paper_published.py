"""Published numbers: every row has a source and its doubts, and the file that ships is the one that is read."""

import re
from pathlib import Path

import pytest

from scripts.paper import numbers as published
from scripts.paper.cells import TEXTS
from sdbench.config import config_dir


@pytest.fixture(scope="module")
def rows():
    return published.read_published()


def test_every_row_is_in_range_and_has_its_source(rows):
    assert rows["source"].value_counts().to_dict() == {"logs": 67, "readme": 48, "digest": 2, "issue": 2}
    for column, low, high in (("acceptance", 0, 1), ("quality", 0, 100), ("w", 0, 1), ("temperature", 0, 1)):
        known = rows[column].dropna()
        assert known.between(low, high).all(), column
    assert rows["num_draft"].dropna().between(3, 20).all()
    assert (rows["quality"].isna() | (rows["metric"] != "")).all()


def test_names_are_ours(rows):
    for group in ("model", "task"):
        assert {name for name in rows[group] if name} <= {path.stem for path in (config_dir() / group).glob("*.yaml")}


def test_every_acceptance_is_marked_as_undefined(rows):
    assert (rows["acceptance"].notna() == published.doubtful(rows, "definition")).all()
    too_high = rows["acceptance"] > rows["num_draft"] / (rows["num_draft"] + 1)
    assert too_high.sum() == 22  # so it cannot be accepted / (drafted + 1), which their code suggests


def test_caveats_stay_with_their_rows(rows):
    assert published.doubtful(rows, "caption").equals(rows["place"] == "Table 3")
    assert published.doubtful(rows, "logit-mix").equals(
        (rows["source"] == "logs") & rows["method"].isin(["static", "diversed"])
    )
    assert published.doubtful(rows, "approximate").sum() == 2
    broken = rows[published.doubtful(rows, "broken")]
    assert list(zip(broken["w"], broken["acceptance"], strict=True)) == [(1.0, 0.0)]


def test_single_values_are_those_of_the_source(rows):
    table = rows[(rows["place"] == "Table 1") & (rows["model"] == "llama") & (rows["task"] == "xsum")]
    assert list(zip(table["method"], table["acceptance"], table["quality"], strict=True)) == [
        *(("sd", 0.2044, 7.09), ("sd-finetuned", 0.3541, 6.95), ("diversed", 0.7053, 7.23)),
    ]


def test_the_file_uses_the_words_that_are_explained(rows):
    assert set(rows["source"]) == set(TEXTS["sources"])
    assert set(rows["method"]) <= set(TEXTS["methods"])
    readme = (Path(published.__file__).parent / "published" / "README.md").read_text(encoding="utf-8")
    explained = re.findall(r"^\| `([\w-]+)` \| ", readme.partition("## What is doubtful")[2], re.M)
    assert {doubt for doubts in rows["doubts"] for doubt in doubts.split()} == {*explained} - {"doubts"}
    assert set(published.PUBLISHED_NUMBERS) <= set(rows)
