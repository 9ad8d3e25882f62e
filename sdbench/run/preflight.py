"""What can be known to be wrong before a weight is read: each is one sentence and exit code 2.

Elsewhere, and as early: gates, slips in ids and what does not fit (`pair.find`), limits and needs (`parts`), rows and the sandbox
(`job.build_task`), room for prompts (`quality.Prompts`).
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from sdbench.config import ConfigError, Run, nearest, show
from sdbench.errors import first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from sdbench.run.outline import Outline
    from sdbench.run.parts import Parts
    from sdbench.tasks.base import DataTask

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


def check_pair(run: Run, outline: Outline, parts: Parts) -> None:
    """The two vocabularies, and the attention of plain generate."""
    if "draft" in outline.configs:
        refuse_two_vocabularies(run, outline)
    if run.model.attention is not None:
        refuse_attention_that_is_not_there(run, outline)


def check_prompts(run: Run, task: DataTask, outline: Outline) -> None:
    """The chat template, its options, and the shots: by making the first prompt."""
    from jinja2 import TemplateError

    try:
        examples = list(islice(task.examples(), 1))
    except (ValueError, TypeError, LookupError) as error:
        raise ConfigError(f"task={run.task.name}: {first_line(error)}") from None
    for example in examples:
        if example.prompt.messages:
            refuse_a_missing_template(run, outline)
        try:
            outline.ids(example.prompt)
        except (TemplateError, ValueError, TypeError) as error:
            raise ConfigError(
                f"the chat template of {run.model.target} refuses the prompts of task={run.task.name} "
                f"({first_line(error)}): use task.chat=false"
            ) from None


def refuse_a_missing_template(run: Run, outline: Outline) -> None:
    """Turns need a template, and its options must be names that it reads."""
    template = outline.template
    if template is None:
        raise ConfigError(
            f"task={run.task.name} asks in turns, and the tokenizer of {run.model.target} has no chat template: "
            "use task.chat=false, or a model that was trained on turns"
        )
    unread = [name for name in run.model.chat_options if name not in _names_in(template)]
    if unread:
        raise ConfigError(
            f"model.chat_options.{unread[0]} is read by no line of the chat template of {run.model.target} "
            f"{nearest(unread[0], sorted(_names_in(template)))}"
        )


def refuse_two_vocabularies(run: Run, outline: Outline) -> None:
    """Token by token: an id must mean the same on both sides, and the draft must have every id that a text may hold."""
    from sdbench.lm.load import load_tokenizer
    from sdbench.lm.model import PADDING

    draft = outline.metadata.checkpoints["draft"]
    rows, target_rows = (int(outline.configs[role].vocab_size) for role in ("draft", "target"))
    target_tokens = _by_id(outline.tokenizer)
    special = set(outline.tokenizer.added_tokens_decoder)
    beyond = [index for index in target_tokens if index >= rows and index not in special]
    if beyond or abs(rows - target_rows) > PADDING:
        raise ConfigError(
            f"model.draft={run.model.draft} has {rows} ids and {run.model.target} {target_rows}, of which its tokenizer uses "
            f"{len(target_tokens)}: a pair needs one vocabulary, so give a draft of the same family"
        )
    if not any((draft.folder / name).is_file() for name in TOKENIZER_FILES):
        raise ConfigError(
            f"model.draft={run.model.draft} has no tokenizer, so nothing shows that its ids are those of {run.model.target}: "
            "if they are, copy the tokenizer's files of the target into a local folder of the draft"
        )
    draft_tokens = _by_id(load_tokenizer(draft))
    shared = [index for index in target_tokens if index in draft_tokens]
    differing = [index for index in shared if target_tokens[index] != draft_tokens[index]]
    missing = [index for index in target_tokens if index not in draft_tokens and index not in special]
    if differing or missing:
        first = (differing or missing)[0]
        raise ConfigError(
            f"model.target={run.model.target} and model.draft={run.model.draft} have different tokenizers: id {first} is "
            f"{target_tokens[first]!r} for one and {draft_tokens.get(first)!r} for the other, as are {len(differing + missing)} "
            f"of {len(target_tokens)} ids; give a draft of the same family"
        )


def refuse_attention_that_is_not_there(run: Run, outline: Outline) -> None:
    """The model's skeleton with this attention, without a weight."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    checkpoint = outline.metadata.checkpoints["target"]
    dtype: Any = getattr(torch, outline.numerics["target_dtype"].removeprefix("torch."))
    try:
        config = AutoConfig.from_pretrained(checkpoint.folder)
        with torch.device("meta"):
            AutoModelForCausalLM.from_config(config, attn_implementation=run.model.attention, dtype=dtype)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"model.attention={run.model.attention} cannot be had for {run.model.target}: {show(first_line(error))}; "
            "leave it out for transformers' default"
        ) from None


def _names_in(template: str) -> set[str]:
    """Variables that a template reads without setting them."""
    from jinja2 import Environment, TemplateError, meta

    try:
        return set(meta.find_undeclared_variables(Environment(extensions=["jinja2.ext.loopcontrols"]).parse(template)))
    except TemplateError:  # it uses an extension of transformers: its names are what its text holds
        return set(template.replace(".", " ").replace("(", " ").split())


def _by_id(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    return {index: token for token, index in tokenizer.get_vocab().items()}
