"""Trackers, each through its own library and read back by it: the numbers are the summary's, the figures the files'."""

import dataclasses
import math
import shutil
import socket
import tomllib
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

import sdbench
from sdbench import trackers
from sdbench.cli.compose import Composer
from sdbench.config import ConfigError
from sdbench.metrics.summary import summarise
from sdbench.passes.track import track, tracker_of
from sdbench.records import StoreError
from sdbench.report.figures.style import save
from sdbench.trackers import Findings, TrackerError
from sdbench.trackers.to_mlflow import MLflow
from sdbench.trackers.to_tensorboard import TensorBoard, curves
from sdbench.trackers.to_wandb import WandB
from tests.records.synthetic import write_synthetic

ADVICE = "llama-tiny on gsm8k-tiny: none: n is too small (n=8; at least 50 examples are needed)."


@pytest.fixture(scope="module")
def composer():
    return Composer()


@pytest.fixture(scope="module")
def tracked_run(tmp_path_factory):
    """A finished folder and its summary, made once."""
    place = tmp_path_factory.mktemp("tracked") / "llama-tiny-gsm8k-tiny"
    folder = write_synthetic(place, n=8, ws=(0.3, 0.7), timing_examples=0)
    figure = Figure(figsize=(1, 0.5))
    figure.subplots().plot([0, 1], [1, 0])
    save(figure, folder / "figures", "pareto")
    summary = summarise(sdbench.read(folder), resamples=200)
    summary.to_csv(folder / "summary.csv", index=False)
    (folder / "report.html").write_text("<!doctype html><title>sdbench</title>")
    return folder, summary


@pytest.fixture
def findings(tracked_run, tmp_path):
    first, summary = tracked_run
    folder = shutil.copytree(first, tmp_path / first.name)
    return Findings(folder, {"model": {"name": "llama-tiny", "draft": None}, "w": [0.3, 0.7], "n": 8}, summary, ADVICE)


def row_of(findings, rule, w=None):
    own = findings.summary[findings.summary["verifier"] == rule]
    return (own if w is None else own[own["w"] == w]).iloc[0]


def test_what_is_sent_is_named_once_and_finite(findings):
    cells = list(findings.cells())
    assert [name for name, _, _ in cells] == [
        *(
            "target alone T=1",
            "lossless K=5 T=1",
            "ensemble w=0.7 K=5 T=1",
            "ensemble w=0.3 K=5 T=1",
            "draft alone T=1",
        ),
    ]
    for name, labels, numbers in cells:
        assert labels["task"] == "gsm8k-tiny", name
        assert all(map(math.isfinite, numbers.values()))
        assert ("acceptance" in numbers) == ("K=5" in name)
        assert not set(labels) & set(numbers)
    assert trackers.flat(findings.config) == {"model.name": "llama-tiny", "w": "[0.3, 0.7]", "n": "8"}


def test_tensorboard_reads_curves_over_w_figures_and_the_advice(findings):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    assert TensorBoard().send(findings) == f"tensorboard --logdir {findings.folder / 'tensorboard'}"
    home = findings.folder / "tensorboard"
    curve = EventAccumulator(str(home / "ensemble K=5 T=1")).Reload()
    points = {event.step: float(make_ndarray(event.tensor_proto)) for event in curve.Tensors("acceptance")}
    assert points == pytest.approx(
        {3000: row_of(findings, "ensemble", 0.3)["acceptance"], 7000: row_of(findings, "ensemble", 0.7)["acceptance"]}
    )
    target = EventAccumulator(str(home / "target alone T=1")).Reload()
    across = {event.step: float(make_ndarray(event.tensor_proto)) for event in target.Tensors("quality")}
    assert across == pytest.approx(dict.fromkeys((0, 10_000), row_of(findings, "target")["quality"]))
    report = EventAccumulator(str(home / "report")).Reload()
    assert make_ndarray(report.Tensors("recommendation")[0].tensor_proto).item().decode() == ADVICE
    (image,) = report.Images("figures/pareto")
    assert image.encoded_image_string == findings.figures[0].read_bytes()
    assert (image.width, image.height) == (100, 50)


