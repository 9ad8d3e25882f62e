"""Made-up records by the real writer, made once."""

import pytest

import sdbench
from tests.records.synthetic import write_synthetic


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    """gsm8k-tiny at two draft lengths, 60 examples, timed."""
    folder = tmp_path_factory.mktemp("metrics") / "run"
    return sdbench.read(write_synthetic(folder, n=60, num_drafts=(3, 5), is_block_too=True))


@pytest.fixture(scope="session")
def translations(tmp_path_factory):
    """wmt-tiny and xsum-tiny, two samples, without times."""
    folder = tmp_path_factory.mktemp("metrics") / "run"
    tasks = ("wmt-tiny", "xsum-tiny")
    return sdbench.read(write_synthetic(folder, tasks=tasks, ws=(0.5, 1.0), n=55, samples=2, timing_examples=0))
