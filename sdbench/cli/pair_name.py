"""The name of a pair whose models are named on the command line."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from omegaconf import DictConfig

SPLIT = re.compile(r"[:/\\]+")


def name_the_pair(model: Any, keys: Collection[str]) -> None:
    """A pair that is named on the command line gets a name of its own, and so does one whose draft was distilled."""
    if not isinstance(model, DictConfig):
        return
    if {"model.target", "model.draft"} & set(keys) and "model.name" not in keys:
        ids = [str(model.get(key)) for key in ("target", "draft") if model.get(key)]
        model.name = "+".join(map(slug, ids)) or "model"
    if model.get("distilled"):
        model.name = f"{model.get('name')}+{model.get('distilled')}"


def slug(model_id: str) -> str:
    """A folder name for a hub id or a path: its last part, or the last two where that says only target or draft."""
    parts = [part for part in SPLIT.split(model_id) if part not in ("", ".", "..")]
    kept = parts[-2:] if parts and parts[-1] in ("target", "draft", "model", "checkpoint") else parts[-1:]
    return re.sub(r"[^\w.+=-]", "_", "-".join(kept).removesuffix(".gguf"))[:90].lstrip(".") or "model"