def test_tensorboard_sent_again_replaces_its_own_files_alone(findings, tmp_path):
    tracker = TensorBoard(folder=str(tmp_path / "logs"))
    home = tmp_path / "logs" / findings.name
    home.mkdir(parents=True)
    (home / "events.out.tfevents.1.mine").write_text("")
    tracker.send(findings)
    first = sorted(path.parent.name for path in home.rglob("*.sdbench"))
    tracker.send(findings)
    assert sorted(path.parent.name for path in home.rglob("*.sdbench")) == first
    assert (home / "events.out.tfevents.1.mine").exists()


def test_tensorboard_that_cannot_write_is_one_sentence(findings, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TrackerError, match="event files cannot be written"):
        TensorBoard(folder=str(tmp_path / "file")).send(findings)


@pytest.mark.slow
def test_mlflow_holds_a_run_of_the_folder_and_one_a_cell(findings, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    uri = (tmp_path / "runs").as_uri()
    assert uri in MLflow(uri).send(findings)
    client = MlflowClient(uri)
    home = client.get_experiment_by_name("sdbench").experiment_id
    runs = {run.info.run_name: run for run in client.search_runs([home])}
    assert set(runs) == {findings.name, *(name for name, _, _ in findings.cells())}
    parent, cell = runs[findings.name], runs["ensemble w=0.3 K=5 T=1"]
    assert parent.data.params == trackers.flat(findings.config)
    assert parent.data.tags["mlflow.note.content"] == ADVICE
    assert {artifact.path for artifact in client.list_artifacts(parent.info.run_id)} == {
        "figures",
        "report.html",
        "summary.csv",
    }
    assert cell.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert cell.data.params["w"] == "0.3"
    expected = row_of(findings, "ensemble", 0.3)
    for name in ("acceptance", "acceptance_low", "quality", "quality_high"):
        assert cell.data.metrics[name] == pytest.approx(expected[name])
    assert {run.info.status for run in runs.values()} == {"FINISHED"}


def test_mlflow_without_its_store_is_one_sentence(findings, monkeypatch):
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    with pytest.raises(TrackerError, match=r"^MLflow: ") as caught:
        MLflow((findings.folder / "runs").as_uri()).send(findings)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_wandb_keeps_an_offline_run(findings):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed: pip install 'sdbench[wandb]'")
    place = Path(WandB(mode="offline").send(findings))
    wandb.teardown()  # its service writes the file's end when it goes
    assert findings.folder in place.parents
    assert any(path.read_bytes() == findings.figures[0].read_bytes() for path in place.rglob("*.png"))
    (stored,) = place.parent.glob("*.wandb")
    held = stored.read_bytes()
    for word in (ADVICE, "ensemble w=0.3 K=5 T=1/acceptance_low", "model.name", findings.name):
        assert word.encode() in held


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["offline", "disabled"])
def test_wandb_sends_as_its_variable_says(findings, monkeypatch, mode):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed: pip install 'sdbench[wandb]'")
    monkeypatch.setenv("WANDB_MODE", mode)
    wandb.teardown()  # it reads its variables once
    WandB().check()
    where = WandB().send(findings)
    if mode == "offline":
        assert findings.folder in Path(where).parents
    else:
        assert where == "nowhere (WANDB_MODE=disabled)"
    wandb.teardown()


@pytest.mark.slow
def test_wandb_finishes_a_run_that_could_not_be_sent(findings):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed: pip install 'sdbench[wandb]'")
    (findings.folder / "report.html").unlink()
    (findings.folder / "figures" / "pareto.png").write_text("no picture")
    with pytest.raises(TrackerError, match="Weights & Biases: "):
        WandB(mode="offline").send(findings)
    assert wandb.run is None
    assert WandB(mode="offline").send(dataclasses.replace(findings, has_page=False))
    wandb.teardown()


def test_a_missing_library_is_one_sentence_that_names_the_extra(composer, monkeypatch):
    extras = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    monkeypatch.setattr(trackers, "find_spec", lambda library: None)
    for name in ("tensorboard", "mlflow", "wandb"):
        with pytest.raises(ConfigError) as caught:
            tracker_of(composer.run((f"tracker={name}",)))
        assert str(caught.value) == f"tracker={name}: {name} is not installed: pip install 'sdbench[{name}]'"
        assert any(name in requirement for requirement in extras[name])


