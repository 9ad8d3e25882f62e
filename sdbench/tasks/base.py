"""The base of all tasks: a data set under one prompt protocol, from its rows to its scores. No torch."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from sdbench.config import ConfigError, nearest, show
from sdbench.config.checks import optional_integer
from sdbench.tasks.data import Row, from_protocol
from sdbench.tasks.padding import Padding
from sdbench.types import Example, Metric, Score

__all__ = ["DataTask", "Row"]

ROUNDING = 1e-9  # of a bound: sacrebleu gives a perfect sentence 100.00000000000004


@dataclass(kw_only=True)
class DataTask(Padding):
    """A data set under one prompt protocol; `configs/task/*.yaml` explains each option.

    Options that are None take the protocol's value. `DataRows`, `Prompting` and `Padding` have the methods for rows and
    prompts.
    """

    max_new_tokens: int = from_protocol()
    stop: Sequence[str] = from_protocol()
    extra_metrics: Sequence[str] = ()
    metrics: tuple[Metric, ...] = field(init=False, default=())  # all that a task declares; the headline is among them
    version: str | int | None = None

    VERSION: ClassVar[str] = "1"
    WORDS: ClassVar[tuple[str, ...]] = ()  # options that never name a file, even if such a file exists
    scores_rows: ClassVar[bool] = False  # whether a score needs more of a row than its reference
    metric: ClassVar[str]  # the headline

    def __post_init__(self) -> None:
        self.protocol = next(iter(self.PROTOCOLS)) if self.protocol is None else self.protocol
        if self.protocol not in self.PROTOCOLS:
            raise ValueError(f"{self.name} has no protocol {self.protocol} {nearest(self.protocol, self.PROTOCOLS)}")
        version = str(type(self).version or self.VERSION)
        if self.version is not None and str(self.version) != version:
            raise ValueError(f"{self.name} version {self.version} is not the version of this sdbench, {version}")
        if self.data is None and not self.dataset:
            raise ValueError(f"{self.name} needs data=rows.jsonl, or dataset= with an id of the hub")
        for option, low in {"n": 1, "shots": 0, "max_new_tokens": 1, "seed": 0, "pad_to": 1}.items():
            setattr(self, option, optional_integer(option, getattr(self, option), low))
        if not isinstance(self.chat, bool | None):
            raise ValueError(f"chat must be true, false or null, got {self.chat}")
        rules, self.version = self.rules, version
        if self.shots_data is not None and rules.fixed_shots:
            raise ConfigError(
                f"task.shots_data={self.shots_data} has no effect: the shots of {self.name} are part of protocol {self.protocol}; "
                "leave it out"
            )
        self.chat = rules.is_chat if self.chat is None else self.chat
        self.shots = rules.num_shots if self.shots is None else self.shots
        if self.shots_data is not None and not self.shots and self.pad_to is None:
            raise ConfigError(
                f"task.shots_data={self.shots_data} has no effect: prompts of {self.name} have no shots here; leave it out, or "
                "give task.shots="
            )
        self.split = self.split or rules.split
        self.max_new_tokens = self.max_new_tokens or rules.max_new_tokens
        self.stop = _texts("stop", rules.stops(is_chat=self.chat) if self.stop is None else self.stop)
        self.extra_metrics = _texts("extra_metrics", self.extra_metrics)
        self.data = None if self.data is None else str(self.data)
        if self.metric not in (metric.name for metric in self.metrics):
            self.metrics = (self.metric_of(self.metric), *self.metrics)

    def environment(self) -> dict[str, Any]:
        """Return facts about scoring on this machine, for the provenance; no score should depend on them.

        It is called before anything is decoded, and raises if something that the scores need is missing.
        """
        for name in self.extra_metrics:
            load_metric(name)
            if (short := short_name(name)) in {metric.name for metric in self.metrics}:
                raise ValueError(f"extra_metrics: {short} is a score of {self.name} itself: remove it")
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the options only: a scoring process needs no rows, and a pool of programs cannot be pickled."""
        return {key: value for key, value in self.__dict__.items() if key in self.__dataclass_fields__}

    def describe(self) -> dict[str, Any]:
        """Return everything that decides the prompts and the scores, for the records."""
        options = ("name", "version", "protocol", "chat", "n", "seed", "shots", "split")
        options += ("dataset", "dataset_config", "revision", "max_new_tokens")
        return {
            **{key: getattr(self, key) for key in options},
            "data": None if self.data is None else Path(self.data).name,
            "source": self.rules.source,
            "stop": list(self.stop),
            "shots_from": self.shots_from,
            "prompt_cut": self.cut_rule,
            "extra_metrics": list(self.extra_metrics),
            "signatures": self.signatures,
            **self.describe_padding(),
        }

    @property
    def shots_from(self) -> str:
        """Return which rows are shots, in the words of the records."""
        rules = self.rules
        if rules.shot_ids:
            return f"rows {', '.join(rules.shot_ids)}, then the first"
        return "fixed" if rules.fixed_shots else rules.shots

    @abstractmethod
    def measure(self, example: Example, text: str) -> Score:
        """Return the score of an answer that is already cut and stripped."""

    def measure_all(self, pairs: Sequence[tuple[Example, str]]) -> list[Score]:
        return [self.measure(example, self.until_stop(completion).strip()) for example, completion in pairs]

    def scored_text(self, text: str) -> str:
        """Return the part of a cut and stripped answer that is scored."""
        return text

    def reference_row(self, reference: str) -> Row:
        """Return a row with only a reference, which is enough for scoring; where `scores_rows`, the row with this id."""
        if self.scores_rows:
            if reference not in self.rows:
                raise ValueError(
                    f"{self.name} is scored with its rows, so references are their ids, and {show(reference)} is not one"
                )
            return self.rows[reference]
        return {**dict.fromkeys((*self.FIELDS, self._cut_field), ""), self.reference: reference}

    def until_stop(self, completion: str) -> str:
        """Return the completion up to the earliest stop string."""
        return completion[: min((at for stop in self.stop if (at := completion.find(stop)) >= 0), default=None)]

    def score(self, example: Example, completion: str, *, is_truncated: bool = False) -> Score:
        """Score a completion; `is_truncated`: the length limit ended it. A pure function of its arguments."""
        return self.score_all([(example, completion)], [is_truncated])[0]

    def score_all(self, pairs: Iterable[tuple[Example, str]], truncated: Iterable[bool] | None = None) -> list[Score]:
        """Return scores in the order of the pairs; code tasks run their programs in parallel."""
        pairs = list(pairs)
        flags = [False] * len(pairs) if truncated is None else list(truncated)
        scores = self.measure_all(pairs)
        for (example, _), score in zip(pairs, scores, strict=True):
            check_score(f"task {self.name}, example {example.id}", self.metrics, score)
        return [self._with_flags(*pair, score, cut) for pair, score, cut in zip(pairs, scores, flags, strict=True)]

    def _with_flags(self, example: Example, completion: str, score: Score, is_truncated: bool) -> Score:
        """Return the score with the values of the extra metrics and the flags that every task has."""
        text = self.until_stop(completion)
        values = dict(score.values)
        for name in self.extra_metrics:
            values |= load_metric(name)(self.scored_text(text.strip()), self.fields(example.row)["answer"])
        general = {"is_truncated": is_truncated and text == completion, "is_empty": not text.strip()}
        # A stop string of the text form, such as a blank line, ends a chat answer after "Here is a summary:".
        is_opening = self.chat and "\n" not in text.strip() and text.rstrip(" *\n").endswith(":")
        is_opening = is_opening and not self.fields(example.row)["answer"].rstrip().endswith(":")
        return replace(score, values=values, flags={**general, "is_extraction_failed": bool(is_opening), **score.flags})

    def metric_of(self, name: str) -> Metric:
        """Return the declared metric of this name; for any other, such as an extra one, a raw number without bounds."""
        return next((metric for metric in self.metrics if metric.name == name), Metric(name))

    @property
    def signatures(self) -> dict[str, str]:
        """Return how the metrics were computed: library, version, options."""
        return {}


