"""All trainings by name, with the parsing and the help of their options."""

import math
from collections.abc import Mapping
from typing import Any

from sdbench.config import ConfigError, nearest, show
from sdbench.train.drafter_recipes import BlockRecipe, Eagle3Recipe, EagleRecipe, MedusaRecipe, MTPRecipe
from sdbench.train.recipes import DraftRecipe, EnsembleRecipe, GateRecipe, JudgeRecipe, PrunedRecipe, TrainingRecipe

RECIPES: Mapping[str, type[TrainingRecipe]] = {
    "ensemble": EnsembleRecipe,
    "judge": JudgeRecipe,
    "gate": GateRecipe,
    "draft": DraftRecipe,
    "pruned": PrunedRecipe,
    "medusa": MedusaRecipe,
    "mtp": MTPRecipe,
    "eagle": EagleRecipe,
    "eagle3": Eagle3Recipe,
    "block": BlockRecipe,
}
OPTIONS = {name: f for recipe in RECIPES.values() for name, f in recipe.options().items()}


def parse_recipe(kind: str, texts: Mapping[str, str]) -> TrainingRecipe:
    """Return the recipe with these options; raise ConfigError for an unknown option or a wrong value."""
    values = {name: _parse_value(name, text) for name, text in texts.items() if name in OPTIONS}
    make = RECIPES[kind]
    for name in values:
        if name not in make.options():
            raise ConfigError(f"{name} is not an option of this training {nearest(name, sorted(make.options()))}")
    try:
        return make(**values)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def help_of(kind: str) -> str:
    """Return the help of a training."""
    make = RECIPES[kind]
    lines = [("out=FOLDER", "what is trained", f"results/{make.folder}")]
    if make.is_rewarded:
        lines.append(("reward=METRIC", "the score of a text", "the task's headline metric"))
    for name, f in make.options().items():
        default = f"[{','.join(f.default)}]" if isinstance(f.default, tuple) else show(f.default)
        lines.append((f"{name}=", f.metadata["help"], default))
    default = (
        "the temperature is 0"
        if make.is_greedy
        else "texts are sampled, at temperature 1 unless another, or an experiment, is given"
    )
    return "\n".join(
        (
            f"sdbench.train {kind}: {make.about}.\n",
            f"  python -m sdbench.train {kind} model=llama-tiny task=gsm8k-tiny [OPTION=VALUE ...]\n",
            *(f"  {name:15} {text:62} ({default})" for name, text, default in lines),
            f"\nAll other options are those of python -m sdbench; {default}.",
            f"Then: python -m sdbench model=... task=... {make.usage}\n",
        )
    )


def _parse_value(name: str, text: str) -> Any:
    """Convert a text to the type of the option's default: a string, a list of strings, or a number of at least the minimum."""
    default: Any = OPTIONS[name].default
    least = OPTIONS[name].metadata["least"]
    if isinstance(default, str):
        return text
    if isinstance(default, tuple):
        return tuple(word.strip() for word in text.strip("[]").split(",") if word.strip())
    try:
        number = type(default)(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{name} must be a {'whole ' * isinstance(default, int)}number, got {show(text)}")
    if number < least:
        raise ConfigError(f"{name} must be at least {least:g}, got {show(text)}")
    return number
