"""What a head, a judge or a draft is trained on: a pair as the runner composes it, the prompts of a train split, our own engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from sdbench.config import ConfigError, Run
from sdbench.train.tape import Seen, Tape
from sdbench.types import Metric

if TYPE_CHECKING:
    from sdbench.engines.native.decode import Decoder
    from sdbench.prepare.pair import LoadedPair
    from sdbench.prepare.pair_info import PairInfo
    from sdbench.prepare.prompts import Prompts
    from sdbench.tasks.base import DataTask
    from sdbench.types import Generation

T = TypeVar("T")


class Recipe(Protocol):
    """How something is trained; what cannot be is refused when it is made."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    version: ClassVar[str]  # raise it when the same recipe would give other weights
    is_rewarded: ClassVar[bool]  # whether it looks at the score of a text

    @property
    def rows(self) -> int: ...

    @property
    def prompts(self) -> int: ...

    def refuse_temperature(self, temperature: float) -> None: ...


FIXED = {  # words of the runner that a training decides itself -> what to give in their place
    "n": "rows=",
    "shard": "rows=",
    "task.split": "nothing, it is train",
}


def refuse_words(words: Sequence[str]) -> None:
    """Words that a run heeds and a training would not."""
    for word in words:
        name = word.partition("=")[0]
        if name in FIXED:
            raise ConfigError(f"{name}= is no word of a training: give {FIXED[name]}")
        if name.startswith("--") and name not in ("--config-dir", "--config-path", "--config-name"):
            raise ConfigError(f"{name} is no word of a training")


def composed(words: Sequence[str], recipe: Recipe) -> Run:
    """The runner's words, on the train split."""
    from sdbench.cli.command import parse
    from sdbench.cli.compose import Composer
    from sdbench.engines.native.kind import Native
    from sdbench.engines.protocol import kind_of

    refuse_words(words)
    given = parse([*words, "task.split=train", f"n={recipe.rows}"])
    composer = Composer(given.config_dir)
    jobs = composer.jobs(given)
    if len(jobs) != 1:
        raise ConfigError("a training takes one combination, and this command line names several")
    run = composer.run(jobs[0])
    if len(run.num_draft) != 1:
        raise ConfigError(f"a training takes one num_draft, got {list(run.num_draft)}")
    if not isinstance(kind_of(run), Native):
        raise ConfigError(f"a training decodes with engine=native, got engine={run.engine.name}")
    if run.model.draft is None:
        raise ConfigError(f"model={run.model.name} has no draft, and there is nothing to be learned without one")
    return run