def _texts(option: str, value: Any) -> tuple[str, ...]:
    """Return one text or a list of texts as a list, none of them empty."""
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"{option} must be a text or a list of texts that are not empty, got {value!r}")
    return tuple(texts)


def check_score(where: str, metrics: Sequence[Metric], score: Score) -> None:
    """Raise ValueError unless each declared metric is there, finite and within its bounds; any other score passes."""
    for metric in metrics:
        name = f"{where}: {metric.name}"
        if metric.name not in score.values:
            raise ValueError(
                f"{name} is declared but was not scored; the scores are {', '.join(score.values) or 'none'}"
            )
        value = score.values[metric.name]
        if not math.isfinite(value):
            raise ValueError(f"{name} must be a finite number, got {value}")
        low, high = metric.bounds or (None, None)
        is_at_bound = any(
            math.isclose(value, end, rel_tol=ROUNDING, abs_tol=ROUNDING) for end in (low, high) if end is not None
        )
        if not metric.holds(value) and not is_at_bound:
            limit = f"at most {high:g}" if low is None else f"at least {low:g}"
            limit = limit if None in (low, high) else f"between {low:g} and {high:g}"
            raise ValueError(f"{name} must be {limit}, got {value}")
        if metric.stats is not None and metric.name not in score.stats:
            raise ValueError(f"{name} is made from statistics, and this score has none")


def short_name(metric: str) -> str:
    """Return the name of a metric of `evaluate` without its folder."""
    return metric.rstrip("/").rsplit("/", 1)[-1].removesuffix(".py")


@cache
def load_metric(name: str) -> Callable[[str, str], dict[str, float]]:
    """Load a metric of `evaluate`, by its name or its folder, as a function of one answer and its reference."""
    import evaluate  # takes seconds and brings torch

    try:
        loaded = evaluate.load(name)
    except Exception as error:  # failures of the hub are exceptions of its HTTP library
        words = " ".join(str(error).split())
        raise ValueError(f"extra_metrics: evaluate cannot load {name} ({type(error).__name__}: {words})") from error
    short = short_name(name)

    def measure(answer: str, reference: str) -> dict[str, float]:
        results: dict[str, Any] = loaded.compute(predictions=[answer], references=[reference]) or {}
        values = {key: single(value) for key, value in results.items()}
        numbers = {key: float(value) for key, value in values.items() if hasattr(value, "__float__")}
        if not numbers:
            raise ValueError(f"extra_metrics: {name} returned no number for an answer, but {show(results)}")
        return {key if key == short else f"{short}.{key}": value for key, value in numbers.items()}

    return measure


def single(value: Any) -> Any:
    """Return the item of a list or an array with a single item; any other value is returned as a plain Python object."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return value[0] if isinstance(value, list | tuple) and len(value) == 1 else value
