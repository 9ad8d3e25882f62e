"""The report is a function of the records: same bytes for the same records, everything inside one file, no network."""

import shutil
import subprocess
import sys

import pytest

from sdbench.report import build
from tests.records.synthetic import write_synthetic

FIGURES = ("pareto", "against_w", "speed_against_w")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = write_synthetic(tmp_path_factory.mktemp("results") / "llama-tiny-gsm8k-tiny", n=60)
    build(home)
    return home


def test_every_figure_comes_in_three_formats(folder):
    for name in FIGURES:
        for kind in ("pdf", "svg", "png"):
            assert (folder / "figures" / f"{name}.{kind}").stat().st_size > 1000


def test_the_same_records_give_the_same_bytes(folder, tmp_path):
    again = shutil.copytree(folder, tmp_path / folder.name)
    for path in [*(again / "figures").iterdir(), again / "report.html", again / "summary.csv"]:
        path.unlink()
    build(again)
    for path in [*(folder / "figures").iterdir(), folder / "report.html", folder / "summary.csv"]:
        assert (again / path.relative_to(folder)).read_bytes() == path.read_bytes(), path.name


def test_the_page_stands_alone(folder):
    page = (folder / "report.html").read_text()
    assert len(page) < 10 << 20
    assert "<script src" not in page
    assert "<link" not in page
    assert page.count("<svg") == len(FIGURES)


def test_the_summary_has_the_columns_that_were_promised(folder):
    head = (folder / "summary.csv").read_text().splitlines()[0].split(",")
    promised = (
        "model task verifier w num_draft temperature n acceptance acceptance_low acceptance_high acceptance_expected "
    )
    promised += "block_acceptance tokens_per_round bias metric quality quality_low quality_high tokens_per_s speedup "
    promised += "speedup_low speedup_high"
    assert set(promised.split()) <= set(head)


def test_without_a_latency_pass_there_is_no_speed(tmp_path):
    home = write_synthetic(tmp_path / "quiet", n=20, timing_examples=0, ws=(0.5, 1.0))
    build(home)
    assert not (home / "figures" / "speed_against_w.svg").exists()


def test_a_folder_without_records_is_one_sentence(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "sdbench.report", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "is not a results folder" in done.stderr
    assert "Traceback" not in done.stderr
