"""The points of a sweep: the rule that judges, the models and the drafter, and the cell in the records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import TYPE_CHECKING, Any

from sdbench.config import NATIVE, Knob, Run
from sdbench.files import digest_of_data
from sdbench.prepare.heads import contents, with_labels
from sdbench.prepare.rules import DrafterClass, Parts
from sdbench.prepare.versions import files_of, is_word, version_of, version_of_rule
from sdbench.records import Cell
from sdbench.types import Axis

if TYPE_CHECKING:
    from sdbench.prepare.pair_info import PairInfo
    from sdbench.tasks.base import DataTask
    from sdbench.types import Verifier

__all__ = ["ENGINE_LAW", "Point", "checkpoints_of", "decoding_of", "law_of", "points"]

ENGINE_LAW = "2"  # change it if the same knobs would give other texts, or if keys change; CHANGELOG.md gives the reason
TOP_P = {"top_p": "2"}  # of equal logits at the cut: version 2 keeps those with the highest ids, version 1 any of them
TEXTS = {"text": "2"}  # for tokenizers that drop a text's first blank: version 2 keeps it, version 1 did not
ROLES = {"pair": ("target", "draft"), "target": ("target",), "draft": ("draft",)}
WORDED, TOKENISED = 256, 8  # rows of the split whose prompts are hashed as text and as ids
NOT_OF_THE_KEY = ("n", "seed", "dataset_commit")  # these select rows; the rows are hashed instead


@dataclass(frozen=True)
class Point:
    """A cell and how it is decoded. `role`: "pair", or "target" or "draft" for one model alone, where num_draft is 0.
    `drafter`: the drafter of a pair.
    """

    cell: Cell
    role: str
    rule: Verifier
    num_draft: int
    drafter: DrafterClass | None = None

    @property
    def stream(self) -> tuple[str, str]:
        """A key that is equal for points that one batch can hold: those with the same models and the same drafter."""
        return self.role, "" if self.drafter is None else self.drafter.name


def points(run: Run, task: DataTask, pair_info: PairInfo, parts: Parts) -> list[Point]:
    """Return the points of every drafter and draft length, lossless first, then every setting of every rule; and at the end those
    of the target alone and the draft alone.

    A setting with the same texts as lossless, such as w = 1 of the ensemble, is a point whose cell names the lossless cell in
    `same_as`.
    """
    from sdbench.verify import Exact

    maker = _CellMaker(
        run, task, pair_info, parts, {**_task_content(task), "shown": _prompt_digests(task, pair_info, parts)}
    )
    by_key: dict[str, Point] = {}

    def add(
        name: str,
        decoder: DrafterClass | str,
        rule: Verifier,
        k: int = 0,
        setting: Mapping[str, Any] = {},
        knobs: tuple[Knob, ...] = (),
    ) -> Cell:
        role, drafter = (decoder, None) if isinstance(decoder, str) else ("pair", decoder)
        cell = maker.cell(name, role, drafter, rule, k, setting, knobs)
        if cell.is_lossless and getattr(rule, "repeats_lossless", False):
            cell = replace(cell, same_as=lossless.key)
        return by_key.setdefault(cell.key, Point(cell, role, rule, k, drafter)).cell

    for drafter, k in product(parts.drafters, run.num_draft):
        lossless = add("lossless", drafter, Exact(), k)
        for built in parts.sweeps:
            for rule, setting in zip(built.rules, built.sweep.settings, strict=True):
                if type(rule) is not Exact:  # the lossless rule is already added, under the name that every run uses
                    add(built.sweep.name, drafter, rule, k, setting, built.sweep.knobs)
    add("target", "target", Exact())
    if "draft" in pair_info.checkpoints and parts.has_one_vocabulary:  # otherwise the prompts are not ids of the draft
        add("draft", "draft", Exact())
    return list(by_key.values())


@dataclass(frozen=True)
class _CellMaker:
    """What all cells of a run share; `asked` is everything that decides the prompts."""

    run: Run
    task: DataTask
    pair_info: PairInfo
    parts: Parts
    asked: Mapping[str, Any]

    def cell(
        self,
        name: str,
        role: str,
        drafter: DrafterClass | None,
        rule: Verifier,
        k: int,
        setting: Mapping[str, Any],
        knobs: tuple[Knob, ...],
    ) -> Cell:
        run, task = self.run, self.task
        setting = with_labels(rule, setting)
        return Cell(
            model=run.model.name,
            task=run.task.name,
            verifier=name,
            num_draft=k,
            temperature=run.temperature,
            checkpoints=checkpoints_of(self.pair_info, role, drafter),
            w=None if "w" not in setting else float(setting["w"]),
            knobs={knob: value for knob, value in setting.items() if knob != "w"},
            protocol=task.protocol,
            law=law_of(rule),
            metric=task.metric,
            metrics=[metric.to_json() for metric in task.metrics],
            axes=[
                Axis(knob.name, setting[knob.name], knob.rank(setting[knob.name]), knob.equals).to_json()
                for knob in knobs
            ],
            is_lossless=role == "pair" and bool(rule.is_lossless().all()),
            content=self.content(role, drafter, rule, setting, knobs),
        )

    def content(
        self,
        role: str,
        drafter: DrafterClass | None,
        rule: Verifier,
        setting: Mapping[str, Any],
        knobs: tuple[Knob, ...],
    ) -> dict[str, Any]:
        """Return everything that decides a text or its score, besides the other fields of the cell."""
        options: dict[str, Any] = {"role": role, "drafter": drafter, "stops": self.task.stop}
        decoding = decoding_of(self.run, self.pair_info, rule, setting, knobs, **options)
        task = version_of(type(self.task), version=self.task.version)
        return {
            **self.asked,
            **decoding,
            "versions": {**decoding["versions"], "task": task, **(TEXTS if self.pair_info.drops_blank else {})},
            "files": {**decoding["files"], **_task_files(self.run, self.task)},
        }


def law_of(rule: Verifier) -> str:
    """Return the name of the rule's class, with the version of the engine."""
    return f"{type(rule).__name__.lower()}/{ENGINE_LAW}"


