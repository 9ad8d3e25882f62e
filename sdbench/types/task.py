"""The prompt of a task's example, and the score of an answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat: role is "system", "user" or "assistant"."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt: plain text, or turns for the model's chat template; `prefix` is the beginning of the answer."""

    text: str | None = None
    messages: tuple[Message, ...] = ()
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Example:
    """One row of a data set; `id` is its id in the data set, or the row number if there is none."""

    id: str
    row: Mapping[str, Any]
    prompt: Prompt
    is_prompt_cut: bool = False


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a completion: per-example values, sufficient statistics of corpus metrics, and flags."""

    values: Mapping[str, float]
    stats: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    flags: Mapping[str, bool] = field(default_factory=dict)
