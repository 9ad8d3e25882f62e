"""One micro pair for all tests of the runner."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def micro_pair(tmp_path_factory) -> Path:
    from micro import save_pair

    return save_pair(tmp_path_factory.mktemp("micro"))


@pytest.fixture(scope="session")
def words(micro_pair):
    from micro import overridden

    def make(results: Path, **options: object) -> list[str]:
        given = {"w": "[0.3,0.7]", "n": 4, "max_new_tokens": 24, "timing": "off", "dtype": "float64", "device": "cpu"}
        given |= {"temperature": 1}  # where texts of different settings differ, and samples of one
        pair = [f"model.target={micro_pair}/target", f"model.draft={micro_pair}/draft", "model.name=micro"]
        return overridden(
            [*pair, f"results={results}"], *(f"{key}={value}" for key, value in {**given, **options}.items())
        )

    return make


@pytest.fixture(scope="session")
def whole(words, tmp_path_factory) -> Path:
    """An undisturbed run of four examples."""
    from sdbench.cli import main

    results = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sdbench.report.write", no_drawing)
        assert main(words(results)) == 0
    return results / "micro-gsm8k-tiny"


@pytest.fixture
def refused(words, tmp_path, capsys, monkeypatch):
    """The sentence of a command that must end before weights are read."""

    def never(*_, **__):
        raise AssertionError("weights are read")

    monkeypatch.setattr("sdbench.prepare.pair.load", never)

    from micro import overridden

    from sdbench.cli import main

    def run(*more: str, **options: object) -> str:
        capsys.readouterr()
        assert main(overridden(words(tmp_path / "results", n=1, **options), *more)) == 2
        message = capsys.readouterr().err
        assert message.count("\n") == 1, message
        assert not (tmp_path / "results").exists()
        return message

    return run


@pytest.fixture
def no_figures(monkeypatch):
    """For tests of commands whose pictures nobody looks at: the summary is made, the drawing is left out."""
    monkeypatch.setattr("sdbench.report.write", no_drawing)


def no_drawing(worked_out):
    from sdbench.report.build import Report

    return Report(worked_out.home / "report.html", (), ())
