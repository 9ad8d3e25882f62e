"""The input of a training: a pair, prompts of a task's train split, and the native engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from sdbench.config import ConfigError, Run
from sdbench.files import digest_of_data
from sdbench.subcommand import Compose
from sdbench.train.recipes import TrainingRecipe
from sdbench.train.recorder import Recorder, Recording
from sdbench.types import Metric
from sdbench.words import key_of

if TYPE_CHECKING:
    from sdbench.engines.native.decode import Decoder
    from sdbench.prepare.cells import Point
    from sdbench.prepare.pair import LoadedPair
    from sdbench.prepare.pair_info import PairInfo
    from sdbench.prepare.prompts import Prompts
    from sdbench.tasks.base import DataTask
    from sdbench.types import Generation

T = TypeVar("T")


# Options of a run that a training sets itself.
FIXED = {"task.split": "it is train"}
FIXED |= dict.fromkeys(("results", "name"), "use out=")
NO_RUN = "it belongs to runs, and a training would ignore it"
FIXED |= dict.fromkeys(("force", "margin", "tracker", "report", "timing"), NO_RUN)
FIXED |= dict.fromkeys(("verifier", "w"), "a training sets the rule itself")
ROWS = ("n", "shard", "task.n")  # how many rows a training reads is in its `rows`, or in `prompts` if each is read once


def refuse_options(words: Sequence[str], recipe: TrainingRecipe) -> None:
    """Raise ConfigError for an option that a run reads and a training would ignore."""
    for word in words:
        name = key_of(word)
        group = name.partition(".")[0]
        why = f"use {option_of_rows(recipe)}=" if name in ROWS else FIXED.get(name) or FIXED.get(group)
        if why:
            raise ConfigError(f"{name}= is not a training option; {why}")
        if group == "drafter" and not recipe.has_drafter:
            raise ConfigError(f"{name}= is not an option of this training: its texts are decoded without a drafter")
        if name.startswith("--") and name not in ("--config-dir", "--config-path", "--config-name"):
            raise ConfigError(f"{name} is not a training option; remove it")


def option_of_rows(recipe: TrainingRecipe) -> str:
    """Return the option for the number of rows that a training reads."""
    return "rows" if "rows" in recipe.options() else "prompts"


def run_of(words: Sequence[str], recipe: TrainingRecipe, compose: Compose) -> Run:
    """Return the run that these words configure, on the train split."""
    from sdbench.engines.native.kind import Native
    from sdbench.engines.protocol import kind_of

    refuse_options(words, recipe)
    drafter = [] if recipe.needs_draft or any(word.startswith("drafter=") for word in words) else ["drafter=lookup"]
    run = recipe.of_run(compose([*words, *drafter, "task.split=train", f"n={recipe.num_rows + recipe.num_more_rows}"]))
    if len(run.num_draft) != 1:
        raise ConfigError(f"a training takes one num_draft, got {list(run.num_draft)}")
    if len(run.drafters) != 1:
        raise ConfigError(f"a training takes one drafter, got {', '.join(drafter.name for drafter in run.drafters)}")
    if not isinstance(kind_of(run), Native):
        raise ConfigError(f"a training decodes with engine=native, got engine={run.engine.name}")
    if run.model.draft is None and recipe.needs_draft and not recipe.is_of_drafter:
        raise ConfigError(f"model={run.model.name} has no draft to train with; give model.draft=")
    return run


@dataclass(frozen=True)
class TrainingSetup:
    """A pair in memory, a task and the prompts of its train split."""

    run: Run
    task: DataTask
    pair_info: PairInfo
    pair: LoadedPair
    prompts: Prompts
    decoder: Decoder
    metric: Metric | None  # the reward, before it is scaled to 0–1
    lossless: Point  # its cell's key is a hash of the pair, prompts, drafter and options

    @classmethod
    def make(
        cls, run: Run, words: Sequence[str], recipe: TrainingRecipe, *, reward: str | None = None
    ) -> TrainingSetup:
        """Check all options, then read the weights."""
        from sdbench.engines.job import prepare
        from sdbench.engines.native.kind import Native
        from sdbench.prepare.refuse import refuse_limits

        recipe.refuse_temperature(run.temperature)
        job = prepare(run, words, is_recorded=False)
        refuse_quantised(job.pair_info, recipe)
        for drafter in job.parts.drafters:
            refuse_limits("this training", recipe.limits, run, drafter)
        recipe.refuse_target(job.pair_info.configs["target"].get_text_config())
        if job.task.max_new_tokens < 2:
            raise ConfigError("max_new_tokens must be at least 2: the last token of a text is never drafted")
        if reward and not recipe.is_rewarded:
            raise ConfigError("reward is not an option of this training: it reads no score; remove it")
        metric = reward_of(job.task, reward) if recipe.is_rewarded else None
        num_rows = min(recipe.num_rows, len(job.prompts.ids))
        if recipe.prompts > num_rows:
            advice = "lower it or raise rows=" if option_of_rows(recipe) == "rows" else "lower it"
            raise ConfigError(f"prompts={recipe.prompts} is more than the {num_rows} rows available; {advice}")
        decoder = Native().open(job)
        return cls(run, job.task, job.pair_info, decoder.pair, job.prompts, decoder, metric, job.planned[0])

    def identity(self, recipe: TrainingRecipe) -> dict[str, Any]:
        """Return everything that decides the steps of a training."""
        options = {field.name: getattr(recipe, field.name) for field in fields(recipe) if field.name != "steps"}
        return {
            **self.metadata(),
            **options,
            "version": recipe.version,
            "question (prompts, stops, options)": self.lossless.cell.key,
            "rows asked": digest_of_data(list(self.prompts.ids)[: recipe.num_rows]),
        }

    def metadata(self) -> dict[str, Any]:
        """Return the pair, the task and the decoding options of a training."""
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

    def quantizations(self) -> dict[str, str | None]:
        """Return how the models are quantised when they are loaded, for the card of a head that is trained for both."""
        return {f"{role}_quantization": self.pair_info.metadata.quantization(role) for role in self.pair_info.configs}

    def widths(self) -> dict[str, int]:
        """Return the widths of the hidden states of draft and target."""
        return {f"{role}_hidden": int(config.hidden_size) for role, config in self.pair_info.configs.items()}

    def keys_of(self, step: int, count: int) -> list[str]:
        """Return the examples of a step; each is used once before any is used again."""
        known = list(self.prompts.ids)
        return [known[row] for row in rows_of(step, count, len(known))]

    def roll_out(
        self, keys: Sequence[str], rules: Sequence[Any], samples: int, seed: int, features: Sequence[str]
    ) -> list[Rollout]:
        """Decode `samples` texts of every prompt under every rule, score them, and record what their rules decide."""
        from sdbench.verify.head import width_of

        recorder = Recorder(features, width_of(features, self.widths()))
        generations = self.decode(keys, rules, samples, seed, recorder)
        answers = [(self.prompts.examples[keys[g.prompt]], self.pair_info.text(g.tokens)) for g in generations]
        scores = self.task.score_all(answers, [generation.finish == "length" for generation in generations])
        return [
            Rollout(generation, self.reward(score.values), recording)
            for generation, score, recording in zip(generations, scores, recorder.recordings(generations), strict=True)
        ]

    def decode(
        self, keys: Sequence[str], rules: Sequence[Any], samples: int, seed: int, recorder: Recorder
    ) -> list[Generation]:
        """Decode these texts in one stream of the engine, with the noise of this seed."""
        from sdbench.engine import Request

        decoder, k = self.decoder, self.run.num_draft[0]
        options = replace(decoder.options("pair", batch_size=decoder.batch_size, is_measured=False), seed=seed)
        texts = [(prompt, rule, n) for prompt in range(len(keys)) for rule in rules for n in range(samples)]
        recorded = [recorder.wrap(rule, number) for number, (_, rule, _) in enumerate(texts)]
        requests = [Request(prompt, number, n, keys[prompt], k) for number, (prompt, _, n) in enumerate(texts)]
        ids = [self.prompts.ids[key] for key in keys]
        stream = decoder.engine.stream(ids, recorded, requests, options, decoder.drafter(self.lossless))
        return sorted(stream, key=lambda generation: generation.request)

    def reward(self, values: Mapping[str, float]) -> float:
        """Return the score of a text, scaled to 0–1."""
        assert self.metric is not None, "only a training with a reward scores texts"
        low, high = self.metric.bounds or (0.0, 1.0)
        assert low is not None, "reward_of checks both bounds"
        assert high is not None, "reward_of checks both bounds"
        return (values[self.metric.name] - low) / (high - low)


@dataclass(frozen=True, slots=True)
class Rollout:
    """A text, its reward in [0, 1], and the recording of the tokens that its rule decided."""

    generation: Generation
    reward: float
    recording: Recording


def refuse_quantised(pair_info: PairInfo, recipe: TrainingRecipe) -> None:
    """Raise ConfigError if the model whose weights are trained is quantised, since such weights have no gradient, or if the model
    whose states are read is quantised when it is loaded, since the card of the result would not record this.
    """
    role = recipe.trained_role or recipe.states_role
    if role is None:
        return
    kind, option = (
        pair_info.metadata.quantization(role),
        {"target": "quantization", "draft": "draft_quantization"}[role],
    )
    if kind is not None:
        reads = "starts from the {}'s weights" if recipe.trained_role else "reads the {}'s states"
        changes = "quantises" if recipe.trained_role else "changes"
        raise ConfigError(f"this training {reads.format(role)}, and model.{option}={kind} {changes} them: remove it")
    if recipe.trained_role and getattr(pair_info.configs[role], "quantization_config", None) is not None:
        raise ConfigError(
            f"this training starts from the {role}'s weights, and the checkpoint of model.{role} has quantised ones: "
            "give one that has not"
        )


def reward_of(task: DataTask, name: str | None) -> Metric:
    """Return the metric `name`, by default the headline metric; raise ConfigError unless it scores single texts within bounds."""
    usable = [metric for metric in task.metrics if metric.is_bounded and metric.stats is None and metric.best == "high"]
    wanted, names = name or task.metric, ", ".join(metric.name for metric in usable)
    for metric in usable:
        if metric.name == wanted:
            return metric
    advice = f"use reward={'' if len(usable) == 1 else ' with one of '}{names}" if usable else "choose another task"
    raise ConfigError(f"reward={wanted} of task={task.name} is not a bounded score of a single text; {advice}")


def rows_of(step: int, count: int, total: int) -> list[int]:
    """Return the `count` rows of a step out of `total`; each is read once before any is read again."""
    return [(step * count + i) % total for i in range(count)]


def group_by(rollouts: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Return consecutive rollouts in groups of `size`."""
    for first in range(0, len(rollouts), size):
        yield rollouts[first : first + size]
