"""Memory that runs out in the middle of a batch, without filling it."""

import torch

from sdbench.engine.loop import BatchRun


def runs_short(monkeypatch, *, above: int, after: int, error: Exception | None = None) -> None:
    """From then on a round of more than `above` rows fails, once `after` rounds were had."""
    honest, calls = BatchRun._score, []

    def short_of_memory(self, batch, draft):
        calls.append(len(batch.rows))
        if len(batch.rows) > above and len(calls) > after:
            raise error or torch.OutOfMemoryError("injected")
        return honest(self, batch, draft)

    monkeypatch.setattr(BatchRun, "_score", short_of_memory)
