"""The provenance of a run, which is written before its weights are read, says on what the run will be."""

from dataclasses import replace

import pytest
import torch

from sdbench.cli.compose import compose_one
from sdbench.config import Component
from sdbench.engines.native.timing import machine_of
from sdbench.prepare import pair as pairs
from sdbench.prepare.pair_info import PairInfo
from sdbench.prepare.provenance import provenance
from sdbench.prepare.task import build_task


@pytest.mark.parametrize(("given", "threads"), [(None, 1), ("7", 7)], ids=["usual", "OMP_NUM_THREADS"])
def test_threads_are_those_that_narrow_models_will_run_with(given, threads, monkeypatch):
    """A server of another engine has threads of its own; those of this process are recorded then."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    monkeypatch.setattr(pairs, "usual_threads", lambda: 7)
    run = compose_one(["n=1", "device=cpu"])
    pair_info, task = PairInfo.read(pairs.find(run.model, device="cpu", dtype=run.dtype)), build_task(run)
    assert provenance(run, task, pair_info, ())["threads"] == threads
    assert machine_of(pair_info).endswith(f" cpu {threads} threads"), "as the timings say"
    served = replace(run, engine=Component("http", None, {}))
    assert provenance(served, task, pair_info, ())["threads"] == 7
