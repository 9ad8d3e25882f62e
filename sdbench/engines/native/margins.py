"""By what margin of logits two texts of one prompt part: of the lossless texts that are not the target's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sdbench.lm.model import LM
from sdbench.lm.rounding import explained_margin, margin_of

BEHIND = 48  # tokens of a text that is scored in both shapes


@dataclass(frozen=True, slots=True)
class PartingTexts:
    """A prompt and two texts of it that differ, the target's own first, as ids."""

    prompt: Sequence[int]
    target: Sequence[int]
    other: Sequence[int]
    token: int  # the first that differs, from 1


def margins_of(lm: LM, texts: Sequence[PartingTexts]) -> tuple[list[float], float]:
    """Return how far the logits of the two tokens are apart in each, NaN where one text ends, and what rounding explains.

    The latter is measured once, on the longest text.
    """

    def tensor_of(prompt: Sequence[int], ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor([*map(int, prompt), *map(int, ids)], device=lm.device)

    longest = max(texts, key=lambda text: max(len(text.target), len(text.other)))
    scored = max(longest.target, longest.other, key=len)[:BEHIND]
    explained = explained_margin(lm, tensor_of(longest.prompt, scored), len(longest.prompt))
    margins = []
    for text in texts:
        at = text.token - 1
        has_both = at < min(len(text.target), len(text.other))
        shared = tensor_of(text.prompt, text.target[:at])
        margins.append(margin_of(lm, shared, int(text.target[at]), int(text.other[at])) if has_both else math.nan)
    return margins, explained
