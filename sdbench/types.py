"""The nouns and the protocols everybody shares. Tensors are named for type checkers only: importing this brings no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat: role is "system", "user" or "assistant"."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model is asked: plain text, or turns for its own chat template; `prefix` starts the answer in its name."""

    text: str | None = None
    messages: tuple[Message, ...] = ()
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Example:
    """One row of a data set, ready to be asked; `id` is the data set's own, or the row number where it has none."""

    id: str
    row: Mapping[str, Any]
    prompt: Prompt
    is_prompt_cut: bool = False


@dataclass(frozen=True, slots=True)
class Score:
    """What a completion is worth: per-example values, sufficient statistics of corpus metrics, and flags."""

    values: Mapping[str, float]
    stats: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    flags: Mapping[str, bool] = field(default_factory=dict)


class Task(Protocol):
    """A data set under one prompt protocol. `metric` names the headline among `Score.values`."""

    name: str
    version: str
    protocol: str
    metric: str
    max_new_tokens: int
    stop: tuple[str, ...]

    def examples(self) -> Iterable[Example]:
        """The subset asked for, in the order of its seed."""
        ...

    def fit(self, example: Example, num_tokens: Callable[[Prompt], int], limit: int) -> Example:
        """The example itself, or its prompt cut by the protocol's rule to at most `limit` tokens."""
        ...

    def score(self, example: Example, completion: str) -> Score:
        """Pure in its arguments; cuts at the stop strings first."""
        ...
