"""Shorter forms of a prompt that is too long: as many words as fit, or the end of its template."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import replace

from sdbench.types import Message, Prompt


def longest(prompt_of: Callable[[int], Prompt], most: int, num_tokens: Callable[[Prompt], int], limit: int) -> Prompt:
    """The prompt of the largest count in 0..most that fits, or that of 0."""
    count = bisect.bisect_right(range(most + 1), limit, key=lambda k: num_tokens(prompt_of(k))) - 1
    while count > 0 and num_tokens(prompt_of(count)) > limit:  # tokens need not grow with every word
        count -= 1
    return prompt_of(max(count, 0))


def length(prompt: Prompt) -> int:
    """Characters of the text, or of the last turn."""
    return len(prompt.text if prompt.text is not None else prompt.messages[-1].content)


def tail(prompt: Prompt, count: int) -> Prompt:
    """The last `count` characters of the text, or of the last turn."""
    if prompt.text is not None:
        return replace(prompt, text=prompt.text[len(prompt.text) - count :])
    last = prompt.messages[-1]
    return replace(prompt, messages=(Message(last.role, last.content[len(last.content) - count :]),))
