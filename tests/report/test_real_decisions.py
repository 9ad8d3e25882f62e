"""scripts/real_decisions.py: decisions from committed tables are by the committed speeds, and those that records would give."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

import sdbench
from scripts import real_tables
from scripts.real_decisions import redecide
from scripts.real_parts import PAIR
from sdbench.metrics.recommend import recommend
from tests.records.synthetic import write_synthetic

COMMITTED = Path(__file__).parents[2] / "results/real"


def forget_speeds(path: Path) -> None:
    """Make a table of decisions look as one of records without a latency pass."""
    frame = pd.read_csv(path)
    text = frame["text"].str.partition(": ")[0] + ": none yet: its speed was not measured"
    frame["text"] = text.where(frame["setting"].notna(), frame["text"])
    columns = [name for name in frame if not name.startswith("sooner") and name != "num_timed"]
    frame.assign(kind="none", is_timed=False)[columns].to_csv(path, index=False)


@pytest.mark.results
@pytest.mark.parametrize("task", ["humaneval", "mbpp", "wmt"])
def test_the_committed_decisions_are_by_the_committed_speeds(task, tmp_path):
    for name in (task, f"{task}-latency"):
        shutil.copytree(COMMITTED / name, tmp_path / name)
    path = tmp_path / task / "decisions.csv"
    forget_speeds(path)
    redecide(tmp_path)
    written, committed = (
        frame[frame["setting"].notna()] for frame in map(pd.read_csv, (path, COMMITTED / task / path.name))
    )
    pd.testing.assert_frame_equal(written, committed, check_dtype=False)
    assert len(written)
    assert set(written["kind"]) == {"stay"}
    best = pd.read_csv(tmp_path / f"{task}-latency/summary.csv").query("verifier == 'lossless'")
    best = best.loc[best["tokens_per_s"].idxmax()]
    name = f"{PAIR} on {task}: stay lossless K={best['num_draft']}: {best['speedup']:.2f}× ["
    assert written["text"].str.startswith(name).all()
    if task == "wmt":
        assert best["num_draft"] == 1
        assert len(written) == 2
        verdict = "`wmt/decisions.csv`, at both margins, is to stay with lossless decoding and one draft"
        assert verdict in " ".join((COMMITTED / "README.md").read_text().split())


@pytest.mark.results
def test_no_committed_decision_lacks_a_speed_that_was_measured():
    for path in COMMITTED.glob("*/decisions.csv"):
        if path.parent.with_name(f"{path.parent.name}-latency").exists():
            assert "not measured" not in path.read_text(), path


@pytest.mark.parametrize(("w", "timing_examples", "kind"), [(0.97, 8, "stay"), (0.3, 60, "ship")])
def test_a_decision_from_tables_is_that_of_the_records(w, timing_examples, kind, tmp_path, monkeypatch):
    """A setting to ship must also answer sooner than the target alone, which only records tell: that row is not touched."""
    monkeypatch.setattr(real_tables, "MARGINS", (50.0,))
    options = {"ws": (w,), "temperature": 0.0, "n": 60, "timing_examples": timing_examples}
    run = write_synthetic(tmp_path / "run", models=(PAIR,), tasks=("humaneval",), **options)
    shutil.copytree(run, tmp_path / "run-latency")
    real_tables.main([str(run), str(tmp_path / "run-latency"), f"out={tmp_path / 'out'}"])
    path = tmp_path / "out/humaneval/decisions.csv"
    forget_speeds(path)
    (untimed,) = pd.read_csv(path).to_dict("records")
    redecide(tmp_path / "out")
    (again,) = pd.read_csv(path).to_dict("records")
    (decided,) = recommend(sdbench.read(run), 50.0).advices
    assert decided.kind == kind
    if kind == "ship":
        assert again == untimed
    else:
        assert (again["kind"], again["text"]) == (kind, decided.text)
