"""What the plug-in repairs in vLLM 0.32: counts that are not sent, drafts that no model drew, the state of a generator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any


def count_texts_with_stops(scheduler: Any) -> None:
    """Send a request's counts with each of its outputs if it has stop strings.

    vLLM sends them with the last output of its engine core. The front end looks for stop strings, and a text that ends at one has
    no such output. It keeps the newest counts that came.
    """
    inner = scheduler.update_from_output

    def update_from_output(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        by_client = inner(self, scheduler_output, model_runner_output)
        for output in (output for outputs in by_client.values() for output in outputs.outputs):
            request = self.requests.get(output.request_id)
            counts = None if request is None else request.spec_decode_metrics
            if counts is None or output.spec_decode_metrics is not None:
                continue
            if request.sampling_params is not None and request.sampling_params.stop:
                # A copy, because outputs are encoded in another thread, and the next step adds to the lists.
                lists = {name: list(value) for name, value in vars(counts).items() if isinstance(value, list)}
                output.spec_decode_metrics = replace(counts, **lists)
        return by_client

    scheduler.update_from_output = update_from_output


def drop_drafts_of_zeros(runner: Any) -> None:
    """Where one request of a batch is too long for the drafter, vLLM gives all of them token 0 as drafts, which a rule may keep.

    The scheduler gets no drafts instead. With asynchronous scheduling it has already reserved slots for them: there the next step
    takes them as missing.
    """
    inner = runner._copy_draft_token_ids_to_cpu

    def _copy_draft_token_ids_to_cpu(self: Any, scheduler_output: Any, zeros_only: bool = False) -> None:
        inner(self, scheduler_output, zeros_only)
        self.sdbench_has_zeros = zeros_only and self.use_async_scheduling
        if zeros_only and not self.use_async_scheduling:
            self._draft_token_ids = [[] for _ in self.input_batch.req_ids]

    runner._copy_draft_token_ids_to_cpu = _copy_draft_token_ids_to_cpu


def rewind_on_the_cpu(runner: Any) -> None:
    """A prompt that is read in several steps draws tokens that are thrown away, and a seed's generator goes back to before them.

    vLLM does so by the generator's offset, which has none on a CPU: there such a request ends the engine. Its state is put back.
    """
    sample, book = runner._sample, runner._bookkeeping_sync

    def unread(self: Any) -> dict[int, Any]:
        rows = self.discard_request_mask.np[: self.input_batch.num_reqs].nonzero()[0].tolist()
        own = {row: self.input_batch.generators.get(row) for row in rows}
        return {row: one for row, one in own.items() if one is not None and one.device.type == "cpu"}

    def _sample(self: Any, *given: Any, **named: Any) -> Any:
        before = [(generator, generator.get_state()) for generator in unread(self).values()]
        try:
            return sample(self, *given, **named)
        finally:
            for generator, state in before:
                generator.set_state(state)

    def _bookkeeping_sync(self: Any, *given: Any, **named: Any) -> Any:
        hidden = unread(self)
        for row in hidden:
            del self.input_batch.generators[row]
        try:
            return book(self, *given, **named)
        finally:
            self.input_batch.generators.update(hidden)

    runner._sample, runner._bookkeeping_sync = _sample, _bookkeeping_sync
