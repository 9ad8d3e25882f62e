"""Log-likelihoods of texts, from the target's plain forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window  # pyright: ignore[reportMissingImports]

from sdbench.config import ConfigError, show
from sdbench.prepare.progress import warn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SHOWN = 40  # characters of a context in a message

# A continuation with its context: their texts (None: a window of a text), the ids of the context, and those of the continuation.
Continuation = tuple[Any, list[int], list[int]]


def no_likelihood(context: str, continuation: str, count: str) -> ConfigError:
    """Return the error for a continuation with this count of tokens."""
    return ConfigError(
        f"the continuation {show(repr(continuation))} after {context[-SHOWN:]!r} has {count}, so it has no log-likelihood: "
        "change the text in the task"
    )


def refuse_empty(requests: Sequence[Any], encode: Callable[..., list[int]]) -> None:
    """Raise ConfigError for a continuation without tokens after an empty context, which the harness cannot encode."""
    for context, continuation in (request.args for request in requests):
        if context == "" and not encode(continuation, add_special_tokens=False):
            raise no_likelihood(context, continuation, "no tokens")


def windows_of(ids: list[int], prefix: int, limit: int) -> list[Continuation]:
    """Split a text into windows of at most `limit` tokens, each of which is read once as a continuation."""
    windows = get_rolling_token_windows(token_list=ids, prefix_token=prefix, max_seq_len=limit, context_len=1)
    return [(None, *map(list, make_disjoint_window(window))) for window in windows]  # type: ignore[return-value]


def cut_texts(requests: Sequence[Continuation], limit: int, target: str) -> list[list[int]]:
    """Return the ids of each text. Of a text that is too long, the last ids are kept, with a warning.

    Raise ConfigError for a continuation without tokens, whose log-likelihood would be 0, and for one longer than `limit`.
    """
    for texts, _, continuation in requests:
        if not 0 < len(continuation) <= limit:
            count = f"{len(continuation)} tokens, and {target} takes {limit}" if continuation else "no tokens"
            context, ending = texts
            raise no_likelihood(context, ending, count)
    whole = [context + continuation for _, context, continuation in requests]
    longest = limit + 1  # the last token is predicted and not read
    if num_cut := sum(len(text) > longest for text in whole):
        warn(
            f"{num_cut} of {len(whole)} texts whose log-likelihood is computed were too long for the {limit} tokens of {target} "
            "and lost their beginning"
        )
    return [text[-longest:] for text in whole]


def log_likelihoods(
    target: PreTrainedModel, texts: Sequence[list[int]], counts: Sequence[int], *, batch_size: int, pad: int
) -> Iterator[tuple[int, tuple[float, bool]]]:
    """Yield for each text its index, the log-probability of its last tokens, and whether greedy decoding would produce them.

    `counts` has the number of these last tokens for each text. The longest text comes first.
    """
    order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        logits = _logits(target, [texts[index][:-1] for index in batch], pad)
        for row, index in zip(logits, batch, strict=True):
            count, end = counts[index], len(texts[index]) - 1
            wanted = torch.tensor(texts[index][-count:], device=row.device)
            laws = row[end - count : end].log_softmax(-1)
            total = laws.gather(-1, wanted[:, None]).sum()
            yield index, (float(total), bool((laws.argmax(-1) == wanted).all()))


@torch.inference_mode()
def _logits(target: PreTrainedModel, texts: Sequence[Sequence[int]], pad: int) -> torch.Tensor:
    """Return logits [B,L,V] in float32, right-padded."""
    width = max(map(len, texts))
    ids = torch.tensor([[*text, *[pad] * (width - len(text))] for text in texts], device=target.device)
    mask = torch.tensor([[1] * len(text) + [0] * (width - len(text)) for text in texts], device=target.device)
    return target(input_ids=ids, attention_mask=mask).logits.float()
