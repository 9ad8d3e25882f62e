"""A sweep is claimed share by share, and decoded as one stream for each drafter and each model alone."""

from sdbench.cli import main
from sdbench.engine.loop import BatchRun
from sdbench.plan import Work
from sdbench.records import read


def test_however_many_shares_a_batch_runs_out_once_a_stream(words, tmp_path, no_figures, monkeypatch):
    streams, shares = [], []
    run, claim = BatchRun.run, Work.claim
    monkeypatch.setattr(BatchRun, "run", lambda self: streams.append(len(self.requests)) or run(self))
    monkeypatch.setattr(Work, "claim", lambda self: shares.append(taken := claim(self)) or taken)
    monkeypatch.setattr("sdbench.passes.quality.ROWS_AT_LEAST", 1)
    monkeypatch.setattr("sdbench.passes.quality.ROWS_A_SHARE", 1)
    assert main(words(tmp_path, w=0.3)) == 0
    results = read(tmp_path / "micro-gsm8k-tiny")
    assert len(results.generations) == 16
    assert sorted(streams) == [4, 4, 8], "target, draft, and the pair's two settings"
    assert sum(map(bool, shares)) == 12, "a share for each of four prompts and three streams"
