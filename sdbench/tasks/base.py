"""What all tasks share: rows, the subset and its seed, shots, prompts and how they are cut, stop strings. No torch."""

from __future__ import annotations

import random
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from string import Formatter
from typing import Any, ClassVar

from sdbench.config import nearest
from sdbench.tasks.bounds import check
from sdbench.tasks.checks import texts, whole
from sdbench.tasks.cut import length, longest, tail
from sdbench.tasks.data import Loaded, by_id, load, load_rows
from sdbench.tasks.extra_metrics import named
from sdbench.tasks.protocol import Fields, Protocol
from sdbench.types import Example, Metric, Prompt, Score

Row = Mapping[str, Any]
LM_EVAL_SHOT_SEED = 1234  # lm-eval's default fewshot_random_seed


@dataclass(kw_only=True)
class DataTask(ABC):
    """A data set under one prompt protocol; `configs/task/*.yaml` says what each option means.

    None takes the protocol's own value. Rows are read when first used, shots only when a prompt is made.
    """

    name: str
    dataset: str = ""  # of the hub; not needed with `data`
    dataset_config: str | None = None
    split: str = None  # type: ignore[assignment]  # filled from the protocol
    shots_split: str = "train"
    protocol: str = None  # type: ignore[assignment]  # None: the first
    version: str | int | None = None
    chat: bool | None = None
    n: int | None = None
    seed: int | None = 42
    shots: int | None = None
    shots_data: str | None = None
    max_new_tokens: int = None  # type: ignore[assignment]  # filled from the protocol
    stop: Sequence[str] = None  # type: ignore[assignment]  # filled from the protocol
    revision: str | None = None
    data: str | None = None
    extra_metrics: Sequence[str] = ()
    metrics: tuple[Metric, ...] = field(init=False, default=())  # all that a task declares; the headline is among them

    PROTOCOLS: ClassVar[Mapping[str, Protocol]]
    VERSION: ClassVar[str] = "1"
    FIELDS: ClassVar[tuple[str, ...]] = ()  # columns a row must have
    reference: ClassVar[str] = "answer"  # the column of the right answer
    metric: ClassVar[str]  # the headline
    cut_field: ClassVar[str] = ""  # the field that gives way when a prompt is too long ("": the first in its words) …
    cut_side: ClassVar[str] = "end"  # … and at which side

    def __post_init__(self) -> None:
        self.protocol = next(iter(self.PROTOCOLS)) if self.protocol is None else self.protocol
        if self.protocol not in self.PROTOCOLS:
            raise ValueError(f"{self.name} has no protocol {self.protocol} {nearest(self.protocol, self.PROTOCOLS)}")
        own = str(type(self).version or self.VERSION)
        if self.version is not None and str(self.version) != own:
            raise ValueError(f"{self.name} version {self.version} is not this sdbench's, which is {own}")
        if self.data is None and not self.dataset:
            raise ValueError(f"{self.name} needs data=rows.jsonl, or dataset= with an id of the hub")
        for option, low in {"n": 1, "shots": 0, "max_new_tokens": 1, "seed": 0}.items():
            whole(option, getattr(self, option), low)
        if not isinstance(self.chat, bool | None):
            raise ValueError(f"chat must be true, false or null, got {self.chat}")
        self.version = own
        self.chat = self.rules.is_chat if self.chat is None else self.chat
        self.shots = self.rules.num_shots if self.shots is None else self.shots
        self.split = self.split or self.rules.split
        self.max_new_tokens = self.max_new_tokens or self.rules.max_new_tokens
        self.stop = texts("stop", self.rules.stops(is_chat=self.chat) if self.stop is None else self.stop)
        self.extra_metrics = texts("extra_metrics", self.extra_metrics)
        self.data = None if self.data is None else str(self.data)
        if self.metric not in (metric.name for metric in self.metrics):
            self.metrics = (Metric(self.metric), *self.metrics)

    @property
    def rules(self) -> Protocol:
        """The protocol's words and limits."""
        return self.PROTOCOLS[self.protocol]

    def fields(self, row: Row) -> Fields:
        """What the templates may name, with the reference under `answer`."""
        return {**{name: str(value) for name, value in row.items()}, "answer": str(row[self.reference])}

    def reference_row(self, reference: str) -> Row:
        """A row that holds a reference alone: enough to be scored against."""
        return {**dict.fromkeys((*self.FIELDS, self._cut_field), ""), self.reference: reference}

    @property
    def _cut_field(self) -> str:
        return self.cut_field or next(name for _, name, *_ in Formatter().parse(self.rules.ask) if name)

    @abstractmethod
    def measure(self, example: Example, text: str) -> Score:
        """The score of an answer that is already cut and stripped."""

    # Rows

    @cached_property
    def rows(self) -> dict[str, Row]:
        """Every row of the split by its id, in the data set's order."""
        return by_id(self._select(self._loaded.rows), self._needed, self.name, self.data or self.dataset)

    @cached_property
    def _loaded(self) -> Loaded:
        return load(self.dataset, self.dataset_config, self.split, revision=self.revision, data=self.data)

    @property
    def dataset_commit(self) -> str | None:
        """The commit of the data set that the rows were read at; None where they are no rows of the hub."""
        return self._loaded.commit

    @property
    def _needed(self) -> tuple[str, ...]:
        """Columns a row must have: FIELDS, or the reference and what the prompt's words name."""
        named = [name for _, name, *_ in Formatter().parse(self.rules.ask) if name and name != "answer"]
        return self.FIELDS or (*named, self.reference)

    def _select(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows a protocol scores; all of them, unless a task knows better."""
        return rows

    @cached_property
    def ids(self) -> list[str]:
        """The ids of the subset: all in order, or the first n of the order that `datasets.shuffle(seed)` gives."""
        ids = list(self.rows)
        if self.n is None:
            return ids
        if self.n > len(ids):
            warnings.warn(f"{self.name} has {len(ids)} rows, fewer than n={self.n}: all are taken", stacklevel=2)
        if self.seed is not None:
            import numpy

            ids = [ids[i] for i in numpy.random.default_rng(self.seed).permutation(len(ids))]
        return ids[: self.n]

    # Prompts

    def examples(self) -> Iterable[Example]:
        """The subset asked for, in the order of its seed."""
        for key in self.ids:
            prompt = self.rules.render(self.fields(self.rows[key]), self.shots_of(key), is_chat=bool(self.chat))
            yield Example(key, self.rows[key], prompt)

    def shots_of(self, key: str) -> list[Fields]:
        """The shots shown before one row, never the row itself."""
        count = self.shots or 0
        if self.rules.fixed_shots or not count:
            return self._enough(self.rules.fixed_shots, count)
        pool = self._shot_pool
        others = [shot for shot in pool if shot != key or not self._is_pool_asked]
        named_ids = [shot for shot in self.rules.shot_ids if shot in pool and shot in others]
        if self.rules.shots == "drawn":
            drawn = self._drawn[key]
            picked = [shot for shot in (list(pool)[i] for i in drawn) if shot in others][:count]
        else:
            picked = (named_ids + [shot for shot in others if shot not in named_ids])[:count]
        return self._enough([self.fields(pool[shot]) for shot in picked], count)

    def _enough(self, shots: Sequence[Fields], count: int) -> list[Fields]:
        if len(shots) < count:
            raise ValueError(f"shots must be at most {len(shots)} for {self.name} with these data, got {count}")
        return list(shots[:count])

    @property
    def _is_pool_asked(self) -> bool:
        """A local file without `shots_data`, or a split that is its own pool: the asked row is left out of it."""
        return self.shots_data is None and (self.data is not None or self.shots_split == self.split)

    @cached_property
    def _shot_pool(self) -> dict[str, Row]:
        if self._is_pool_asked:
            return self.rows
        rows = load_rows(
            self.dataset, self.dataset_config, self.shots_split, revision=self.revision, data=self.shots_data
        )
        return by_id(rows, self._needed, self.name, self.shots_data or f"{self.dataset} {self.shots_split}")

    @cached_property
    def _drawn(self) -> dict[str, list[int]]:
        # One stream over the rows in order, as lm-eval does; one more than needed where a row may draw itself.
        rng, size = random.Random(LM_EVAL_SHOT_SEED), len(self._shot_pool)
        count = min(size, (self.shots or 0) + self._is_pool_asked)
        return {key: rng.sample(range(size), count) for key in self.rows}

    def fit(self, example: Example, num_tokens: Callable[[Prompt], int], limit: int) -> Example:
        """The example itself, or its prompt cut to `limit` tokens: oldest shots go first, then words of `cut_field`."""
        limit = min(limit, self.rules.prompt_limit or limit)
        if num_tokens(example.prompt) <= limit:
            return example
        shots, fields = self.shots_of(example.id), self.fields(example.row)

        def render(first: int, value: str) -> Prompt:
            return self.rules.render({**fields, self._cut_field: value}, shots[first:], is_chat=bool(self.chat))

        for first in range(1, len(shots) + 1):
            prompt = render(first, fields[self._cut_field])
            if num_tokens(prompt) <= limit:
                return replace(example, prompt=prompt, is_prompt_cut=True)
        words = re.findall(r"\s*\S+", fields[self._cut_field])

        def with_words(count: int) -> Prompt:
            kept = words[:count] if self.cut_side == "end" else words[len(words) - count :]
            return render(len(shots), "".join(kept))

        prompt = longest(with_words, len(words), num_tokens, limit)
        if num_tokens(prompt) > limit:  # not even the template fits: its end is nearest to the answer
            prompt = longest(lambda count: tail(with_words(0), count), length(with_words(0)), num_tokens, limit)
        return replace(example, prompt=prompt, is_prompt_cut=True)

    @property
    def cut_rule(self) -> str:
        """The rule of `fit`, as it is recorded."""
        own = f"; at most {self.rules.prompt_limit} tokens" if self.rules.prompt_limit else ""
        return f"oldest shots first, then words at the {self.cut_side} of {self._cut_field}{own}"

    # Scores

    def stopped(self, completion: str) -> str:
        """The completion up to the earliest stop string."""
        ends = [at for stop in self.stop if (at := completion.find(stop)) >= 0]
        return completion[: min(ends)] if ends else completion

    def score(self, example: Example, completion: str, *, is_truncated: bool = False) -> Score:
        """What a completion is worth; `is_truncated`: the length limit ended it. Pure in its arguments."""
        return self.score_all([(example, completion)], [is_truncated])[0]

    def score_all(self, pairs: Iterable[tuple[Example, str]], truncated: Iterable[bool] | None = None) -> list[Score]:
        """Scores in the order of the pairs, each as its metrics declare; code tasks run their programs side by side."""
        pairs = list(pairs)
        flags = [False] * len(pairs) if truncated is None else list(truncated)
        scores = self.measure_all(pairs)
        for (example, _), score in zip(pairs, scores, strict=True):
            check(self.name, self.metrics, example.id, score)
        return [self._flagged(*pair, score, cut) for pair, score, cut in zip(pairs, scores, flags, strict=True)]

    def measure_all(self, pairs: Sequence[tuple[Example, str]]) -> list[Score]:
        return [self.measure(example, self.stopped(completion).strip()) for example, completion in pairs]

    def _flagged(self, example: Example, completion: str, score: Score, is_truncated: bool) -> Score:
        text = self.stopped(completion)
        values = dict(score.values)
        for name in self.extra_metrics:
            values |= named(name)(text.strip(), self.fields(example.row)["answer"])
        general = {"is_truncated": is_truncated and text == completion, "is_empty": not text.strip()}
        return replace(score, values=values, flags={**general, "is_extraction_failed": False, **score.flags})

    def metric_of(self, name: str) -> Metric:
        """What a score of this name is: as declared; of an extra metric nothing is known."""
        return next((metric for metric in self.metrics if metric.name == name), Metric(name))

    @property
    def signatures(self) -> dict[str, str]:
        """How the metrics were computed: library, version, options."""
        return {}

    def environment(self) -> dict[str, Any]:
        """What scores here, on this machine: facts for the provenance that no score should depend on.

        Raises where something that the scores need cannot be had, before anything is decoded.
        """
        for name in self.extra_metrics:
            named(name)
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """The options alone: a scoring process needs no rows, and a pool of programs cannot travel."""
        return {key: value for key, value in self.__dict__.items() if key in self.__dataclass_fields__}

    def describe(self) -> dict[str, Any]:
        """Everything that decides what is asked and how it is scored, for the records."""
        rules = self.rules
        return {
            **{
                key: getattr(self, key)
                for key in ("name", "version", "protocol", "chat", "n", "seed", "shots", "split")
            },
            **{key: getattr(self, key) for key in ("dataset", "dataset_config", "revision", "max_new_tokens")},
            "data": None if self.data is None else Path(self.data).name,
            "source": rules.source,
            "stop": list(self.stop),
            "shots_from": "fixed" if rules.fixed_shots else rules.shots,
            "prompt_cut": self.cut_rule,
            "extra_metrics": list(self.extra_metrics),
            "signatures": self.signatures,
        }
