"""The cells in the tables and figures of DIVERSED (arXiv:2604.07622): which of them the records hold, and which are missing.

The paper's learned head is the rule `diversed` at offset 0. Its finetuned draft is the lossless rule with a distilled copy of the
pair's draft, and is in the row of that pair. A tiny task (gsm8k-tiny for gsm8k) uses the same column, in the row of its own pair.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sdbench.config import config_dir
from sdbench.metrics.columns import WEIGHT

HERE = Path(__file__).parent
TINY = "-tiny"
LEARNED, FINETUNED = "diversed", "finetuned"  # the first is also the name of the rule
PLAIN_DRAFTERS = (None, "model", {"name": "model"})  # the pair's draft with a constant draft length
WS = (0.9, 0.7, 0.5, 0.3)  # the w of the sweep that a table shows
TEXTS = tomllib.loads((HERE / "templates" / "texts.toml").read_text(encoding="utf-8"))
METRICS: Mapping[str, str] = TEXTS["metrics"]
TITLES: Mapping[str, tuple[str, str]] = {task: tuple(words) for task, words in TEXTS["tasks"].items()}


@dataclass(frozen=True, slots=True)
class Exhibit:
    """A table or figure; configs/experiment/`experiment`.yaml creates its records."""

    name: str
    title: str
    experiment: str
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    temperature: float
    num_drafts: tuple[int, ...] = (5,)
    heads: tuple[str | None, ...] = ()  # the tasks that learned heads were trained on; None: each column's own
    is_finetuned: bool = False  # whether the paper shows a finetuned draft


class ExhibitRow(NamedTuple):
    """A setting that a table or figure shows; a model alone has a draft length of 0."""

    rule: str
    w: float | None
    num_draft: int
    trained: str | None = None  # the task of its training, if any; None: the column's own task

    @property
    def name(self) -> str:
        """The row's name in a list of what is missing."""
        length = f"K={self.num_draft}" if self.num_draft else ""
        trained = "" if self.trained is None else f"trained on {self.trained}"
        return " ".join(filter(None, [self.rule, "" if self.w is None else f"w={self.w:g}", length, trained]))


PAIRS, TABLE_TASKS = ("llama", "qwen"), ("gsm8k", "xsum", "mbpp")
TRANSFER = ("gsm8k", "cnndm")
TABLES = (
    Exhibit("table1", "Table 1", "diversed-table1", PAIRS, TABLE_TASKS, 1.0, heads=(None,), is_finetuned=True),
    Exhibit("table2", "Table 2", "diversed-table2", PAIRS, TABLE_TASKS, 0.1, heads=(None,), is_finetuned=True),
    Exhibit("table3", "Table 3", "diversed-table3", PAIRS, TRANSFER, 0.1, heads=TRANSFER),
)
LENGTHS = Exhibit("draft_length", "Draft length", "diversed-draft-length", PAIRS, TABLE_TASKS, 1.0, (3, 5, 7))
SEED = Exhibit("seed", "CNN/DM at T = 0 over w", "seed", ("llama",), ("cnndm",), 0.0)
ALL = (*TABLES, LENGTHS, SEED)
LABELS = ("model", "task", "base", "protocol", "verifier", WEIGHT, "trained", "num_draft", "temperature")


class Missing(NamedTuple):
    """A pair and task that lacks settings, and the command that runs them."""

    exhibit: str
    model: str
    task: str
    settings: tuple[str, ...]
    command: str


def base_of(task: str) -> str:
    """Return gsm8k for gsm8k and gsm8k-tiny."""
    return task.removesuffix(TINY)


def is_plain(cell: pd.Series) -> bool:
    """Return whether a cell's rule is in the paper's tables: a baseline, or an ensemble in the paper's form."""
    if cell["verifier"] not in ("ensemble", LEARNED):
        return cell["verifier"] in ("target", "draft", "lossless")
    wanted = {"knob_mix": "prob", "knob_greedy": "blend", "knob_offset": 0}
    return all(pd.isna(cell.get(knob)) or cell[knob] == value for knob, value in wanted.items())


def distillation_of(cell: pd.Series) -> Mapping[str, Any] | None:
    """Return how a cell's draft was distilled and for which pair; None if it was not distilled, or for another target."""
    metadata = (cell["content"] or {}).get("distilled")
    target = cell["checkpoint_target"] if cell["verifier"] != "draft" else None  # the draft alone has none
    return metadata if metadata and target in (None, metadata["target"]) else None


def labels_of(cell: pd.Series) -> dict[str, Any] | None:
    """Return a cell's labels in the paper's tables, None for what they do not show. `trained`: the task of a head or a draft."""
    distilled, drafter = distillation_of(cell), (cell["content"] or {}).get("drafter")
    if (
        not is_plain(cell)
        or drafter not in PLAIN_DRAFTERS
        or (distilled is not None and cell["verifier"] != "lossless")
    ):
        return None
    labels = {name: cell[name] for name in LABELS if name not in ("base", "trained")}
    training = (cell["content"] or {}).get("heads", {}).get("head", {})
    if distilled is not None:
        labels |= {"model": distilled["model"], "verifier": FINETUNED}
        training = distilled
    labels |= {"base": base_of(str(cell["task"])), "trained": base_of(str(training.get("task", "")))}
    return labels | {"trained_at": training.get("temperature"), "loss": "" if distilled is None else distilled["loss"]}


