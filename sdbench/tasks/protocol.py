"""Prompt protocols: how a harness words a question, shows its shots and ends an answer. Their texts are in protocols/*.yaml."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any, Self

from sdbench.types import Message, Prompt

Fields = Mapping[str, str]


def read_words(name: str) -> Any:
    """Return the content of protocols/NAME.yaml."""
    import yaml

    return yaml.safe_load((Path(__file__).parent / "protocols" / f"{name}.yaml").read_text(encoding="utf-8"))


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How one harness asks; templates are `str.format` strings over a task's fields, of which `answer` is the reference."""

    source: str = "the task's own"  # the harness and its version
    instruction: str = ""  # once, before the shots
    ask: str  # a question as plain text; the completion follows directly
    answer: str = " {answer}"  # how an answer follows in a shot
    between: str = "\n\n"  # after each shot
    chat_ask: str | None = None  # the same question as a user turn; None: the plain text
    chat_answer: str = "{answer}"  # the assistant's turn in a shot
    chat_prefix: str = ""  # starts the assistant's answer
    prefix_is_turn: bool = (
        False  # the template continues it as a turn, as in lm-evaluation-harness, and may cut its end
    )
    is_chat: bool = False  # the form in which this protocol's results are reported
    num_shots: int = 0
    shots: str = "first"  # "first" rows, rows "drawn" as lm-eval draws them, or rows of `shot_ids`
    shot_ids: tuple[str, ...] = ()
    fixed_shots: tuple[Fields, ...] = ()  # shots that are part of the protocol
    split: str = "test"  # the split that is scored
    max_new_tokens: int
    stop: tuple[str, ...] = ()
    chat_stop: tuple[str, ...] | None = None  # in the chat form; None: `stop`
    prompt_limit: int | None = None  # the protocol's own limit on prompt tokens
    headline: str | None = None  # the metric that its results are reported in; None: the task's
    truncate_words: int | None = None  # only the first words of a summary are scored

    @classmethod
    def read(cls, name: str, code: Mapping[str, Mapping[str, Any]] = {}) -> dict[str, Self]:
        """Return the protocols of protocols/NAME.yaml, the first the default; `code`: further fields of a protocol, by its name."""
        protocols = {}
        for protocol, tree in read_words(name).items():
            words = {key: tuple(value) if isinstance(value, list) else value for key, value in tree.items()}
            protocols[protocol] = cls(**words, **code.get(protocol, {}))
        return protocols

    @property
    def asked_fields(self) -> tuple[str, ...]:
        """Return the fields that `ask` names, in its order."""
        return tuple(name for _, name, *_ in Formatter().parse(self.ask) if name)

    def render(self, question: Fields, shots: Sequence[Fields], *, is_chat: bool) -> Prompt:
        """Return the question after its shots: one text, or turns for the model's chat template."""
        instruction = self.instruction.format(**question)
        if not is_chat:
            before = "".join(self.ask.format(**shot) + self.answer.format(**shot) + self.between for shot in shots)
            return Prompt(text=instruction + before + self.ask.format(**question))
        ask = self.ask if self.chat_ask is None else self.chat_ask
        turns = []
        for shot in shots:
            turns.append(Message("user", ask.format(**shot)))
            turns.append(Message("assistant", self.chat_prefix.format(**shot) + self.chat_answer.format(**shot)))
        turns.append(Message("user", ask.format(**question)))
        turns[0] = Message("user", instruction + turns[0].content)
        prefix = self.chat_prefix.format(**question)
        if prefix and self.prefix_is_turn:
            return Prompt(messages=(*turns, Message("assistant", prefix)))
        return Prompt(messages=tuple(turns), prefix=prefix)

    def stops(self, *, is_chat: bool) -> tuple[str, ...]:
        """Return the strings that end an answer in this form."""
        return self.chat_stop if is_chat and self.chat_stop is not None else self.stop
