"""An exception that submitit raises from its signal handler ends the job: it is no failure of the cell that is being decoded."""

from types import SimpleNamespace

import pytest

from sdbench.passes import job
from sdbench.passes.quality import QualityPass
from sdbench.plan import Work, WorkItem

UncompletedJobError = type("UncompletedJobError", (RuntimeError,), {"__module__": "submitit.core.utils"})
TIMED_OUT = UncompletedJobError("Job not requeued because: timed-out too many times.")


@pytest.mark.parametrize("error", [TIMED_OUT, RuntimeError("a rule failed")])
def test_a_job_that_timed_out_too_often_records_no_failure_of_a_cell(error, monkeypatch):
    failures = []
    store = SimpleNamespace(append_failure=lambda cell, message, example: failures.append((cell, message)))
    quality = QualityPass(job=None, store=store, scorers=None, models=None)  # pyright: ignore[reportArgumentType]

    def decode(work, bar):
        raise error

    monkeypatch.setattr(quality, "_decode", decode)
    work = Work([WorkItem("cell", "0", 0)], iter([]))
    if error is TIMED_OUT:
        with pytest.raises(UncompletedJobError):
            quality._stream(work, bar=None)  # pyright: ignore[reportArgumentType]
        assert not failures
        assert not work.is_done
    else:
        quality._stream(work, bar=None)  # pyright: ignore[reportArgumentType]
        assert failures == [("cell", "RuntimeError: a rule failed")]


def test_a_job_that_timed_out_too_often_ends_with_the_exception_of_submitit(monkeypatch):
    def run(*_):
        raise TIMED_OUT

    monkeypatch.setattr(job, "_run", run)
    with pytest.raises(UncompletedJobError):
        job.run_job(SimpleNamespace(folder="nowhere"), [])  # pyright: ignore[reportArgumentType]
