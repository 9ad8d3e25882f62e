"""The base of all tasks: a data set under one prompt protocol, from its rows to its scores. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from sdbench.config import nearest
from sdbench.config.checks import optional_integer
from sdbench.tasks.data import Row
from sdbench.tasks.scoring import Scorer, load_metric

__all__ = ["DataTask", "Row"]


@dataclass(kw_only=True)
class DataTask(Scorer):
    """A data set under one prompt protocol; `configs/task/*.yaml` says what each option means.

    Options that are None take the protocol's value. `DataRows`, `Prompting` and `Scorer` have the methods.
    """

    version: str | int | None = None

    VERSION: ClassVar[str] = "1"

    def __post_init__(self) -> None:
        self.protocol = next(iter(self.PROTOCOLS)) if self.protocol is None else self.protocol
        if self.protocol not in self.PROTOCOLS:
            raise ValueError(f"{self.name} has no protocol {self.protocol} {nearest(self.protocol, self.PROTOCOLS)}")
        version = str(type(self).version or self.VERSION)
        if self.version is not None and str(self.version) != version:
            raise ValueError(f"{self.name} version {self.version} is not this sdbench's, which is {version}")
        if self.data is None and not self.dataset:
            raise ValueError(f"{self.name} needs data=rows.jsonl, or dataset= with an id of the hub")
        for option, low in {"n": 1, "shots": 0, "max_new_tokens": 1, "seed": 0}.items():
            optional_integer(option, getattr(self, option), low)
        if not isinstance(self.chat, bool | None):
            raise ValueError(f"chat must be true, false or null, got {self.chat}")
        rules, self.version = self.rules, version
        self.chat = rules.is_chat if self.chat is None else self.chat
        self.shots = rules.num_shots if self.shots is None else self.shots
        self.split = self.split or rules.split
        self.max_new_tokens = self.max_new_tokens or rules.max_new_tokens
        self.stop = _texts("stop", rules.stops(is_chat=self.chat) if self.stop is None else self.stop)
        self.extra_metrics = _texts("extra_metrics", self.extra_metrics)
        self.data = None if self.data is None else str(self.data)
        if self.metric not in (metric.name for metric in self.metrics):
            self.metrics = (self.metric_of(self.metric), *self.metrics)

    def environment(self) -> dict[str, Any]:
        """Return facts about scoring on this machine, for the provenance; no score should depend on them.

        Raises where something that the scores need is missing, before anything is decoded.
        """
        for name in self.extra_metrics:
            load_metric(name)
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """The options alone: a scoring process needs no rows, and a pool of programs cannot travel."""
        return {key: value for key, value in self.__dict__.items() if key in self.__dataclass_fields__}

    def describe(self) -> dict[str, Any]:
        """Everything that decides what is asked and how it is scored, for the records."""
        options = ("name", "version", "protocol", "chat", "n", "seed", "shots", "split")
        options += ("dataset", "dataset_config", "revision", "max_new_tokens")
        return {
            **{key: getattr(self, key) for key in options},
            "data": None if self.data is None else Path(self.data).name,
            "source": self.rules.source,
            "stop": list(self.stop),
            "shots_from": "fixed" if self.rules.fixed_shots else self.rules.shots,
            "prompt_cut": self.cut_rule,
            "extra_metrics": list(self.extra_metrics),
            "signatures": self.signatures,
        }


def _texts(option: str, value: Any) -> tuple[str, ...]:
    """One text or a list of texts, none of them empty."""
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"{option} must be a text or a list of texts that are not empty, got {value!r}")
    return tuple(texts)
