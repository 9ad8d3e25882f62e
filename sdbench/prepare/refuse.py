"""Everything that can be known to be wrong before weights are read. Each error is one sentence and exit code 2.

Errors of one file or class are raised where it is read: model ids in `pair.find`, classes of rules in `rules`, rows and the
sandbox in `task`, room for prompts in `prompts`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from sdbench.config import NATIVE, Component, ConfigError, RuleSweep, Run, show
from sdbench.errors import first_line
from sdbench.prepare.arrivals import refuse_timing
from sdbench.prepare.assisted import refuse_assisted
from sdbench.prepare.heads import known_drafting, refuse_foreign_heads, warn_of_foreign_drafter_heads
from sdbench.prepare.known_rows import warn_of_known_rows
from sdbench.prepare.progress import warn
from sdbench.prepare.rules import DrafterClass, Parts, build_parts
from sdbench.prepare.template import refuse_unread_options
from sdbench.prepare.trained import with_drafter_head
from sdbench.types import Limits

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from sdbench.prepare.pair_info import PairInfo
    from sdbench.tasks.base import DataTask

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


class LimitError(ConfigError):
    """A rule or a drafter cannot do what the run requests."""


def refuse(run: Run, pair_info: PairInfo, parts: Parts, task: DataTask) -> None:
    """Raise a ConfigError for the first thing that this run cannot do, and warn of settings that are probably a mistake."""
    refuse_broken_limits(run, parts)
    refuse_drafter_options(run, parts, **known_of(pair_info, parts))
    refuse_pair(run, pair_info, parts)
    refuse_assisted(run, pair_info, parts)
    refuse_timing(run)
    if pair_info.is_hashed:
        trained_for = {"task": run.task.name, "temperature": run.temperature, "protocol": task.protocol}
        refuse_foreign_heads(run, pair_info, parts, trained_for)
        warn_of_foreign_drafter_heads(run, parts)
        _warn_of_foreign_draft(run, pair_info)
        warn_of_known_rows(pair_info, parts, task)
    _refuse_prompts(run, task, pair_info)


def known_of(pair_info: PairInfo, parts: Parts) -> dict[str, Any]:
    """Return the fields of DraftSetup that are known before weights are read."""
    return {
        "tokenizer": pair_info.tokenizer,
        "target_config": pair_info.configs["target"],
        "draft_tokenizer": pair_info.draft_tokenizer if parts.translates else None,
        "checkpoint": pair_info.checkpoints["target"] if pair_info.is_hashed else None,
        "draft_checkpoint": pair_info.checkpoints.get("draft") if pair_info.is_hashed else None,
        "tokenizer_key": pair_info.tokenizer_key,
    }


def refuse_pair(run: Run, pair_info: PairInfo, parts: Parts) -> None:
    """Raise for models that the engine cannot serve, for two vocabularies where one is needed, and for an attention that the
    target does not support.
    """
    from sdbench.lm.int8 import refuse_experts_of
    from sdbench.lm.quantized import INT8
    from sdbench.lm.servable import class_of, refuse_unservable

    if run.engine.name == NATIVE.name:  # a server may be able to decode with them
        for role, config in pair_info.configs.items():
            refuse_unservable(config, class_of(config), role)
            if pair_info.metadata.quantization(role) == INT8:
                refuse_experts_of(config, class_of(config), pair_info.metadata.checkpoints[role].id)
    if "draft" in pair_info.configs and parts.has_one_vocabulary:
        _refuse_two_vocabularies(run, pair_info)
    if run.model.attention is not None:
        _refuse_missing_attention(run, pair_info)


def refuse_broken_limits(run: Run, parts: Parts) -> None:
    """Raise for the first limit of a rule or drafter that a setting violates."""
    for drafter in parts.drafters:
        if drafter.needs_draft and run.model.draft is None:
            instead = "drafter=lookup, which drafts from the text alone"
            instead = f"leave {drafter.name} out of the list" if len(parts.drafters) > 1 else instead
            raise LimitError(f"drafter={drafter.name} needs a draft model: give model.draft=ID, or {instead}")
    rules = [(f"verifier={built.sweep.name}", rule) for built in parts.sweeps for rule in built.rules]
    for drafter in parts.drafters:
        for name, part in [(f"drafter={drafter.name}", drafter.kind), *rules]:
            refuse_limits(name, getattr(part, "limits", Limits()), run, drafter)


def refuse_limits(name: str, limits: Limits, run: Run, drafter: DrafterClass) -> None:
    """Raise if limits, those of `name`, are violated by the run with this drafter."""
    from sdbench.draft import calls_sure

    has_draft = run.model.draft is not None
    for k in run.num_draft:
        sentence = limits.broken_by(
            name,
            temperature=run.temperature,
            num_draft=k,
            has_draft_model=has_draft,
            has_logits=drafter.needs_draft and has_draft and getattr(drafter.kind, "has_logits", True),
            calls_sure=calls_sure(drafter.kind, drafter.component.options),
            drafter=f"drafter={drafter.name}",
        )
        if sentence is not None:
            raise LimitError(sentence)


def refuse_drafter_options(run: Run, parts: Parts, **known: Any) -> None:
    """Raise for invalid options of the drafters. `known` are fields of DraftSetup."""
    from sdbench.draft import check
    from sdbench.types import DraftSetup

    for drafter in parts.drafters:
        setup = DraftSetup(None, None, num_draft=max(run.num_draft), drafting=known_drafting(run, drafter), **known)
        try:
            check(drafter.kind, drafter.component.options, setup, run.num_draft)
        except ValueError as error:
            raise ConfigError(f"drafter={drafter.name}: {first_line(error)}") from None


def can_run(run: Run, rule: RuleSweep) -> bool:
    """Return whether a rule of the run is within its limits and, if it needs a trained head, has one."""
    heads = [value for knob in rule.knobs if knob.trained for value in knob.values]
    if heads:
        return "none" not in heads
    one_rule = replace(run, verifiers=(rule,))
    try:
        refuse_broken_limits(one_rule, build_parts(one_rule))
    except LimitError:
        return False
    return True


def can_draft(run: Run, drafter: Component) -> bool:
    """Return whether a drafter of the run is within its limits and has the models and options that it needs."""
    try:
        alone = replace(run, drafters=(with_drafter_head(run, drafter),), verifiers=())
        parts = build_parts(alone)
        refuse_broken_limits(alone, parts)
        refuse_drafter_options(alone, parts)
    except ConfigError:
        return False
    return True


def _warn_of_foreign_draft(run: Run, pair_info: PairInfo) -> None:
    """Warn of a draft that was distilled for another task, temperature or target. It still works as a draft."""
    card = pair_info.distilled
    if card is None:
        return
    settings = {"task": run.task.name, "temperature": run.temperature, "target": pair_info.checkpoints["target"]}
    for name, value in settings.items():
        if card[name] != value:
            warn(
                f"the draft was distilled with {name}={card[name]}, but this run has {name}={value}: its drafts may be accepted "
                "less often"
            )


def _refuse_prompts(run: Run, task: DataTask, pair_info: PairInfo) -> None:
    """Build the first prompt to check the chat template, its options and the shots."""
    from jinja2 import TemplateError

    try:
        examples = list(islice(task.examples(), 1))
    except (ValueError, TypeError, LookupError) as error:
        raise ConfigError(f"task={run.task.name}: {first_line(error)}") from None
    for example in examples:
        if example.prompt.messages:
            _refuse_missing_template(run, pair_info)
        try:
            pair_info.ids(example.prompt)
        except (TemplateError, ValueError, TypeError) as error:
            raise ConfigError(
                f"the chat template of {run.model.target} refuses the prompts of task={run.task.name} "
                f"({first_line(error)}): use task.chat=false"
            ) from None


def _refuse_missing_template(run: Run, pair_info: PairInfo) -> None:
    """Raise for turns without a chat template, or with options that it does not read."""
    template = pair_info.template
    if template is None:
        raise ConfigError(
            f"task={run.task.name} is a conversation, and the tokenizer of {run.model.target} has no chat template: "
            "use task.chat=false, or a chat model"
        )
    refuse_unread_options(run, template)


def _refuse_two_vocabularies(run: Run, pair_info: PairInfo) -> None:
    """Raise unless every id means the same for both models and the draft has every id that a text may contain."""
    from sdbench.lm.load import load_tokenizer
    from sdbench.lm.model import PADDING

    draft = pair_info.metadata.checkpoints["draft"]
    rows, target_rows = (int(pair_info.configs[role].vocab_size) for role in ("draft", "target"))
    target_tokens = _by_id(pair_info.tokenizer)
    special = set(pair_info.tokenizer.added_tokens_decoder)
    beyond = [index for index in target_tokens if index >= rows and index not in special]
    if beyond or abs(rows - target_rows) > PADDING:
        raise ConfigError(
            f"model.draft={run.model.draft} has {rows} ids and {run.model.target} {target_rows}, of which its tokenizer uses "
            f"{len(target_tokens)}: a pair needs one vocabulary, so give a draft of the same family"
        )
    if not any((draft.tokenizer_folder / name).is_file() for name in TOKENIZER_FILES):
        raise ConfigError(
            f"model.draft={run.model.draft} has no tokenizer, so nothing shows that its ids are those of {run.model.target}: "
            "if they are, copy the tokenizer's files of the target into a local folder of the draft"
        )
    folders = (pair_info.metadata.checkpoints["target"].tokenizer_folder, draft.tokenizer_folder)
    files = [folder / "tokenizer.json" for folder in folders]
    if all(file.is_file() for file in files) and files[0].read_bytes() == files[1].read_bytes():
        return
    draft_tokens = _by_id(load_tokenizer(draft))
    shared = [index for index in target_tokens if index in draft_tokens]
    differing = [index for index in shared if target_tokens[index] != draft_tokens[index]]
    missing = [index for index in target_tokens if index not in draft_tokens and index not in special]
    if differing or missing:
        first = (differing or missing)[0]
        raise ConfigError(
            f"model.target={run.model.target} and model.draft={run.model.draft} have different tokenizers: id {first} is "
            f"{target_tokens[first]!r} for the target and {repr(draft_tokens[first]) if differing else 'missing'} for the "
            f"draft, and {len(differing + missing)} of {len(target_tokens)} ids differ in all; give a draft of the same family"
        )


def _refuse_missing_attention(run: Run, pair_info: PairInfo) -> None:
    """Build the model's skeleton with this attention, without weights, and raise if it fails."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    checkpoint = pair_info.metadata.checkpoints["target"]
    dtype: Any = getattr(torch, pair_info.numerics["target_dtype"].removeprefix("torch."))
    try:
        config = AutoConfig.from_pretrained(checkpoint.folder)
        with torch.device("meta"):
            AutoModelForCausalLM.from_config(config, attn_implementation=run.model.attention, dtype=dtype)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"model.attention={run.model.attention} is not available for {run.model.target}: {show(first_line(error))}; "
            "leave it out for transformers' default"
        ) from None


def _by_id(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    return {index: token for token, index in tokenizer.get_vocab().items()}
