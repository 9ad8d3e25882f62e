"""What a task asks and how an answer is scored."""

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