def only_distilled(cells: pd.DataFrame) -> set[str]:
    """Return the names under which a folder holds a pair with a distilled draft only; its other cells are the pair's own."""
    drafting = cells[cells["verifier"] != "target"]
    is_distilled = np.array([distillation_of(cell) is not None for _, cell in drafting.iterrows()], dtype=bool)
    return set(drafting.loc[is_distilled, "model"]) - set(drafting.loc[~is_distilled, "model"])


def pairs_of(exhibit: Exhibit, cells: pd.DataFrame) -> list[str]:
    """Return the pairs that were measured on one of the exhibit's tasks, then those of the paper that were not."""
    measured = sorted(set(cells.loc[cells["base"].isin(exhibit.tasks), "model"]))
    return [*measured, *(model for model in exhibit.models if model not in measured)]


def rows_of(exhibit: Exhibit) -> Iterator[ExhibitRow]:
    """Yield every setting that a table or figure shows."""
    yield from (ExhibitRow("target", None, 0), ExhibitRow("draft", None, 0))
    for num_draft in exhibit.num_drafts:
        yield ExhibitRow("lossless", None, num_draft)
        if exhibit.is_finetuned:
            yield ExhibitRow(FINETUNED, None, num_draft)
        yield from (ExhibitRow("ensemble", w, num_draft) for w in WS)
        yield from (ExhibitRow(LEARNED, None, num_draft, task) for task in exhibit.heads)


def find(cells: pd.DataFrame, exhibit: Exhibit, model: str, task: str, row: ExhibitRow) -> pd.Series | None:
    """Return the measured cell of a setting, if there is one."""
    trained = (row.trained or task) if row.rule in (LEARNED, FINETUNED) else ""
    wanted = {"model": model, "base": task, "temperature": exhibit.temperature, "verifier": row.rule}
    wanted |= {"num_draft": row.num_draft, "trained": trained}
    same = np.logical_and.reduce([cells[name].to_numpy() == value for name, value in wanted.items()])
    ws = cells[WEIGHT].to_numpy(dtype=np.float64)
    matches = np.flatnonzero(same & (np.isnan(ws) if row.w is None else np.isclose(ws, row.w)))
    return cells.iloc[matches[0]] if len(matches) else None


def missing(exhibit: Exhibit, cells: pd.DataFrame, configs: Mapping[str, Mapping[str, Any]]) -> list[Missing]:
    """Return what was not measured of every pair and task; `configs` {pair: its configuration} names unknown pairs."""
    gaps = []
    for model in pairs_of(exhibit, cells):
        for task in exhibit.tasks:
            lacking: dict[str, list[str]] = {}
            for row in rows_of(exhibit):
                if find(cells, exhibit, model, task, row) is None:
                    lacking.setdefault(method_of(exhibit, row), []).append(row.name)
            name = task_of(cells, model, task)
            for method, rows in lacking.items():
                command = command_of(exhibit, model, name, configs.get(model, {}), method)
                gaps.append(Missing(exhibit.name, model, name, tuple(rows), command))
    return gaps


def method_of(exhibit: Exhibit, row: ExhibitRow) -> str:
    """Return the name of the file in configs/method that measures a row."""
    head = "learned" if exhibit.heads == (None,) else "transfer"
    return {LEARNED: head, FINETUNED: "finetuned"}.get(row.rule, "static")


def task_of(cells: pd.DataFrame, model: str, task: str) -> str:
    """Return the task that this pair runs: for a tiny pair the tiny version."""
    tasks = cells.loc[cells["model"] == model, "task"]
    return task + TINY if len(tasks) and tasks.str.endswith(TINY).all() else task


def command_of(exhibit: Exhibit, model: str, task: str, config: Mapping[str, Any], method: str = "") -> str:
    """Return the command that measures a pair and task (or several, joined by commas), completely or for one method. It does not
    repeat existing records.
    """
    program = ["python", "-m", "sdbench", *(["-m"] if "," in task else [])]
    chosen = [f"method={method}"] if method else []
    if model in exhibit.models:
        words = [f"experiment={exhibit.experiment}", f"model={model}", f"task={task}", *chosen]
        return shlex.join([*program, *words])
    words = [f"model={model}"]
    if not (config_dir() / "model" / f"{model}.yaml").exists():
        roles = config.get("model") or {}
        words = [f"model.{role}={roles[role]}" for role in ("target", "draft") if roles.get(role)] or words
    lengths = ",".join(map(str, exhibit.num_drafts))
    lengths = f"[{lengths}]" if len(exhibit.num_drafts) > 1 else lengths
    words += [f"task={task}", f"temperature={exhibit.temperature:g}", f"num_draft={lengths}", "timing=off", *chosen]
    if method == "transfer" and task.endswith(TINY):
        words.append(f"verifier.head=[{','.join(f'trained:{head}{TINY}' for head in exhibit.heads)}]")
    return shlex.join([*program, *words])
