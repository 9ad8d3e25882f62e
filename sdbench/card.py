"""Folders of trained weights: `head.safetensors`, and the card `head.json`, which names the kind of weights and their training."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdbench.errors import first_line
from sdbench.files import digest_of_file, write_whole

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1
WEIGHTS, CARD = "head.safetensors", "head.json"


def write_trained(
    folder: Path, kind: str, weights: Mapping[str, "Tensor"], facts: Mapping[str, Any], card: Mapping[str, Any]
) -> None:
    """Write both files, the card last, so that a folder without it is incomplete. `facts` override entries of `card`."""
    from safetensors.torch import save

    folder.mkdir(parents=True, exist_ok=True)
    file = write_whole(folder / WEIGHTS, save({name: tensor.contiguous() for name, tensor in weights.items()}))
    facts = {"format": FORMAT, "kind": kind, **facts, "weights": digest_of_file(file)}
    write_whole(folder / CARD, json.dumps({**facts, **card, **facts}, indent=1) + "\n")


def is_complete(folder: Path) -> bool:
    """Return whether a folder has a card, and the weights that it names."""
    try:
        return json.loads((folder / CARD).read_text())["weights"] == digest_of_file(folder / WEIGHTS)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def read_trained(folder: Path, kind: str, taker: str) -> tuple[dict[str, Any], dict[str, "Tensor"]]:
    """Return the card and the weights of a folder of this kind; unchanged files give the same objects. `taker` is the name, in
    messages, of what reads them.

    FileNotFoundError for a missing file, ValueError for any other fault.
    """
    return _read(folder, kind, taker, digest_of_file(folder / CARD), digest_of_file(folder / WEIGHTS))


@cache
def _read(folder: Path, kind: str, taker: str, _card: str, digest: str) -> tuple[dict[str, Any], dict[str, "Tensor"]]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        card = json.loads((folder / CARD).read_text())
        weights = load_file(folder / WEIGHTS)
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"head={folder} is damaged: {first_line(error)}; train it again") from None
    if not isinstance(card, dict) or not isinstance(card.get("format", 0), int):
        raise ValueError(f"head={folder} is damaged: {CARD} is not a head's card; train it again")
    if card.get("format", 0) > FORMAT:
        raise ValueError(
            f"head={folder} has format {card['format']}, and this version reads up to {FORMAT}: update sdbench"
        )
    if card.get("weights") != digest:
        raise ValueError(f"head={folder}: {WEIGHTS} is not the one that {CARD} names; train it again")
    if card.get("kind") != kind:
        raise ValueError(f"head={folder} is of kind {card.get('kind')}, and {taker} takes one of kind {kind}")
    if any(not bool(tensor.isfinite().all()) for tensor in weights.values()):
        raise ValueError(f"head={folder} has weights that are not finite: its training diverged")
    return card, weights
