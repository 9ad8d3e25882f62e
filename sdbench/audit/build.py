"""Build the subject of an audit from a command line: a trained pair composed as in a run, or the tiny random pair."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sdbench.audit import pairs
from sdbench.audit.command import AuditCommand
from sdbench.audit.laws import MAX_TEXTS
from sdbench.audit.source import Sampling
from sdbench.audit.subject import AuditedRule, Subject, min_num_draft
from sdbench.config import ConfigError, RuleSweep, Run
from sdbench.engines.native.kind import Native
from sdbench.engines.protocol import kind_of
from sdbench.prepare.heads import heads_of, refuse_foreign_heads
from sdbench.prepare.heads import with_labels as labels_of
from sdbench.prepare.refuse import (
    known_of,
    refuse_broken_limits,
    refuse_drafter_options,
    refuse_pair,
)
from sdbench.prepare.rules import DrafterClass, Parts, build_parts, rules_of
from sdbench.prepare.trained import with_trained

TRAINED_PROMPTS, TRAINED_BUDGET, TRAINED_DRAFT = 2, 8, 3
CANDIDATES = 24  # prompts, of which the least certain are taken: a near-certain distribution tests little
Markers = Callable[[str], Sequence[int]]  # the ids of a text that marks a span


@dataclass(frozen=True)
class BuiltAudit:
    """The subject with the first drafter, and its rules and all drafters."""

    subject: Subject
    sweeps: tuple[RuleSweep, ...]
    run: Run
    markers: Markers
    drafters: tuple[DrafterClass, ...]

    @property
    def subjects(self) -> list[Subject]:
        """Return a subject for each drafter; if there are several, each setting has its drafter in its name."""
        if len(self.drafters) == 1:
            return [self.subject]
        return [
            replace(
                self.subject,
                settings=[replace(rule, name=f"{rule.name} {drafter.name}") for rule in self.subject.settings],
                **_drafter_options(drafter),
            )
            for drafter in self.drafters
        ]


def _drafter_options(drafter: DrafterClass) -> dict[str, Any]:
    return {"drafter": drafter.kind, "drafter_options": dict(drafter.component.options)}


def run_of(given: AuditCommand) -> Run:
    """Return the run that is audited, at temperature 1 by default: greedy texts show little of a distribution."""
    words = given.configuration
    if not any(map(given.has, ("temperature", "decode", "experiment"))):
        words = (*words, "temperature=1")
    return with_trained(given.compose(words))


def build(given: AuditCommand) -> BuiltAudit:
    """Check everything, and load the models."""
    run = run_of(given)
    if not isinstance(kind_of(run), Native):
        raise ConfigError(
            f"an audit decodes with engine=native, got engine={run.engine.name}; give another engine's texts as generations=FILE"
        )
    if len(run.num_draft) > 1:
        raise ConfigError("an audit takes one num_draft: run the command once for each")
    if run.max_new_tokens == 1:
        raise ConfigError("max_new_tokens must be at least 2: the last token of a text is never drafted")
    parts = build_parts(run)
    refuse_broken_limits(run, parts)
    refuse_drafter_options(run, parts)
    for built in parts.sweeps:
        for rule in built.rules:
            refuse_no_verifier(built.sweep.name, rule)
    return (_build_trained if given.has("model") else _build_random)(given, run, parts)


def refuse_no_verifier(name: str, rule: object) -> None:
    missing = [member for member in ("is_lossless", "init_state", "measure") if not hasattr(rule, member)]
    if missing or not callable(rule):
        lacks = missing[0] if missing else "__call__"
        raise ConfigError(
            f"verifier={name} is not a Verifier: {type(rule).__name__} has no {lacks} (docs/extending.md)"
        )


def settings_of(given: AuditCommand, sweeps: Sequence[RuleSweep], markers: Markers) -> list[AuditedRule]:
    """Return the settings that are audited: those given, else the lossless end and the middle of each sweep."""
    audited: list[AuditedRule] = []
    for sweep in sweeps:
        chosen = _chosen_settings(given, sweep, "verifier." if len(sweeps) == 1 else f"verifier.{sweep.name}.")
        for setting, rule in zip(chosen, rules_of(replace(sweep, settings=tuple(chosen)), markers), strict=True):
            values = labels_of(rule, setting)
            knobs = [knob for knob in sweep.knobs if not knob.choices or len(knob.values) > 1]
            audited.append(AuditedRule(" ".join([sweep.name, *(f"{k.name}={values[k.name]}" for k in knobs)]), rule))
    return audited


def _chosen_settings(given: AuditCommand, sweep: RuleSweep, prefix: str) -> list[dict[str, Any]]:
    settings = [dict(setting) for setting in sweep.settings]
    texts = {f"{prefix}{knob.name}" for knob in sweep.knobs if knob.is_text}  # a file's name chooses no setting
    keys = [key for key in given.keys if key.startswith(prefix) or (key == "w" and sweep.has_w)]
    if any(not key.endswith("_target_") and key not in texts for key in keys):
        return settings
    strict = {**settings[0], **{knob.name: knob.strict for knob in sweep.knobs if knob.strict is not None}}
    middle = settings[len(settings) // 2]
    return [strict] if strict == middle else [strict, middle]


def _common_options(run: Run, parts: Parts) -> dict[str, Any]:
    return {
        "sampling": Sampling(run.temperature, run.top_k, run.top_p),
        **_drafter_options(parts.drafters[0]),
        "seed": run.seed,
    }


def _build_random(given: AuditCommand, run: Run, parts: Parts) -> BuiltAudit:
    ids: dict[str, int] = {}

    def markers(text: str) -> list[int]:
        return [ids.setdefault(text, 1 + len(ids))]

    sweeps = tuple(built.sweep for built in parts.sweeps)
    settings = settings_of(given, sweeps, markers)
    num_draft = run.num_draft[0] if given.has("num_draft") else min_num_draft(settings)
    budget = run.max_new_tokens or num_draft + 2
    if pairs.VOCAB**budget > MAX_TEXTS:
        size = f"{pairs.VOCAB}^{budget} texts"
        raise ConfigError(f"max_new_tokens={budget}: {size} are too many to enumerate; give fewer, or give model=NAME")
    refuse_heads(parts)
    target, draft = pairs.random_pair()
    refuse_drafter_options(run, parts, target_config=target.config)
    subject = Subject(
        settings,
        target,
        draft,
        pairs.PROMPTS,
        num_draft=num_draft,
        budget=budget,
        stops=(pairs.STOP,),
        **_common_options(run, parts),
    )
    return BuiltAudit(subject, sweeps, run, markers, parts.drafters)


def refuse_heads(parts: Parts) -> None:
    """Raise ConfigError for a rule with a head, which is trained on the states of a trained pair."""
    for built in parts.sweeps:
        prefix = "verifier." if len(parts.sweeps) == 1 else f"verifier.{built.sweep.name}."
        for rule in built.rules:
            for option, head in heads_of(rule, prefix).items():
                name = head.card.get("model", "NAME")
                raise ConfigError(
                    f"{option} is a head of model={name}, and without model= a random pair is audited: give model={name}"
                )


def _build_trained(given: AuditCommand, run: Run, parts: Parts) -> BuiltAudit:
    from sdbench.prepare import pair
    from sdbench.prepare.pair_info import PairInfo
    from sdbench.prepare.prompts import Prompts
    from sdbench.prepare.task import build_task

    is_embedded = run.model.target.startswith("embedded:") and run.dtype == "auto" and run.device in ("auto", "cpu")
    is_exact = is_embedded and not run.model.packed  # in float64; packed weights cannot be float64
    metadata = pair.find(run.model, device=run.device, dtype="float64" if is_exact else run.dtype)
    pair_info = PairInfo.read(metadata)

    def markers(text: str) -> Sequence[int]:
        return pair_info.tokenizer.encode(text, add_special_tokens=False)

    build_parts(run, markers)  # a marker that is not a single token is refused before weights are read
    draft_tokenizer = pair_info.draft_tokenizer if parts.translates else None
    refuse_drafter_options(run, parts, **known_of(pair_info, parts))
    refuse_pair(run, pair_info, parts)
    refuse_foreign_heads(run, pair_info, parts, {})
    sweeps = tuple(built.sweep for built in parts.sweeps)
    budget = run.max_new_tokens or TRAINED_BUDGET
    is_counted = given.has("n") and run.n is not None
    small = replace(run, n=run.n if is_counted else CANDIDATES, max_new_tokens=budget)
    prompts = list(Prompts.make(build_task(small), pair_info, small, parts).ids.values())
    loaded = pair.load(metadata)
    if run.model.packed:
        refuse_unpacked(loaded.models.values())
    settings = settings_of(given, sweeps, markers)
    subject = Subject(
        settings,
        loaded.target,
        loaded.draft,
        prompts if is_counted else least_certain(loaded.target, prompts, TRAINED_PROMPTS),
        tokenizer=pair_info.tokenizer,
        draft_tokenizer=draft_tokenizer,
        num_draft=run.num_draft[0] if given.has("num_draft") else min_num_draft(settings, TRAINED_DRAFT),
        budget=budget,
        batch_size=run.batch_size or 64,
        packed=bool(run.model.packed),
        vocab_size=min(
            pair_info.num_ids(config.vocab_size)
            for role, config in pair_info.configs.items()
            if role == "target" or draft_tokenizer is None
        ),
        **_common_options(run, parts),
    )
    return BuiltAudit(subject, sweeps, run, markers, parts.drafters)


def refuse_unpacked(models: Iterable[Any]) -> None:
    """Raise ConfigError for a model whose weights cannot be packed."""
    from sdbench.lm.packed import refuse_unpackable

    try:
        for model in models:
            refuse_unpackable(model)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def least_certain(model: Any, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """Return the prompts whose first token has the highest entropy, in their order."""
    import torch

    with torch.no_grad():
        laws = [model(torch.tensor([list(p)], device=model.device)).logits[0, -1].softmax(-1) for p in prompts]
    entropies = [float(torch.special.entr(law.double()).sum()) for law in laws]
    order = sorted(range(len(prompts)), key=entropies.__getitem__, reverse=True)
    return [list(prompts[index]) for index in sorted(order[:count])]