def checkpoints_of(pair_info: PairInfo, role: str, drafter: DrafterClass | None) -> dict[str, str]:
    """Return the weights on which texts depend, by role; the draft's only if the drafter reads them."""
    has_draft = role == "draft" or (drafter is not None and drafter.needs_draft)
    roles = [name for name in ROLES[role] if name == "target" or has_draft]
    return {name: pair_info.checkpoints[name] for name in roles if name in pair_info.checkpoints}


def decoding_of(
    run: Run,
    pair_info: PairInfo,
    rule: Verifier,
    setting: Mapping[str, Any],
    knobs: tuple[Knob, ...],
    *,
    role: str = "pair",
    drafter: DrafterClass | None = None,
    stops: Sequence[str] = (),
) -> dict[str, Any]:
    """Return what decides a text besides the prompt, the weights and the knobs."""
    reads = checkpoints_of(pair_info, role, drafter)
    words = {knob.name for knob in knobs if knob.choices or (knob.is_text and is_word(setting[knob.name]))}
    files = files_of({key: value for key, value in setting.items() if key not in words}, prefix="verifier")
    drafter_files = {} if drafter is None else drafter.files
    return {
        "drafter": None if drafter is None else _drafter_content(drafter, drafter_files),
        **({"heads": heads} if (heads := contents(rule)) else {}),
        **({"distilled": card} if "draft" in reads and (card := pair_info.distilled) else {}),
        **({"draft_tokenizer": _draft_tokenizer_key(pair_info)} if drafter and drafter.translates else {}),
        "stop_ids": sorted(pair_info.ends("draft" if role == "draft" else "target", stops)),
        "top_k": run.top_k,
        "top_p": run.top_p,
        "seed": run.seed,
        "versions": {
            "verifier": version_of_rule(rule),
            "drafter": None if drafter is None else _drafter_version(drafter),
            **(TOP_P if run.top_p not in (None, 1) and run.engine.name == NATIVE.name else {}),
        },
        "files": {**files, **drafter_files},
        **{name: value for name, value in pair_info.numerics.items() if name.partition("_")[0] in reads},
    }


