"""A check of the options of a chat template."""

from sdbench.config import ConfigError, Run, nearest


def refuse_unread_options(run: Run, template: str) -> None:
    """Raise for an option of the chat template that it does not read."""
    unread = [name for name in run.model.chat_options if name not in _names_in(template)]
    if unread:
        raise ConfigError(
            f"model.chat_options.{unread[0]} is not used by the chat template of {run.model.target} "
            f"{nearest(unread[0], sorted(_names_in(template)))}"
        )


def _names_in(template: str) -> set[str]:
    """Return the variables that a template reads without setting them."""
    from jinja2 import Environment, TemplateError, meta

    try:
        return set(meta.find_undeclared_variables(Environment(extensions=["jinja2.ext.loopcontrols"]).parse(template)))
    except TemplateError:  # the template uses an extension of transformers: search its text instead
        return set(template.replace(".", " ").replace("(", " ").split())
