"""From a command line to a subject: the runner's own composition, or the tiny random pair where no model is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sdbench.audit import pairs
from sdbench.audit.audit import CLAIMS, Options
from sdbench.audit.laws import LARGEST
from sdbench.audit.subject import Setting, Subject, least_draft
from sdbench.cli.command import Command as Parsed
from sdbench.cli.command import key_of, parse
from sdbench.cli.compose import Composer
from sdbench.config import ConfigError, RuleSweep, Run, nearest, show
from sdbench.prepare.heads import named as labelled
from sdbench.prepare.refuse import refuse_broken_limits
from sdbench.prepare.rules import build_parts, rule_of
from sdbench.prepare.trained import with_trained

OWN = ("backend", "mode", "generations", "replay", "samples", "tv", "power", "claims", "out")
TRAINED_PROMPTS, TRAINED_BUDGET, TRAINED_DRAFT = 2, 8, 3
LOOKED_AT = 24  # prompts, of which the least certain are taken: a law that leaves no choice tells nothing


@dataclass(frozen=True)
class Command:
    """The audit's own options, and the words for the runner's composition."""

    own: Mapping[str, str]
    parsed: Parsed

    @property
    def words(self) -> tuple[str, ...]:
        return self.parsed.overrides

    def has(self, key: str) -> bool:
        return any(key_of(word) == key or key_of(word).startswith(f"{key}.") for word in self.words)


@dataclass(frozen=True)
class Built:
    """What is audited, and where its rules came from."""

    subject: Subject
    sweeps: tuple[RuleSweep, ...]
    run: Run
    markers: Callable[[str], Sequence[int]]
    trained: bool

    def make(self, sweep: RuleSweep) -> Callable[[dict[str, Any]], Any]:
        """The maker of a sweep's rules, the markers of spans as ids."""

        def made(setting: dict[str, Any]) -> Any:
            rule: Any = rule_of(sweep.target, setting)
            return rule.with_markers(self.markers) if hasattr(rule, "with_markers") else rule

        return made


def command(argv: Sequence[str]) -> Command:
    own = {key_of(word): word.partition("=")[2] for word in argv if key_of(word) in OWN and "=" in word}
    parsed = parse([word for word in argv if not (key_of(word) in OWN and "=" in word)])
    if parsed.is_multirun or parsed.show not in (None, "help"):
        raise ConfigError("the audit takes KEY=VALUE and --config-dir: of several combinations, run it several times")
    return Command(own, parsed)


def options(own: Mapping[str, str]) -> Options:
    claims = tuple(own["claims"].strip("[]").split(",")) if "claims" in own else CLAIMS
    for claim in claims:
        if claim not in CLAIMS:
            raise ConfigError(f"claims cannot hold {show(claim)} {nearest(claim, CLAIMS)}")
    return Options(
        tv=_number(own, "tv", 0.05, 0, 1),
        power=0.95,
        samples=int(_number(own, "samples", 0, 1, 10**9)) if "samples" in own else None,
        claims=claims,
    )


def _number(own: Mapping[str, str], key: str, default: float, low: float, high: float) -> float:
    if key not in own:
        return default
    try:
        value = float(own[key])
    except ValueError:
        raise ConfigError(f"{key} must be a number, got {show(own[key])}") from None
    if not low < value <= high and not (low == value == 1):
        raise ConfigError(f"{key} must be a number above {low:g} and at most {high:g}, got {own[key]}")
    return value


def compose(given: Command) -> Run:
    """The runner's composition, but sampled at temperature 1 where no other is named: greedy texts show little of a law."""
    parsed, composer = given.parsed, Composer(given.parsed.config_dir)
    if not any(map(given.has, ("temperature", "decode", "experiment"))):
        parsed = replace(parsed, overrides=(*parsed.overrides, "temperature=1"))
    jobs = composer.jobs(parsed)
    if len(jobs) != 1:
        raise ConfigError("the audit takes one combination at a time, and this command line names several jobs")
    return with_trained(composer.run(jobs[0]))


def build(given: Command) -> Built:
    """Everything checked, models in memory."""
    run = compose(given)
    parts = build_parts(run)
    refuse_broken_limits(run, parts)
    for built in parts.sweeps:
        for rule in built.rules:
            refuse_no_verifier(built.sweep.name, rule)
    trained = given.has("model")
    return _trained(given, run, parts) if trained else _random(given, run, parts)


def refuse_no_verifier(name: str, rule: object) -> None:
    missing = [member for member in ("is_lossless", "init_state", "measure") if not hasattr(rule, member)]
    if missing or not callable(rule):
        lacks = missing[0] if missing else "__call__"
        raise ConfigError(f"verifier={name} is no Verifier: {type(rule).__name__} has no {lacks} (docs/extending.md)")