def test_an_address_with_a_password_is_neither_recorded_nor_shown(composer, monkeypatch):
    with pytest.raises(ConfigError, match="set MLFLOW_TRACKING_URI in the shell") as caught:
        tracker_of(composer.run(("tracker=mlflow", "tracker.uri=postgresql://ann:sesame@db/runs")))
    assert "sesame" not in str(caught.value)
    monkeypatch.setattr(trackers, "find_spec", lambda library: object())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://ann:sesame@{address}")
    with pytest.raises(TrackerError, match=f"no server answers at http://{address}"):
        MLflow().check()


def test_a_tracker_that_refuses_costs_no_record(composer, findings):
    (findings.folder / "tensorboard").write_text("")
    with pytest.raises(StoreError, match="are whole: the same command sends them again"):
        track(composer.run(("tracker=tensorboard",)), findings)


def test_nothing_is_sent_unless_asked_for(composer, findings, capsys):
    assert composer.run(()).tracker is None
    track(composer.run(()), findings)
    assert capsys.readouterr().out == ""
    track(composer.run(("tracker=tensorboard",)), findings)
    assert capsys.readouterr().out == f"tracker: tensorboard --logdir {findings.folder / 'tensorboard'}\n"


def test_cells_of_several_seeds_have_names_of_their_own(tmp_path):
    """A folder may hold seeds, dtypes and tasks: values of one name would replace each other."""
    parts = [
        summarise(
            sdbench.read(write_synthetic(tmp_path / f"{s}", n=4, ws=(0.5,), timing_examples=0, seed=s)), resamples=200
        )
        for s in (0, 1)
    ]
    summary = pd.concat(parts, ignore_index=True)
    names = [name for name, _, _ in Findings(tmp_path, {}, summary, "").cells()]
    assert len(set(names)) == len(names) == len(summary)
    assert {"ensemble w=0.5 K=5 T=1 seed=0", "ensemble w=0.5 K=5 T=1 seed=1"} <= set(names)


def test_a_curve_has_one_setting_and_a_step_for_each_w(tmp_path):
    """Two sweeps over other weights: no cell has the labels of another."""
    parts = [
        summarise(
            sdbench.read(write_synthetic(tmp_path / f"{s}", n=4, ws=ws, timing_examples=0, seed=s)), resamples=200
        )
        for s, ws in enumerate([(0.3, 0.5), (0.995, 0.999)])
    ]
    drawn = curves(Findings(tmp_path, {}, pd.concat(parts, ignore_index=True), ""))
    steps = {name: [step for step, _ in points] for name, points in drawn.items() if name.startswith("ensemble")}
    assert steps == {"ensemble K=5 T=1 seed=0": [3000, 5000], "ensemble K=5 T=1 seed=1": [9950, 9990]}


def test_a_curve_has_no_cells_of_a_sweep_that_lacks_a_setting_or_has_another_server(tmp_path):
    """A null is a value, and what no column of the summary shows is named by the sweep."""
    parts = [
        summarise(sdbench.read(write_synthetic(tmp_path / f"{s}", n=2, ws=ws, timing_examples=0, seed=s)), resamples=50)
        for s, ws in enumerate([(0.3, 0.5), (0.7, 0.9)])
    ]
    summary = pd.concat(parts, ignore_index=True)
    sweeps = {key: f"server-{seed}" for key, seed in zip(summary["cell"], summary["seed"], strict=True)}

    def ensembles(summary, sweeps):
        drawn = curves(Findings(tmp_path, {}, summary.assign(seed=0), "", sweeps=sweeps))
        return {name: [step for step, _ in points] for name, points in drawn.items() if name.startswith("ensemble")}

    cut = summary.assign(top_k=[None if seed == 0 else 50 for seed in summary["seed"]])
    assert ensembles(cut, {}) == {"ensemble K=5 T=1": [3000, 5000], "ensemble K=5 T=1 top_k=50": [7000, 9000]}
    assert ensembles(cut, sweeps) == ensembles(cut, {})
    assert ensembles(summary, sweeps) == {
        "ensemble K=5 T=1 sweep=server-0": [3000, 5000],
        "ensemble K=5 T=1 sweep=server-1": [7000, 9000],
    }


def test_a_page_that_is_older_than_the_records_is_not_sent(findings):
    assert findings.figures
    assert [path.name for path in findings.pages] == ["report.html", "summary.csv"]
    older = dataclasses.replace(findings, has_page=False)
    assert (older.figures, [path.name for path in older.pages]) == ([], ["summary.csv"])
