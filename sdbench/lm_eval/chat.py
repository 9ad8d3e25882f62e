"""Conversations of lm-evaluation-harness as text, by a tokenizer's chat template."""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from sdbench.config import ConfigError, nearest, show
from sdbench.errors import first_line
from sdbench.prepare.progress import warn


def template_name_of(tokenizer: Any, given: bool | str, target: str) -> str | None:
    """Return the name of the template that --apply_chat_template chooses; None for the only one, or the default of several."""
    owner, templates = f"the tokenizer of {target}", tokenizer.chat_template
    if templates is None:
        raise ConfigError(f"--apply_chat_template needs a chat template, and {owner} has none: remove the option")
    names = list(templates) if isinstance(templates, dict) else []
    if isinstance(given, str) and given not in names:
        raise ConfigError(f"{owner} has no chat template {show(given)} {nearest(given, names)}")
    if names and not isinstance(given, str) and "default" not in names:
        raise ConfigError(
            f"{owner} has several chat templates and no default: name one of them ({', '.join(names)}), as "
            f"--apply_chat_template {names[0]}"
        )
    return given if isinstance(given, str) else None


def text_of(tokenizer: Any, turns: Sequence[Mapping[str, str]], options: Mapping[str, Any], target: str) -> str:
    """Return the text of a conversation. System turns that the template refuses are left out, as by the harness's `hf`."""
    try:
        return str(tokenizer.apply_chat_template(turns, tokenize=False, **options))
    except ValueError as error:
        # From transformers: there are no turns, or the template changes the answer that is to be continued.
        problem = "cannot end with the beginning of an answer" if options["continue_final_message"] else "has no text"
        raise ConfigError(
            f"the chat template of {target} {problem} ({first_line(error)}): remove --apply_chat_template"
        ) from None
    except TemplateError as error:
        without = [turn for turn in turns if turn["role"] != "system"]
        if len(without) == len(turns):
            raise ConfigError(
                f"the chat template of {target} refuses a prompt ({first_line(error)}): remove --apply_chat_template"
            ) from None
        warn(f"the chat template of {target} takes no system turn ({first_line(error)}): it is left out")
        return text_of(tokenizer, without, options, target)