@dataclass(frozen=True)
class Course:
    """A pair in memory, a task's train split, and the prompts of it."""

    run: Run
    task: DataTask
    pair_info: PairInfo
    pair: LoadedPair
    prompts: Prompts
    decoder: Decoder
    metric: Metric | None  # the reward, before it is brought to 0–1
    asked: str  # the key of the lossless cell: pair, prompts, drafter and options, as a run's records know them

    @classmethod
    def make(cls, run: Run, words: Sequence[str], recipe: Recipe, *, reward: str | None = None) -> Course:
        """Everything that can be refused is refused before weights are read."""
        from sdbench.engines.job import prepare
        from sdbench.engines.native.kind import Native
        from sdbench.prepare.prompts import Prompts

        recipe.refuse_temperature(run.temperature)
        job = prepare(run, words)
        if job.task.max_new_tokens < 2:
            raise ConfigError("max_new_tokens must be at least 2: the last token of a text is never drafted")
        if reward and not recipe.is_rewarded:
            raise ConfigError("reward is no option of this training: it looks at no score")
        metric = rewarding(job.task, reward) if recipe.is_rewarded else None
        prompts = Prompts.make(job.task, job.pair_info, run)
        if recipe.prompts > len(prompts.ids):
            raise ConfigError(f"prompts={recipe.prompts} are more than the {len(prompts.ids)} rows that there are")
        decoder = Native().open(job, prompts)
        return cls(run, job.task, job.pair_info, decoder.pair, prompts, decoder, metric, job.planned[0].cell.key)

    def what(self, recipe: Recipe) -> dict[str, Any]:
        """All that decides a step of a training."""
        from sdbench.files import digest_of_data

        words = {field.name: getattr(recipe, field.name) for field in fields(recipe) if field.name != "steps"}
        return {
            **self.card(),
            **words,
            "version": recipe.version,
            "question (prompts, stops, options)": self.asked,
            "rows asked": digest_of_data(list(self.prompts.ids)),
        }

    def card(self) -> dict[str, Any]:
        """Whose states a head reads, and where it was trained."""
        run = self.run
        return {
            "model": run.model.name,
            "checkpoints": dict(self.pair_info.checkpoints),
            "tokenizer": self.pair_info.tokenizer_key,
            "task": run.task.name,
            "protocol": self.task.protocol,
            "temperature": run.temperature,
            "num_draft": run.num_draft[0],
            **({} if self.metric is None else {"reward": self.metric.name}),
        }

    def widths(self) -> dict[str, int]:
        """Of the states of draft and target."""
        return {f"{role}_hidden": int(config.hidden_size) for role, config in self.pair_info.configs.items()}

    def keys(self, step: int, count: int) -> list[str]:
        """The examples of a step, each once before one comes again."""
        known = list(self.prompts.ids)
        return [known[(step * count + i) % len(known)] for i in range(count)]

    def roll(
        self, keys: Sequence[str], rules: Sequence[Any], samples: int, seed: int, features: Sequence[str]
    ) -> list[Rollout]:
        """Every prompt under every rule, `samples` texts each, decoded in one stream by the engine, with its noise of this seed."""
        from sdbench.engine import Request

        decoder, k = self.decoder, self.run.num_draft[0]
        options = replace(decoder.options("pair", batch_size=decoder.batch_size, is_measured=False), seed=seed)
        texts = [(prompt, rule, n) for prompt in range(len(keys)) for rule in rules for n in range(samples)]
        tape = Tape(features)
        taped = [tape.of(rule, number) for number, (_, rule, _) in enumerate(texts)]
        requests = [
            Request(prompt, number, sample, keys[prompt], k) for number, (prompt, _, sample) in enumerate(texts)
        ]
        ids = [self.prompts.ids[key] for key in keys]
        stream = decoder.engine.stream(ids, taped, requests, options, decoder.drafter("pair"))
        done = sorted(stream, key=lambda generation: generation.request)
        answers = [self.pair_info.text(generation.tokens) for generation in done]
        pairs = [(self.prompts.examples[keys[g.prompt]], answer) for g, answer in zip(done, answers, strict=True)]
        scores = self.task.score_all(pairs, [generation.finish == "length" for generation in done])
        return [
            Rollout(generation, self.reward(score.values), seen)
            for generation, score, seen in zip(done, scores, tape.seen(done), strict=True)
        ]

    def reward(self, values: Mapping[str, float]) -> float:
        """On 0–1."""
        assert self.metric is not None, "a training without a reward rolls nothing"
        low, high = self.metric.bounds or (0.0, 1.0)
        assert low is not None, "refused by rewarding()"
        assert high is not None, "refused by rewarding()"
        return (values[self.metric.name] - low) / (high - low)


@dataclass(frozen=True, slots=True)
class Rollout:
    """A text, what it is worth on 0–1, and what its rule saw of the tokens that it decided."""

    generation: Generation
    reward: float
    seen: Seen

    def decided_before(self, place: int) -> int:
        """How many of the tokens before a place the rule decided: where `seen` tells of the token there."""
        assert self.generation.origins is not None, "our own engine tells them"
        return sum(origin != "bonus" for origin in self.generation.origins[:place])


def rewarding(task: DataTask, name: str | None) -> Metric:
    """The metric that is the reward: each text has a value of its own, and both bounds are known."""
    able = [metric for metric in task.metrics if metric.is_bounded and metric.stats is None and metric.best == "high"]
    wanted = name or task.metric
    for metric in able:
        if metric.name == wanted:
            return metric
    choices = ", ".join(metric.name for metric in able)
    raise ConfigError(
        f"reward={wanted} of task={task.name} is no value of one text between bounds: give reward= one of {choices or 'none'}"
    )


def grouped(rollouts: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Rollouts of one prompt and rule after another."""
    for first in range(0, len(rollouts), size):
        yield rollouts[first : first + size]
