"""The example browser's data: the right examples, every text and token of them, in few bytes, whatever the texts hold."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sdbench.metrics.summary import summarise
from sdbench.records import read
from sdbench.report.page import browser as browsers
from sdbench.report.page.browser import browse, changes, choose, pack, script_json
from sdbench.report.sweep import Sweep, sweeps_of
from tests.records.synthetic import write_synthetic
from tests.report.pages import unpacked


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("results") / "llama-tiny-gsm8k-tiny"
    return write_synthetic(home, n=24, ws=(0.0, 0.5, 1.0), timing_examples=0)


def sweeps_in(folder: Path) -> list[Sweep]:
    results = read(folder)
    return sweeps_of([results], [summarise(results, resamples=20)])


@pytest.fixture(scope="module")
def sweep(folder):
    (one,) = sweeps_in(folder)
    return one


def test_cells_are_read_from_the_target_to_the_draft(sweep):
    assert list(sweep.cells["label"]) == [
        "target alone",
        "lossless K=5",
        "ensemble w=1 K=5",
        "ensemble w=0.5 K=5",
        "ensemble w=0 K=5",
        "draft alone",
    ]


def test_the_largest_changes_come_first_then_a_sample_of_the_rest():
    change = pd.Series([0.0, -3.0, 2.0, 0.0, np.nan, 1.0], index=list("abcdef"))
    picked = choose(change, 4, seed=0)
    assert list(picked["example"][:2]) == ["b", "c"]
    assert list(picked["is_change"]) == [True, True, False, False]
    assert set(picked["example"][2:]) <= set("adef")
    assert choose(change, 4, seed=0).equals(picked)
    assert list(choose(change, 99, seed=1)["example"][:3]) == ["b", "c", "f"]
    assert len(choose(change, 99, seed=1)) == 6


def test_a_change_is_that_of_the_setting_that_moved_it_most(sweep):
    scores = browsers.by_example(sweep.results.generations, sweep)
    expected = {}
    for example, row in scores.iterrows():
        by_label = dict(zip(sweep.cells["label"], row, strict=True))
        moved = [
            by_label[name] - by_label["lossless K=5"]
            for name in ("ensemble w=1 K=5", "ensemble w=0.5 K=5", "ensemble w=0 K=5")
        ]
        expected[example] = max(moved, key=abs)
    pd.testing.assert_series_equal(changes(scores, sweep), pd.Series(expected), check_names=False)


def test_every_text_is_there_with_every_token(sweep):
    browser = browse([sweep], {}, room=10**7)
    (group,) = browser.groups
    texts = sweep.results.generations.set_index(["cell", "example"])["text"]
    assert len(group["examples"]) == 24
    assert browser.notes == []
    for listed in group["examples"]:
        example = unpacked(browser.chunks[listed["chunk"]])
        assert example["prompt"].startswith(f"Question {listed['id']}:")
        assert "####" in example["reference"]
        assert [text["cell"] for text in example["texts"]] == list(range(6))
        for text in example["texts"]:
            key = group["cells"][text["cell"]]["key"]
            assert "".join(text["pieces"]) == texts[key, listed["id"]]
            assert len(text["origins"]) == len(text["pieces"]) == text["tokens"]
            assert text["origins"].count("a") == text["accepted"]
            assert len(text["refused"]) == text["origins"].count("r")
            if "p" in text:
                assert (
                    len(text["p"]) == len(text["q"]) == len(text["tv"]) == text["tokens"] - text["origins"].count("b")
                )


def test_p_and_q_are_those_of_the_records(sweep):
    browser = browse([sweep], {}, room=10**7)
    group = browser.groups[0]
    place = [cell["label"] for cell in group["cells"]].index("ensemble w=0 K=5")
    listed = group["examples"][0]
    text = unpacked(browser.chunks[listed["chunk"]])["texts"][place]
    tokens = sweep.results.tokens.set_index(["cell", "example"]).loc[(group["cells"][place]["key"], listed["id"])]
    kept = [round(1000 * p) for p in tokens["p"]]  # w = 0 keeps every draft, so positions are in order
    assert [p for p, origin in zip(text["p"], text["origins"].replace("b", ""), strict=True)] == kept[: len(text["p"])]


def test_what_has_no_room_is_left_out_aloud(sweep):
    browser = browse([sweep], {}, room=20_000)
    assert 0 < len(browser.chunks) < 24
    assert sum(map(len, browser.chunks)) <= 20_000
    assert "examples are shown" in browser.notes[0]


def test_without_token_texts_the_texts_are_whole_and_the_page_says_so(folder, tmp_path):
    bare = shutil.copytree(folder, tmp_path / folder.name)
    for name in ("vocabulary", "examples"):
        for path in (bare / "records").glob(f"{name}-*"):
            path.unlink()
    (sweep,) = sweeps_in(bare)
    browser = browse([sweep], {}, room=10**7)
    example = unpacked(browser.chunks[0])
    assert [note.split(": ", 1)[1] for note in browser.notes] == [browsers.NO_TOKENS, browsers.NO_PROMPTS]
    assert example["prompt"] is None
    assert all(text["text"] and "pieces" not in text for text in example["texts"])


def test_hostile_texts_stay_data():
    hostile = {
        "text": '</script><script>alert(1)</script><!-- & "\u2028 \u202e שלום \U0001f469\u200d\U0001f4bb \x00 \ud800'
    }
    assert unpacked(pack(hostile)) == hostile
    text = script_json(hostile)
    assert json.loads(text) == hostile
    assert text.isascii()
    assert not set("<>&") & set(text)


def test_packing_is_deterministic(sweep):
    again = browse([sweep], {}, room=10**7)
    assert browse([sweep], {}, room=10**7).chunks == again.chunks


def test_all_sweeps_together_hold_at_most_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(browsers, "LIMIT", 10)
    home = write_synthetic(tmp_path / "two", tasks=("gsm8k-tiny", "wmt-tiny"), n=9, ws=(0.5, 1.0), timing_examples=0)
    browser = browse(sweeps_in(home), {}, room=10**7)
    assert [len(group["examples"]) for group in browser.groups] == [5, 5]
    assert browser.groups[1]["scales"] == {"bleu": 1.0, "chrf2": 1.0}
    assert [group["raw"] for group in browser.groups] == [[], []]


def test_scores_without_a_unit_are_named_as_raw(tmp_path):
    home = write_synthetic(tmp_path / "raw", n=3, ws=(0.5, 1.0), timing_examples=0)
    for path in (home / "records").glob("cell-*.json"):
        path.write_text(
            path.read_text().replace('"unit": "share"', '"unit": "raw"').replace('"unit":"share"', '"unit":"raw"')
        )
    (group,) = browse(sweeps_in(home), {}, room=10**7).groups
    assert group["metric"] in group["raw"]
