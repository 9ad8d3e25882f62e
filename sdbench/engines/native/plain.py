"""transformers' `generate`, plain and assisted, timed like the engine: independent baselines."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList
from transformers.utils import logging

from sdbench.engines.latency import Measured
from sdbench.engines.stops import end_of

if TYPE_CHECKING:
    from sdbench.engines.native.decode import Decoder


class _Ticks(StoppingCriteria):
    """Records when each round ends, and stops a row when a stop string is complete."""

    def __init__(self, device: torch.device, start: int, should_stop: Any) -> None:
        self.device, self.start, self.length, self.should_stop = device, start, start, should_stop
        self.times_s: list[float] = []

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **_: Any) -> torch.BoolTensor:
        synchronise(self.device)
        self.times_s.append(time.perf_counter())
        is_done = [False] * len(input_ids)
        if self.should_stop is not None:
            counts = range(self.length + 1 - self.start, input_ids.shape[1] + 1 - self.start)
            texts = input_ids[:, self.start :].tolist()
            is_done = [any(self.should_stop(text[:count]) for count in counts) for text in texts]
        self.length = input_ids.shape[1]
        return torch.tensor(is_done, device=input_ids.device)  # pyright: ignore[reportReturnType]


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


@contextmanager
def as_from_pretrained(*models: nn.Module | None) -> Iterator[None]:
    """Let weights require gradients, as `from_pretrained` leaves them, while transformers runs the models.

    In sdbench they require none, and then `matmul` copies the whole head for the last logits of several tokens, in every prefill
    and once per round of assisted generation (docs/notes/head_copy.md). Users of transformers do not have this cost.
    """
    weights = {weight for model in models if model is not None for weight in model.parameters()}
    frozen = [weight for weight in weights if weight.is_floating_point() and not weight.requires_grad]
    for weight in frozen:
        weight.requires_grad_(True)
    try:
        yield
    finally:
        for weight in frozen:
            weight.requires_grad_(False)


@contextmanager
def without_defaults(model: Any) -> Iterator[None]:
    """Keep `generate` from reading the checkpoint's generation_config, such as a repetition penalty, which sdbench ignores."""
    before, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = before


@contextmanager
def drafting(draft: Any, num_draft: int) -> Iterator[dict[str, Any]]:
    """Yield the option of `generate` for a draft model that proposes `num_draft` tokens per round; empty if that is 0."""
    if not num_draft:
        yield {}
        return
    before, config = draft.generation_config, copy(draft.generation_config)
    config.num_assistant_tokens, config.num_assistant_tokens_schedule = num_draft, "constant"
    config.assistant_confidence_threshold = 0
    verbosity = logging.get_verbosity()
    draft.generation_config = config
    logging.set_verbosity_error()  # silences warnings about how generate calls the draft model
    try:
        yield {"assistant_model": draft}
    finally:
        draft.generation_config = before
        logging.set_verbosity(verbosity)


def time_generate(decoder: Decoder, prompts: Sequence[list[int]], num_draft: int = 0) -> Measured:
    """Time one batch, padded on the left as `generate` requires. A round is a call of the target; the first reads the prompt."""
    model, run = decoder.pair.target, decoder.job.run
    stop_ids = list(decoder.stop_ids("target"))
    pad = stop_ids[0] if stop_ids else 0
    sampling = {"do_sample": run.temperature > 0, "max_new_tokens": decoder.job.task.max_new_tokens}
    if run.temperature > 0:
        sampling |= {"temperature": run.temperature, "top_k": run.top_k or 0, "top_p": run.top_p or 1.0}
    config = GenerationConfig(**sampling, eos_token_id=stop_ids or None, pad_token_id=pad)
    width = max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(row)) + row for row in prompts], device=model.device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts], device=model.device)
    ticks = _Ticks(model.device, width, decoder.should_stop)
    torch.manual_seed(run.seed)
    options: Any = {
        "attention_mask": mask,
        "generation_config": config,
        "stopping_criteria": StoppingCriteriaList([ticks]),
    }
    draft = decoder.pair.draft
    with without_defaults(model), as_from_pretrained(model, draft), drafting(draft, num_draft) as assistant:
        synchronise(model.device)
        start_s = time.perf_counter()
        texts: Any = model.generate(ids, **options, **assistant)  # pyright: ignore[reportCallIssue]
    rounds_s = tuple(after - before for before, after in pairwise([start_s, *ticks.times_s]))
    return Measured(
        # After its end a row is padded until the last row of the batch has ended.
        tokens=sum(end_of(row, stop_ids, decoder.should_stop) or len(row) for row in texts[:, width:].tolist()),
        rounds=len(rounds_s),
        prefill_s=0.0,
        decode_s=sum(rounds_s),
        first_token_s=rounds_s[0],
        rounds_s=rounds_s,
        reads_prompt=True,
    )
