"""Repairs of vLLM 0.32 by the plug-in: unsent counts, drafts that no model has drawn, lost laws of drafts, a generator's state."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any


def count_texts_with_stops(scheduler: Any) -> None:
    """Send a request's counts with each of its outputs if it has stop strings.

    vLLM sends them with the last output of its engine core only. Stop strings are found in the front end, and a text that ends at
    one has no last output of the core. The front end keeps the newest counts that it received.
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
    """Give the scheduler no drafts in a step in which vLLM drafts token 0 for all requests, which a lenient rule may keep. vLLM
    does so if one request of the batch is too long for the drafter.

    With asynchronous scheduling the slots are already reserved; the next step then treats the drafts as missing.
    """
    inner = runner._copy_draft_token_ids_to_cpu

    def _copy_draft_token_ids_to_cpu(self: Any, scheduler_output: Any, zeros_only: bool = False) -> None:
        inner(self, scheduler_output, zeros_only)
        self.sdbench_has_zeros = zeros_only and self.use_async_scheduling
        if zeros_only and not self.use_async_scheduling:
            self._draft_token_ids = [[] for _ in self.input_batch.req_ids]

    runner._copy_draft_token_ids_to_cpu = _copy_draft_token_ids_to_cpu


def drop_drafts_without_laws(runner: Any) -> None:
    """Treat the drafts of a request as missing in a step for which vLLM no longer has the laws that they were drawn from.

    vLLM keeps only the laws of the last step, but a request that a step left out for lack of room keeps its drafts. vLLM then
    judges the drafts of the whole batch as if they had been certain. The slots are scheduled already, so the counts of the request
    contain these drafts as rejected.
    """
    import torch

    from sdbench_vllm.adapter import PLACEHOLDER

    inner = runner._get_spec_decode_draft_probs

    def _get_spec_decode_draft_probs(self: Any, spec_decode_metadata: Any) -> Any:
        counts = spec_decode_metadata.num_draft_tokens
        is_drawn = self._draft_probs is not None or getattr(self.drafter, "_enable_probabilistic_draft_probs", False)
        known = set(() if self._draft_probs is None else self._draft_prob_req_ids)
        names = self.input_batch.req_ids
        left = [count if not is_drawn or name in known else 0 for name, count in zip(names, counts, strict=True)]
        if left == counts:
            return inner(self, spec_decode_metadata)
        ids = spec_decode_metadata.draft_token_ids
        is_lost = [kept < count for kept, count in zip(left, counts, strict=True) for _ in range(count)]
        lost = torch.tensor(is_lost, device=ids.device)  # [num_tokens]
        spec_decode_metadata.draft_token_ids = ids.masked_fill(lost, PLACEHOLDER)
        rows = inner(self, SimpleNamespace(num_draft_tokens=left))
        if rows is None:  # no draft of the batch is left
            return None
        laws = rows.new_zeros(len(ids), rows.shape[-1])
        laws[~lost] = rows
        return laws

    runner._get_spec_decode_draft_probs = _get_spec_decode_draft_probs


def rewind_on_the_cpu(runner: Any) -> None:
    """Restore the state of a request's generator on a CPU after a step that reads only a part of the prompt.

    Such a step draws a token that is discarded, and vLLM then resets the generator by its offset. Generators on a CPU have no
    offset, so a request with a seed would end the engine.
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