def _draft_tokenizer_key(pair_info: PairInfo) -> str:
    from sdbench.lm.load import tokenizer_key

    return tokenizer_key(pair_info.draft_tokenizer)  # type: ignore[arg-type] - a drafter that translates has a draft


def _drafter_content(drafter: DrafterClass, files: Mapping[str, str]) -> dict[str, Any]:
    """Return the name and the options of a drafter, with a hash of a trained head or gate in place of its path."""
    heads = {name: files[f"drafter.{name}"][:8] for name in ("head", "length_head") if f"drafter.{name}" in files}
    return {"name": drafter.name, **drafter.component.options, **heads}


def _drafter_version(drafter: DrafterClass) -> str | None:
    """Return the version of a drafter's class, and of its length policy unless that is constant."""
    from sdbench.draft.policies import POLICIES

    version, length = version_of(drafter.kind), drafter.component.options.get("length")
    return version if length is None else f"{version} length:{POLICIES[length].version}"


def _task_content(task: DataTask) -> dict[str, Any]:
    """Return a task's description, its rows, and where an answer ends."""
    from sdbench.tasks.data import rows_hash

    described = {key: value for key, value in task.describe().items() if key not in NOT_OF_THE_KEY}
    # Keys keep this older form, though records now say more; the rows used as shots are hashed with the wording.
    described["shots_from"] = "fixed" if task.rules.fixed_shots else task.rules.shots
    return {
        "task": described,
        "rows": rows_hash(task.rows),
        "max_new_tokens": task.max_new_tokens,
        "stop": list(task.stop),
    }


def _prompt_digests(task: DataTask, pair_info: PairInfo, parts: Parts) -> dict[str, Any]:
    """Hash how rows become the ids that a model reads. The hashes do not depend on n, so all cells of a task's split share them.

    They cover the wording of the first rows with their shots, the tokenizer, and the ids of the first prompts, which depend on
    the chat template, its options and the library that applies them. Not covered here: later rows, which are in the hash of all
    rows, and the task's code, which has a version.
    """
    prompts = [task.prompt_of(key) for key in islice(task.rows, WORDED)]
    words = [
        (prompt.text, [(turn.role, turn.content) for turn in prompt.messages], prompt.prefix) for prompt in prompts
    ]
    has_turns = any(prompt.messages for prompt in prompts)
    return {
        "wording": digest_of_data(words),
        "tokenizer": pair_info.tokenizer_key,
        "template": digest_of_data(pair_info.template) if has_turns else None,
        "chat_options": dict(pair_info.metadata.model.chat_options) if has_turns else {},
        "limit": pair_info.limit(parts),
        "ids": digest_of_data([pair_info.ids(prompt) for prompt in prompts[:TOKENISED]]),
    }


def _task_files(run: Run, task: DataTask) -> dict[str, str]:
    """Hash files and folders in options that only this task has. Files in the options of all tasks are hashed as rows and, in
    most cases, with the wording.
    """
    from sdbench.tasks.base import DataTask

    known = (*DataTask.__dataclass_fields__, *task.WORDS)
    free_options = {name: value for name, value in run.task.free.items() if name not in known}
    options = {**free_options, "extra_metrics": task.extra_metrics}
    # Prompts that are not hashed with the wording may show other rows of this file.
    if task.pad_to is not None or (task.draws_shots and len(task.rows) > WORDED):
        options["shots_data"] = None if task.shots_data is None else str(task.shots_data)
    return files_of(options, prefix="task")
