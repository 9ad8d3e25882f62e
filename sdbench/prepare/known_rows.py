"""The rows of a file (task.data=) that a training read. Its card holds a hash of each; a run on one of them prints a warning."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdbench.prepare.distilled import DRAFT_CARD
from sdbench.prepare.heads import drafter_cards, heads_of
from sdbench.prepare.progress import warn

if TYPE_CHECKING:
    from sdbench.prepare.pair_info import PairInfo
    from sdbench.prepare.rules import Parts
    from sdbench.tasks.base import DataTask

DATA, ROWS = "data", "rows_read"


def rows_read(task: DataTask) -> dict[str, str]:
    """Return the name of the task's file and the hashes of its selected rows, for a card; {} without a file."""
    return {} if task.data is None else {DATA: Path(task.data).name, ROWS: " ".join(_hashes_of(task))}


def warn_of_known_rows(pair_info: PairInfo, parts: Parts, task: DataTask) -> None:
    """Warn of a head, a gate or a draft whose training read rows of this run."""
    for name, card in _cards(pair_info, parts):
        if ROWS in card:
            hashes, known = _hashes_of(task), set(card[ROWS].split())
            count = sum(row in known for row in hashes)
            if count:
                warn(
                    f"{name} was trained on rows of {card[DATA]}, and {count} of the {len(hashes)} rows of this run are among "
                    "them: its results on new rows may be worse"
                )


def _hashes_of(task: DataTask) -> list[str]:
    from sdbench.tasks.data import row_hash

    return [row_hash(task.rows[key]) for key in task.ids]


def _cards(pair_info: PairInfo, parts: Parts) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name and the card of everything in the run that was trained."""
    for built in parts.sweeps:
        for rule in built.rules:
            for option, head in heads_of(rule).items():
                yield f"the {option} of verifier={built.sweep.name}", head.card
    for option, drafter, card in drafter_cards(parts):
        yield f"the {option} of drafter={drafter.name}", card
    draft = pair_info.metadata.checkpoints.get("draft")
    if draft is not None and pair_info.distilled is not None:
        yield "the draft", json.loads((draft.folder / DRAFT_CARD).read_text(encoding="utf-8"))