def chosen(sweep: RuleSweep, is_given: bool) -> list[dict[str, Any]]:
    """The settings that are audited: those that were named, else the strict end and the middle of the sweep."""
    settings = [dict(setting) for setting in sweep.settings]
    if is_given:
        return settings
    strict = {knob.name: knob.strict for knob in sweep.knobs if knob.strict is not None}
    picked = [{**settings[0], **strict}, settings[len(settings) // 2]]
    return picked[:1] if picked[0] == picked[1] else picked


def settings_of(given: Command, sweeps: Sequence[RuleSweep], make: Callable[[RuleSweep], Any]) -> list[Setting]:
    named: list[Setting] = []
    for sweep in sweeps:
        start = f"verifier.{sweep.name}." if len(sweeps) > 1 else "verifier."
        own = [
            key_of(word)
            for word in given.words
            if key_of(word).startswith(start) or (key_of(word) == "w" and sweep.has_w)
        ]
        free = {f"{start}{knob.name}" for knob in sweep.knobs if knob.is_text}  # names a thing, and no setting
        is_given = any(not key.endswith("_target_") and key not in free for key in own)
        for setting in chosen(sweep, is_given):
            rule = make(sweep)(setting)
            told = labelled(rule, setting)
            shown = [
                f"{knob.name}={told[knob.name]}" for knob in sweep.knobs if not knob.choices or len(knob.values) > 1
            ]
            named.append(Setting(" ".join([sweep.name, *shown]), rule))
    return named


def _sampling(run: Run) -> Any:
    from sdbench.audit.source import Sampling

    return Sampling(run.temperature, run.top_k, run.top_p)


def _random(given: Command, run: Run, parts: Any) -> Built:
    target, draft = pairs.random_pair()
    ids: dict[str, int] = {}
    sweeps = tuple(built.sweep for built in parts.sweeps)

    def markers(text: str) -> list[int]:
        return [ids.setdefault(text, 1 + len(ids))]

    shell = Built(None, sweeps, run, markers, False)  # type: ignore[arg-type]
    settings = settings_of(given, sweeps, shell.make)
    num_draft = run.num_draft[0] if given.has("num_draft") else least_draft(settings)
    budget = run.max_new_tokens or num_draft + 2
    if pairs.VOCAB**budget > LARGEST:
        raise ConfigError(
            f"max_new_tokens={budget}: {pairs.VOCAB}^{budget} texts are too many to enumerate; take fewer, or name a model"
        )
    subject = Subject(
        settings,
        target,
        draft,
        pairs.PROMPTS,
        _sampling(run),
        parts.drafter,
        dict(run.drafter.options),
        num_draft=num_draft,
        budget=budget,
        stops=(pairs.STOP,),
        seed=run.seed,
    )
    return replace(shell, subject=subject)


def _trained(given: Command, run: Run, parts: Any) -> Built:
    from sdbench.prepare import pair
    from sdbench.prepare.pair_info import PairInfo
    from sdbench.prepare.prompts import Prompts
    from sdbench.prepare.task import build_task

    is_own = run.model.target.startswith("embedded:") and run.dtype == "auto" and run.device in ("auto", "cpu")
    metadata = pair.find(run.model, device=run.device, dtype="float64" if is_own else run.dtype)
    pair_info = PairInfo.read(metadata)
    sweeps = tuple(built.sweep for built in parts.sweeps)
    shell = Built(None, sweeps, run, lambda text: pair_info.tokenizer.encode(text, add_special_tokens=False), True)  # type: ignore[arg-type]
    build_parts(run, shell.markers)  # a marker must be a single token of this tokenizer
    budget = run.max_new_tokens or TRAINED_BUDGET
    is_counted = given.has("n") and run.n is not None
    small = replace(run, n=run.n if is_counted else LOOKED_AT, max_new_tokens=budget)
    prompts = list(Prompts.make(build_task(small), pair_info, small).ids.values())
    loaded = pair.load(metadata)
    if not is_counted:
        prompts = least_certain(loaded.target, prompts, TRAINED_PROMPTS)
    settings = settings_of(given, sweeps, shell.make)
    num_draft = run.num_draft[0] if given.has("num_draft") else least_draft(settings, TRAINED_DRAFT)
    subject = Subject(
        settings,
        loaded.target,
        loaded.draft,
        prompts,
        _sampling(run),
        parts.drafter,
        dict(run.drafter.options),
        tokenizer=pair_info.tokenizer,
        num_draft=num_draft,
        budget=budget,
        stops=(),
        seed=run.seed,
        batch_size=run.batch_size or 64,
        vocab_size=len(pair_info.tokenizer),
    )
    return replace(shell, subject=subject)


def least_certain(model: Any, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """Prompts whose first token the target is least sure of."""
    import torch

    with torch.no_grad():
        laws = [model(torch.tensor([list(p)], device=model.device)).logits[0, -1].softmax(-1) for p in prompts]
    unsure = [float(torch.special.entr(law.double()).sum()) for law in laws]
    order = sorted(range(len(prompts)), key=unsure.__getitem__, reverse=True)
    return [list(prompts[place]) for place in sorted(order[:count])]
