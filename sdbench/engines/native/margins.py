"""For lossless texts that differ from the target's: the difference of logits at the first token that differs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sdbench.lm.model import LM
from sdbench.lm.rounding import explained_margin, margin_of
from sdbench.prepare.progress import Bar

BEHIND = 48  # the most tokens of a text that are scored both in blocks and one by one


@dataclass(frozen=True, slots=True)
class PartingTexts:
    """A prompt and two different texts of it as ids, the target's first."""

    prompt: Sequence[int]
    target: Sequence[int]
    other: Sequence[int]
    token: int  # the first that differs, counted from 1


def margins_of(lm: LM, texts: Sequence[PartingTexts], *, rows: int = 1, width: int = 6) -> tuple[list[float], float]:
    """Return the logit difference of the two tokens for each text, NaN where one text ends, and the difference that rounding
    explains.

    The latter is measured once, on the longest text, for texts that were decoded in batches of `rows` with at most `width`
    tokens in a round.
    """

    def tensor_of(prompt: Sequence[int], ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor([*map(int, prompt), *map(int, ids)], device=lm.device)

    longest = max(texts, key=lambda text: max(len(text.target), len(text.other)))
    scored = max(longest.target, longest.other, key=len)[:BEHIND]
    margins = []
    with Bar("measuring near-ties", len(texts)) as bar:
        explained = explained_margin(lm, tensor_of(longest.prompt, scored), len(longest.prompt), rows=rows, width=width)
        for text in texts:
            at = text.token - 1
            has_both = at < min(len(text.target), len(text.other))
            shared = tensor_of(text.prompt, text.target[:at])
            margins.append(margin_of(lm, shared, int(text.target[at]), int(text.other[at])) if has_both else math.nan)
            bar.add()
    return margins, explained
