"""How a distilled draft was trained, from the file that its training writes beside the weights."""

import json
from pathlib import Path
from typing import Any

from sdbench.config import ConfigError

DRAFT_CARD = "distilled.json"
IN_RECORDS = ("model", "task", "temperature", "loss", "steps", "seed")
OF_SOME = ("keep_layers",)  # only for a draft that consists of the target's layers


def distillation_of(folder: Path) -> dict[str, Any] | None:
    """Return how the draft in a folder was distilled, and from which target; None for a draft that was not."""
    path = folder / DRAFT_CARD
    if not path.is_file():
        return None
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
        held = IN_RECORDS + tuple(name for name in OF_SOME if name in card)
        return {**{name: card[name] for name in held}, "target": card["checkpoints"]["target"]}
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged ({type(error).__name__}: {error}): distil the draft again") from None
