"""Options from the harness and the user: the run that `--model_args` describes, and how the answers of a task are decoded."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from lm_eval.models.utils import normalize_gen_kwargs  # pyright: ignore[reportMissingImports] - the extra lm-eval

from sdbench.cli import compose_run
from sdbench.config import GROUPS, KEYS, NATIVE, Component, ConfigError, Run, show
from sdbench.prepare.heads import refuse_foreign_heads
from sdbench.prepare.progress import warn
from sdbench.prepare.refuse import (
    LimitError,
    known_of,
    refuse_broken_limits,
    refuse_drafter_options,
    refuse_pair,
)
from sdbench.prepare.template import refuse_unread_options
from sdbench.prepare.trained import GATES, TRAINED, kinds_of, with_trained
from sdbench.probs import Warp

if TYPE_CHECKING:
    from transformers import GenerationConfig

    from sdbench.prepare.pair_info import PairInfo
    from sdbench.prepare.rules import Parts

SHORT = {"target": "model.target", "draft": "model.draft"}  # short names in --model_args target=…,draft=…
SAMPLING = ("decode", "temperature", "top_k", "top_p", "max_new_tokens")  # decided by the harness for each task
# Options of a run that this model reads, and what replaces some of the others.
READ = ("model", "verifier", "drafter", "w", "num_draft", "seed", "batch_size", "device", "dtype", "engine")
INSTEAD = {
    "task": "name tasks by --tasks, and a trained head by its folder or as trained:TASK",
    "n": "give --limit",
    "experiment": "name the pair, the rule and the drafter",
    "method": "name the rule with its head, such as verifier=diversed,verifier.head=trained:TASK",
}
OF_ANSWERS = ("until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p")
# Options of `generate` that sdbench does not have, with the values at which they do nothing.
WITHOUT_EFFECT = {
    **dict.fromkeys(("num_beams", "num_return_sequences", "repetition_penalty", "typical_p", "length_penalty"), 1),
    **dict.fromkeys(("encoder_repetition_penalty", "guidance_scale"), 1),
    **dict.fromkeys(("min_p", "no_repeat_ngram_size", "early_stopping"), 0),
    **dict.fromkeys(("encoder_no_repeat_ngram_size", "min_length", "min_new_tokens"), 0),
}
# Options in a checkpoint's generation_config.json with which `generate` changes answers even at temperature 0.
OF_CHECKPOINT = (
    *("repetition_penalty", "encoder_repetition_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
    *("bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id"),
    *("min_length", "min_new_tokens", "max_new_tokens", "exponential_decay_length_penalty"),
    *("num_beams", "guidance_scale", "sequence_bias", "watermarking_config"),
)
DEFAULT_DEVICE = "cuda:0"  # the harness passes this if the user gives no device, even on a machine without a GPU
LENGTH = 256  # tokens of an answer if the task gives no length, as in the harness
TORCH_SEED = 1234  # of torch in the harness, if the user gives no --seed


@dataclass(frozen=True)
class AnswerOptions:
    """How the answers of one task are decoded."""

    stops: tuple[str, ...]
    max_new_tokens: int
    room: int  # the longest prompt, in tokens
    temperature: float
    top_k: int | None
    top_p: float | None

    @classmethod
    def of(cls, task: str, given: Mapping[str, Any], limit: int) -> AnswerOptions:
        """Read the `generation_kwargs` of a task; raise ConfigError for unsupported ones, or if they leave no room for a prompt."""
        try:
            options = normalize_gen_kwargs(dict(given), LENGTH)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"the generation options of {task} have an invalid value: {error}") from None
        for name, value in options.items():
            if name not in OF_ANSWERS and value is not None and value != WITHOUT_EFFECT.get(name):
                raise ConfigError(
                    f"{name}={show(value)} of {task} is not supported: sdbench samples with temperature, top_k and top_p, or takes "
                    f"the likeliest token; leave it out, or change it by --gen_kwargs"
                )
        length = options["max_gen_toks"]
        if length < 1:
            raise ConfigError(f"max_gen_toks={length} of {task} must be at least 1")
        if length >= limit:
            raise ConfigError(
                f"max_gen_toks={length} of {task} leaves no room for a prompt: the pair takes {limit} tokens"
            )
        is_sampled = bool(options.get("do_sample"))
        temperature = float(options.get("temperature") or 0) if is_sampled else 0.0
        if is_sampled and not temperature:
            raise ConfigError(
                f"do_sample=true of {task} needs a temperature above 0: add one, such as "
                "--gen_kwargs do_sample=true,temperature=0.7"
            )
        cuts = {key: options.get(key) if is_sampled else None for key in ("top_k", "top_p")}
        cuts["top_k"] = cuts["top_k"] or None  # 0 means all tokens, as in transformers
        if isinstance(cuts["top_k"], bool) or not isinstance(cuts["top_k"], int | None):
            raise ConfigError(f"top_k={show(cuts['top_k'])} of {task} must be a whole number")
        if isinstance(cuts["top_p"], bool) or not isinstance(cuts["top_p"], float | int | None):
            raise ConfigError(f"top_p={show(cuts['top_p'])} of {task} must be a number")
        try:
            Warp(temperature, **cuts)
        except ValueError as error:
            raise ConfigError(f"{error} in the generation options of {task}") from None
        until = tuple(filter(None, options["until"]))
        if not all(isinstance(stop, str) for stop in until):
            raise ConfigError(f"until={show(options['until'])} of {task} must be strings")
        return cls(until, length, limit - length, temperature, **cuts)

    def until_stop(self, text: str) -> str:
        """Return the text before the first stop string."""
        return text[: min((at for stop in self.stops if (at := text.find(stop)) >= 0), default=None)]


def run_of(options: Mapping[str, Any]) -> Run:
    """Return the run that `--model_args` describes; raise ConfigError unless it is one setting."""
    given = {SHORT.get(key, key): value for key, value in options.items() if value is not None}
    given.pop("max_batch_size", None)
    for key in given:
        _refuse_unread(key)
    if not torch.cuda.is_available() and given.get("device") == DEFAULT_DEVICE:
        given["device"] = "auto"
    with suppress(TypeError, ValueError):  # the harness passes a string; one such as "auto" stays as it is
        given["batch_size"] = int(given["batch_size"]) if "batch_size" in given else "auto"
    run = compose_run([f"{key}={_word_of(value)}" for key, value in given.items()])
    if run.engine.name != NATIVE.name:
        raise ConfigError(
            f"engine={run.engine.name} is not supported in lm_eval, where sdbench decodes in this process: remove it, or run the "
            f"harness's task over a server by python -m sdbench engine={run.engine.name} task=lm-eval:NAME"
        )
    if run.model.distilled is not None:
        raise ConfigError(
            f"model.distilled={run.model.distilled} belongs to a task of sdbench: give draft=FOLDER instead"
        )
    settings = sum(len(sweep.settings) for sweep in run.verifiers)
    if settings != 1 or len(run.num_draft) != 1 or len(run.drafters) != 1:
        raise ConfigError(
            "lm_eval evaluates one model at a time: name one rule with one value of its knobs, one drafter and one num_draft, "
            "such as --model_args target=ID,draft=ID,verifier=ensemble,w=0.7,num_draft=5"
        )
    for drafter in run.drafters:
        _refuse_unnamed_heads(drafter)
    # The tasks decide the temperature, so no head is chosen because it was trained at that of the configuration.
    return replace(with_trained(replace(run, temperature=math.nan)), temperature=run.temperature)


def _refuse_unnamed_heads(drafter: Component) -> None:
    """Raise ConfigError for a head or gate that a run would choose by its task or temperature, which are not known here."""
    for option, kind in kinds_of(drafter).items():
        head, name = drafter.options.get(option), f"drafter={drafter.name}"
        if kind.startswith(GATES) and (head is None or str(head).startswith(TRAINED)):
            raise ConfigError(
                f"{name} needs drafter.{option}=FOLDER in lm_eval: a gate is for one temperature, and the tasks decide theirs"
            )
        if head is None:
            raise ConfigError(
                f"{name} needs drafter.{option}=trained:TASK or drafter.{option}=FOLDER in lm_eval, whose tasks do not name it"
            )


def refuse_run(run: Run, pair_info: PairInfo, parts: Parts) -> None:
    """Raise ConfigError for the first thing that this run cannot do, before weights are read."""
    try:  # the tasks decide the temperature, at which the limits are checked again
        refuse_broken_limits(replace(run, temperature=0.0), parts)
    except LimitError:
        refuse_broken_limits(replace(run, temperature=1.0), parts)
    refuse_drafter_options(run, parts, **known_of(pair_info, parts))
    refuse_pair(run, pair_info, parts)
    refuse_foreign_heads(run, pair_info, parts, {})
    refuse_unread_options(run, pair_info.template or "")


def warn_of_unused(config: GenerationConfig, target: str) -> None:
    """Warn of what the harness's `hf` takes from the generation_config.json of a checkpoint and sdbench does not apply."""
    values = {name: getattr(config, name, None) for name in OF_CHECKPOINT}
    unused = [
        f"{name}={show(value)}" for name, value in values.items() if value not in (None, WITHOUT_EFFECT.get(name))
    ]
    if unused:
        warn(
            f"the generation_config.json of {target} has {', '.join(unused)}, which lm_eval's hf applies to answers and sdbench "
            "does not"
        )


def _refuse_unread(key: str) -> None:
    """Raise ConfigError for an option of a run that this model does not read; unknown ones are refused later."""
    top = re.split(r"[./@]", key.lstrip("+~"))[0]
    if key == "tokenizer":
        raise ConfigError(
            "tokenizer is not an option of sdbench in lm_eval, which reads the target's: for tasks that need one, such as RULER's, "
            """give --metadata '{"tokenizer": "ID"}'"""
        )
    if top in SAMPLING:
        raise ConfigError(
            f"{key} is decided by lm_eval for each task: give it as --gen_kwargs, such as "
            "--gen_kwargs do_sample=true,temperature=0.7"
        )
    if top in (*KEYS, *GROUPS, "hydra") and top not in READ:
        raise ConfigError(
            f"{key} is an option of python -m sdbench that has no effect in lm_eval: {INSTEAD.get(top, 'remove it')}"
        )


def _word_of(value: object) -> str:
    """Return a value as it is written on the command line."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_word_of, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
