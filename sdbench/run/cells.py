"""The points of a sweep: which rule judges what, by which model, and the cell its records go under."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sdbench.config import ConfigError, Run
from sdbench.records import Cell

if TYPE_CHECKING:
    from sdbench.run.pair import Pair
    from sdbench.tasks.base import DataTask
    from sdbench.types import Verifier

ENGINE_LAW = "1"  # raise it when the same knobs would give other texts


@dataclass(frozen=True)
class Point:
    """A cell and how it is made: `role` is who decodes ("pair", or "target" or "draft" alone: then num_draft is 0)."""

    cell: Cell
    role: str
    rule: Verifier
    num_draft: int


def imported(path: str) -> Any:
    """What a dotted path names."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def rule_of(target: str, setting: Mapping[str, Any]) -> Verifier:
    """A rule of a class named by its path; its own complaint is the user's."""
    try:
        return imported(target)(**setting)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"verifier {target} cannot be made: {str(error).splitlines()[0]}") from None


def points(run: Run, task: DataTask, pair: Pair) -> list[Point]:
    """The lossless rule and every setting at every draft length, the target alone, the draft alone."""
    from sdbench.verify import Exact

    made: dict[str, Point] = {}

    def add(verifier: str, role: str, rule: Verifier, k: int, setting: Mapping[str, Any]) -> None:
        cell = _cell(run, task, pair, verifier, role, rule, k, setting)
        made.setdefault(cell.key, Point(cell, role, rule, k))

    has_draft = pair.draft is not None or run.drafter.name != "model"
    for k in run.num_draft if has_draft else ():
        add("lossless", "pair", Exact(), k, {})
        for setting in run.verifier.settings if run.verifier.name != "exact" else ():
            add(run.verifier.name, "pair", rule_of(run.verifier.target, setting), k, setting)
    add("target", "target", Exact(), 0, {})
    if pair.draft is not None:
        add("draft", "draft", Exact(), 0, {})
    return list(made.values())


def _cell(
    run: Run, task: DataTask, pair: Pair, verifier: str, role: str, rule: Verifier, k: int, setting: Mapping[str, Any]
) -> Cell:
    roles = {"pair": ("target", "draft"), "target": ("target",), "draft": ("draft",)}[role]
    described = {key: value for key, value in task.describe().items() if key not in ("n", "seed")}
    greedy = str(setting.get("greedy", "")) if run.temperature == 0 else ""
    return Cell(
        model=run.model.name,
        task=run.task.name,
        verifier=verifier,
        num_draft=k,
        temperature=run.temperature,
        checkpoints={name: pair.checkpoints[name] for name in roles if name in pair.checkpoints},
        w=None if "w" not in setting else float(setting["w"]),
        knobs={name: value for name, value in setting.items() if name != "w"},
        protocol=task.protocol,
        law="/".join(filter(None, [type(rule).__name__.lower(), greedy, ENGINE_LAW])),
        metric=task.metric,
        is_lossless=role == "pair" and bool(rule.is_lossless().all()),
        content={
            "task": described,
            "rows": rows_hash(task),
            "drafter": {"name": run.drafter.name, **run.drafter.options} if role == "pair" else None,
            "max_new_tokens": task.max_new_tokens,
            "stop": list(task.stop),
            "top_k": run.top_k,
            "top_p": run.top_p,
            "seed": run.seed,
            **{name: value for name, value in pair.numerics.items() if name.partition("_")[0] in roles},
        },
    )


def rows_hash(task: DataTask) -> str:
    """Of every row of the split, so that a changed data file is another cell, and a larger n is not."""
    digest = hashlib.sha256()
    for key, row in task.rows.items():
        digest.update(json.dumps([key, row], sort_keys=True, default=str).encode())
    return digest.hexdigest()[:16]
